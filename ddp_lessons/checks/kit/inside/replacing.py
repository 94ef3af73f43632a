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
    for name, value in values.items():
        _lent_out.append((module, name, getattr(module, name)))
        setattr(module, name, value)
    try:
        yield
    finally:
        give_back()


def give_back():
    """
    Give back whatever is lent out. Does nothing if nothing is.
    """
    while _lent_out:
        setattr(*_lent_out[-1])
        _lent_out.pop()
