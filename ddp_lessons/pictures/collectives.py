"""
Before and after a collective, or several: what each rank holds, side by side.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol, SupportsInt

from ddp_lessons.pictures.inputs import need, need_some
from ddp_lessons.pictures.svg import FAINT, INK, Canvas, Picture, rank_colour, shorten, text_width

_ROW, _LEFT, _CELL_PAD, _TOP, _MIDDLE = 36, 92, 10, 40, 24
_MOST_WIDTH, _BESIDE = 900, 24
_CHANGED, _NOTHING = "thick border: changed", "dashed: nothing"


class _Tensor(Protocol):
    # Pictures use this much of a torch.Tensor and import no torch. Iterated over, it yields others.
    def flatten(self) -> Iterable[SupportsInt]: ...


def numbers_in(tensors: Iterable[_Tensor] | None) -> list[int]:
    """
    Return the whole numbers that a rank holds, as `collective_picture` takes them.

    Args:
        tensors: A tensor, a list of tensors, or None for nothing.

    Lesson: 02_collectives.
    """
    return [] if tensors is None else [int(n) for t in tensors for n in t.flatten()]


def collective_picture(
    name: str, before: Sequence[Sequence[object]], after: Sequence[Sequence[object]]
) -> Picture:
    """
    Draw what each rank holds before and after a collective, as two grids.

    Args:
        name: The collective, for example "all_reduce".
        before: For each rank, in rank order, the list of values that it holds. None is a place
            with nothing in it.
        after: The same afterwards, for as many ranks.

    Returns:
        Picture: The grids, an arrow between them. A cell that changed has a thick border.

    Raises:
        BadInput: There is no rank, or a different number of them before and after.

    Lesson: 02_collectives.
    """
    canvas = Canvas(0, 0)
    _, height = _panel(canvas, 0, 0, name, before, after)
    _note(canvas, height, _legend([*before, *after]))
    return canvas.picture(f"What {len(before)} ranks hold before and after {name}")


def exchange_picture(
    name: str,
    gives: Sequence[Iterable[_Tensor] | None],
    gets: Sequence[Iterable[_Tensor] | None],
) -> Picture:
    """
    Draw what each rank gives to a collective that writes into other tensors, and what it gets.

    Args:
        name: The collective, for example "gather".
        gives: For each rank, in rank order, the tensor or the list of tensors that it gives, or
            None if it gives nothing.
        gets: For as many ranks, what the collective writes, in the same form.

    Returns:
        Picture: The grids, an arrow between them. No border is thick: nothing was overwritten.

    Raises:
        BadInput: There is no rank, or a different number of them in `gives` and `gets`.

    Lesson: 02_collectives.
    """
    canvas = Canvas(0, 0)
    given, got = [[numbers_in(tensors) for tensors in side] for side in (gives, gets)]
    _, height = _panel(canvas, 0, 0, name, given, got, is_in_place=False)
    if not all((*given, *got)):
        _note(canvas, height, _NOTHING)
    return canvas.picture(f"What {len(gives)} ranks give to {name}, and what they get")


def collectives_picture(
    held: Sequence[Sequence[tuple[str, Sequence[object], Sequence[object]]]],
) -> Picture:
    """
    Draw what each rank holds before and after several collectives, each as in `collective_picture`.

    Args:
        held: For each rank, in rank order, a list of (name, before, after): a collective, and the
            values that the rank holds before and after it. All ranks have the same collectives.

    Returns:
        Picture: A panel for each collective, in the order given, beside each other where there is
        room.

    Raises:
        BadInput: There is no rank or no collective, or ranks have other ones.

    Lesson: 02_collectives.
    """
    need_some(held, "ranks")
    need_some(held[0], "collectives")
    names = [name for name, *_ in held[0]]
    for rank, rows in enumerate(held):
        own = [name for name, *_ in rows]
        got = f"{', '.join(own) or 'none'} on rank {rank}"
        need(own == names, "Collectives differ", f"{', '.join(names)} on every rank", got,
             "Pass what every rank holds")  # fmt: skip
    canvas = Canvas(0, 0)
    x, y, bottom = 0, 0, 0
    for name, rows in zip(names, zip(*held, strict=True), strict=True):
        before, after = [row[1] for row in rows], [row[2] for row in rows]
        width, height = _panel_size(name, before, after)
        if x and x + width > _MOST_WIDTH:
            x, y = 0, bottom
        _panel(canvas, x, y, name, before, after)
        x, bottom = x + width + _BESIDE, max(bottom, y + height)
    shown = [values for rows in held for _, *sides in rows for values in sides]
    _note(canvas, bottom, _legend(shown))
    return canvas.picture(f"What {len(held)} ranks hold before and after {', '.join(names)}")


def _panel(canvas, left, top, name, before, after, is_in_place=True):
    """
    Draw one collective with its upper left corner at a point, and return its width and height.
    A thick border marks what a collective in place has changed.
    """
    titles = ("before", "after") if is_in_place else ("gives", "gets")
    width, height = _panel_size(name, before, after)
    canvas.width, canvas.height = max(canvas.width, left + width), max(canvas.height, top + height)
    old, new = [[list(row) for row in rows] for rows in (before, after)]
    arrow, old_widths, new_widths = _arrow_width(name), _widths(old), _widths(new)
    start = left + _LEFT
    right = start + sum(old_widths) + arrow
    canvas.text(start, top + 20, titles[0], anchor="start", bold=True)
    canvas.text(right, top + 20, titles[1], anchor="start", bold=True)
    for rank, (row, changed) in enumerate(zip(old, new, strict=True)):
        y = top + _TOP + rank * _ROW
        canvas.chip(left + 10, y + 4, rank)
        _cells(canvas, start, y, rank, row, old_widths, None)
        _cells(canvas, right, y, rank, changed, new_widths, row if is_in_place else None)
    middle = top + _TOP + _ROW * len(old) / 2
    canvas.text(right - arrow / 2, middle - 14, name, bold=True)
    tail, head = right - arrow + 14, right - 14
    canvas.line(tail, middle, head, middle, stroke=INK)
    canvas.line(head - 8, middle - 6, head, middle, stroke=INK)
    canvas.line(head - 8, middle + 6, head, middle, stroke=INK)
    return width, height


def _panel_size(name, before, after):
    need_some(before, "ranks")
    need(len(before) == len(after), "Ranks differ", f"{len(before)} ranks after, as before",
         len(after), "Pass what every rank holds")  # fmt: skip
    cells = sum(_widths(before)) + sum(_widths(after))
    return _LEFT + cells + _arrow_width(name) + 16, _TOP + _ROW * len(before) + 8


def _arrow_width(name):
    return max(text_width(name), 40) + 2 * _MIDDLE


def _legend(rows):
    has_gaps = any(not row or any(value is None for value in row) for row in rows)
    return f"{_CHANGED}, {_NOTHING}" if has_gaps else _CHANGED


def _note(canvas, y, words):
    canvas.height = y + 26
    canvas.text(10, y + 8, words, FAINT, 11, "start")


def _widths(rows):
    # Each column's width over all ranks; one column at least, or a rank without values has no cell.
    num_columns = max(1, *(len(row) for row in rows))
    columns = [[row[k] for row in rows if k < len(row)] for k in range(num_columns)]
    return [max([34, *(text_width(_label(v)) + 2 * _CELL_PAD for v in column)])
            for column in columns]  # fmt: skip


def _label(value):
    return "" if value is None else shorten(value)


def _cells(canvas, x, y, rank, row, widths, before):
    for k, width in enumerate(widths):
        if k < len(row) and row[k] is not None:
            changed = before is not None and (k >= len(before) or before[k] != row[k])
            canvas.box(x + 2, y + 3, width - 4, 28, fill="#ffffff", stroke=rank_colour(rank),
                       stroke_width=3 if changed else 1)  # fmt: skip
            canvas.text(x + width / 2, y + 17, _label(row[k]), bold=changed)
        elif k < len(row) or not row:
            canvas.box(x + 2, y + 3, width - 4, 28, stroke=FAINT, dashed=True)
        x += width
