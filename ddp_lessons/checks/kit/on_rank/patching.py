"""
Replacement of a module's names for a while, which is undone even after an interrupt.

A released rank gets a KeyboardInterrupt at any line, also while values are put back. So each value
is recorded before it is replaced, and the next call of `restore_patched` puts back what is left.
"""

from collections.abc import Iterator
from contextlib import contextmanager

_lent_out: list = []  # (module, name, original value), newest last


@contextmanager
def patched(module: object, **values: object) -> Iterator[None]:
    """
    Give names of a module other values in a `with` block.

    Args:
        module: The module.
        values: The new values, by name.
    """
    num_before = len(_lent_out)
    for name, value in values.items():
        _lent_out.append((module, name, getattr(module, name)))
        setattr(module, name, value)
    try:
        yield
    finally:
        restore_patched(num_before)


def restore_patched(num_kept: int = 0) -> None:
    """
    Put back the values that were replaced, except the oldest `num_kept` of them.
    """
    while len(_lent_out) > num_kept:
        setattr(*_lent_out[-1])
        _lent_out.pop()
