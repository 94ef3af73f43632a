"""
Numbers on axes: round ticks and byte units.
"""

from math import floor, log10

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def ticks(high: float, most: int, whole: bool = False) -> list[float]:
    """
    Return round numbers from 0 to the end of an axis, in steps of 1, 2 or 5 times a power of ten.

    Args:
        high: The end of the axis, above 0.
        most: Most steps that there may be, at least 3, or none would be round enough.
        whole: Whether the axis counts things, so that there are whole numbers only.
    """
    step = 10.0 ** floor(log10(high / most))
    # A little room, or an end like 0.6 = 3 x 0.2 falls behind its own last tick by rounding.
    room = 1 + 1e-9
    step *= next(factor for factor in (1, 2, 5, 10) if high / (step * factor) <= most * room)
    if whole:
        step = max(1.0, step)
    return [k * step for k in range(floor(high / step * room) + 1)]


def byte_unit(num_bytes: float) -> tuple[str, int]:
    """
    Return the unit in which a number of bytes is easy to read, and how many bytes it is.
    """
    power = 0
    while power + 1 < len(_UNITS) and num_bytes >= 1024 ** (power + 1):
        power += 1
    return _UNITS[power], 1024**power


def byte_text(num_bytes: float) -> str:
    """
    Return a number of bytes in its unit, with three digits where it is no whole number.
    """
    unit, size = byte_unit(num_bytes)
    number = num_bytes / size
    return f"{number:g} {unit}" if number == int(number) else f"{number:.3g} {unit}"
