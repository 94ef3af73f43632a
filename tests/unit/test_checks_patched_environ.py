"""
The environment variables that a check sets, and whether an answer reads them when its cell runs.
"""

import linecache
import os

from ddp_lessons.checks.kit.on_rank.patched_environ import redefine, told


def test_environment_is_told_for_a_while_and_put_back_with_all_that_was_changed(monkeypatch):
    """
    The environment is set for a block, and then restored with all that the answer has changed, so
    that the next answer does not see it.
    """
    monkeypatch.setenv("MADE_UP_KEPT", "old")
    monkeypatch.delenv("MADE_UP_NEW", raising=False)
    before = dict(os.environ)
    with told({"MADE_UP_KEPT": "told", "MADE_UP_NEW": "told"}) as changed:
        assert (os.environ["MADE_UP_KEPT"], os.environ["MADE_UP_NEW"]) == ("told", "told")
        assert changed() == []
        os.environ["MADE_UP_OTHER"] = "left"
        del os.environ["MADE_UP_KEPT"]
        assert changed() == ["MADE_UP_KEPT", "MADE_UP_OTHER"]
    assert dict(os.environ) == before


def _defined(source, file="a made-up cell"):
    names: dict = {"__name__": "__main__"}
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), names)
    return names["answer"]


def test_cell_that_defines_an_answer_is_run_anew(monkeypatch):
    """
    The cell that defines an answer is run again, so that values that it reads at that time are
    seen. An error later in the cell does not matter.
    """
    monkeypatch.setenv("MADE_UP_WORD", "then")
    source = "import os\nWORD = os.environ['MADE_UP_WORD']\ndef answer():\n    return WORD\n"
    answer = _defined(source + "assert answer() == 'then'\n")
    with told({"MADE_UP_WORD": "now"}):
        assert (answer(), redefine(answer, "answer")()) == ("then", "now")
    assert answer() == "then"


def test_answer_without_a_source_is_taken_as_it_is():
    """
    An answer without a source, such as a class or a function of a module, is used as it is.
    """
    assert redefine(len, "answer") is len
    answer = _defined("def answer():\n    return 1\n")
    linecache.cache.clear()
    assert redefine(answer, "answer")() == 1
