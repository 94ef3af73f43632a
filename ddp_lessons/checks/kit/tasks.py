"""
What a task is: its cases, what each rank does in one, and who judges what came of it.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from ddp_lessons.checks.kit.mistakes import COMMON, LEFT_UNDER_WAY
from ddp_lessons.errors import BadInput


@dataclass(frozen=True)
class Task:
    """
    Hold one task of an exercise. Call it to check the learner's answer.

    Args:
        number: Such as "02.1": the lesson's number and the task's.
        name: What the learner defines on the ranks, such as "all_reduce".
        cases: Function of a random.Random that returns Cases. The first one is drawn by `picture`
            and must be the same every time, so give it a seed.
        act: Function (here, answer) that each rank of a case runs. It makes the arguments and
            calls `context.call(answer, ...)`; what it returns is kept too.
        expected: The Expected, which says what is right. None: no value is compared.
        mistakes: A tuple of `Mistake`, in the order in which they are tried: see
            `elimination.name_mistake`. Of a task with a `judge`: name of a mistake -> its hint.
            Those of `mistakes.COMMON` may be worded anew.
        judge: The older form, in place of a tuple of mistakes: a function of a CaseResult that raises
            `case_result.wrong(...)` if a case shows a mistake.
        ok: What the ok line says after the task's name, or a function of all CaseResult that returns
            it. It must be the same at every check of the same answer.
        draw: Function of the first CaseResult that returns a Picture.
        hints: At least three, from the concept to the key line.
        allowed: Names of the calls that an answer may make, as a trace names them; None: any.
        forbidden: Names of the calls that it may not make.
        in_place: Whether the answer may change its arguments, or return one or a view of one.
        returns: Whether it must return something.
        twice: Whether each call is made once more with the same arguments, and judged as well: for
            an answer that depends on nothing else.
        may_mutate: What of a model or optimizer that it gets the answer may change, by the names
            that `kit.on_rank.argument_state` lists. None: nothing is said of it.
        in_group: Whether the ranks are in a group. False: the answer joins one by itself.
        uses_store: Whether keys may be put into the group's store, as a new group does. Otherwise
            that is a way to talk past the calls that are counted.
        draws_case: Place of the case that `picture` draws, from 0. It needs a seed.
        extra_time_s: How many seconds its cases wait by themselves, for a limit to be over or a job to
            end: the answer gets them on top of those that it has.
        warm_up: Function of a module that every rank calls before the clock of a check starts, for
            what takes seconds the first time, such as
            `kit.material.warm_up.first_ddp`. None: nothing does.

    Attributes:
        last_run: The Run of the last check, alone in a list, or nothing.
    """

    number: str
    name: str
    cases: Callable
    act: Callable
    ok: Any
    draw: Callable
    hints: tuple
    mistakes: tuple | dict
    expected: Any = None
    judge: Callable | None = None
    allowed: tuple | None = None
    forbidden: tuple = ()
    in_place: bool = False
    returns: bool = True
    twice: bool = False
    must_join_threads: bool = False
    may_mutate: tuple | None = None
    in_group: bool = True
    uses_store: bool = False
    draws_case: int = 0
    extra_time_s: float = 0.0
    warm_up: Callable | None = None
    last_run: list = field(default_factory=list, init=False, compare=False, repr=False)

    def __post_init__(self):
        if self.judge is None:
            refuse_unclear(self)

    @property
    def own_hints(self):
        """
        Name of a mistake -> its hint, for those that this task names itself.
        """
        if isinstance(self.mistakes, dict):
            return self.mistakes
        return {mistake.name: mistake.hint for mistake in self.mistakes}

    @property
    def all_hints(self):
        """
        Name of a mistake -> its hint, those of `mistakes.COMMON` included.
        """
        return COMMON | self.own_hints

    def name_raised(self, errors):
        """
        Return the name of the mistake of answers that raise these errors, given as texts.
        """
        listed = () if isinstance(self.mistakes, dict) else self.mistakes
        fits = (m.name for m in listed if any(text in e for text in m.raises for e in errors))
        is_undefined = any(error.startswith("NameError") for error in errors)
        return next(fits, "undefined" if is_undefined else "raised")

    def is_left_under_way(self, name):
        """
        Tell whether messages may still be under way after a mistake of this name.
        """
        listed = () if isinstance(self.mistakes, dict) else self.mistakes
        return name in (*LEFT_UNDER_WAY, *(mistake.name for mistake in listed if mistake.raises))

    @property
    def module(self):
        """
        The full name of the module that defines this task.
        """
        return self.act.__module__

    def __call__(self, ranks=None):
        """
        Check the answer on the running ranks. Prints one line that starts with "ok:".

        Args:
            ranks: The Ranks; default: those that run.

        Raises:
            WrongAnswer: It is not right yet. The message says how, and holds a hint.
            RanksGone: No ranks are running.
        """
        from ddp_lessons.checks.kit.checking import check

        check(self, ranks)

    def picture(self):
        """
        Draw what the answer did in the first case of the last check.

        Returns:
            Picture: What the task's `draw` makes of it.

        Raises:
            BadInput: There was no check yet, or it did not get that far.
        """
        if not self.last_run or len(self.last_run[0].case_result) <= self.draws_case:
            raise BadInput(
                f"Nothing to draw: task {self.number} must have been run (got no run that came "
                "to an end). Run its check first."
            )
        return self.draw(self.last_run[0].case_result[self.draws_case])

    def __repr__(self):
        return f"<task {self.number}: {self.name}>"

    def new_cases(self, max_world_size):
        """
        Return the cases of one check, drawn anew, that fit on so many ranks.
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


def refuse_unclear(task):
    """
    Refuse a list of mistakes that cannot be tried from top to bottom.

    Args:
        task: The Task.

    Raises:
        BadInput: Two mistakes have one name, nothing gives one away, or "values" has no place.
    """
    names = [mistake.name for mistake in task.mistakes]
    twice = {name for name in names if names.count(name) > 1}
    unseen = {mistake.name for mistake in task.mistakes if not mistake.has_sign} - {*COMMON}
    fault = (
        (twice and f"each name must be there once (got {min(twice)!r} again)")
        or (unseen and f"something must give it away (got {min(unseen)!r} without)")
        or (
            (task.expected is not None) != ("values" in names)
            and f"VALUES must be in it if there is an Expected (got {', '.join(names)})"
        )
    )
    if fault:
        raise BadInput(
            f"Unclear list of mistakes of task {task.number}: {fault}. See CONTRIBUTING, "
            '"Write an exercise".'
        )
