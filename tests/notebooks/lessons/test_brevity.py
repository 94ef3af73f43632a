"""
What the notebook's kernel and a rank's helpers do once for all: a cell means the same as before.
"""

from types import SimpleNamespace

import pytest
from IPython.core.inputtransformer2 import TransformerManager
from kernels import running_kernel

from ddp_lessons.ranks.rank.brevity import _once, _take_over, transformed


def _engine():
    manager = TransformerManager()
    kernel = SimpleNamespace(init_metadata=lambda parent: {"seen": parent["metadata"]})
    _take_over(kernel, manager)
    return kernel, manager


def _request(code, metadata):
    return {"content": {"code": code}, "metadata": metadata}


def test_a_rank_takes_what_the_kernel_has_transformed():
    """
    Tokens are read once, and not once a rank. What belongs to another cell is not taken.
    """
    kernel, manager = _engine()
    assert kernel.init_metadata(_request("!ls", transformed("!ls")))["seen"]
    manager.do_token_transforms = None  # nobody may ask for it
    assert manager.transform_cell("!ls") == "get_ipython().system('ls')\n"
    with pytest.raises(TypeError):
        manager.transform_cell("!pwd")


def test_a_rank_transforms_what_nobody_has():
    """
    Views of ipyparallel's send cells as they are; what was sent before them is over.
    """
    kernel, manager = _engine()
    kernel.init_metadata(_request("!ls", transformed("!ls")))
    kernel.init_metadata(_request("!ls", {}))
    manager.do_token_transforms = None
    with pytest.raises(TypeError):
        manager.transform_cell("!ls")


def test_transformers_of_a_rank_of_its_own_are_kept():
    """
    A cell may give a rank another syntax, which the kernel does not know.
    """
    kernel, manager = _engine()
    manager.line_transforms.append(lambda lines: [line.upper() for line in lines])
    kernel.init_metadata(_request("x = 1", transformed("x = 1")))
    assert manager.transform_cell("x = 1") == "X = 1\n"


def test_a_cell_that_cannot_be_transformed_goes_as_it_is(monkeypatch):
    """
    Its fault is the ranks' to tell, with their number and the line.
    """

    def fail(self, cell):
        raise SyntaxError(cell)

    monkeypatch.setattr(TransformerManager, "transform_cell", fail)
    assert transformed("x") == {}


def test_what_was_asked_is_not_asked_again():
    """
    Another method, or another name, is another question.
    """
    asked = []

    class Shell:
        def run(self):
            """Nothing."""

        def stop(self):
            """Nothing."""

    def ask(method, names):
        asked.append((method, names))
        return dict.fromkeys(names, len(asked))

    once = _once(ask)
    assert once(Shell().run, ["a"]) == once(Shell().run, ["a"]) == {"a": 1}
    assert once(Shell().stop, ["a"]) == {"a": 2}
    assert once(Shell().run, ["a", "b"]) == {"a": 3, "b": 3}


def test_magics_mean_on_ranks_what_they_mean_in_a_notebook():
    """
    By a shell, by assignment, by a cell magic, and by a syntax of the rank's own.
    """
    with running_kernel() as kernel:
        start = "from ddp_lessons.ranks import start_ranks\nranks = start_ranks(2, device='cpu')"
        assert kernel.run(start).status == "ok"
        shown = kernel.run("%%px\nx = !echo here\nprint(x[0])\n%env SAID=there\n!echo $SAID").text
        assert shown.count(" here\n") == shown.count(" there\n") == 2
        assert shown.count("env: SAID=there") == 2
        assert kernel.run("%%px\n%%writefile -a /dev/null\nx").text.count("/dev/null") == 2
        own = """%%px
def louder(lines):
    return [line.replace("whisper", "print") for line in lines]
get_ipython().input_transformers_cleanup.append(louder)"""
        assert kernel.run(own).status == "ok"
        assert kernel.run("%px whisper('here')").text == "[0] here\n[1] here\n"
        failed = kernel.run("%px x = = 1")
        assert "SyntaxError" in failed.evalue
        assert "ranks 0 and 1 raised" in failed.evalue
