"""
Put something in the place of a module's function for a while, and surely give it back.

A rank that is freed gets a KeyboardInterrupt wherever it is, and so in the middle of giving back as
well. What is lent out is therefore noted before, and whoever comes next gives back what is left.
"""

from contextlib import contextmanager

_lent_out: list = []  # (module, name, what stood there), newest last


@contextmanager
def replacing(module, **values):
    """
    Have a module's names hold other values for a while.

    Args:
        module: The module.
        values: What its names shall hold.
    """
    num_before = len(_lent_out)
    for name, value in values.items():
        _lent_out.append((module, name, getattr(module, name)))
        setattr(module, name, value)
    try:
        yield
    finally:
        give_back(num_before)


def give_back(num_kept=0):
    """
    Give back what is lent out, but for so many of the oldest. Does nothing if nothing is.
    """
    while len(_lent_out) > num_kept:
        setattr(*_lent_out[-1])
        _lent_out.pop()
