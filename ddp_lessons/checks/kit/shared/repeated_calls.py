"""
A case's second call of an answer, which finds values that the answer kept from the first one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ddp_lessons.checks.kit import equal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ddp_lessons.checks.kit import Case
    from ddp_lessons.checks.kit.on_rank.rank_record import RankContext

KEPT_HINT = (
    "Create a new tensor in every call. The next call overwrites a tensor that is kept, and the "
    "caller may still need its numbers."
)
"""
The hint for the mistake "kept".
"""


def call_once_or_twice(
    context: RankContext,
    answer: Callable[..., object],
    arguments_of: Callable[[Case], Iterable[object]],
) -> None:
    """
    Call an answer. If the case has `calls` 2, call it with other numbers first.

    Values that the answer cached in the first call, such as a sum stored by its shape, must not
    come back in the second one.

    Args:
        context: The RankContext.
        answer: The function that the learner defined.
        arguments_of: Function of a Case that returns the arguments.
    """
    earlier = []
    if context.case.data.get("calls") == 2:
        assert context.case.seed is not None
        context.call(answer, *arguments_of(replace(context.case, seed=context.case.seed + 1)))
        earlier = [seen.result for seen in context.calls]
        context.calls.clear()
    context.call(answer, *arguments_of(context.case))
    context.calls[-1].repeats = any(equal(one, context.calls[-1].result) for one in earlier)
