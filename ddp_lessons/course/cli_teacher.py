"""
The teacher's commands `ddp-lessons board`, `nbgrader` and `publish`, and reports for programs.

Each command imports its modules only when it runs, so that `--help` answers at once.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Annotated

import typer

from ddp_lessons.errors import BadInput


def board(
    shared: Annotated[
        Path | None,
        typer.Option(help="Show the state files in this folder, one a learner.", metavar="FOLDER"),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Check the notebooks in this folder, and show that.", metavar="FOLDER"),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8642,
    csv: Annotated[
        Path | None, typer.Option(help="Write what is kept as CSV, and end.", metavar="FILE")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete what is kept, and end.")] = False,
):
    """
    Serve the class board: a page on which you see how far everybody is, and where they are stuck.

    Learners join with the line that the page shows. No code of theirs is sent. The board keeps
    what they send for a day. Under a JupyterHub, it runs as a service.
    """
    from ddp_lessons.course.classroom.board import csv_table, roster, serving

    if delete:
        num_rows = roster.delete_everything(serving.kept_folder())
        typer.echo(f"{num_rows} rows deleted")
        return
    source = _source(shared, folder)
    if csv is not None:
        rows = source.rows() if source else roster.kept_rows(serving.kept_folder())
        write(csv, csv_table.csv_text(_columns(), rows))
        typer.echo(f"{csv}: {len(rows)} rows")
    elif serving.is_service() and source is None:
        serving.serve_for_hub(_columns, say=typer.echo)
    else:
        serving.serve(_columns(), host=host, port=port, source=source, say=typer.echo)


def nbgrader(
    folder: Annotated[Path, typer.Argument(help="The folder of your nbgrader course.")],
):
    """
    Write the exercises as nbgrader's sources: each check is a test, worth a point.
    """
    from ddp_lessons.course.classroom.nbgrader_sources import write_sources

    typer.echo(f"{write_sources(folder)} exercises are in {folder / 'source'}")


def publish(
    course: Annotated[
        Path | None, typer.Argument(help="The git clone of the course.", show_default="found")
    ] = None,
    withdraw: Annotated[
        str | None,
        typer.Option(help="Take this version back, such as 00_ranks.", metavar="NAME"),
    ] = None,
):
    """
    Hand out the lessons and exercises that you have edited, while learners work.

    Edit a notebook of the course's clone in JupyterLab, such as
    notebooks/00_ranks.ipynb, or its text in notebooks/py or exercises/py.
    Then run this. Learners get the new version when their server starts, or
    ranks in a notebook. Notebooks that they have edited stay.

    Your versions are kept in a folder beside the clone that ends in
    -published, and the clone is put back as it was committed. Run this again
    after a git pull: it merges your versions with what is new in the course.
    Exits with status 1 if something was refused or conflicts.
    """
    from ddp_lessons.course.classroom import publishing
    from ddp_lessons.course.notebooks.notebook_paths import find_course

    course = course or find_course()
    if withdraw is not None:
        publishing.withdraw(course, withdraw, typer.echo)
    elif publishing.publish(course, typer.echo):
        raise typer.Exit(1)


def grade(folder, stem=None, *, junit=None, points=None, feedback=None, roster=None):
    """
    Check submissions, and write reports about them for other programs.

    Args:
        folder: Path of one learner's folder, or of a folder that holds one for each learner.
        stem: The lesson id of one exercise, or None for all exercises.
        junit: Path of the JUnit report to write, or None.
        points: Path of the gradebook to write as CSV, or None.
        feedback: Path of the folder for a page for each learner who has begun something, or None.
        roster: Path of a file with the names of all learners, one a line, or None.

    Returns:
        bool: Whether all was read, and every task is solved.
    """
    from ddp_lessons.course.classroom import feedback as pages
    from ddp_lessons.course.classroom import grade_reports

    for path in filter(None, (junit, points)):
        _refuse_unwritable(path)
    try:
        checked = _check_all(folder, stem, roster)
    except KeyboardInterrupt:
        typer.echo(
            "Interrupted: nothing is written. Run it again, or check one exercise.", err=True
        )
        raise typer.Exit(130) from None
    with _private_files():
        if junit is not None:
            write(junit, grade_reports.junit_text(checked))
        if points is not None:
            write(points, grade_reports.points_text(checked))
        if feedback is not None:
            _write_feedback(feedback, checked, pages.page_text)
    return all(
        result.is_solved and not one.submission.is_unread
        for one in checked
        for result in one.results
    )


def refuse_without_report(folder, roster):
    """
    Refuse a check without a report that needs one.

    Args:
        folder: Path of the folder that was named, or None.
        roster: Path of the roster that was named, or None.

    Raises:
        BadInput: There is a roster, or root would run somebody else's answers with its own rights.
    """
    from ddp_lessons.course.classroom import answers_user

    if roster or (folder and answers_user.find_user()):
        raise BadInput(
            "No report: --points, --junit or --feedback is expected with --roster, and as root "
            "with --folder (got none). With one, answers run apart, as a user without rights."
        )


def _refuse_unwritable(path):
    # This fails before, not after, an hour of checks, and leaves no empty report.
    is_new = not os.path.lexists(path)
    write(path, "", mode="a")
    if is_new:
        path.unlink()


@contextlib.contextmanager
def _private_files():
    # Grades and answers are for the teacher alone.
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _write_feedback(folder, checked, page_text):
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"Cannot write there: a folder of yours is expected (got {folder}: {error.strerror}). "
            "Name another."
        ) from error
    learners: dict = {}
    for one in checked:
        learners.setdefault(one.submission.learner, []).append(one)
    num_pages = 0
    for learner, own in learners.items():
        path = folder / f"{learner}.html"
        if any(one.is_begun for one in own):
            write(path, page_text(learner, own))
            num_pages += 1
        else:  # a page of an earlier check would be handed back as this one's
            path.unlink(missing_ok=True)
    typer.echo(
        f"{num_pages} pages of feedback are in {folder}, one for each learner with an answer"
    )


def progress_text():
    """
    Return the learner's state as JSON, with each task's name and each prediction's section.
    """
    from ddp_lessons.checks.kit.task_registry import all_tasks
    from ddp_lessons.course.classroom.board_columns import sections
    from ddp_lessons.progress import notes, state

    told = state.read()
    where = {one.key: {"lesson": one.stem, "section": one.label} for one in sections()}
    tasks = {
        number: {"name": task.name, "changed_in": task.changed_in, **notes.row_of(number)}
        for number, task in all_tasks().items()
    }
    predicted = {
        name: {**where.get(name, {"lesson": None, "section": None}), **row}
        for name, row in told["predictions"].items()
    }
    return json.dumps(told | {"tasks": tasks, "predictions": predicted}, indent=1)


def _columns():
    from ddp_lessons.course.classroom.board_columns import columns  # imports all checks, and torch

    return columns()


class _Collected:
    # A board source of checked submissions. Submissions do not change, so one check is enough.
    def __init__(self, rows):
        self._rows = rows

    def rows(self):
        return self._rows


def _source(shared, folder):
    from ddp_lessons.course.classroom import submissions
    from ddp_lessons.course.classroom.board.state_files import Files

    if shared and folder:
        raise BadInput(
            "Two sources: one of --shared and --folder is expected (got both). --shared shows "
            "state files, --folder checks notebooks."
        )
    if folder:
        return _Collected(submissions.rows(_check_all(folder)))
    return Files(shared) if shared else None


def _check_all(folder, stem=None, roster=None):
    from ddp_lessons.course.classroom import answers_user, handed_in, learner_files, submissions

    def say(checked):
        num_solved = sum(result.is_solved for result in checked.results)
        one = checked.submission
        count = f"{num_solved} of {len(checked.results)} tasks solved"
        if checked.results[0].message == submissions.NOT_BEGUN:
            count = "not begun"
        lines = [f"{one.learner}, {one.paths.stem}: {count} ({checked.seconds:.0f} s)", one.note]
        if not checked.answers:
            lines.append(checked.results[0].message)
        typer.echo("\n    ".join(filter(None, lines)))

    names = handed_in.read_roster(roster) if roster else ()
    found = handed_in.find(folder, stem, names, typer.echo)
    if answers_user.find_user() is None:
        typer.echo("What was handed in runs as you: it can read your files and use your network.")
    typer.echo(f"{len(found)} submissions to check, {submissions.NUM_AT_ONCE} at a time")
    checked = submissions.check_all(found, say=say, hidden=[folder, *([roster] if roster else [])])
    if unread := {one.submission.learner for one in checked if one.submission.is_unread}:
        told = ", ".join(map(learner_files.shown, sorted(unread)))
        typer.echo(f"Not all was read: {told}. {learner_files.NEXT_STEP}", err=True)
    typer.echo("A check can be outwitted: read an answer before it counts for much.")
    return checked


def write(path, text, mode="w"):
    """
    Write text into a file that a teacher has named.

    Args:
        path: Path of the file.
        text: The text to write.
        mode: "w" to replace the file's text, "a" to append to it.

    Raises:
        BadInput: The file cannot be written.
    """
    try:
        with path.open(mode, encoding="utf-8", newline="") as file:
            file.write(text)
    except OSError as error:
        raise BadInput(
            f"Cannot write there: a file in a folder of yours is expected (got {path}: "
            f"{error.strerror}). Name another."
        ) from error
