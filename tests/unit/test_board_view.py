"""
What the board shows: each rule on rows that are made up.
"""

import pytest
from class_board import COLUMNS, NOW_S, foretold, row, state_of, tried

from ddp_lessons.board import csv_table, view
from ddp_lessons.board.columns import Row

SECTION, FIRST, SECOND = COLUMNS


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        (None, {"is": "open", "hints": 0}),
        (tried(), {"is": "open", "checks": 0, "hints": 0, "mistake": None}),
        (tried(hints=2), {"is": "open", "checks": 0, "hints": 2, "mistake": None}),
        (tried("view", "late"), {"is": "tried", "checks": 2, "hints": 0, "mistake": "late"}),
        (tried("blank"), {"is": "open", "checks": 1, "hints": 0, "mistake": None}),
        (tried("view", "blank"), {"is": "tried", "checks": 2, "hints": 0, "mistake": "view"}),
        (tried("view", None), {"is": "solved", "checks": 2, "hints": 0, "mistake": None}),
        (tried(None, "view"), {"is": "solved", "checks": 2, "hints": 0, "mistake": None}),
    ],
)
def test_cell_of_a_task(told, shown):
    """
    Open, tried with which mistake, solved, hint asked. What was solved once stays solved.
    """
    tasks = {} if told is None else {"00.1": told}
    assert view.cell(FIRST, row(tasks=tasks)) == shown


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        (None, "open"),
        (foretold(), "open"),
        (foretold(before=4), "said"),
        (foretold(before=4, was=4), "held"),
        (foretold(was=4), "held"),
    ],
)
def test_cell_of_a_section(told, shown):
    """
    Whether a learner has run a section shows how far they are, also without a prediction.
    """
    predictions = {} if told is None else {"lines": told}
    assert view.cell(SECTION, row(predictions=predictions))["is"] == shown


def test_three_tries_with_the_same_mistake_are_stuck():
    """
    They will make it a fourth time.
    """
    told = row(tasks={"00.1": tried("late", "view", "view", "view")})
    assert view.stuck(COLUMNS, told, NOW_S) == {
        "task": "00.1",
        "name": "my_items",
        "mistake": "view",
        "why": "3 tries, same mistake",
    }


@pytest.mark.parametrize(
    "tasks",
    [
        {},
        {"00.1": tried("view", "view")},
        {"00.1": tried("view", "late", "view")},
        {"00.1": tried("blank", "blank", "blank")},
        {"00.1": tried("view", "view", "view", None)},
        {"00.1": tried(None, "view", "view", "view")},
        {"00.1": tried("view", "view", "view", last_s=NOW_S - 100), "02.1": tried("late")},
        {"00.1": tried(hints=1)},
    ],
)
def test_who_is_on_their_way_is_not_stuck(tasks):
    """
    Two tries, different mistakes, a task that is solved, one that they have left: let them work.
    """
    assert view.stuck(COLUMNS, row(tasks=tasks), NOW_S) is None


@pytest.mark.parametrize(("silent_s", "is_stuck"), [(599, False), (600, True), (4000, True)])
def test_ten_minutes_without_a_try_are_stuck(silent_s, is_stuck):
    """
    Somebody who stares at a task says nothing.
    """
    told = row(tasks={"00.1": tried("view", last_s=NOW_S - silent_s)})
    found = view.stuck(COLUMNS, told, NOW_S)
    assert (found is not None) == is_stuck
    if is_stuck:
        assert found["why"] == f"no try for {silent_s // 60} min"


def test_a_learners_clock_may_be_wrong():
    """
    A laptop that is an hour behind is not stuck for an hour.
    """
    told = row(tasks={"00.1": tried("view", last_s=NOW_S - 3600)}, ahead_s=3600)
    assert view.stuck(COLUMNS, told, NOW_S) is None
    assert view.board(COLUMNS, [told], NOW_S)["rows"][0]["ago_min"] == 0


def test_who_went_on_to_a_lesson_is_not_stuck_at_a_task():
    """
    The task before it may wait.
    """
    told = row(
        tasks={"00.1": tried("view", last_s=NOW_S - 4000)},
        predictions={"lines": foretold(before=4, at_s=NOW_S - 3000)},
    )
    assert view.stuck(COLUMNS, told, NOW_S) is None


def test_what_was_collected_is_not_stuck():
    """
    Notebooks that were handed in yesterday wait for nobody.
    """
    told = row(tasks={"00.1": tried("view", last_s=NOW_S - 4000)}, is_live=False)
    assert view.stuck(COLUMNS, told, NOW_S) is None


