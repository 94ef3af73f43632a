"""
A table of what each process holds, with a row for each process and a column for each name.
"""

from collections.abc import Iterable, Mapping, Sequence

from ddp_lessons.pictures.svg import FAINT, INK, Canvas, Picture, rank_colour, text_width

_ROW, _CHIP, _PAD = 38, 86, 16


def holdings_picture(
    names: Sequence[str],
    held: Iterable[Mapping[str, object]],
    kernel: Mapping[str, object] | None = None,
) -> Picture:
    """
    Draw which process holds which value under which name.

    Args:
        names: The names, one a column.
        held: For each rank, in rank order, a dictionary from name to value. A name that is missing
            is drawn as an empty, dashed cell.
        kernel: The same for the kernel, drawn as a first row; None leaves it out.

    Returns:
        Picture: The table.
    """
    rows = [*([] if kernel is None else [("kernel", kernel)]), *enumerate(held)]
    widths = [
        max([text_width(name), *(text_width(row.get(name, "")) for _, row in rows)]) + 2 * _PAD
        for name in names
    ]
    canvas = Canvas(_CHIP + _PAD + sum(widths) + _PAD, 34 + _ROW * len(rows) + _PAD)
    x: float = _CHIP + _PAD
    for name, width in zip(names, widths, strict=True):
        canvas.text(x + width / 2, 20, name, bold=True)
        x += width
    for index, (who, values) in enumerate(rows):
        _row(canvas, 36 + index * _ROW, who, [values.get(name) for name in names], widths)
    counted = ", ".join(names)
    return canvas.picture(f"What each process holds under the names {counted}")


def _row(canvas, y, who, values, widths):
    if who == "kernel":
        canvas.box(_PAD / 2, y + 4, 70, 26, stroke=INK, radius=13)
        canvas.text(_PAD / 2 + 35, y + 17, "kernel", bold=True)
        colour = INK
    else:
        canvas.chip(_PAD / 2, y + 4, who)
        colour = rank_colour(who)
    x = _CHIP + _PAD
    for value, width in zip(values, widths, strict=True):
        missing = value is None
        canvas.box(x + 3, y + 2, width - 6, 30, fill="none" if missing else "#ffffff",
                   stroke=FAINT if missing else colour, dashed=missing)  # fmt: skip
        if not missing:
            canvas.text(x + width / 2, y + 17, value)
        x += width
