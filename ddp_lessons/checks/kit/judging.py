"""
The judgement of a case: the mistakes that any answer can make, and the text of the WrongAnswer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from ddp_lessons.checks.kit.mistake_choice import name_mistake
from ddp_lessons.checks.kit.on_rank.snapshots import equal
from ddp_lessons.checks.kit.shared.numbers import words_of_both
from ddp_lessons.errors import WrongAnswer
from ddp_lessons.ranks.diagnosis.wording import rank_names
from ddp_lessons.trace import Event, unmatched

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch

    from ddp_lessons.checks.kit.cases import Case
    from ddp_lessons.checks.kit.on_rank.rank_record import RankRecord
    from ddp_lessons.checks.kit.tasks import Task

MAX_PRINTED_LINES = 5
MAX_COLUMNS = 80
MAX_CALLS = 12


@dataclass
class CaseResult:
    """
    One case that all of its ranks finished.

    Args:
        task: The Task.
        case: The Case.
        seen: A RankRecord for each rank, in rank order.
        printed: The text that each rank printed, in rank order.
        call: Which call with the same arguments is judged: "first" or "second".
    """

    task: Task
    case: Case
    seen: list[RankRecord]
    printed: list[str]
    call: Literal["first", "second"] = "first"

    @property
    def traces(self) -> list[list[Event]]:
        """
        The events of all calls of each rank, a list for each rank.
        """
        return [[event for call in seen.calls for event in call.events] for seen in self.seen]

    @property
    def before(self) -> list[Any]:
        """
        The first argument of each rank's last call, as it was before the call; None without a call.
        """
        return [seen.calls[-1].before[0] if seen.calls else None for seen in self.seen]

    @property
    def after(self) -> list[Any]:
        """
        The first argument of each rank's last call, as it was after the call; None without a call.
        """
        return [seen.calls[-1].after[0] if seen.calls else None for seen in self.seen]

    @property
    def results(self) -> list[Any]:
        """
        The value that each rank's last call returned; None without a call.
        """
        return [seen.calls[-1].result if seen.calls else None for seen in self.seen]

    @property
    def call_names(self) -> list[list[str]]:
        """
        The names of the communication calls of each rank, in order.
        """
        return [[e.name for e in events if e.is_communication] for events in self.traces]

    def wrong(
        self,
        mistake: str,
        rank: int | None = None,
        *,
        got: object = None,
        expected: object = None,
        fact: str = "",
    ) -> WrongAnswer:
        """
        Return the WrongAnswer for a mistake in this case.

        Args:
            mistake: Its name, one of `task.all_hints`.
            rank: The rank that shows the mistake; None: all ranks together.
            got: The answer's value on that rank, to be shown; None: no value.
            expected: The right value, to be shown; None: no value.
            fact: A sentence that says what is wrong, without the solution.
        """
        is_repeated = rank is not None and any(call.repeats for call in self.seen[rank].calls)
        if (self.call != "first" or is_repeated) and mistake == "values":
            mistake = "kept"  # it came from an earlier call
        if self.case.is_simulated and mistake == "values":
            mistake = "more-ranks"
        where = f"Tried with {self.case}."
        if mistake == "values":
            where += f" The fault is in {self._named_call(rank)}."
        if is_repeated and mistake == "kept":
            where = f"Tried with {self.case}. An earlier call with other numbers gave this value."
        if self.call != "first":
            where = f"Tried with {self.case}. The fault is in a second call with equal arguments."
        who = "" if rank is None else f"rank {rank} of {self.case.world_size}"
        called = ""
        is_told = self.task.allowed is not None or len(self.call_names[rank or 0]) <= MAX_CALLS
        # Traces do not hold group creation or store access, so list no calls if only those are
        # allowed.
        may_call = self.task.allowed != () and self.task.in_group
        if rank is not None and is_told and (self.call_names[rank] or may_call):
            called = f"{who} called: {_listed(self.call_names[rank])}"
        lines = [fact, where, called]
        told = words_of_both(got, expected)
        if got is not None:
            verb = "now holds" if mistake == "input-changed" else "gave"
            lines.append(f"{who or 'the ranks'} {verb}: {told[0]}".strip())
        if expected is not None:
            lines.append(f"{'before' if mistake == 'input-changed' else 'expected'}: {told[1]}")
        return wrong(self.task, mistake, [*lines, *printed_lines(self.printed)])

    def _named_call(self, rank):
        calls, name = self.seen[rank or 0].calls, self.task.name
        call = calls[-1] if calls else None
        # `act` may have called another function than the answer, such as a training that calls it.
        called = f"call {call.number} of {name}" if call and call.name == name else name
        return called if rank is None else f"{called} on rank {rank}"

    def expect(
        self, rank: int, got: Any, expected: torch.Tensor, most_off: torch.Tensor | None = None,
        dtype: torch.dtype | None = None, mistake: str = "values",
    ) -> None:  # fmt: skip
        """
        Refuse a result that is not the expected tensor.

        Args:
            rank: The rank that returned it.
            got: The result.
            expected: The right tensor.
            most_off: For each element how far it may be off, as `numbers.sum_error` returns it.
                None: elements must be equal.
            dtype: The right dtype. Default: that of `expected`.
            mistake: The mistake's name if the numbers differ.

        Raises:
            WrongAnswer: The result is no tensor, or one of another dtype, shape or value.
        """
        both = {"got": got, "expected": expected}
        if not hasattr(got, "dtype"):
            raise self.wrong("nothing", rank, **both, fact="It must return a tensor.")
        if got.dtype != (dtype or expected.dtype):
            raise self.wrong("dtype", rank, **both, fact="The dtype is not the one expected.")
        if got.shape != expected.shape:
            raise self.wrong("shape", rank, **both, fact="The shape is not the one expected.")
        if most_off is None:
            same = got == expected
        else:
            same = (got.double() - expected.double()).abs() <= most_off
        if not bool(same.all()):
            raise self.wrong(mistake, rank, **both, fact="The numbers are not those expected.")


def _listed(names):
    # A single save through DCP (torch.distributed.checkpoint) makes twenty calls.
    more = [f"{len(names) - MAX_CALLS} more"] if len(names) > MAX_CALLS else []
    return ", ".join([*names[:MAX_CALLS], *more]) or "nothing"


def wrong(task: Task, mistake: str, lines: Iterable[str]) -> WrongAnswer:
    """
    Return a WrongAnswer.

    Args:
        task: The Task.
        mistake: Its name, one of `task.all_hints`.
        lines: Lines that say what happened. Empty ones are left out.
    """
    hint = task.all_hints[mistake]
    text = [f"Task {task.number}, {task.name}, is not solved yet.", *lines, f"Hint: {hint}"]
    return WrongAnswer("\n".join(line for line in text if line), mistake, hint)


def wrong_by_order(task: Task, error: WrongAnswer) -> WrongAnswer:
    """
    Return the WrongAnswer for an answer that fails only if each rank has its own order of a set.

    Args:
        task: The Task.
        error: The WrongAnswer of the run with different orders.
    """
    _, *lines, _ = str(error).splitlines()
    fact = "The answer fails only if each rank is its own process with its own hash seed."
    return wrong(task, "own-order", [fact, *lines])


def judge_preflights(task: Task, preflights: Iterable[Mapping[str, Any]]) -> None:
    """
    Refuse to run an answer that is missing on a rank, or where torch's functions were replaced.

    Args:
        task: The Task.
        preflights: For each rank what `case_runner.preflight` returned.
    """
    missing = [rank for rank, preflight in enumerate(preflights) if not preflight["defined"]]
    if missing:
        what = f"{task.name} is not defined on {rank_names(missing)}."
        raise wrong(task, "missing", [what])
    for rank, preflight in enumerate(preflights):
        if preflight["replaced"]:
            names = ", ".join(dict.fromkeys(preflight["replaced"]))
            what = f"On rank {rank}, these functions of torch are not torch's own: {names}."
            raise wrong(task, "replaced", [what])


def judge_case(case_result: CaseResult) -> None:
    """
    Raise the WrongAnswer for the first mistake that a case shows, if it shows one.
    """
    _judge_common(case_result)
    judge_own(case_result)
    if case_result.task.twice:
        for seen in case_result.seen:
            if any(call.again.kept_room for call in seen.calls):
                fact = "A second call with the same arguments changes what the first one returned."
                raise case_result.wrong("kept", seen.rank, fact=fact)
        again = replace(
            case_result, seen=[_again(seen) for seen in case_result.seen], call="second"
        )
        _judge_common(again)
        judge_own(again)


def judge_own(case_result: CaseResult) -> None:
    """
    Raise the WrongAnswer for the first of the task's own mistakes that a case shows, if any.
    """
    (case_result.task.judge or name_mistake)(case_result)


def _again(seen):
    return replace(seen, calls=[call.again for call in seen.calls])


def _judge_common(case_result):
    task = case_result.task
    for rank, events in enumerate(case_result.traces):
        for event in events:
            if event.is_communication and not _may_call(task, event.name):
                fact = f"It calls {event.name}, which is not allowed here."
                raise case_result.wrong("forbidden", rank, fact=fact)
    has_keys = any(call.num_keys for seen in case_result.seen for call in seen.calls)
    if has_keys and task.in_group and not task.uses_store:
        fact = "It puts keys into the group's store, by a new group or by a call of the store."
        raise case_result.wrong("store", fact=fact)
    for seen in case_result.seen:
        for call in seen.calls:
            _judge_call(case_result, seen.rank, call)
    for event, missing in unmatched(case_result.traces):
        if event.is_send and missing:
            fact = f"Rank {event.rank} sends a message that rank {event.peer} never receives."
            raise case_result.wrong("unreceived", event.rank, fact=fact)


def _judge_call(case_result, rank, call):
    task = case_result.task
    if task.must_return and call.result is None:
        raise case_result.wrong("nothing", rank, fact="It returns nothing.")
    for event in call.events:
        if event.is_communication and event.wait_index is None and event.backward is None:
            fact = f"It returns while its {event.name} may still be under way."
            raise case_result.wrong("unwaited", rank, fact=fact)
    if call.num_threads:
        fact = "It returns while a thread that it has started may still be running."
        raise case_result.wrong("left-running", rank, fact=fact)
    forgotten = [text for kind, text in call.changes.items() if kind not in (task.may_mutate or ())]
    if task.may_mutate is not None and forgotten:
        raise case_result.wrong("left-changed", rank, fact=forgotten[0])
    if task.in_place:
        return
    if not equal(call.before, call.after):
        fact = "It changes an argument in place."
        before, after = next(
            (one, other)
            for one, other in zip(call.before, call.after, strict=True)
            if not equal(one, other)
        )
        raise case_result.wrong("input-changed", rank, got=after, expected=before, fact=fact)
    if call.shares_input:
        fact = "It returns the argument itself, or a view of the argument."
        raise case_result.wrong("view", rank, fact=fact)


def _may_call(task, name):
    return (task.allowed is None or name in task.allowed) and name not in task.forbidden


def printed_lines(printed: Iterable[str]) -> list[str]:
    """
    Return the first lines that each rank printed, prefixed by the rank, as cells show them.
    """
    return [
        f"[{rank}] {line[:MAX_COLUMNS]}"
        for rank, text in enumerate(printed)
        for line in text.splitlines()[:MAX_PRINTED_LINES]
    ]
