"""
Tests that the output of ranks is shown in rank order, in whichever order its messages arrive.
"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_lessons.ranks.kernel.output import OrderedDisplay, RankOutput


def stream(text, name="stdout"):
    """
    Return the message that a rank sends for printed text.
    """
    return {"header": {"msg_type": "stream"}, "content": {"name": name, "text": text}}


def shown_object(data, kind="display_data", **content):
    """
    Return the message that a rank sends for a displayed object.
    """
    return {"header": {"msg_type": kind}, "content": {"data": data, **content}}


class Screen:
    """
    The output of some ranks, whose messages a test delivers itself.
    """

    def __init__(self, num_ranks):
        self.outputs = {rank: RankOutput() for rank in reversed(range(num_ranks))}
        self.display = OrderedDisplay(self.outputs)

    def take(self, rank, *messages):
        """
        Deliver messages of a rank.
        """
        for message in messages:
            self.outputs[rank].on_message(message)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_output_is_in_rank_order(order, capsys):
    """
    Output is shown in rank order in whichever order ranks finish, because nbval compares printed
    text and the order of finishing differs from run to run.
    """
    screen = Screen(3)
    finished = set()
    for rank in order:
        screen.take(rank, stream(f"hello from {rank}\n"))
        finished.add(rank)
        screen.display.update(finished)
    assert capsys.readouterr().out == "[0] hello from 0\n[1] hello from 1\n[2] hello from 2\n"


@given(st.data())
def test_output_does_not_depend_on_how_it_is_cut(data):
    """
    The shown lines do not depend on how a rank's text is cut into messages, nor on the order of the
    messages or the times of updates.
    """
    texts = ["a\nbb\n\nccc", "one\r50%\r100%\ntwo\n"]
    pieces = []
    for rank, text in enumerate(texts):
        cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1))))
        ends = [0, *cuts, len(text)]
        pieces.append([(rank, text[a:b]) for a, b in itertools.pairwise(ends)])
    lines = []
    screen = Screen(2)
    screen.display._write = lambda rank, name, new: lines.extend((rank, each) for each in new)
    while any(pieces):
        rank, piece = data.draw(st.sampled_from([each for each in pieces if each])).pop(0)
        screen.take(rank, stream(piece))
        if data.draw(st.booleans()):
            screen.display.update({r for r in (0, 1) if not pieces[r]})
    screen.display.update({0, 1})
    assert lines == [(0, "a"), (0, "bb"), (0, ""), (0, "ccc"), (1, "one\r50%\r100%"), (1, "two")]


def test_output_shows_the_lowest_running_rank_live(capsys):
    """
    Output of a long cell appears while it runs: rank 0's at once, rank 1's as soon as rank 0 has
    finished.
    """
    screen = Screen(3)
    screen.take(1, stream("one\n"))
    screen.display.update(set())
    assert capsys.readouterr().out == ""
    screen.take(0, stream("epoch 1\nepo"))
    screen.display.update(set())
    assert capsys.readouterr().out == "[0] epoch 1\n"
    screen.take(0, stream("ch 2\n"))
    screen.display.update({0})
    assert capsys.readouterr().out == "[0] epoch 2\n[1] one\n"
    screen.take(2, stream("two\n"))
    screen.display.update({0, 2})
    assert capsys.readouterr().out == ""
    screen.display.update({0, 1, 2})
    assert capsys.readouterr().out == "[2] two\n"


def test_output_ends_a_line_that_has_no_end(capsys):
    """
    A last line without a newline is ended, so that rank 1's text begins on its own line.
    """
    screen = Screen(2)
    screen.take(0, stream("no end"))
    screen.take(1, stream("more"), stream(" and more"))
    screen.display.update({0, 1})
    assert capsys.readouterr().out == "[0] no end\n[1] more and more\n"


def test_output_keeps_empty_lines(capsys):
    """
    Empty lines are shown, without a space at their end, which linters would strip.
    """
    screen = Screen(1)
    screen.take(0, stream("a\n\nb  \n"))
    screen.display.update({0})
    assert capsys.readouterr().out == "[0] a\n[0]\n[0] b\n"


@pytest.mark.parametrize(
    "pieces",
    [
        ["10%\r", "50%\r", "100%\n"],
        ["10%\r50%\r100%\n"],
        ["\r10%", "\r50%", "\r100%", "\n"],
        ["10%\r50%\r100%\r\n"],
        ["10%\r50%\r100%"],
    ],
)
def test_output_shows_the_last_state_of_a_progress_bar(pieces, capsys):
    """
    Only the last state of a progress bar is shown, because stored outputs with all its states would
    differ in every run.
    """
    screen = Screen(1)
    screen.take(0, *map(stream, pieces))
    screen.display.update({0})
    assert capsys.readouterr().out == "[0] 100%\n"


def test_output_keeps_stderr_apart(capsys):
    """
    Text on stderr goes to stderr, and does not split a line of stdout.
    """
    screen = Screen(1)
    screen.take(0, stream("so "), stream("careful\n", "stderr"), stream("far\n"))
    screen.display.update({0})
    captured = capsys.readouterr()
    assert captured.out == "[0] so far\n"
    assert captured.err == "[0] careful\n"


@pytest.mark.parametrize("kind", ["execute_result", "display_data"])
def test_output_shows_plain_objects_as_text(kind, capsys):
    """
    `%px x` shows x for each rank, with the rank before each line and without execution counts.
    """
    screen = Screen(2)
    screen.take(0, shown_object({"text/plain": "tensor([1,\n        2])"}, kind))
    screen.take(1, shown_object({"text/plain": "3"}, kind))
    screen.display.update({0, 1})
    assert capsys.readouterr().out == "[0] tensor([1,\n[0]         2])\n[1] 3\n"


def test_output_shows_rich_objects(capsys, monkeypatch):
    """
    A plot of a rank is shown in the notebook, below a line with the rank's number.
    """
    drawn = []
    monkeypatch.setattr(
        "IPython.display.display", lambda *args, **kwargs: drawn.append((args, kwargs))
    )
    screen = Screen(1)
    data = {"text/plain": "<Figure>", "image/png": "iVBORw0KGgo="}
    screen.take(0, stream("before"), shown_object(data, metadata={"image/png": {"width": 3}}))
    screen.display.update({0})
    assert capsys.readouterr().out == "[0] before\n[0] <Figure>\n"
    (((shown,), options),) = drawn
    assert shown == {"image/png": "iVBORw0KGgo="}
    assert options == {"raw": True, "metadata": {"image/png": {"width": 3}}}


def test_output_ignores_what_is_no_output(capsys):
    """
    Messages about an engine's status, inputs and errors are not shown: the cell reports errors
    itself.
    """
    screen = Screen(1)
    for kind in ("status", "execute_input", "error", "comm_open"):
        screen.take(0, {"header": {"msg_type": kind}, "content": {}})
    screen.display.update({0})
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""
