"""
The publication of a teacher's edits: which texts learners get, and what is left in the clone.

Each test edits a clone of a small course with real git, as a teacher does.
"""

import json
import os

import pytest
from published_course import (
    EXERCISE,
    EXERCISE_TEXT,
    LESSON,
    commit,
    edit_notebook,
    edit_text,
    git,
    make_clone,
    sources,
)
from toy_lesson import TEXT
from typer.testing import CliRunner

from ddp_lessons.course.classroom.publishing import publish, withdraw
from ddp_lessons.course.cli import app
from ddp_lessons.course.learner.exercises import find_exercise
from ddp_lessons.course.learner.workspace import update
from ddp_lessons.course.notebooks.text_twins import content, read_twin, twin_of
from ddp_lessons.errors import BadInput

TWIN = "notebooks/py/00_toy.py"


@pytest.fixture
def course(tmp_path, monkeypatch):
    """
    Return a teacher's clone of a small course.
    """
    monkeypatch.delenv("DDP_LESSONS_PUBLISHED", raising=False)
    return make_clone(tmp_path)


@pytest.fixture
def published(course):
    """
    Return the folder in which the teacher's versions are kept.
    """
    return course.with_name("course-published")


def say_of(course):
    """
    Publish, and return the number of failures and the lines without the warnings.
    """
    lines = []
    num_failed = publish(course, lines.append)
    return num_failed, [line for line in lines if not line.startswith("warning: ")]


def learner(course):
    """
    Bring a learner's folder up to date, and return it.
    """
    update(course.with_name("mine"), course)
    return course.with_name("mine")


def pull(course, text, name=TWIN):
    """
    Change a text of the course upstream, and pull the change into the clone.
    """
    commit(course.with_name("origin"), text, name)
    git(course, "pull", "--quiet")


def kept_files(published):
    """
    Return the files that were kept before something was taken away, by their name.
    """
    files = [path for path in (published / "edits").rglob("*") if path.is_file()]
    return {path.name: path.read_text() for path in files}


@pytest.mark.parametrize("is_twin", [True, False])
def test_an_edit_of_either_file_reaches_learners(course, published, is_twin):
    """
    An edit of the notebook or of its text twin reaches learners, the clone is as committed, and
    `git pull` goes on working. A teacher looks at the notebook first.
    """
    before = sources(learner(course) / LESSON)
    path, edit = (course / TWIN, edit_text) if is_twin else (course / LESSON, edit_notebook)
    edit(path, "A sum that is wrong", "A wrong sum")
    edited = path.read_text()
    num_failed, lines = say_of(course)
    assert num_failed == 0
    assert lines == [f"notebooks/00_toy: published. Your version is {published / TWIN}."]
    after = sources(learner(course) / LESSON)
    assert after == before.replace("A sum that is wrong", "A wrong sum")
    assert git(course, "status", "--porcelain") == ""
    assert kept_files(published) == {path.name: edited}
    pull(course, TEXT.replace("It printed 41.", "It said 41."))


def test_published_files_are_readable_to_all(course, published):
    """
    Learners can read the published files even if the teacher's new files are private by default.
    """
    edit_text(course / TWIN, "A sum that is wrong", "A wrong sum")
    umask = os.umask(0o077)
    try:
        say_of(course)
    finally:
        os.umask(umask)
    files = [path for path in published.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in [*files, course / TWIN]} == {0o644}
    assert published.stat().st_mode & 0o777 == 0o755


def test_a_private_place_is_warned_of(course, published):
    """
    A folder that other users cannot reach is warned of with the command that opens it.
    """
    course.parent.chmod(0o700)
    edit_text(course / TWIN, "A sum that is wrong", "A wrong sum")
    lines = []
    publish(course, lines.append)
    assert any("other users cannot read" in line and "chmod o+x" in line for line in lines)


