"""
How a check names a mistake: the first of the task's list that fits. The general one names the call.
"""

from dataclasses import replace

import pytest
import torch

from ddp_lessons.checks.kit import VALUES, Case, CaseResult, Expected, Mistake, Task, found_by
from ddp_lessons.checks.kit.comparing import find_difference
from ddp_lessons.checks.kit.mistake_choice import name_mistake
from ddp_lessons.checks.kit.on_rank.rank_record import AnswerCall, RankRecord
from ddp_lessons.checks.kit.task_registry import all_tasks
from ddp_lessons.errors import BadInput, WrongAnswer

RIGHT = torch.tensor([4.0, 8.0])
EXPECTED = Expected(lambda case, rank: RIGHT)


GIVING = [
    (task, mistake)
    for task in all_tasks().values()
    if task.judge is None
    for mistake in task.mistakes
    if mistake.gives
]


def _multiple(name, factor):
    return Mistake(name, f"Think of {factor}.", gives=lambda case, rank: [factor * RIGHT])


def _on_rank(name, rank):
    return Mistake(name, "Look at that rank.", "It is odd.", shows=lambda view: view.rank == rank)


def _task(*mistakes, expected=EXPECTED):
    return Task(
        number="99.1",
        name="total",
        cases=None,
        act=None,
        ok="",
        draw=None,
        hints=(),
        expected=expected,
        mistakes=mistakes,
    )


def _played(task, *results, call="first"):
    seen = [
        RankRecord(rank, [AnswerCall(before=(), result=result, name="total", number=3)])
        for rank, result in enumerate(results)
    ]
    return CaseResult(task, Case(len(results), {"length": 2}), seen, [""] * len(results), call)


def named(task, *results, **kwargs):
    """
    Return the WrongAnswer for results of ranks 0, 1 and so on.
    """
    with pytest.raises(WrongAnswer) as caught:
        name_mistake(_played(task, *results, **kwargs))
    return caught.value


def test_the_list_decides_and_not_the_rank():
    """
    The order of the list decides: a mistake is searched for on all ranks before the next one is
    tried.
    """
    task = _task(_multiple("halved", 0.5), _multiple("doubled", 2), VALUES)
    assert named(task, 2 * RIGHT, RIGHT / 2).mistake == "halved"
    task = replace(task, mistakes=(task.mistakes[1], task.mistakes[0], VALUES))
    assert named(task, 2 * RIGHT, RIGHT / 2).mistake == "doubled"


def test_below_values_every_rank_is_right():
    """
    A mistake below VALUES, such as a cost, is named once the values are right on all ranks. A
    mistake above it is named before that.
    """
    above, below = _on_rank("above", 1), _on_rank("below", 0)
    assert named(_task(above, VALUES, below), 2 * RIGHT, RIGHT).mistake == "above"
    assert named(_task(VALUES, below), RIGHT, 2 * RIGHT).mistake == "values"
    error = named(_task(VALUES, below), RIGHT, RIGHT)
    assert error.mistake == "below"
    assert "It is odd." in str(error)
    assert "expected:" not in str(error)  # the numbers are right
    name_mistake(_played(_task(above, VALUES), RIGHT))


def test_the_general_hint_names_the_case_and_the_call():
    """
    The general hint names the case and the call, so that a learner can repeat what failed.
    """
    error = named(_task(_multiple("doubled", 2), VALUES), RIGHT, 3 * RIGHT)
    assert error.mistake == "values"
    assert "Tried with 2 ranks, length 2. The fault is in call 3 of total on rank 1." in str(error)
    assert "rank 1 of 2 gave: [12, 24] float32" in str(error)


def test_a_symptom_may_be_a_sentence_of_what_was_seen():
    """
    A symptom may be a sentence about the rank, because the number of a missing rank helps more than
    the fact.
    """
    task = _task(Mistake("odd", "Hint.", shows=lambda view: f"Rank {view.rank} is odd."), VALUES)
    assert "Rank 0 is odd." in str(named(task, RIGHT))


@pytest.mark.parametrize(
    ("got", "mistake"),
    [(None, "nothing"), (RIGHT.double(), "dtype"), (RIGHT[:1], "shape"), (RIGHT + 1, "values")],
)
def test_other_kinds_have_names_of_their_own(got, mistake):
    """
    Results of another kind, such as None or another dtype, have their own names, so that no mistake
    of a list must consider them.
    """
    assert named(_task(_multiple("doubled", 2), VALUES), got).mistake == mistake


def test_what_is_off_in_a_second_call_was_kept():
    """
    A wrong value in a second call with the same arguments is named "kept": the first was right, so
    no way to compute explains it.
    """
    task = _task(_multiple("doubled", 2), VALUES)
    assert named(task, 2 * RIGHT, call="second").mistake == "kept"


