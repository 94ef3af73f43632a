"""
Which processes stand behind a notebook: kernel, controller, one process a rank, its device.
"""

from collections.abc import Sequence

from ddp_lessons.pictures.svg import FAINT, INK, Canvas, Picture, rank_colour

_BOX_WIDTH, _BOX_HEIGHT, _GAP = 116, 44, 20


def processes_picture(devices: Sequence[str]) -> Picture:
    """
    Draw the processes behind a notebook, from the page down to the devices.

    Args:
        devices: Name of each rank's device, in rank order, for example ["cpu", "cpu"].

    Returns:
        Picture: A box a process, a line wherever two of them talk, a box a device.

    Raises:
        ValueError: There is no rank to draw.
    """
    if not devices:
        raise ValueError("No ranks to draw: expected at least one device (got none). Start ranks.")
    step = _BOX_WIDTH + _GAP
    width = max(len(devices) * step + _GAP, 2 * step + 120)
    centre = width / 2
    canvas = Canvas(width, 352)
    centres = [centre + (rank - (len(devices) - 1) / 2) * step for rank in range(len(devices))]

    _process(canvas, centre, 14, "kernel", "runs your plain cells")
    canvas.line(centre, 58, centre, 82)
    _process(canvas, centre, 82, "controller", "passes cells and output")
    for rank, x in enumerate(centres):
        canvas.line(centre, 126, x, 162)
        canvas.box(x - _BOX_WIDTH / 2, 162, _BOX_WIDTH, _BOX_HEIGHT, fill="#ffffff",
                   stroke=rank_colour(rank))  # fmt: skip
        canvas.chip(x - 35, 171, rank)
    _ring(canvas, centres)
    for name in dict.fromkeys(devices):
        users = [centres[rank] for rank, device in enumerate(devices) if device == name]
        _device(canvas, users, name)
    names = ", ".join(f"rank {rank} on {device}" for rank, device in enumerate(devices))
    return canvas.picture(f"One kernel, one controller and {len(devices)} rank processes: {names}")


def _process(canvas, centre, y, name, what):
    width = 200
    canvas.box(centre - width / 2, y, width, _BOX_HEIGHT, fill="#ffffff", stroke=INK)
    canvas.text(centre, y + 14, name, bold=True)
    canvas.text(centre, y + 31, what, fill=FAINT, size=12)


def _ring(canvas, centres):
    # The ranks' own lines: their tensors go here and never through the controller.
    y = 226
    for x in centres:
        canvas.line(x, 206, x, y)
    canvas.line(centres[0], y, centres[-1], y)
    canvas.text(sum(centres) / len(centres), y + 14, "tensors go from rank to rank", FAINT, 12)


def _device(canvas, users, name):
    left, right = min(users) - _BOX_WIDTH / 2, max(users) + _BOX_WIDTH / 2
    for x in users:
        canvas.line(x, 250, x, 296, dashed=True)
    canvas.box(left, 296, right - left, 38, fill="#eef1f6")
    canvas.text((left + right) / 2, 315, name, bold=True)
