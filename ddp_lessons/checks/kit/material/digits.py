"""
Numbers that need all their digits, and how to tell that some were lost on the way.
"""

from dataclasses import replace

import torch

from ddp_lessons.checks.kit import equal, whole_numbers

KEPT = (
    "Make a new tensor in every call. One that is kept for the next call is written over there, "
    "and the caller may still need it."
)
"""
The hint for "kept".
"""


def full_numbers(case, rank, shape, dtype):
    """
    Return numbers that need the digits of their dtype, and that sum exactly over up to 4 ranks.

    Of a dtype with a fraction they are quarters. Another dtype on the way would lose some of them.
    The first case of a task, which has seed 0 and is drawn, gets small whole numbers instead.
    """
    if case.seed == 0:
        return whole_numbers(case, rank, shape, dtype)
    if not dtype.is_floating_point:
        return whole_numbers(case, rank, shape, dtype, torch.iinfo(dtype).max // 4)
    return whole_numbers(case, rank, shape, dtype, int(1 / torch.finfo(dtype).eps) // 2) / 4


def is_nearly(got, total, terms):
    """
    Tell whether a sum is off by lost digits only: by 1 % of the sizes of its terms at most.
    """
    size = sum(term.double().abs() for term in terms)
    return bool(((got.double() - total.double()).abs() <= size / 100).all())


def refuse_lost_digits(played, rank, got, right, terms, mistake="digits"):
    """
    Refuse a tensor that is nearly right, and of the right dtype and shape.

    Args:
        played: The Played.
        rank: The rank that gave it.
        got: What it gave.
        right: What is right.
        terms: The tensors that it is the sum of.
        mistake: The mistake's name.
    """
    if not isinstance(got, torch.Tensor) or (got.dtype, got.shape) != (right.dtype, right.shape):
        return
    if not bool((got == right).all()) and is_nearly(got, right, terms):
        off = (got.double() - right.double()).abs().max()
        fact = f"It is nearly right: no number is off by more than {off:.3g}. Digits are lost."
        raise played.wrong(mistake, rank, got=got, expected=right, fact=fact)


def call(here, answer, arguments_of):
    """
    Call an answer; if the case has `calls` 2, with other numbers before that.

    What it has noted of those, such as a sum under a shape, must not come back.

    Args:
        here: What the rank knows.
        answer: What the learner has defined.
        arguments_of: Function of a Case that returns its arguments.
    """
    earlier = []
    if here.case.data.get("calls") == 2:
        here.call(answer, *arguments_of(replace(here.case, seed=here.case.seed + 1)))
        earlier = [seen.result for seen in here.calls]
        here.calls.clear()
    here.call(answer, *arguments_of(here.case))
    here.calls[-1].repeats = any(equal(one, here.calls[-1].result) for one in earlier)
