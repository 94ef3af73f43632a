"""
Algorithms, dtypes and numbers that the tests of `collectives` and `ring` share.
"""

import torch

from ddp_lessons.collectives import log_rounds, naive

WORLD_SIZES = [1, 2, 3, 4]
WIDER = [*WORLD_SIZES, 5, 6]
ALGORITHMS = [naive, log_rounds]
OPS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX"]
DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
    torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool,
]  # fmt: skip
SHAPES = [(), (2, 0, 3), (3, 5)]


def values(shape, dtype, rank, salt=0):
    """
    Return small whole numbers that differ between ranks, so that every order of additions is exact.
    """
    generator = torch.Generator().manual_seed(100 * rank + salt)
    return torch.randint(0, 4, shape, generator=generator).to(dtype)


def bits(tensor):
    """
    Return a tensor as plain data. Equal data mean equal numbers, dtypes and shapes.
    """
    return (str(tensor.dtype), tuple(tensor.shape), tensor.tolist())
