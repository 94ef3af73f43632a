"""
The text and the line of a rank's error, which are the same on every run.
"""

import pytest

from ddp_lessons.ranks.rank.tracebacks import line_of_error, text_of_error

CELL_FILE = "/tmp/ipykernel_1/cell.py"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("bad shard", "bad shard"),
        ("first\nsecond", "first"),
        ("<object at 0x7f00beef> is odd", "<object> is odd"),
        (
            "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] "
            "Connection closed by peer [127.0.0.1]:39241",
            "Connection closed by peer",
        ),
        ("no [0, 1] here", "no [0, 1] here"),
    ],
)
def test_text_of_error_is_the_same_on_every_run(text, told):
    """
    An error's text contains no address, port or build path, because nbval compares it.
    """
    assert text_of_error(RuntimeError(text)) == told


def test_line_of_error_is_the_learners_own():
    """
    The line is that of the cell, although the deepest frame of an error may be in torch.
    """
    source = "def f(x):\n    return int(x)\n\nf('a')\n"
    with pytest.raises(ValueError, match="invalid literal") as caught:
        exec(compile(source, CELL_FILE, "exec"), {})
    assert line_of_error(caught.value, CELL_FILE) == 2
    assert line_of_error(caught.value, "another") is None


def test_line_of_error_of_a_cell_that_does_not_parse():
    """
    A syntax error has no frame, so its line comes from the parser.
    """
    with pytest.raises(SyntaxError) as caught:
        compile("x = 1\ny = (\n", CELL_FILE, "exec")
    caught.value.__traceback__ = None
    assert line_of_error(caught.value, CELL_FILE) == 2
    assert text_of_error(caught.value) == "'(' was never closed"
