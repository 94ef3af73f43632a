"""
The memory of each rank, or of one rank in several ways to train, kind by kind.
"""

from collections.abc import Mapping, Sequence

from ddp_lessons.pictures.inputs import is_amount, need, need_some
from ddp_lessons.pictures.scales import byte_text, byte_unit, ticks
from ddp_lessons.pictures.svg import (
    FAINT,
    PATTERNS,
    Canvas,
    Picture,
    rank_colour,
    shorten,
    text_width,
)

_LEFT, _WIDTH, _ROW, _TOP = 92, 560, 40, 46


def memory_picture(used: Sequence[Mapping[str, int]] | dict[str, dict[str, int]]) -> Picture:
    """
    Draw a bar for each rank, divided into kinds; or one for each way to train.

    Args:
        used: For each rank, in rank order, a dictionary from kind ("parameters", "gradients",
            "optimizer") to bytes. At most six kinds; a kind has the same pattern on every rank.
            Or such a dictionary for each name, as {"DDP": ..., "FSDP": ...}: bars of rank 0.

    Returns:
        Picture: Bars over an axis in bytes, KiB, MiB or GiB. The total stands at the end of each
        bar, the part of a kind in it where there is room.

    Raises:
        BadInput: There is no rank, bytes are no number of at least 0, or there are more kinds.

    Lessons: 07_accumulation, 13_sharded_optimizer, 15_beyond_ddp.
    """
    names = list(used) if isinstance(used, dict) else None
    used = list(used.values()) if isinstance(used, dict) else used
    need_some(used, "ranks")
    kinds = list(dict.fromkeys(kind for row in used for kind in row))
    need(1 <= len(kinds) <= len(PATTERNS), "Kinds do not fit", f"1 to {len(PATTERNS)} kinds",
         len(kinds), "Add some of them up")  # fmt: skip
    for rank, row in enumerate(used):
        for kind, num_bytes in row.items():
            need(is_amount(num_bytes), "Bad size", "bytes of at least 0",
                 f"{num_bytes!r} for {kind!r}, rank {rank}", "Pass bytes")  # fmt: skip
    patterns = dict(zip(kinds, PATTERNS, strict=False))
    end = max(1, max(sum(row.values()) for row in used))
    unit, size = byte_unit(end)
    height = _TOP + _ROW * len(used)
    canvas = Canvas(_LEFT + _WIDTH + 100, height + 46)
    canvas.legend(_LEFT, 20, [(shorten(kind), patterns[kind]) for kind in kinds])
    for tick in ticks(end / size, 7, whole=size == 1):
        x = _LEFT + tick * size / end * _WIDTH
        canvas.line(x, _TOP - 6, x, height + 2, stroke="#dfe3ea")
        canvas.text(x, height + 14, f"{tick:g}", FAINT, 11)
    for place, row in enumerate(used):
        y = _TOP + place * _ROW
        if names is None:
            canvas.chip(10, y + 3, place)
        else:
            canvas.text(_LEFT - 10, y + 16, shorten(names[place], 11), size=12, anchor="end")
        _bar(canvas, y, 0 if names else place, row, patterns, end)
    canvas.line(_LEFT, height + 2, _LEFT + _WIDTH, height + 2, stroke=FAINT)
    canvas.text(_LEFT + _WIDTH / 2, height + 33, f"memory in {unit}", size=12)
    whose = f"{len(used)} ranks" if names is None else f"rank 0, {', '.join(map(str, names))},"
    return canvas.picture(f"Memory of {whose} by kind: {', '.join(map(str, kinds))}")


def _bar(canvas, y, rank, row, patterns, end):
    x = float(_LEFT)
    for kind, pattern in patterns.items():
        if row.get(kind, 0) == 0:
            continue
        width = row[kind] / end * _WIDTH
        canvas.box(x, y + 2, max(width, 1), 28, fill=canvas.fill(pattern, rank_colour(rank)),
                   stroke=rank_colour(rank), radius=2)  # fmt: skip
        text = byte_text(row[kind])
        if text_width(text, 11) + 12 <= width:
            canvas.tag(x + width / 2, y + 16, text)
        x += width
    canvas.text(x + 8, y + 16, byte_text(sum(row.values())), size=12, anchor="start", bold=True)
