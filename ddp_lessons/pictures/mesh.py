"""
A mesh of ranks: a row for each place on all axes but the last, a column for each place on that.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

from ddp_lessons.pictures.inputs import is_rank, need, need_some
from ddp_lessons.pictures.svg import FAINT, Canvas, Picture, rank_colour, text_width

_CHIP, _PAD, _HEAD, _LINE, _GAP, _MOST = 70, 12, 34, 18, 10, 64


def mesh_picture(sizes: Mapping[str, int], texts: Sequence[str] | None = None) -> Picture:
    """
    Draw ranks in rows and columns, with the names of the axes.

    Args:
        sizes: Name of each axis -> its size; the last one is that of neighbours, and goes across.
        texts: For each rank, in rank order, what it has, in lines of a few words; None: nothing.

    Returns:
        Picture: The mesh. Rows have the names of all axes but the last, and places on them.

    Raises:
        BadInput: There is no axis, a size is no whole number of at least 1, there are more than 64
            ranks, or not as many texts as ranks.

    Lesson: 15_beyond_ddp.
    """
    need_some(sizes, "axes")
    are_sizes = all(is_rank(size) and size for size in sizes.values())
    need(are_sizes, "No mesh", "sizes of at least 1", repr(sizes), "Correct them")
    num_ranks = prod(sizes.values())
    need(num_ranks <= _MOST, "Too many ranks", f"at most {_MOST}", num_ranks, "Draw a part")
    texts = [""] * num_ranks if texts is None else texts
    fits = len(texts) == num_ranks
    need(fits, "Texts do not fit", f"{num_ranks} texts", len(texts), "Pass one a rank")
    lines = [[line for line in str(text).splitlines() if line] for text in texts]
    *outer, across = sizes
    rows = [
        ", ".join(f"{name} {place}" for name, place in zip(outer, places, strict=True))
        for places in product(*(range(sizes[name]) for name in outer))
    ]
    return _drawn(sizes, rows, across, lines)


def _drawn(sizes, rows, across, lines):
    left = max(map(text_width, rows)) + 2 * _PAD
    width = max([_CHIP, *(text_width(line, 12) for text in lines for line in text)]) + 2 * _PAD
    height = 26 + 2 * _PAD + _LINE * max(map(len, lines))
    num_columns = sizes[across]
    canvas = Canvas(
        left + num_columns * (width + _GAP) + _PAD, _HEAD + len(rows) * (height + _GAP) + _PAD
    )
    for column in range(num_columns):
        x = left + column * (width + _GAP) + width / 2
        canvas.text(x, _HEAD / 2, f"{across} {column}", bold=True)
    for number, name in enumerate(rows):
        y = _HEAD + number * (height + _GAP)
        canvas.text(left - _PAD, y + height / 2, name, bold=True, anchor="end")
        for column in range(num_columns):
            rank = number * num_columns + column
            box = (left + column * (width + _GAP), y, width, height)
            _rank(canvas, box, rank, lines[rank])
    told = " x ".join(f"{size} {name}" for name, size in sizes.items())
    return canvas.picture(f"A mesh of {prod(sizes.values())} ranks: {told}")


def _rank(canvas, box, rank, lines):
    x, y, width, height = box
    canvas.box(x, y, width, height, fill="#ffffff", stroke=rank_colour(rank))
    canvas.chip(x + (width - _CHIP) / 2, y + _PAD, rank)
    for number, line in enumerate(lines):
        canvas.text(x + width / 2, y + _PAD + 26 + _LINE * (number + 0.7), line, FAINT, 12)
