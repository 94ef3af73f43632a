"""
Before and after a collective: what each rank holds, side by side.
"""

from ddp_lessons.pictures.inputs import need, need_some
from ddp_lessons.pictures.svg import FAINT, INK, Canvas, rank_colour, shorten, text_width

_ROW, _LEFT, _CELL_PAD, _TOP, _MIDDLE = 36, 92, 10, 40, 24


def collective_picture(name, before, after):
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
    need_some(before, "ranks")
    need(len(before) == len(after), "Ranks differ", f"{len(before)} ranks after, as before",
         len(after), "Pass what every rank holds")  # fmt: skip
    old, new = [[list(row) for row in rows] for rows in (before, after)]
    arrow = max(text_width(name), 40) + 2 * _MIDDLE
    old_widths, new_widths = _widths(old), _widths(new)
    right = _LEFT + sum(old_widths) + arrow
    height = _TOP + _ROW * len(old)
    canvas = Canvas(right + sum(new_widths) + 16, height + 34)
    canvas.text(_LEFT, 20, "before", anchor="start", bold=True)
    canvas.text(right, 20, "after", anchor="start", bold=True)
    for rank, (row, changed) in enumerate(zip(old, new, strict=True)):
        y = _TOP + rank * _ROW
        canvas.chip(10, y + 4, rank)
        _cells(canvas, _LEFT, y, rank, row, old_widths, None)
        _cells(canvas, right, y, rank, changed, new_widths, row)
    middle = _TOP + _ROW * len(old) / 2
    canvas.text(right - arrow / 2, middle - 14, name, bold=True)
    start, stop = right - arrow + 14, right - 14
    canvas.line(start, middle, stop, middle, stroke=INK)
    canvas.line(stop - 8, middle - 6, stop, middle, stroke=INK)
    canvas.line(stop - 8, middle + 6, stop, middle, stroke=INK)
    canvas.text(10, height + 16, "thick border: changed, dashed: nothing there", FAINT, 11, "start")
    return canvas.picture(f"What {len(old)} ranks hold before and after {name}")


def _widths(rows):
    # Of each column, over all ranks; one column at least, or a rank without values has no cell.
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