def test_outputs_and_predictions_of_a_teacher_are_no_edit(course, published):
    """
    A teacher who has only shown a lesson from the clone publishes nothing, and the notebook with
    the outputs is kept, because it is taken out of the clone.
    """
    edit_notebook(course / LESSON, 'predict("first", ...)', 'predict("first", 41)')
    _, lines = say_of(course)
    assert lines == [
        "notebooks/00_toy: nothing to publish. Only outputs or predictions differ from the course."
    ]
    assert "41" in kept_files(published)["00_toy.ipynb"]
    assert not (published / TWIN).exists()
    assert git(course, "status", "--porcelain") == ""


def test_an_edited_exercise_keeps_its_solution(course, published):
    """
    An edit of an exercise's notebook is merged into the text with the solutions, which the notebook
    lacks: `check` and `solution` need them.
    """
    edit_notebook(course / EXERCISE, "Write `add_one(number)`.", "Write `add_one`, please.")
    assert say_of(course)[0] == 0
    text = EXERCISE_TEXT.replace("Write `add_one(number)`.", "Write `add_one`, please.")
    twin = read_twin(published / "exercises/py/00_toy.py")
    assert content(twin) == content(twin_of("00_toy.py", text))
    assert "still blank" in sources(learner(course) / EXERCISE)
    assert find_exercise("00", course).text == published / "exercises/py/00_toy.py"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("check.add_two()", "print('ok')", "got none with: check.add_two()"),
        ('raise NotImplementedError("Task 00.2 is still blank")', "...", "outside of the gaps"),
    ],
)
def test_an_exercise_without_a_check_or_a_gap_is_refused(course, published, old, new, told):
    """
    An exercise whose check cell or gap is gone is refused and stays in the clone as it was edited:
    no learner could solve it.
    """
    edit_notebook(course / EXERCISE, old, new)
    edited = (course / EXERCISE).read_bytes()
    num_failed, (line,) = say_of(course)
    assert num_failed == 1
    assert line.startswith("exercises/00_toy: refused. ")
    assert told in line
    assert (course / EXERCISE).read_bytes() == edited
    assert not (published / "exercises").exists()


def test_a_task_without_its_marks_is_refused(course):
    """
    A text twin in which one task has lost its marks is refused: learners would get its solution.
    """
    marks = "    # solution\n    return number + 2\n    # end of solution\n"
    edit_text(course / "exercises/py/00_toy.py", marks, "    return number + 2\n")
    num_failed, (line,) = say_of(course)
    assert num_failed == 1
    assert "got none with: Task 00.2 is still blank" in line


@pytest.mark.parametrize("text", ["", "{", '{"nbformat": 3}', None])
def test_a_file_that_is_no_notebook_is_refused(course, text):
    """
    A file that is no notebook, or was deleted, is refused, and other lessons are published.
    """
    path = course / LESSON
    path.unlink() if text is None else path.write_text(text)
    edit_text(course / "exercises/py/00_toy.py", "add numbers", "add some numbers")
    num_failed, lines = say_of(course)
    assert num_failed == 1
    told = "expected a file (got none)" if text is None else "no notebook: expected one that can"
    assert told in lines[0]
    assert lines[1].startswith("exercises/00_toy: published.")


def test_broken_rules_are_warned_of(course):
    """
    A broken house rule is told in one line and published anyway: a teacher in class is in a hurry.
    """
    edit_text(course / TWIN, "print(41)", f"print(41)  # {'far ' * 25}")
    lines = []
    assert publish(course, lines.append) == 0
    (warning,) = [line for line in lines if line.startswith("warning: notebooks")]
    assert "columns" in warning
    assert lines[-1].startswith("notebooks/00_toy: published.")


def test_different_edits_of_both_files_are_refused(course):
    """
    Different edits of a notebook and of its text twin are refused, and both files are named.
    """
    edit_text(course / TWIN, "A sum that is wrong", "A wrong sum")
    edit_notebook(course / LESSON, "It printed 41.", "It said 41.")
    num_failed, (line,) = say_of(course)
    assert num_failed == 1
    assert str(course / TWIN) in line
    assert str(course / LESSON) in line
    assert "A wrong sum" in (course / TWIN).read_text()


