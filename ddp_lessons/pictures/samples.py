"""
Which rank sees which sample in which step; padding, repeats and gaps made visible.
"""

from collections.abc import Iterable, Sequence
from typing import SupportsIndex, cast

from ddp_lessons.pictures.inputs import is_rank, need, need_some
from ddp_lessons.pictures.svg import FAINT, INK, Canvas, Picture, rank_colour, text_width
from ddp_lessons.whole import whole_number

_ROW, _LEFT, _TOP, _GAP, _MOST_CELLS, _MOST_LISTED = 36, 92, 46, 12, 600, 12


def samples_picture(
    batches: Sequence[Sequence[Iterable[SupportsIndex]]], num_samples: int | None = None
) -> Picture:
    """
    Draw the samples of each rank in each step.

    A repeat is hatched: padding, or a sample of a shard that overlaps another. A sample is a repeat
    if it was seen in an earlier step, earlier in the batch, or by a lower rank at the same place.

    Args:
        batches: For each rank, in rank order, its batches, each a list of sample numbers.
        num_samples: Size of the data set; samples that no rank saw are then listed. None leaves
            that out.

    Returns:
        Picture: A row for each rank, a column for each step.

    Raises:
        BadInput: There is no rank or no batch, a sample is no whole number below `num_samples`,
            or there are more than 600 samples, which nobody could read.

    Lesson: 04_samplers.
    """
    need_some(batches, "ranks")
    steps = [
        [[cast(int, s) if whole_number(s) is None else int(s) for s in batch] for batch in row]
        for row in batches
    ]
    num_steps = max(len(row) for row in steps)
    need(num_steps > 0, "No batches to draw", "at least one", "none", "Pass the batches")
    seen_at = [sample for row in steps for batch in row for sample in batch]
    limit = "" if num_samples is None else f" below {num_samples}"
    for sample in seen_at:
        need(is_rank(sample) and (num_samples is None or sample < num_samples), "No such sample",
             f"whole numbers of at least 0{limit}", repr(sample), "Pass indices")  # fmt: skip
    need(len(seen_at) <= _MOST_CELLS, "Too many samples", f"at most {_MOST_CELLS}",
         len(seen_at), "Draw a few steps of them")  # fmt: skip
    repeats = _repeats(steps, num_steps)
    cell = max([24, *(text_width(sample, 12) + 8 for sample in seen_at)])
    widths = [
        max(text_width(f"step {k}", 12), cell * max(len(row[k]) if k < len(row) else 0
            for row in steps)) + _GAP for k in range(num_steps)
    ]  # fmt: skip
    height = _TOP + len(steps) * _ROW
    canvas = Canvas(_LEFT + sum(widths) + 8, height + 56)
    for rank, row in enumerate(steps):
        canvas.chip(10, _TOP + rank * _ROW + 4, rank)
        x: float = _LEFT
        for k, width in enumerate(widths):
            if rank == 0:
                canvas.text(x, 24, f"step {k}", FAINT, 12, "start")
            if k < len(row):
                _batch(canvas, x, _TOP + rank * _ROW, rank, row[k], cell, repeats, k)
            x += width
    canvas.text(10, height + 14, _verdict(seen_at, repeats, num_samples), size=12, anchor="start")
    canvas.legend(10, height + 38, [("first time seen", "hollow"), ("repeat", "hatch")])
    return canvas.picture(
        f"Samples that {len(steps)} ranks see in {num_steps} steps: "
        f"{len(seen_at)} seen, {len(repeats)} of them repeats"
    )


def _repeats(steps, num_steps):
    seen, repeats = set(), set()
    for k in range(num_steps):
        rows = [row[k] if k < len(row) else [] for row in steps]
        for place in range(max(map(len, rows))):
            for rank, batch in enumerate(rows):
                if place < len(batch):
                    if batch[place] in seen:
                        repeats.add((k, rank, place))
                    seen.add(batch[place])
    return repeats


def _batch(canvas, x, y, rank, batch, cell, repeats, step):
    for place, sample in enumerate(batch):
        again = (step, rank, place) in repeats
        at = x + place * cell
        fill = canvas.fill("hatch" if again else "hollow", rank_colour(rank))
        canvas.box(at + 1, y + 4, cell - 2, 26, fill=fill, radius=4, stroke_width=2,
                   stroke=INK if again else rank_colour(rank))  # fmt: skip
        if again:
            canvas.tag(at + cell / 2, y + 17, sample, size=12)
        else:
            canvas.text(at + cell / 2, y + 17, sample, size=12)
    if not batch:
        canvas.box(x + 1, y + 4, cell - 2, 26, stroke=FAINT, dashed=True, radius=4)


def _verdict(seen_at, repeats, num_samples):
    text = f"{len(seen_at)} seen, {len(repeats)} of them repeats"
    if num_samples is None:
        return text
    missed = sorted(set(range(num_samples)) - set(seen_at))
    listed = ", ".join(map(str, missed[:_MOST_LISTED]))
    more = f" and {len(missed) - _MOST_LISTED} more" if len(missed) > _MOST_LISTED else ""
    return f"{text}; of {num_samples} samples never seen: {listed or 'none'}{more}"