def test_values_are_compared_by_the_limit_of_each_part():
    """
    Each part of a value is compared within its own tolerance, for a mistake's values as for the
    right ones.
    """
    expected = Expected(
        lambda case, rank: {"sums": RIGHT, "count": 3, "names": ["a"]},
        most_off=lambda case, rank: {"sums": torch.tensor([0.5, 0.0]), "count": 0, "names": None},
    )
    right = {"sums": RIGHT + torch.tensor([0.5, 0.0]), "count": 3, "names": ["a"]}
    name_mistake(_played(_task(VALUES, expected=expected), right))
    error = named(_task(VALUES, expected=expected), right | {"names": ["b"]})
    assert "The first difference is in names." in str(error)
    assert named(_task(VALUES, expected=expected), right | {"sums": RIGHT + 0.5})
    assert named(_task(VALUES, expected=expected), right | {"count": 4})


@pytest.mark.parametrize(
    ("got", "expected", "is_same"),
    [
        ([1, 2], [1, 2], True),
        ((1, 2), [1, 2], False),
        ([1], [1, 2], False),
        (1.0, 1, True),
        (float("nan"), float("nan"), True),
        ({"a": 1}, {"b": 1}, False),
        ("a", 1, False),
    ],
)
def test_values_differ_in_kind_or_number(got, expected, is_same):
    """
    Values differ if their kind or their numbers differ. 1 and 1.0 are equal.
    """
    assert (find_difference(got, expected) is None) is is_same


def test_a_mistake_without_a_hint_is_refused():
    """
    A mistake without a hint is refused, because its name alone does not help.
    """
    with pytest.raises(BadInput, match="No hint: a mistake must have one"):
        Mistake("odd", "")


@pytest.mark.parametrize(
    ("mistakes", "fault"),
    [
        ((_multiple("a", 2), _multiple("a", 3), VALUES), "once"),
        ((Mistake("a", "Hint."), VALUES), "must be recognised"),
        ((_multiple("a", 2),), "VALUES must be in it"),
    ],
)
def test_an_unclear_list_is_refused(mistakes, fault):
    """
    A list with two mistakes of one name, or with one that is never tried, is refused: nobody would
    see its hint.
    """
    with pytest.raises(BadInput, match=fault):
        _task(*mistakes)


def test_what_gives_a_mistake_away_is_a_value_or_an_event():
    """
    A mistake is recognised by a value or by an event, not by both: with both, the list's order
    would not say which is tried first.
    """
    with pytest.raises(BadInput, match="either `gives` or `shows` must recognise it"):
        Mistake("a", "Hint.", gives=lambda case, rank: [], shows=lambda view: True)


def test_an_error_may_give_a_mistake_away():
    """
    The text of an error may identify a mistake, which says more than that an error was raised.
    Messages may be left under way then.
    """
    task = _task(VALUES, Mistake("no-rank", "Give it.", raises=("parameter missing", "rank must")))
    assert task.name_raised(["ValueError: rank parameter missing"]) == "no-rank"
    assert task.name_raised(["ValueError: other"]) == "raised"
    assert task.name_raised(["NameError: name 'rank' is not defined"]) == "undefined"
    takes_one = "takes 1 positional argument but 2 were given"
    assert task.name_raised([f"TypeError: total() {takes_one}"]) == "signature"
    assert task.name_raised([f"TypeError: total.__init__() {takes_one}"]) == "signature"
    assert task.name_raised([f"TypeError: helper() {takes_one}"]) == "raised"
    assert [task.is_left_under_way(name) for name in ("no-rank", "values")] == [True, False]
    task = replace(task, judge=lambda case_result: None, mistakes={"raised": "Hint."})
    assert task.name_raised(["ValueError: rank parameter missing"]) == "raised"
    assert task.is_left_under_way("raised")


def test_a_list_words_common_hints_anew():
    """
    A task's list may reword common hints: for a mistake that the kit recognises, it needs only the
    words.
    """
    task = _task(VALUES, Mistake("deadlock", "Start one of the two."))
    assert task.own_hints == {"values": VALUES.hint, "deadlock": "Start one of the two."}
    assert task.all_hints["deadlock"] == "Start one of the two."
    assert "view" in task.all_hints


@pytest.mark.parametrize(
    ("task", "mistake"), GIVING, ids=lambda one: getattr(one, "number", "") or one.name
)
def test_no_mistake_above_gives_all_that_one_gives(task, mistake):
    """
    Each mistake gives some value that is neither right nor given by a mistake above it. Otherwise
    it would never be named.
    """
    above = task.mistakes[: task.mistakes.index(mistake)]

    def is_told_apart(case, rank, value):
        others = [task.expected.value(case, rank)]
        others += [other for each in above if each.gives for other in each.gives(case, rank)]
        return all(find_difference(value, other) for other in others)

    assert any(
        is_told_apart(case, rank, value)
        for case in task.new_cases(4)
        for rank in range(case.world_size)
        for value in mistake.gives(case, rank)
    )


def test_a_finder_that_tells_mistakes_apart_runs_once_for_each_rank():
    """
    A finder for several mistakes runs once for each rank, and the task's list decides the order.
    """
    asked = []

    def finder(view):
        asked.append(view.rank)
        return ("late", "Rank 1 is late.") if view.rank == 1 else ("", "")

    early, late = (
        Mistake(name, "Think.", shows=found_by(finder, name)) for name in ("early", "late")
    )
    error = named(_task(early, late, expected=None), RIGHT, RIGHT)
    assert error.mistake == "late"
    assert "Rank 1 is late." in str(error)
    assert asked == [0, 1]
