"""
The choice of the mistake that a case shows: compare with the right value, then try the task's list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ddp_lessons.checks.kit.comparing import ValueDifference, find_difference
from ddp_lessons.checks.kit.mistakes import VALUES
from ddp_lessons.errors import BadInput

if TYPE_CHECKING:
    from ddp_lessons.checks.kit.cases import Case
    from ddp_lessons.checks.kit.judging import CaseResult
    from ddp_lessons.checks.kit.on_rank.rank_record import RankRecord
    from ddp_lessons.trace import Event

_T = TypeVar("_T")


def last_result(view: View) -> Any:
    """
    Return what the answer's last call returned on a View's rank.
    """
    return view.case_result.results[view.rank]


@dataclass(frozen=True)
class Expected:
    """
    The right value on each rank of a case, and how an answer's value is compared with it.

    Args:
        value: Function (case, rank) that returns the right value: tensors, numbers, texts, or
            lists, tuples and dictionaries of them.
        most_off: Function (case, rank) that returns how far each number may be off, as one limit or
            in the structure of the value; `numbers.sum_error` gives such limits. None: numbers must
            be equal.
        gave: Function of a View that returns the answer's value. Default: its last result.
    """

    value: Callable[[Case, int], object]
    most_off: Callable[[Case, int], object] | None = None
    gave: Callable[[View], object] = last_result


@dataclass
class View:
    """
    One rank's part of a case result. The `shows` of a mistake gets it.

    Args:
        case_result: The CaseResult.
        rank: The rank.
    """

    case_result: CaseResult
    rank: int
    _findings: dict[Callable[[View], Any], Any] = field(default_factory=dict, repr=False)

    @property
    def case(self) -> Case:
        """
        The Case.
        """
        return self.case_result.case

    @property
    def seen(self) -> RankRecord:
        """
        The RankRecord of this rank.
        """
        return self.case_result.seen[self.rank]

    @property
    def output(self) -> Any:
        """
        The value that the task's `act` returned on this rank.
        """
        return self.seen.output

    @property
    def events(self) -> list[Event]:
        """
        The events of all calls of this rank.
        """
        return self.case_result.traces[self.rank]

    @cached_property
    def got(self) -> Any:
        """
        The answer's value on this rank. Without an Expected it is the last result.
        """
        expected = self.case_result.task.expected
        return (expected.gave if expected else last_result)(self)

    @cached_property
    def expected(self) -> Any:
        """
        The right value; None without an Expected.
        """
        expected = self.case_result.task.expected
        return expected and expected.value(self.case, self.rank)

    @cached_property
    def most_off(self) -> Any:
        """
        How far each number may be off; None: not at all.
        """
        expected = self.case_result.task.expected
        return expected and expected.most_off and expected.most_off(self.case, self.rank)

    @cached_property
    def difference(self) -> ValueDifference | None:
        """
        The ValueDifference from the right value. None if there is none, or without an Expected.
        """
        if self.case_result.task.expected is None:
            return None
        return find_difference(self.got, self.expected, self.most_off)

    @property
    def is_off(self) -> bool:
        """
        Whether the answer gave a value other than the right one.
        """
        return self.difference is not None

    def finding_of(self, finder: Callable[[View], _T]) -> _T:
        """
        Return what a finder (see `found_by`) returns for this View. The finder runs only once.
        """
        if finder not in self._findings:
            self._findings[finder] = finder(self)
        return self._findings[finder]

    def is_near(self, value: object) -> bool:
        """
        Tell whether the answer gave this value, compared as the right value is.
        """
        return find_difference(self.got, value, self.most_off) is None


def found_by(finder: Callable[[View], tuple[str, str]], name: str) -> Callable[[View], str]:
    """
    Return the `shows` of a mistake that a finder tells apart from others.

    Args:
        finder: Function of a View that returns (name of a mistake, sentence), or ("", "").
        name: The name of this mistake.
    """

    def shows(view):
        mistake, fact = view.finding_of(finder)
        return fact if mistake == name else ""

    return shows


_KINDS = {
    "nothing": "A tensor is expected.",
    "dtype": "The dtype is not the one expected.",
}


def name_mistake(case_result: CaseResult) -> None:
    """
    Raise the WrongAnswer for the first mistake of the task's list that the case shows.

    The list is read from top to bottom. Each mistake is tried on all ranks, in rank order, before
    the next mistake is tried. So the list alone decides which of two mistakes is named, and not the
    rank that shows it. Three rules complete this:

    - Where a tensor is expected, one of another dtype and a value that is no tensor are refused
      before the list is read, also inside a list. So no entry has to consider these.
    - `gives` explains only wrong values, and `VALUES` refuses all other wrong values. When an entry
      below `VALUES` is tried, every rank has the right value.
    - In a second call with the same arguments `gives` explains nothing, because the first call was
      right: a wrong value there comes from state that the first call left, and is called "kept".

    Args:
        case_result: The CaseResult of a task without a `judge`.
    """
    views = [View(case_result, rank) for rank in range(case_result.case.world_size)]
    for view in views:
        if _kind(view) in _KINDS:
            raise _wrong(VALUES, view, _KINDS[_kind(view)])
    for mistake in case_result.task.mistakes:
        for view in views:
            fact = _fact(mistake, view)
            if fact:
                raise _wrong(mistake, view, fact)


def _wrong(mistake, view, fact):
    if not view.is_off:
        return view.case_result.wrong(mistake.name, view.rank, fact=fact)
    both, where = view.difference, view.difference.where
    name = _kind(view) if mistake.name == "values" else mistake.name
    fact = f"{fact} The first difference is in {where}." if where else fact
    return view.case_result.wrong(name, view.rank, got=both.got, expected=both.expected, fact=fact)


def _kind(view):
    """
    Return the general mistake that a wrong value is: "nothing", "dtype", "shape" or "values".
    """
    both = view.difference
    if both is None or not isinstance(both.expected, torch.Tensor):
        return "values"
    if not isinstance(both.got, torch.Tensor):
        return "nothing"
    if both.got.dtype != both.expected.dtype:
        return "dtype"
    return "values" if both.got.shape == both.expected.shape else "shape"


def _fact(mistake, view):
    """
    Return a sentence that says how a rank shows a mistake, or something false if it does not.
    """
    if mistake.shows:
        found = mistake.shows(view)
        if found and not isinstance(found, bool | str):
            raise BadInput(
                f"Bad mistake {mistake.name!r}: its `shows` must return a bool or a sentence "
                f"(got {found!r})."
            )
        return mistake.symptom if found is True else found
    if mistake.gives and view.case_result.call == "first" and view.is_off:
        values = mistake.gives(view.case, view.rank)
        return mistake.symptom if any(map(view.is_near, values)) else ""
    return mistake.symptom if mistake.name == "values" and view.is_off else ""
