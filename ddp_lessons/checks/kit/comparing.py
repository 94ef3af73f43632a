"""
Comparison of an answer's value with the right value: it finds the first part that differs.
"""

from dataclasses import dataclass
from typing import Any

import torch

from ddp_lessons.checks.kit.on_rank.snapshots import equal


@dataclass(frozen=True)
class ValueDifference:
    """
    The first part in which two values differ.

    Args:
        got: The answer's value of that part.
        expected: The value that it was compared with.
        where: Where the part is in lists and dictionaries, in words; "" if the whole values differ.
    """

    got: Any
    expected: Any
    where: str = ""


def find_difference(
    got: object, expected: object, most_off: object = None, where: str = ""
) -> ValueDifference | None:
    """
    Return the ValueDifference of two values, or None if they agree.

    Tensors must agree in dtype and shape, lists and tuples in type and length. A list of numbers or
    texts differs as a whole, so that the message shows all of its items.

    Args:
        got: The answer's value.
        expected: The value that it is compared with.
        most_off: How far each number may be off: one limit for all numbers, or limits in the
            structure of `expected`. None: numbers must be equal.
        where: Where both values are in a larger value, in words.
    """
    if isinstance(expected, list | tuple | dict):
        if type(got) is not type(expected):
            return ValueDifference(got, expected, where)
        return _find_difference_inside(got, expected, most_off, where)
    if isinstance(expected, torch.Tensor):
        is_alike = isinstance(got, torch.Tensor) and (got.dtype, got.shape) == (
            expected.dtype,
            expected.shape,
        )
        is_near = is_alike and bool(_are_near(got, expected, most_off).all())
    elif isinstance(got, torch.Tensor):
        is_near = False
    elif most_off is None:
        is_near = equal(got, expected) or got == expected
    else:
        is_near = isinstance(got, int | float) and (
            abs(got - expected) <= most_off  # type: ignore[operator]  # both are numbers
        )
    return None if is_near else ValueDifference(got, expected, where)


def _are_near(got, expected, most_off):
    if most_off is None:
        return got == expected
    return (got.double() - expected.double()).abs() <= most_off


def _find_difference_inside(got, expected, most_off, where):
    is_dict = isinstance(expected, dict)
    keys = list(expected) if is_dict else range(len(expected))
    if (got.keys() != expected.keys()) if is_dict else (len(got) != len(expected)):
        return ValueDifference(got, expected, where)
    for key in keys:
        limit = most_off[key] if isinstance(most_off, list | tuple | dict) else most_off
        place = f"{key}" if is_dict else f"item {key}"
        found = find_difference(
            got[key], expected[key], limit, f"{where}, {place}" if where else place
        )
        if found is not None:
            is_plain = not isinstance(expected[key], torch.Tensor | list | tuple | dict)
            return ValueDifference(got, expected, where) if is_plain and not is_dict else found
    return None
