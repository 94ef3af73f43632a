"""
The class of a task: its cases, the work of each rank in a case, and how the results are judged.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

from ddp_lessons.checks.kit.mistakes import COMMON, LEFT_UNDER_WAY, Mistake
from ddp_lessons.errors import BadInput

if TYPE_CHECKING:
    from ddp_lessons.checks.kit.cases import Case
    from ddp_lessons.checks.kit.checking import CheckRun
    from ddp_lessons.checks.kit.judging import CaseResult
    from ddp_lessons.checks.kit.mistake_choice import Expected
    from ddp_lessons.checks.kit.on_rank.rank_record import RankContext
    from ddp_lessons.pictures import Picture
    from ddp_lessons.ranks.kernel.ranks import Ranks

FIRST_VERSION = "0.1.0"
"""
The first version of the course. A learner's state that names no version is of this one.
"""


@dataclass(frozen=True)
class Task:
    """
    One task of an exercise. Call it to check the learner's answer.

    Args:
        number: The lesson's number and the task's, such as "02.1".
        changed_in: Version of the course since which the task asks what it asks now. An answer that
            was right in an earlier version may be refused.
        name: The function or class that the learner defines on the ranks, such as "all_reduce".
        cases: Function of a random.Random that returns Cases. `picture` draws the first one, which
            must be the same at every check, so give it a seed.
        act: Function (context, answer) that each rank of a case runs. It makes the arguments and
            calls `context.call(answer, ...)`. The check also keeps the value that it returns.
        expected: The Expected, which says what is right. None: no value is compared.
        mistakes: A tuple of `Mistake`, in the order in which `mistake_choice.name_mistake` tries
            them.
            A task with a `judge` has a dictionary {name of a mistake: hint}. Both may hold other
            hints for the mistakes of `mistakes.COMMON`.
        judge: The older form, in place of a tuple of mistakes: a function of a CaseResult that
            raises `case_result.wrong(...)` if a case shows a mistake.
        ok: The end of the ok line, or a function of all CaseResults that returns it. It must be the
            same at every check of the same answer.
        draw: Function of a CaseResult that returns a Picture.
        hints: At least three, from the concept to the key line.
        allowed: Names of the calls that an answer may make, as a trace names them; None: any.
        forbidden: Names of the calls that an answer may not make.
        in_place: Whether the answer may change its arguments, or return one or a view of one.
        must_return: Whether the answer must return something on every rank.
        twice: Whether each call is made once more with the same arguments, and judged as well. It
            suits an answer that depends on its arguments alone.
        must_join_threads: Whether the answer must wait for the threads that it starts.
        may_mutate: Names of what the answer may change of a model or optimizer that it gets; the
            text of `kit.on_rank.argument_state` lists them. None: such changes are not judged.
        in_group: Whether the ranks are in a group. False: the answer joins one itself.
        uses_store: Whether the answer may put keys into the group's store, as a new group does.
            Else keys are refused: ranks could communicate through them without calls that are
            counted.
        draws_case: Position of the case that `picture` draws, from 0. The case needs a seed.
        extra_time_s: Seconds that the cases spend in waits of their own, for a timeout to expire or
            a job to end. They are added to the check's time limit.
        warm_up: Function of a module that every rank calls before the clock of a check starts. It
            does what takes seconds the first time, as `kit.shared.warm_up.first_ddp` does. None:
            no call.

    Attributes:
        last_run: A list with the CheckRun of the last check; empty before the first one.
    """

    number: str
    name: str
    cases: Callable[[Random], Iterable[Case]]
    act: Callable[[RankContext, Callable[..., Any]], object]
    ok: str | Callable[[list[CaseResult]], str]
    draw: Callable[[CaseResult], Picture]
    hints: tuple[str, ...]
    mistakes: tuple[Mistake, ...] | dict[str, str]
    changed_in: str = FIRST_VERSION
    expected: Expected | None = None
    judge: Callable[[CaseResult], None] | None = None
    allowed: tuple[str, ...] | None = None
    forbidden: tuple[str, ...] = ()
    in_place: bool = False
    must_return: bool = True
    twice: bool = False
    must_join_threads: bool = False
    may_mutate: tuple[str, ...] | None = None
    in_group: bool = True
    uses_store: bool = False
    draws_case: int = 0
    extra_time_s: float = 0.0
    warm_up: Callable[[], object] | None = None
    last_run: list[CheckRun] = field(default_factory=list, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.judge is None:
            refuse_unclear(self)

    def has_changed_since(self, version: object) -> bool:
        """
        Tell whether the task asked for something else in an earlier version of the course.

        Args:
            version: That version, such as "0.1.0". None and all that is no version count as the
                first one.
        """
        try:
            earlier = Version(str(version))
        except InvalidVersion:
            earlier = Version(FIRST_VERSION)
        return earlier < Version(self.changed_in)

    @property
    def own_hints(self) -> dict[str, str]:
        """
        The hints of the mistakes that this task names, as {name of a mistake: hint}.
        """
        if isinstance(self.mistakes, dict):
            return self.mistakes
        return {mistake.name: mistake.hint for mistake in self.mistakes}

    @property
    def all_hints(self) -> dict[str, str]:
        """
        The hints of all mistakes, with those of `mistakes.COMMON`, as {name of a mistake: hint}.
        """
        return COMMON | self.own_hints

    def name_raised(self, errors: Sequence[str]) -> str:
        """
        Return the name of the mistake of an answer that raises these errors, which are texts.
        """
        listed = () if isinstance(self.mistakes, dict) else self.mistakes
        fits = (m.name for m in listed if any(text in e for text in m.raises for e in errors))
        # Python's own words: "total() takes 1 positional argument but 2 were given"
        wrong_call = re.compile(rf"TypeError: {self.name}(\.__init__)?\(\) (takes|missing|got) ")
        is_undefined = any(error.startswith("NameError") for error in errors)
        general = "undefined" if is_undefined else "raised"
        return next(fits, "signature" if any(map(wrong_call.match, errors)) else general)

    def is_left_under_way(self, name: str) -> bool:
        """
        Tell whether messages may still be under way after a mistake of this name.
        """
        listed = () if isinstance(self.mistakes, dict) else self.mistakes
        return name in (*LEFT_UNDER_WAY, *(mistake.name for mistake in listed if mistake.raises))

    @property
    def module(self) -> str:
        """
        The full name of the module that defines this task.
        """
        return self.act.__module__

    def __call__(self, ranks: Ranks | None = None) -> None:
        """
        Check the answer on the running ranks. Print one line that starts with "ok:".

        Args:
            ranks: The Ranks. Default: the running ones.

        Raises:
            WrongAnswer: The answer is not right yet. The message says why, and has a hint.
            RanksGone: No ranks are running.
        """
        from ddp_lessons.checks.kit.checking import check

        check(self, ranks)

    def picture(self) -> Picture:
        """
        Draw the calls of the answer in a case of the last check, by default in the first one.

        Returns:
            Picture: The value that the task's `draw` returns.

        Raises:
            BadInput: There was no check yet, or the check failed before that case ended.
        """
        if not self.last_run or len(self.last_run[0].case_result) <= self.draws_case:
            raise BadInput(
                f"Nothing to draw: task {self.number} must have been run (got no run that has "
                "finished). Run its check first."
            )
        return self.draw(self.last_run[0].case_result[self.draws_case])

    def __repr__(self) -> str:
        return f"<task {self.number}: {self.name}>"

    def new_cases(self, max_world_size: int) -> list[Case]:
        """
        Return newly drawn cases for one check, without those that need more ranks than there are.
        """
        cases = [
            replace(case, seed=secrets.randbits(40)) if case.seed is None else case
            for case in self.cases(Random(secrets.randbits(64)))
            if case.is_simulated or case.world_size <= max_world_size
        ]
        if not cases:
            raise BadInput(
                f"Too few ranks: task {self.number} needs more of them (got {max_world_size}). "
                "Run start_ranks(4)."
            )
        return cases


def refuse_unclear(task: Task) -> None:
    """
    Refuse a list of mistakes that cannot be tried from top to bottom.

    Args:
        task: The Task.

    Raises:
        BadInput: Two mistakes have one name, a mistake cannot be recognised, or `VALUES` is missing
            although there is an Expected, or there without one.
    """
    names = [mistake.name for mistake in task.mistakes]
    twice = {name for name in names if names.count(name) > 1}
    unseen = {mistake.name for mistake in task.mistakes if not mistake.has_sign} - {*COMMON}
    fault = (
        (twice and f"each name must be there once (got {min(twice)!r} again)")
        or (unseen and f"each mistake must be recognised in some way (got {min(unseen)!r} without)")
        or (
            (task.expected is not None) != ("values" in names)
            and f"VALUES must be in it if there is an Expected (got {', '.join(names)})"
        )
    )
    if fault:
        raise BadInput(
            f"Unclear list of mistakes of task {task.number}: {fault}. See CONTRIBUTING, "
            '"Add a task".'
        )
