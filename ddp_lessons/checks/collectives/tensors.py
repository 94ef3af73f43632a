"""
The tensors and hints that the tasks of exercise 02 share.
"""

import torch

from ddp_lessons.checks.kit import Mistake
from ddp_lessons.checks.kit.shared.lost_digits import full_numbers, is_nearly


def tensor_of(case, rank):
    """
    Return the tensor with which a rank starts a case.
    """
    return full_numbers(case, rank, case["shape"], getattr(torch, case["dtype"]))


def _loses_digits(view):
    if not view.is_off or view.got.shape != view.expected.shape:
        return False
    return is_nearly(view.got, view.expected, [view.expected])


IN_ITS_DTYPE = "Send the tensor in its own dtype: another dtype may not hold its numbers."

LOST_DIGITS = Mistake(
    "digits",
    IN_ITS_DTYPE,
    "The numbers are nearly right: some digits are lost.",
    shows=_loses_digits,
)
"""
The mistake of a message in a narrower dtype, for a task that expects one rank's tensor as it is.
"""

MUST_FIT = (
    "A message and the tensor that it is received into must have the same shape and dtype. If more "
    "bytes arrive than the tensor has room for, torch ends the process."
)
