"""
What a cell prints is bounded on each rank: a loop that prints for ever must not fill the kernel.
"""

import pytest
from kernels import running_kernel

from ddp_lessons.ranks.rank.printing import MOST_CHARACTERS, PrintBound


class Stream:
    """
    A stream that keeps what is written.
    """

    def __init__(self):
        self.text = ""

    def write(self, text):
        """
        Write as a text stream does.
        """
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self.text += text
        return len(text)


def test_what_fits_is_let_through_and_nothing_is_said():
    """
    Nearly every cell.
    """
    out, err = Stream(), Stream()
    bound = PrintBound([out, err], most=10)
    for _ in range(3):  # each cell anew
        bound.begin()
        assert out.write("12345") == 5
        assert err.write("67890") == 5
        bound.end()
    assert (out.text, err.text) == ("12345" * 3, "67890" * 3)


def test_what_is_over_is_left_out_and_counted():
    """
    Both streams go into one notebook.
    """
    out, err = Stream(), Stream()
    bound = PrintBound([out, err], most=10)
    bound.begin()
    assert err.write("123") == 3
    assert out.write("4567890abc") == 10  # whoever prints must not see it
    assert err.write("d") == 1
    bound.end()
    assert err.text == "123"
    assert out.text.startswith("4567890\n... 4 more characters of this rank's are left out")
    assert "a cell may print 10." in out.text
    with pytest.raises(TypeError, match="must be str, not bytes"):
        out.write(b"x")


@pytest.mark.ranks
@pytest.mark.timeout(180)
def test_ranks_that_print_a_lot_leave_the_kernel_as_it_was():
    """
    40 MB from each of two ranks arrive as one each, and the next cell prints all that it has.
    """
    with running_kernel() as kernel:
        start = "from ddp_lessons.ranks import start_ranks\nranks = start_ranks(2, device='cpu')"
        assert kernel.run(start).status == "ok"
        shown = kernel.run("%%px\nfor number in range(40):\n    print('x' * 10**6)").text
        assert len(shown) < 2 * MOST_CHARACTERS + 1000
        left_out = 40 * (10**6 + 1) - MOST_CHARACTERS
        assert shown.count(f"... {left_out:,} more characters") == 2
        assert kernel.run("%px print('here')").text == "[0] here\n[1] here\n"