def test_the_same_edit_of_both_files_is_one(course):
    """
    The same edit of both files, as `make build` leaves it, is published.
    """
    edit_text(course / TWIN, "A sum that is wrong", "A wrong sum")
    edit_notebook(course / LESSON, "A sum that is wrong", "A wrong sum")
    assert say_of(course)[0] == 0
    assert git(course, "status", "--porcelain") == ""


def test_a_second_edit_of_a_line_keeps_the_first(course, published):
    """
    A teacher who corrects one word, and later another one of the same line, keeps both corrections.
    """
    edit_notebook(course / LESSON, "A sum that is wrong", "A total that is wrong")
    say_of(course)
    edit_notebook(course / LESSON, "A sum that is wrong", "A sum that is false")
    _, (line,) = say_of(course)
    assert "replaces" not in line
    assert "A total that is false" in sources(published / LESSON)


def test_a_second_edit_is_added_to_the_first(course, published):
    """
    A second edit is added to the first, which the clone does not show any more. If both change a
    word, the later one wins, and the earlier one is kept.
    """
    edit_text(course / TWIN, "A sum that is wrong", "A wrong sum")
    say_of(course)
    edit_notebook(course / LESSON, "It printed 42.", "It said 42.")
    say_of(course)
    assert "A wrong sum" in sources(published / LESSON)
    edit_notebook(course / LESSON, "A sum that is wrong", "An untrue sum")
    _, (line,) = say_of(course)
    assert "It replaces lines of your earlier version" in line
    text = sources(published / LESSON)
    assert "An untrue sum" in text
    assert "It said 42." in text
    assert any("A wrong sum" in text for text in kept_files(published).values())


def test_a_version_that_was_edited_where_it_is_kept_is_handed_out(course, published):
    """
    An edit of the published text itself is handed out by the next publication.
    """
    edit_text(course / TWIN, "A sum that is wrong", "A wrong sum")
    say_of(course)
    assert say_of(course) == (0, ["notebooks/00_toy: published before, and in force."])
    edit_text(published / TWIN, "A wrong sum", "An untrue sum")
    assert "A wrong sum" in sources(learner(course) / LESSON)
    assert "published. " in say_of(course)[1][0]
    assert "An untrue sum" in sources(learner(course) / LESSON)


def test_a_pull_is_merged_with_the_teacher_s_version(course, published):
    """
    A pull that changes other lines of the same lesson is merged by the next publication.
    """
    edit_text(course / TWIN, "A sum that is wrong", "A wrong sum")
    say_of(course)
    pull(course, TEXT.replace("It printed 42.", "It said 42."))
    assert say_of(course)[0] == 0
    text = sources(published / LESSON)
    assert "A wrong sum" in text
    assert "It said 42." in text
    assert say_of(course) == (0, ["notebooks/00_toy: published before, and in force."])


def test_a_pull_with_a_conflict_leaves_the_teacher_s_version_in_force(course, published):
    """
    A pull that changes the teacher's lines is a conflict: the teacher's version stays in force,
    both files are named, and an edit of the course's file settles it.
    """
    edit_text(course / TWIN, "A sum that is wrong", "A wrong sum")
    say_of(course)
    pull(course, TEXT.replace("A sum that is wrong", "A false sum"))
    for _ in range(2):
        num_failed, lines = say_of(course)
        assert num_failed == 1
        assert "notebooks/00_toy: conflict." in lines[0]
        assert str(published / TWIN) in lines[1]
        assert str(course / TWIN) in lines[2]
    assert "A wrong sum" in sources(learner(course) / LESSON)
    edit_text(course / TWIN, "A false sum", "A false or wrong sum")
    assert say_of(course)[0] == 0
    assert "A false or wrong sum" in sources(learner(course) / LESSON)
    assert say_of(course) == (0, ["notebooks/00_toy: published before, and in force."])


def test_a_version_that_the_course_has_taken_over_is_taken_back(course, published):
    """
    A version whose edits have come back by a pull is taken back, so that later pulls reach
    learners.
    """
    edit_text(course / TWIN, "A sum that is wrong", "A wrong sum")
    say_of(course)
    pull(course, TEXT.replace("A sum that is wrong", "A wrong sum"))
    assert "now the same as in the course" in say_of(course)[1][0]
    assert not (published / LESSON).exists()
    assert json.loads((published / "published.json").read_text()) == {}