def test_mistakes_are_counted_by_learners_and_come_with_the_hint():
    """
    What five people do wrong is said once, in front.
    """
    rows = [
        row("Ada", {"00.1": tried("view", "view")}),
        row("Bo", {"00.1": tried("view", None)}),
        row("Cy", {"00.1": tried("view"), "02.1": tried("late", "late")}),
        row("Di", {"02.1": tried("strange")}),
        row("Ed", {"02.1": tried("blank", "blank", "blank")}),
    ]
    found = view.mistakes(COLUMNS, rows)
    assert [(one["task"], one["mistake"]) for one in found] == [
        ("00.1", "view"),
        ("02.1", "late"),
        ("02.1", "strange"),
    ]
    assert found[0]["num_learners"] == 3
    assert found[0]["num_open"] == 2
    assert found[0]["hint"] == "Work on a copy."
    assert found[2]["hint"] == ""


def test_mistakes_are_the_five_most_frequent():
    """
    A list of everything is read by nobody.
    """
    rows = [row(str(n), {"00.1": tried(f"mistake-{n}")}) for n in range(8)]
    assert len(view.mistakes(COLUMNS, rows)) == 5


def test_question_spreads_what_was_said_before_the_run():
    """
    Who has seen the answer and says it now has foretold nothing.
    """
    late = foretold(was=4) | {"said": 4, "first": 4}
    rows = [
        row("Ada", predictions={"lines": foretold(1)}),
        row("Bo", predictions={"lines": foretold(4)}),
        row("Cy", predictions={"lines": foretold(4, was=4)}),
        row("Di", predictions={"lines": late}),
        row("Ed"),
    ]
    found = view.question(SECTION, rows)
    assert found["spread"] == [[1, 1], [4, 2]]
    assert found["num_open"] == 2
    assert found["was"] == 4
    assert found["text"] == "How many lines will you see?"
    assert view.question(SECTION, rows[:2])["was"] is None


def test_page_follows_the_room():
    """
    The teacher has no hand free to choose what everybody is at.
    """
    rows = [
        row("Ada", {"02.1": tried("late")}, {"lines": foretold(4, at_s=NOW_S - 500)}),
        row("Bo", {"02.1": tried("late")}),
        row("Cy", predictions={"lines": foretold(4)}),
        row("Di"),
    ]
    now = view.board(COLUMNS, rows, NOW_S)["now"]
    assert now == {"lesson": "02_collectives", "question": "lines"}
    assert view.board(COLUMNS, [], NOW_S)["now"] == {"lesson": None, "question": None}


def test_rows_are_in_the_order_of_names():
    """
    A row that jumps about cannot be found again.
    """
    names = ["Ada", "bo", "Émile", "fay", "pair 9", "pair 10", "\U00010a40"]
    shown = view.board(COLUMNS, [row(name) for name in reversed(names)], NOW_S)
    assert [one["name"] for one in shown["rows"]] == names
    assert shown["rows"][0]["ago_min"] is None


def test_cells_that_nobody_has_touched_are_not_sent():
    """
    They are most of a hundred columns, for each of thirty learners, at every change.
    """
    told = row(tasks={"00.1": tried(hints=1), "02.1": tried()}, predictions={"lines": foretold()})
    shown = view.board(COLUMNS, [told], NOW_S)["rows"][0]["cells"]
    assert list(shown) == ["00.1"]


def test_table_has_a_line_for_each_thing_that_was_touched():
    """
    For a spreadsheet. Nobody's code is in it.
    """
    told = Row(
        "Ada",
        state_of({"00.1": tried("view", None, hints=1)}, {"lines": foretold(1, was=4)}),
        heard_s=NOW_S,
        ahead_s=60,
    )
    lines = csv_table.csv_text(COLUMNS, [told, row("Bo")]).splitlines()
    assert lines == [
        ",".join(csv_table.FIELDS),
        "Ada,section,00_ranks,lines,held,,,,1,1,4,",
        "Ada,task,00_ranks,00.1,solved,2,1,,,,,2026-09-21T14:14:20+00:00",
    ]


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@sum", "a,b", 'a"b'])
def test_table_gives_a_spreadsheet_no_formula(name):
    """
    A name is what somebody else has typed.
    """
    line = csv_table.csv_text(COLUMNS, [row(name, {"00.1": tried("view")})]).splitlines()[1]
    assert not line.startswith(("=", "+", "-", "@"))
