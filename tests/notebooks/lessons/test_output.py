"""
What ranks print, shown in rank order: the same text however the messages arrive.
"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_lessons.ranks.kernel.output import OrderedDisplay, RankOutput


def stream(text, name="stdout"):
    """
    Return a rank's message about something that it has printed.
    """
    return {"header": {"msg_type": "stream"}, "content": {"name": name, "text": text}}


def shown_object(data, kind="display_data", **content):
    """
    Return a rank's message about something that it has displayed.
    """
    return {"header": {"msg_type": kind}, "content": {"data": data, **content}}


class Screen:
    """
    The output of some ranks, fed by hand.
    """

    def __init__(self, num_ranks):
        self.outputs = {rank: RankOutput() for rank in reversed(range(num_ranks))}
        self.display = OrderedDisplay(self.outputs)

    def take(self, rank, *messages):
        """
        Let messages of a rank arrive.
        """
        for message in messages:
            self.outputs[rank].on_message(message)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_output_is_in_rank_order(order, capsys):
    """
    nbval compares what a cell printed, and ranks finish in another order on every run.
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
    A rank's text comes in pieces of any size, between those of others, and looks are taken anywhen.
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
    A long cell is not silent: rank 0 is shown as it prints, rank 1 as soon as rank 0 has finished.
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
    `print(x, end="")` must not glue rank 1's text to rank 0's.
    """
    screen = Screen(2)
    screen.take(0, stream("no end"))
    screen.take(1, stream("more"), stream(" and more"))
    screen.display.update({0, 1})
    assert capsys.readouterr().out == "[0] no end\n[1] more and more\n"


def test_output_keeps_empty_lines(capsys):
    """
    An empty line is part of what was printed; it ends in no space, which linters would strip.
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
    In a notebook that is run by a machine, a bar's hundred states would be a hundred differences.
    """
    screen = Screen(1)
    screen.take(0, *map(stream, pieces))
    screen.display.update({0})
    assert capsys.readouterr().out == "[0] 100%\n"


def test_output_keeps_stderr_apart(capsys):
    """
    A warning goes where warnings go, and does not cut a line of stdout in two.
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
    `%px x` shows x for each rank: each line with its rank, no execution counts of engines.
    """
    screen = Screen(2)
    screen.take(0, shown_object({"text/plain": "tensor([1,\n        2])"}, kind))
    screen.take(1, shown_object({"text/plain": "3"}, kind))
    screen.display.update({0, 1})
    assert capsys.readouterr().out == "[0] tensor([1,\n[0]         2])\n[1] 3\n"


def test_output_shows_rich_objects(capsys, monkeypatch):
    """
    A plot of a rank is drawn in the notebook, after a line that says whose it is.
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
    Engines also tell of their state, of inputs and of errors; errors are told by the cell itself.
    """
    screen = Screen(1)
    for kind in ("status", "execute_input", "error", "comm_open"):
        screen.take(0, {"header": {"msg_type": kind}, "content": {}})
    screen.display.update({0})
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""
