"""
Tests of the page of feedback for a learner.
"""

from pathlib import Path

from ddp_lessons.course.classroom.feedback import page_text
from ddp_lessons.course.classroom.handed_in import Submission
from ddp_lessons.course.classroom.submissions import NOT_BEGUN, Checked
from ddp_lessons.course.learner.exercises import Result, find_exercise, tasks_of_stem

PATHS = find_exercise("00")
(TASK,) = tasks_of_stem("00_ranks")


def test_a_page_has_verdict_message_and_answer_of_each_task():
    """
    For each task the page has the verdict, the check's message, and what was judged, as text.
    """
    submission = Submission("a<b", PATHS, Path("x"), note="x counts")
    told = "Task 00.1 is not solved yet.\nHint: <think>."
    answers = {"": [], TASK.number: ["%%px\nitems < 3"]}
    page = page_text("a<b", [Checked(submission, [Result(TASK, False, told)], 1, 1, answers)])
    assert "<title>Feedback for a&lt;b</title>" in page
    assert "<h2>00_ranks: 0 of 1 tasks solved</h2>" in page
    assert '00.1 my_items: <span class="open">open</span>' in page
    assert "Hint: &lt;think&gt;." in page
    assert "<pre>%%px\nitems &lt; 3</pre>" in page
    assert "x counts" in page
    solved = page_text("bo", [Checked(submission, [Result(TASK, True)], 1, 1, {TASK.number: []})])
    assert '<span class="solved">solved</span>' in solved
    assert "No cell of yours here has <code>%%px</code> alone as its first line." in solved


def test_where_nothing_ran_the_reason_stands_once():
    """
    The page has the reason, and no tasks, for an exercise that cannot be read. The learner is sent
    to the teacher, for whom the reason is written.
    """
    submission = Submission("bo", PATHS, None, "Not a notebook: ...", "unreadable")
    page = page_text("bo", [Checked(submission, [Result(TASK, False, submission.fault)], 0, 1)])
    assert "Ask your teacher, who has this message:</p>\n<pre>Not a notebook: ...</pre>" in page
    assert page.count("Not a notebook") == 1
    assert "<h3>" not in page


def test_one_line_names_all_exercises_without_an_answer():
    """
    The page does not list the tasks of exercises that the learner has not begun or not handed in.
    """
    other = find_exercise("02")
    missing = Submission("bo", other, None, "Nothing was handed in: ...", "blank")
    page = page_text(
        "bo",
        [
            Checked(Submission("bo", PATHS, Path("x")), [Result(TASK, False, NOT_BEGUN)], 0, 1),
            Checked(missing, [Result(TASK, False, missing.fault)], 0, 1),
        ],
    )
    assert page.count("<p>No answer of yours was found in: 00_ranks, 02_collectives.</p>") == 1
    assert "<h2>" not in page
    assert "Nothing was handed in" not in page
