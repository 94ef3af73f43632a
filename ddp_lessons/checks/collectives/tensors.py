"""
The tensors and hints that the tasks of exercise 02 share.
"""

import torch

from ddp_lessons.checks.kit.shared.lost_digits import full_numbers


def tensor_of(case, rank):
    """
    Return the tensor with which a rank starts a case.
    """
    return full_numbers(case, rank, case["shape"], getattr(torch, case["dtype"]))


IN_ITS_DTYPE = "Send the tensor in its own dtype: another one may not hold its numbers."

MUST_FIT = (
    "A message and the tensor that it is received into must have the same shape and dtype. If more "
    "bytes arrive than the tensor has room for, torch ends the process."
)
