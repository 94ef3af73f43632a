"""
The conversion of whole numbers of any library to Python's int.
"""

import operator
from typing import Any


def whole_number(value: Any) -> int | None:
    """
    Return a whole number as Python's int, and None for any other value, even True and False.

    Args:
        value: An int, a NumPy integer, a tensor of one integer, or anything else.
    """
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
