"""
The rank context, and the rank record: an answer's calls, and what became of their arguments.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist

from ddp_lessons.checks.kit.on_rank.argument_state import ArgumentState
from ddp_lessons.checks.kit.on_rank.delayed_threads import delayed_threads
from ddp_lessons.checks.kit.on_rank.snapshots import equal, plain, share_memory, tensors_in
from ddp_lessons.private.process_groups import default_store
from ddp_lessons.process_group import rank_device
from ddp_lessons.trace import trace

if TYPE_CHECKING:
    from torch import nn

    from ddp_lessons.checks.kit.cases import Case
    from ddp_lessons.trace import Event

_T = TypeVar("_T")


@dataclass
class AnswerCall:
    """
    One call of the answer, as one rank saw it.

    Args:
        before: Copies of the arguments before the call: first the positional, then the named ones.
        after: Copies of the same arguments after the call.
        result: A copy of the returned value.
        shares_input: Whether the returned value is an argument, or shares memory with one.
        events: The trace of the call, a list of Event.
        num_keys: Number of keys that ranks added to the group's store, less those that they
            deleted. Rank 0 counts them; on other ranks the number is 0.
        changes: {name of what changed: a sentence}, for the models and optimizers among the
            arguments (see `ArgumentState.changes`).
        again: The AnswerCall of the second try with the same arguments, in a task with `twice`.
        repeats: Whether it returned what an earlier call with other arguments had returned.
        kept_room: In a second try, whether its result shares memory with the first one's, or the
            first result has changed since.
        num_threads: Number of threads that the call started and did not wait for, in a task with
            `must_join_threads`.
        name: The `__name__` of the called function.
        number: The number of the call in this case, from 1.
    """

    before: tuple[Any, ...]
    after: tuple[Any, ...] = ()
    result: Any = None
    shares_input: bool = False
    events: list[Event] = field(default_factory=list)
    num_keys: int = 0
    changes: dict[str, str] = field(default_factory=dict)
    again: AnswerCall | None = None
    repeats: bool = False
    kept_room: bool = False
    num_threads: int = 0
    name: str = ""
    number: int = 1


@dataclass
class RankRecord:
    """
    The rank record: what was seen of an answer on one rank in one case.

    Args:
        rank: The rank.
        calls: An AnswerCall for each `context.call`.
        output: A copy of the value that the task's `act` returned.
        num_orders: How often the answer used the order of a set of texts, or a hash.
    """

    rank: int
    calls: list[AnswerCall]
    output: Any = None
    num_orders: int = 0


class RankContext:
    """
    The rank context of a case: a task's `act` gets it, and calls the answer through `call`.

    Attributes:
        case: The Case; `context["length"]` is one of its data.
        rank: This rank.
        world_size: Number of ranks of the case.
        device: The torch.device of this rank.
        folder: Path of a folder that all cases of this check share; it is removed afterwards.
        calls: An AnswerCall for each call of the answer so far.
        twice: Whether each call is made once more with the same arguments.
        must_join_threads: Whether a call must have waited for the threads that it has started.
    """

    def __init__(
        self,
        case: Case,
        rank: int,
        folder: Path | str,
        twice: bool = False,
        must_join_threads: bool = False,
    ) -> None:
        self.case = case
        self.twice = twice
        self.must_join_threads = must_join_threads
        self.rank = rank
        self.world_size = case.world_size
        self.device = rank_device()
        self.folder = Path(folder)
        self.calls: list[AnswerCall] = []
        self._num_calls = 0

    def __getitem__(self, name: str) -> Any:
        return self.case[name]

    def call(
        self,
        answer: Callable[..., _T],
        *args: object,
        watch: Sequence[nn.Module] = (),
        **kwargs: object,
    ) -> _T:
        """
        Call the answer, and record its trace, its result, and what became of its arguments.

        Args:
            answer: The function that the learner defined, or one that was made from it.
            args: Its positional arguments.
            watch: Models whose gradients the trace records as they become ready.
            kwargs: Its named arguments.

        Returns:
            The value that the answer returned.
        """
        spare = copy.deepcopy((args, kwargs)) if self.twice else (args, kwargs)
        was_in_group = dist.is_initialized()
        result, seen = self._call(answer, args, kwargs, watch)
        if self.twice and dist.is_initialized() == was_in_group:
            if not equal(seen.before, seen.after):  # the judge refuses it; ranks stay in step
                args, kwargs = spare
            second, seen.again = self._call(answer, args, kwargs, watch)
            seen.again.kept_room = share_memory(result, second) or not equal(
                plain(result), seen.result
            )
        self.calls.append(seen)
        return result

    def _call(self, answer, args, kwargs, watch):
        given = (*args, *kwargs.values())
        lent, was_in_group, num_keys = ArgumentState(given), dist.is_initialized(), _num_keys()
        self._num_calls += 1
        name = getattr(answer, "__name__", "")
        seen = AnswerCall(before=plain(given), name=name, number=self._num_calls)
        watched = delayed_threads() if self.must_join_threads else nullcontext(lambda: 0)
        with trace(*watch) as events, watched as num_left:
            result = answer(*args, **kwargs)
            seen.num_threads = num_left()
        seen.events = list(events)
        if was_in_group:  # a new group's store may be a file that the answer has removed
            seen.num_keys = _num_keys() - num_keys
        seen.changes = lent.changes()
        seen.after = plain(given)
        seen.result = plain(result)
        seen.shares_input = share_memory(given, result) or any(
            result is one for one in tensors_in(given)
        )
        return result, seen


def _num_keys():
    # Only rank 0 counts the keys of all ranks: other ranks may still be adding keys.
    if not dist.is_initialized() or dist.get_rank() != 0:
        return 0
    return default_store().num_keys()
