"""
Which parameter travels in which bucket, and in which order the buckets leave.
"""

from collections.abc import Sequence

from ddp_lessons.pictures.inputs import is_amount, need, need_some
from ddp_lessons.pictures.scales import byte_text
from ddp_lessons.pictures.svg import FAINT, INK, Canvas, Picture, rank_colour, shorten, text_width

_ROW, _TOP, _LINES, _MOST, _GAP = 24, 46, 120, 120, 14


def buckets_picture(
    parameters: Sequence[tuple[str, int]], buckets: Sequence[Sequence[str]]
) -> Picture:
    """
    Draw parameters in the model's order, buckets in the order of sending, and lines between.

    Args:
        parameters: Pairs (name, bytes) in the order of `model.named_parameters()`.
        buckets: For each bucket, the first to be sent first, the names in it, in its order.

    Returns:
        Picture: Two lists and the lines between them. Bytes stand beside each. A parameter in no
        bucket, such as a frozen one, is dashed and says so.

    Raises:
        BadInput: There is no parameter, or more than 120; a name is not known, twice in the
            buckets or twice in the model; or bytes are no number.

    Source: torch.nn.parallel.DistributedDataParallel documentation, `bucket_cap_mb`. Lessons:
    05_replicas, 06_ddp.
    """
    sizes = _checked(parameters, buckets)
    left = max(max(_width(name, size) for name, size in parameters), text_width("parameters"))
    start, right = left + 34, left + 34 + _LINES
    heights = [_ROW * (len(names) + 1) + _GAP for names in buckets]
    entries = [name for names in buckets for name in names]
    box_width = max([160, *(text_width(shorten(name, 36), 12) + 40 for name in entries)])
    height = max(_TOP + _ROW * len(parameters), _TOP + sum(heights)) + 12
    canvas = Canvas(right + box_width + 16, height)
    canvas.text(14, 22, "parameters, in the model's order", bold=True, anchor="start", size=12)
    canvas.text(right, 22, "buckets, first sent on top", bold=True, anchor="start", size=12)
    rows = {name: _TOP + _ROW * k for k, (name, _) in enumerate(parameters)}
    y = _TOP
    for number, names in enumerate(buckets):
        colour = rank_colour(number)
        canvas.box(right, y, box_width, heights[number] - _GAP, fill="#ffffff", stroke=colour,
                   stroke_width=2)  # fmt: skip
        total = byte_text(sum(sizes[name] for name in names))
        canvas.text(right + 10, y + 13, f"bucket {number}: {total}", size=12, anchor="start",
                    bold=True)  # fmt: skip
        for place, name in enumerate(names):
            at = y + _ROW * (place + 1) + 10
            canvas.line(start, rows[name] + 11, right, at, stroke=colour)
            canvas.text(right + 14, at, f"{place + 1}. {shorten(name, 36)}", size=12,
                        anchor="start")  # fmt: skip
        y += heights[number]
    for name, size in parameters:
        inside = name in entries
        canvas.box(8, rows[name] + 1, start - 8, _ROW - 4, fill="#ffffff", dashed=not inside,
                   stroke=INK if inside else FAINT, radius=4)  # fmt: skip
        canvas.text(14, rows[name] + 11, shorten(name, 36), size=12, anchor="start")
        note = byte_text(size) if inside else f"{byte_text(size)}, in no bucket"
        canvas.text(start - 6, rows[name] + 11, note, FAINT, 11, "end")
    return canvas.picture(
        f"How {len(entries)} of {len(parameters)} parameters travel in {len(buckets)} buckets"
    )


def _width(name, size):
    return text_width(shorten(name, 36), 12) + text_width(f"{byte_text(size)}, in no bucket", 11)


def _checked(parameters, buckets):
    need_some(parameters, "parameters")
    need(len(parameters) <= _MOST, "Too many parameters", f"at most {_MOST}", len(parameters),
         "Draw some of them")  # fmt: skip
    sizes = {}
    for name, size in parameters:
        need(is_amount(size), "Bad size", "bytes of at least 0", f"{size!r} for {name!r}",
             "Pass bytes")  # fmt: skip
        need(name not in sizes, "Parameter twice", "each name once in the model", repr(name),
             "Pass named_parameters()")  # fmt: skip
        sizes[name] = size
    seen = set()
    for number, names in enumerate(buckets):
        for name in names:
            need(name in sizes, "Unknown parameter", "names of the model",
                 f"{name!r} in bucket {number}", "Pass all parameters")  # fmt: skip
            need(name not in seen, "Parameter twice", "each name in one bucket",
                 f"{name!r} again in bucket {number}", "Look at the plan")  # fmt: skip
            seen.add(name)
    return sizes