def test_other_changed_files_are_listed(course):
    """
    Changed files that no learner gets are listed with what to do; a page of the lessons is not,
    because learners get it.
    """
    edit_text(course / "code.py", "1", "2")
    (course / "notebooks/claims.md").write_text("Claims.\n")
    (course / "notebooks/mine.ipynb").write_text("{}")
    _, lines = say_of(course)
    assert lines[:3] == [
        "changed, but handed out to nobody:",
        "  code.py",
        "  notebooks/mine.ipynb",
    ]
    assert "stop all servers" in lines[3]
    assert (course / "code.py").read_text() == "x = 2\n"


def test_a_withdrawn_version_is_kept(course, published):
    """
    A withdrawn version is kept in a file, and learners get the course's own text again.
    """
    edit_text(course / TWIN, "A sum that is wrong", "A wrong sum")
    say_of(course)
    assert "A wrong sum" in sources(learner(course) / LESSON)
    lines = []
    withdraw(course, "00_toy", lines.append)
    assert lines[-1].startswith("notebooks/00_toy: withdrawn. ")
    assert "A wrong sum" in kept_files(published)["00_toy.py"]
    assert "A sum that is wrong" in sources(learner(course) / LESSON)
    with pytest.raises(BadInput, match=r"^Not published: expected one of none \(got 00_toy\)"):
        withdraw(course, "00_toy")


def test_a_course_that_is_no_clone_is_refused(tmp_path, course, monkeypatch):
    """
    Without git, outside of a clone, in a part of one, and in an open merge, the error says what to
    do. A course that pip has installed is no clone.
    """
    (tmp_path / "copy").mkdir()
    with pytest.raises(BadInput, match=r"^git failed: .*Clone the course, or name"):
        publish(tmp_path / "copy")
    with pytest.raises(BadInput, match=r"^No git clone: .* a part of "):
        publish(course / "notebooks")
    commit(course.with_name("origin"), TEXT.replace("It printed 42.", "It said 42."))
    commit(course, TEXT.replace("It printed 42.", "It told 42."))
    with pytest.raises(Exception, match="returned non-zero exit status"):
        git(course, "pull", "--quiet", "--no-rebase")
    with pytest.raises(BadInput, match=r"^A merge is open: .*git merge --abort"):
        publish(course)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match=r"^git is missing: .*Install git"):
        publish(course)


def test_a_folder_that_cannot_be_written_is_named(course, monkeypatch):
    """
    A place that cannot be written is named with the setting for another, and the edit stays.
    """
    monkeypatch.setenv("DDP_LESSONS_PUBLISHED", str(course / "code.py"))
    edit_text(course / TWIN, "A sum that is wrong", "A wrong sum")
    with pytest.raises(BadInput, match=r"^Cannot write there: .*DDP_LESSONS_PUBLISHED"):
        publish(course)
    assert "A wrong sum" in (course / TWIN).read_text()


def test_the_command_publishes_and_withdraws(course, tmp_path, monkeypatch):
    """
    The command takes the folder of the course and the setting, and its exit status says whether
    all was published.
    """
    monkeypatch.setenv("DDP_LESSONS_PUBLISHED", str(tmp_path / "elsewhere"))
    edit_text(course / TWIN, "A sum that is wrong", "A wrong sum")
    run = CliRunner().invoke(app, ["publish", str(course)])
    assert run.exit_code == 0, run.output
    assert (tmp_path / "elsewhere" / LESSON).is_file()
    (course / LESSON).write_text("")
    assert CliRunner().invoke(app, ["publish", str(course)]).exit_code == 1
    run = CliRunner().invoke(app, ["publish", str(course), "--withdraw", "00_toy"])
    assert run.exit_code == 0, run.output
    run = CliRunner().invoke(app, ["publish", str(course), "--withdraw", "99"])
    assert run.exit_code == 1
    assert "Unknown notebook" in run.output
