"""
When each rank of a pipeline is at work, and when it is not.
"""

from collections.abc import Sequence

from ddp_lessons.pictures.inputs import is_amount, need, need_some
from ddp_lessons.pictures.scales import ticks
from ddp_lessons.pictures.svg import FAINT, PANEL, Canvas, Picture, rank_colour, text_width

KINDS = {"F": ("forward", "solid"), "B": ("backward", "hatch")}
"""
Each kind of work that a rank does on a microbatch: its name, and the pattern that shows it.
"""

_IDLE = ("bubble", "dots")
_LEFT, _WIDTH, _ROW, _TOP, _GAP = 92, 680, 30, 44, 8


def timetable_picture(rows: Sequence[Sequence[tuple[str, str, float, float]]]) -> Picture:
    """
    Draw the timetable of a pipeline, and the bubble: the time in which ranks do nothing.

    Args:
        rows: For each rank, in rank order, what it does: (kind, label, start, stop). A kind is "F"
            for forward or "B" for backward; the label names the microbatch, and is left out where
            it does not fit. `beyond_ddp.pipeline.timetable` gives this.

    Returns:
        Picture: A row for each rank over one axis of ticks, which starts at 0.

    Raises:
        BadInput: There is no rank or nothing is done, a kind is not known, or something stops
            before it starts or starts before the one before it stops.

    Lesson: 15_beyond_ddp.
    """
    end = _end_of(rows)
    height = _TOP + len(rows) * (_ROW + _GAP)
    canvas = Canvas(_LEFT + _WIDTH + 30, height + 46)
    canvas.legend(_LEFT, 20, [*KINDS.values(), _IDLE])
    for tick in ticks(end, 12, whole=True):
        x = _LEFT + tick / end * _WIDTH
        canvas.line(x, _TOP - 6, x, height + 4, stroke="#dfe3ea")
        canvas.text(x, height + 14, f"{tick:g}", FAINT, 11)
    at: float
    for rank, row in enumerate(rows):
        y, at = _TOP + rank * (_ROW + _GAP), 0
        canvas.chip(10, y + _ROW / 2 - 13, rank)
        for kind, label, start, stop in row:
            _idle(canvas, y, at, start, end)
            _work(canvas, y, rank, (kind, label, start, stop), end)
            at = stop
        _idle(canvas, y, at, end, end)
    canvas.line(_LEFT, height + 4, _LEFT + _WIDTH, height + 4, stroke=FAINT)
    canvas.text(_LEFT + _WIDTH / 2, height + 33, "time in ticks", size=12)
    return canvas.picture(f"When {len(rows)} ranks of a pipeline work, and their bubble")


def _end_of(rows):
    need_some(rows, "ranks")
    end = 0
    for rank, row in enumerate(rows):
        at = 0
        for kind, _, start, stop in row:
            need(kind in KINDS, "Unknown kind", f"one of {', '.join(KINDS)}",
                 f"{kind!r} on rank {rank}", "Pass one of these")  # fmt: skip
            need(is_amount(start) and is_amount(stop) and at <= start <= stop, "Bad time",
                 "a start not before the last stop, and a stop not before it",
                 f"{start!r} to {stop!r} on rank {rank}", "Check the clock")  # fmt: skip
            at = stop
        end = max(end, at)
    need(end > 0, "Nothing lasts", "something that stops after 0", "none", "Pass times")
    return end


def _idle(canvas, y, start, stop, end):
    if start < stop:
        x, width = _LEFT + start / end * _WIDTH, (stop - start) / end * _WIDTH
        fill = canvas.fill(_IDLE[1], "#c3c8d1")
        canvas.box(x, y + 2, width, _ROW - 4, fill=fill, stroke="none", radius=2)


def _work(canvas, y, rank, span, end):
    kind, label, start, stop = span
    x, width = _LEFT + start / end * _WIDTH, (stop - start) / end * _WIDTH
    colour = rank_colour(rank)
    canvas.box(x, y + 2, max(width, 2), _ROW - 4, fill=canvas.fill(KINDS[kind][1], colour),
               stroke=PANEL if kind == "F" else colour, radius=2)  # fmt: skip
    if text_width(label, 11) + 4 <= width:
        if kind == "F":
            canvas.text(x + width / 2, y + _ROW / 2, label, "#ffffff", 11, bold=True)
        else:
            canvas.tag(x + width / 2, y + _ROW / 2, label)
