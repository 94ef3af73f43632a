"""
Tell whole numbers from anything else, whichever library they come from.
"""

import operator


def whole_number(value):
    """
    Return a whole number as Python's int; None if it is none. True and False are none.

    Args:
        value: An int, a NumPy integer, a tensor of one integer, or anything else.
    """
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
