"""
Each check says which of its functions run on ranks, and which in the kernel.
"""

import check_halves
import pytest


@pytest.mark.parametrize(
    "path", check_halves.modules_of_tasks(), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_a_check_says_where_its_functions_run(path):
    """
    Code on a rank has torch's group and the learner's variables; code in the kernel has neither.
    """
    assert path.read_text() == check_halves.with_sentence(path), (
        "run: python tests/support/check_halves.py --write"
    )


def test_the_sentence_follows_calls(tmp_path):
    """
    A helper of `_act` runs on ranks, too, and one that cases share with it runs in both.
    """
    module = tmp_path / "task.py"
    module.write_text(
        '"""\nTask 99.1.\n"""\n'
        "def _cases(draw):\n    return _shared()\n"
        "def _shared():\n    return 1\n"
        "def _helper():\n    return 2\n"
        "def _act(context, f):\n    return _shared() + _helper()\n"
        "def _draw(result):\n    return 3\n"
        "f = Task(cases=_cases, act=_act, draw=_draw)\n"
    )
    assert check_halves.sentence_of(module) == (
        "On each rank: `_helper`, `_act`; in both: `_shared`. In the kernel: the rest."
    )
    assert check_halves.with_sentence(module).startswith('"""\nTask 99.1.\n\nOn each rank: ')
