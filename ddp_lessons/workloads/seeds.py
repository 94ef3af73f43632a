"""
Random numbers that depend on what one names, and on nothing that was drawn before.

Shapes: none; a generator is a stream of numbers.
"""

import contextlib
import hashlib
from collections.abc import Iterator

import torch


def rank_generator(seed: int, rank: int = 0, step: int = 0) -> torch.Generator:
    """
    Make a generator whose numbers differ between seeds, ranks and steps.

    A seed such as `seed + rank` would give rank 1 of seed 0 the numbers of rank 0 of seed 1. Here
    the three are hashed together, so that no two of them share a stream.

    Args:
        seed: The run's seed, the same on every rank.
        rank: This rank, or 0 if all ranks are to draw the same.
        step: Number of the training step, so that a resumed run draws what it would have drawn.

    Returns:
        torch.Generator: On the CPU, and new.

    Source: torch documentation, "Reproducibility". Lesson: 04_samplers, 08_checkpoint.
    """
    digest = hashlib.sha256(f"{seed} {rank} {step}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """
    Draw from a seed inside the block; afterwards the global random state is what it was.

    Args:
        seed: Two blocks of one seed draw the same numbers. Layers take their first weights so.
    """
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        yield
