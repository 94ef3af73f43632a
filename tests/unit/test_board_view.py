"""
The board's rules, each tested on made-up rows.
"""

import csv
import io

import pytest
from class_board import COLUMNS, NOW_S, predicted, row, state_of, tried

from ddp_lessons.course.classroom.board import csv_table, view
from ddp_lessons.course.classroom.board.columns import Row

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
    A task is open, tried with its last mistake, or solved, with its hints counted. A solved task
    stays solved.
    """
    tasks = {} if told is None else {"00.1": told}
    assert view.cell(FIRST, row(tasks=tasks)) == shown


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        (None, "open"),
        (predicted(), "open"),
        (predicted(before=4), "said"),
        (predicted(before=4, was=4), "held"),
        (predicted(was=4), "held"),
    ],
)
def test_cell_of_a_section(told, shown):
    """
    A section that a learner has run shows their progress, also without a prediction.
    """
    predictions = {} if told is None else {"lines": told}
    assert view.cell(SECTION, row(predictions=predictions))["is"] == shown


def test_three_tries_with_the_same_mistake_are_stuck():
    """
    Three tries with the same mistake count as stuck, because a fourth with it is likely.
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
    Two tries, different mistakes, a solved task, and a task that the learner has left do not count
    as stuck.
    """
    assert view.stuck(COLUMNS, row(tasks=tasks), NOW_S) is None


@pytest.mark.parametrize(("silent_s", "is_stuck"), [(599, False), (600, True), (4000, True)])
def test_ten_minutes_without_a_try_are_stuck(silent_s, is_stuck):
    """
    Ten minutes without a try count as stuck.
    """
    told = row(tasks={"00.1": tried("view", last_s=NOW_S - silent_s)})
    found = view.stuck(COLUMNS, told, NOW_S)
    assert (found is not None) == is_stuck
    if is_stuck:
        assert found["why"] == f"no try for {silent_s // 60} min"


def test_a_learners_clock_may_be_wrong():
    """
    The board corrects a learner's clock: a laptop that is an hour behind does not count as stuck
    for an hour.
    """
    told = row(tasks={"00.1": tried("view", last_s=NOW_S - 3600)}, ahead_s=3600)
    assert view.stuck(COLUMNS, told, NOW_S) is None
    assert view.board(COLUMNS, [told], NOW_S)["rows"][0]["ago_min"] == 0


def test_who_went_on_to_a_lesson_is_not_stuck_at_a_task():
    """
    A learner who went on to a lesson is not stuck, although a task before it is open.
    """
    told = row(
        tasks={"00.1": tried("view", last_s=NOW_S - 4000)},
        predictions={"lines": predicted(before=4, at_s=NOW_S - 3000)},
    )
    assert view.stuck(COLUMNS, told, NOW_S) is None


def test_what_was_collected_is_not_stuck():
    """
    Notebooks that were collected from a folder are not stuck, because nobody works on them.
    """
    told = row(tasks={"00.1": tried("view", last_s=NOW_S - 4000)}, is_live=False)
    assert view.stuck(COLUMNS, told, NOW_S) is None


def test_mistakes_are_counted_by_learners_and_come_with_the_hint():
    """
    A mistake counts once for each learner, and comes with its hint, so that the teacher can explain
    it to all.
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
    Only the five most frequent mistakes are listed, because nobody reads a list of all.
    """
    rows = [row(str(n), {"00.1": tried(f"mistake-{n}")}) for n in range(8)]
    assert len(view.mistakes(COLUMNS, rows)) == 5


def test_question_spreads_what_was_said_before_the_run():
    """
    Only predictions from before the run are counted: a learner who has seen the answer predicts
    nothing.
    """
    late = predicted(was=4) | {"said": 4, "first": 4}
    rows = [
        row("Ada", predictions={"lines": predicted(1)}),
        row("Bo", predictions={"lines": predicted(4)}),
        row("Cy", predictions={"lines": predicted(4, was=4)}),
        row("Di", predictions={"lines": late}),
        row("Ed"),
    ]
    found = view.question(SECTION, rows)
    assert found["spread"] == [[1, 1], [4, 2]]
    assert found["num_open"] == 2
    assert found["was"] == 4
    assert found["text"] == "How many lines will you see?"
    assert view.question(SECTION, rows[:2])["was"] is None


def test_question_spreads_letters_after_numbers():
    """
    A question with choices has letters, and a learner may write one where a number was asked for.
    """
    said = ("c", 4, "a", "c", 1)
    rows = [row(str(n), predictions={"lines": predicted(one)}) for n, one in enumerate(said)]
    assert view.question(SECTION, rows)["spread"] == [[1, 1], [4, 1], ["a", 1], ["c", 2]]


def test_page_follows_the_room():
    """
    The page shows the lesson and question at which most learners are, because the teacher has no
    hand free to choose.
    """
    rows = [
        row("Ada", {"02.1": tried("late")}, {"lines": predicted(4, at_s=NOW_S - 500)}),
        row("Bo", {"02.1": tried("late")}),
        row("Cy", predictions={"lines": predicted(4)}),
        row("Di"),
    ]
    now = view.board(COLUMNS, rows, NOW_S)["now"]
    assert now == {"lesson": "02_collectives", "question": "lines"}
    assert view.board(COLUMNS, [], NOW_S)["now"] == {"lesson": None, "question": None}


def test_rows_are_in_the_order_of_names():
    """
    Rows are sorted by name, so that a row is always found in the same place.
    """
    names = ["Ada", "bo", "Émile", "fay", "pair 9", "pair 10", "\U00010a40"]
    shown = view.board(COLUMNS, [row(name) for name in reversed(names)], NOW_S)
    assert [one["name"] for one in shown["rows"]] == names
    assert shown["rows"][0]["ago_min"] is None


def test_cells_that_nobody_has_touched_are_not_sent():
    """
    Untouched cells are not sent: they are most of a hundred columns, for thirty learners, at every
    change.
    """
    told = row(tasks={"00.1": tried(hints=1), "02.1": tried()}, predictions={"lines": predicted()})
    shown = view.board(COLUMNS, [told], NOW_S)["rows"][0]["cells"]
    assert list(shown) == ["00.1"]


def test_table_has_a_line_for_each_thing_that_was_touched():
    """
    The CSV table has one line for each thing that a learner has touched, and no code.
    """
    told = Row(
        "Ada",
        state_of({"00.1": tried("view", None, hints=1)}, {"lines": predicted(1, was=4)}),
        heard_s=NOW_S,
        ahead_s=60,
        login="grace",
    )
    lines = csv_table.csv_text(COLUMNS, [told, row("Bo")]).splitlines()
    assert lines == [
        ",".join(csv_table.FIELDS),
        "Ada,section,00_ranks,lines,held,,,,1,1,4,,grace",
        "Ada,task,00_ranks,00.1,solved,2,1,,,,,2026-09-21T14:14:20+00:00,grace",
    ]


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@sum", "a,b", 'a"b'])
def test_table_gives_a_spreadsheet_no_formula(name):
    """
    No name and no login becomes a formula in a spreadsheet, because somebody else has typed it.
    """
    told = row(name, {"00.1": tried("view")}, login=name)
    (line,) = csv.DictReader(io.StringIO(csv_table.csv_text(COLUMNS, [told])))
    for field in ("name", "login"):
        assert not line[field].startswith(("=", "+", "-", "@"))
