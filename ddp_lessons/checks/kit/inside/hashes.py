"""
Hashes as they are where torchrun starts ranks: each process has its own.
"""

import inspect
import random
from contextlib import contextmanager


@contextmanager
def own_hashes(here, answer):
    """
    Let `hash` give other numbers on each rank, for text and for what has no hash but its address.

    Python draws anew for each process what hashes of text are. The ranks of a notebook are forks of
    one process and share it, addresses too. Processes that torchrun starts do not.

    Args:
        here: The Here of a case.
        answer: The learner's function, in whose module `hash` is replaced, unless it has its own.

    Yields:
        list: What was hashed that differs, so far.
    """
    names, hashed = getattr(inspect.unwrap(answer), "__globals__", {}), []

    def own_hash(value):
        if isinstance(value, tuple | frozenset):
            parts = map(own_hash, value)
            return hash(tuple(parts) if isinstance(value, tuple) else frozenset(parts))
        if isinstance(value, str | bytes) or type(value).__hash__ is object.__hash__:
            hashed.append(value)
            return random.Random(f"{here.rank} {value!r}").getrandbits(60)
        return hash(value)

    if "hash" in names:
        yield hashed
        return
    names["hash"] = own_hash
    try:
        yield hashed
    finally:
        del names["hash"]
