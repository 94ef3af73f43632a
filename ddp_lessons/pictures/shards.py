"""
The slices of a checkpoint's tensors: which ranks hold them, and which get them when ranks change.
"""

from collections.abc import Mapping, Sequence

from ddp_lessons.pictures.inputs import is_rank, need, need_some
from ddp_lessons.pictures.svg import FAINT, LINE, Canvas, Picture, rank_colour, shorten, text_width

_LEFT, _WIDTH, _BAR, _BETWEEN, _GAP, _MOST = 96, 640, 34, 38, 30, 32


def shards_picture(
    sizes: Mapping[str, int],
    saved: Mapping[str, Sequence[tuple[int, int, int]]],
    loaded: Mapping[str, Sequence[tuple[int, int, int]]] | None = None,
) -> Picture:
    """
    Draw the slices of each tensor that ranks save, and those that ranks load.

    Args:
        sizes: Dictionary from the name of a tensor to its number of rows.
        saved: Dictionary from name to a list of (rank, start, stop): the rows of a rank.
        loaded: The same for the ranks that load, perhaps more or fewer; None draws saving only.

    Returns:
        Picture: For each tensor a bar of who saved what and one of who loads it, joined where rows
        move. Rows that nobody holds are dashed; rows that several hold stand in several bars. A
        rank with no rows is named.

    Raises:
        BadInput: There is no tensor, a name is missing or unknown, a slice is not within its
            tensor, or a tensor has more than 32 slices.

    Lesson: 08_checkpoint.
    """
    need_some(sizes, "tensors")
    for what, slices in (("saved", saved), ("loaded", loaded)):
        if slices is not None:
            _check(sizes, what, slices)
    canvas = Canvas(_LEFT + _WIDTH + 20, 10)
    y = 14.0
    for name, num_rows in sizes.items():
        unit = "row" if num_rows == 1 else "rows"
        label = f"{shorten(name, 40)}: {num_rows} {unit}"
        canvas.text(10, y + 6, label, bold=True, anchor="start")
        notes = _without_rows("saved", saved[name])
        if loaded is not None:
            notes += _without_rows("loaded", loaded[name])
        if notes:
            x = 22 + text_width(label)
            canvas.text(x, y + 6, "; ".join(notes), FAINT, 11, "start")
        y = _bars(canvas, y + 20, "saved", num_rows, saved[name])
        if loaded is not None:
            _joins(canvas, y, num_rows, saved[name], loaded[name])
            y = _bars(canvas, y + _BETWEEN, "loaded", num_rows, loaded[name])
        y += _GAP
    canvas.height = max(canvas.height, y - _GAP + 16)
    many = _count(saved)
    what = shorten(next(iter(sizes)), 40) if len(sizes) == 1 else f"{len(sizes)} tensors"
    title = f"Which rows of {what} are held by {many}"
    return canvas.picture(title if loaded is None else f"{title} and loaded by {_count(loaded)}")


def slices_from_rows(
    rows_of_ranks: Sequence[Mapping[str, int]],
) -> dict[str, list[tuple[int, int, int]]]:
    """
    Return the slices that `shards_picture` draws, where each rank holds the rows after the last's.

    Args:
        rows_of_ranks: For each rank, in rank order, a dictionary from the name of a tensor to how
            many of its rows the rank holds.

    Returns:
        dict: From the name to a list of (rank, start, stop), without those that hold no row.

    Raises:
        BadInput: There is no rank.

    Lesson: 08_checkpoint.
    """
    need_some(rows_of_ranks, "ranks")
    slices: dict[str, list[tuple[int, int, int]]] = {name: [] for name in rows_of_ranks[0]}
    for rank, rows in enumerate(rows_of_ranks):
        for name, num_rows in rows.items():
            start = slices[name][-1][2] if slices[name] else 0
            if num_rows:
                slices[name].append((rank, start, start + num_rows))
    return slices


def _count(slices):
    num_ranks = len({rank for parts in slices.values() for rank, *_ in parts})
    return f"{num_ranks} rank" if num_ranks == 1 else f"{num_ranks} ranks"


def _check(sizes, what, slices):
    need(set(slices) == set(sizes), f"Tensors differ in what is {what}",
         f"the names {', '.join(map(repr, sizes))}", ", ".join(map(repr, slices)) or "none",
         "Pass slices for each")  # fmt: skip
    for name, parts in slices.items():
        size = sizes[name]
        need(is_rank(size), "Bad size", "a number of rows", f"{size!r} for {name!r}", "Pass rows")
        need(len(parts) <= _MOST, "Too many slices", f"at most {_MOST}",
             f"{len(parts)} of {name!r}", "Draw fewer ranks")  # fmt: skip
        for rank, start, stop in parts:
            within = all(map(is_rank, (rank, start, stop))) and start <= stop <= size
            need(within, "Bad slice", f"a rank and rows from 0 to {size}, start first",
                 f"{rank!r}, {start!r} to {stop!r} of {name!r}", "Check the plan")  # fmt: skip


def _at(row, num_rows):
    return _LEFT + row / max(1, num_rows) * _WIDTH


def _bars(canvas, y, word, num_rows, parts):
    lines = []
    for part in sorted((part for part in parts if part[1] < part[2]), key=lambda part: part[1:]):
        free = next((line for line in lines if line[-1][2] <= part[1]), None)
        if free is None:
            lines.append([part])
        else:
            free.append(part)
    canvas.text(_LEFT - 10, y + _BAR / 2, word, size=12, anchor="end")
    for number, line in enumerate(lines or [[]]):
        gaps = _gaps(line, num_rows) if number == 0 else []
        for start, stop in gaps:
            x, width = _at(start, num_rows), _at(stop, num_rows) - _at(start, num_rows)
            canvas.box(x + 1, y + 1, width - 2, _BAR - 2, stroke=FAINT, dashed=True, radius=3)
            if text_width("nobody", 11) + 6 <= width:
                canvas.text(x + width / 2, y + _BAR / 2, "nobody", FAINT, 11)
        for rank, start, stop in line:
            _slice(canvas, y, rank, start, stop, num_rows)
        y += _BAR
    if num_rows == 0:
        canvas.box(
            _LEFT + 1, y - _BAR + 1, _WIDTH - 2, _BAR - 2, stroke=FAINT, dashed=True, radius=3
        )
        canvas.text(_LEFT + _WIDTH / 2, y - _BAR / 2, "empty", FAINT, 11)
    return y


def _without_rows(word, parts):
    empty = sorted({rank for rank, start, stop in parts if start == stop})
    return [f"no rows {word}: {', '.join(f'rank {rank}' for rank in empty)}"] if empty else []


def _gaps(line, num_rows):
    gaps, at = [], 0
    for _, start, stop in [*line, (None, num_rows, num_rows)]:
        if start > at:
            gaps.append((at, start))
        at = max(at, stop)
    return gaps


def _slice(canvas, y, rank, start, stop, num_rows):
    x, width = _at(start, num_rows), _at(stop, num_rows) - _at(start, num_rows)
    canvas.box(x + 1, y + 1, max(1, width - 2), _BAR - 2, fill=rank_colour(rank), stroke="none",
               radius=3)  # fmt: skip
    name, rows = f"rank {rank}", f"{start}:{stop}"
    if max(text_width(name, 11), text_width(rows, 11)) + 6 <= width:
        canvas.text(x + width / 2, y + 11, name, "#ffffff", 11, bold=True)
        canvas.text(x + width / 2, y + 24, rows, "#ffffff", 11)
    elif text_width(rank, 11) + 4 <= width:
        canvas.text(x + width / 2, y + _BAR / 2, rank, "#ffffff", 11, bold=True)


def _joins(canvas, y, num_rows, saved, loaded):
    # Each row comes from one of those who saved it: the lowest rank that did.
    for _, start, stop in loaded:
        at = start
        while at < stop:
            owners = sorted(part for part in saved if part[1] <= at < part[2])
            if owners:
                rank, _, end = owners[0]
                end = min(end, stop)
                a, b = _at(at, num_rows) + 1, _at(end, num_rows) - 1
                canvas.band(((a, y), (b, y), (b, y + _BETWEEN), (a, y + _BETWEEN)),
                            rank_colour(rank))  # fmt: skip
                canvas.line(a, y, a, y + _BETWEEN, stroke=LINE, dashed=True)
            else:
                end = min([stop, *(part[1] for part in saved if part[1] > at)])
            at = end
