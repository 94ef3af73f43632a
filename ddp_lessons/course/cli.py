"""
The command line: `ddp-lessons doctor`, `lab`, and the learner's commands for exercises.

Teachers' commands are in `cli_teacher`, maintainers' in `cli_maintainer`; `--help` does not list
those of maintainers. Each command imports its modules only when it runs, so that `--help` answers
at once.
"""

from pathlib import Path
from typing import Annotated

import typer

from ddp_lessons import __version__
from ddp_lessons.course import cli_maintainer, cli_script, cli_teacher
from ddp_lessons.course.notebooks.notebook_paths import with_two_digits
from ddp_lessons.errors import DDPLessonsError


class Commands(typer.core.TyperGroup):
    """
    The commands, whose expected errors are told in one line, without a traceback.
    """

    def invoke(self, ctx):
        """
        Run the command that the arguments name.
        """
        try:
            return super().invoke(ctx)
        except DDPLessonsError as error:
            typer.echo(f"ddp-lessons {ctx.invoked_subcommand}: {error}", err=True)
            raise typer.Exit(1) from None


app = typer.Typer(
    name="ddp-lessons",
    cls=Commands,
    help="A course on PyTorch distributed training that is run, not read.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool):
    if wanted:
        typer.echo(f"ddp-lessons {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
):
    """
    A course on PyTorch distributed training that is run, not read.
    """


@app.command()
def doctor(
    room: Annotated[
        int | None,
        typer.Option(min=1, metavar="LEARNERS", help="Judge this server for so many at once."),
    ] = None,
):
    """
    Say what this machine can do for the course, and how to mend what it cannot.

    Starts two ranks for a moment and has them talk. Exits with status 1 if the course cannot run.

    With --room 30 it has two learners run lesson 06 side by side, which takes a minute, and says
    whether this server holds thirty of them.
    """
    if room is not None:
        _judge_room(room)
    from ddp_lessons.course.doctor.doctor import can_run, judge
    from ddp_lessons.course.doctor.machine import look_at_machine
    from ddp_lessons.course.doctor.table import show_findings

    findings = judge(look_at_machine())
    show_findings(findings)
    raise typer.Exit(0 if can_run(findings) else 1)


def _judge_room(num_learners):
    from ddp_lessons.course.doctor.doctor import can_run
    from ddp_lessons.course.doctor.load_probe import look_at_room
    from ddp_lessons.course.doctor.table import room_verdict, show_findings

    findings = look_at_room(num_learners)
    show_findings(findings, closing=room_verdict(findings, num_learners))
    raise typer.Exit(0 if can_run(findings) else 1)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def lab(
    context: typer.Context,
    folder: Annotated[
        Path | None, typer.Argument(help="A folder of your own.", show_default="my-course")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port to listen on.", show_default=False)
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Open no browser.")] = False,
):
    """
    Open JupyterLab in a folder of your own, at the first lesson.

    The lessons and exercises are copied into it, and never over what you have edited. Options that
    are not listed here go to JupyterLab as they are.
    """
    from ddp_lessons.course.learner.lab import open_lab

    if folder is not None and str(folder).startswith("-"):  # an option of JupyterLab's
        context.args.insert(0, str(folder))
        folder = None
    open_lab(_bring_up_to_date(folder), port, not no_browser, context.args)


_Stem = Annotated[str, typer.Argument(metavar="EXERCISE", help="Such as 02_collectives, or 02.")]
_Number = Annotated[
    str, typer.Argument(metavar="TASK", help="Such as 02.1.", callback=with_two_digits)
]
_Folder = Annotated[
    Path | None,
    typer.Option("--folder", help="Where your exercises are.", show_default="here, or my-course"),
]


@app.command()
def check(
    stem: Annotated[
        str | None,
        typer.Argument(metavar="[EXERCISE]", help="Such as 02_collectives, or 02; else all."),
    ] = None,
    folder: _Folder = None,
    junit: Annotated[
        Path | None, typer.Option(help="Write a report for CI.", metavar="FILE")
    ] = None,
    points: Annotated[
        Path | None, typer.Option(help="Write points as CSV.", metavar="FILE")
    ] = None,
    feedback: Annotated[
        Path | None,
        typer.Option(help="Write a page for each learner with an answer.", metavar="FOLDER"),
    ] = None,
    roster: Annotated[
        Path | None, typer.Option(help="Names of all learners, one a line.", metavar="FILE")
    ] = None,
):
    """
    Run your exercises in fresh kernels and say for each task what holds, and the hint where not.

    Stored outputs do not count. Exits with status 1 if a task is not solved. With --junit, --points
    or --feedback, a FOLDER may stand in place of EXERCISE: what learners have handed in, each run
    apart, and each of them judged even if nothing of theirs is there.
    """
    reports = {"junit": junit, "points": points, "feedback": feedback}
    if any(reports.values()):
        from ddp_lessons.course.classroom import learner_files

        if stem is not None and learner_files.is_folder(stem):
            folder, stem = Path(stem), None
        is_solved = cli_teacher.grade(folder or Path.cwd(), stem, roster=roster, **reports)
        raise typer.Exit(0 if is_solved else 1)
    cli_teacher.refuse_without_report(folder, roster)
    from ddp_lessons.checks.kit.task_registry import all_tasks, stem_of
    from ddp_lessons.course.learner import exercises

    stems = [stem] if stem else list(dict.fromkeys(map(stem_of, all_tasks().values())))
    num_open = 0
    for one in stems:
        paths = exercises.find_exercise(one)
        path = exercises.learners_notebook(paths, folder)
        typer.echo(f"{path.name}")
        for result in exercises.check_notebook(path, paths):
            mark = "solved" if result.is_solved else "open"
            typer.echo(f"  {result.task.number} {result.task.name}: {mark}")
            for line in result.message.splitlines():
                typer.echo(f"      {line}")
            num_open += not result.is_solved
    raise typer.Exit(1 if num_open else 0)


@app.command()
def progress(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with times.")] = False,
):
    """
    Show a table of all tasks: what is solved, and how many checks and hints it took.
    """
    if as_json:
        typer.echo(cli_teacher.progress_text())
        return
    from rich.console import Console
    from rich.table import Table

    from ddp_lessons.checks.kit.task_registry import all_tasks
    from ddp_lessons.progress import notes

    table = Table("Task", "Name", "Solved", "Checks", "Hints")
    tasks, num_solved = all_tasks(), 0
    for number, task in tasks.items():
        row = notes.row_of(number)
        num_solved += row["is_passed"]
        solved = "yes" if row["is_passed"] else ""
        if solved and task.has_changed_since(row["solved_version"]):
            solved = f"yes, before it changed in {task.changed_in}"
        shown = [str(row[name]) if row[name] else "" for name in ("checks", "hints")]
        table.add_row(number, task.name, solved, *shown)
    Console().print(table)
    typer.echo(f"{num_solved} of {len(tasks)} tasks solved")
    predicted = [row for row in notes.predictions().values() if row["was"] is not None]
    if predicted:
        num_right = sum(row["first"] == row["was"] for row in predicted)
        typer.echo(f"{num_right} of {len(predicted)} predictions right at the first go")


@app.command()
def hint(number: _Number):
    """
    Print the next hint of a task.
    """
    from ddp_lessons.checks.kit.hints import next_hint

    typer.echo(next_hint(number))


@app.command()
def copy(
    folder: Annotated[
        Path | None, typer.Argument(help="A folder of your own.", show_default="my-course")
    ] = None,
):
    """
    Do what `lab` does before it opens JupyterLab: copy the lessons and exercises, or what is new.
    """
    typer.echo(f"your course is in {_bring_up_to_date(folder)}")


@app.command()
def reset(stem: _Stem, folder: _Folder = None):
    """
    Bring an exercise's blank back. Your answer is kept in a file beside it.
    """
    from ddp_lessons.course.learner import exercises

    paths = exercises.find_exercise(stem)
    path = exercises.learners_notebook(paths, folder)
    kept = exercises.reset_notebook(path, paths)
    typer.echo(f"{path} is blank again")
    if kept is not None:
        typer.echo(f"your answer is in {kept.name}, beside it")
    typer.echo("if it is open in JupyterLab: File, Reload Notebook from Disk")


@app.command()
def solution(
    number: _Number,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
):
    """
    Show the solution of a task. Asks first.
    """
    from ddp_lessons.checks.kit.task_registry import find_task
    from ddp_lessons.course.learner import exercises
    from ddp_lessons.progress import notes

    task = find_task(number)
    num_left = len(task.hints) - notes.row_of(number)["hints"]
    left = f" There are {num_left} more hints: ddp-lessons hint {number}." if num_left else ""
    if yes or typer.confirm(f"Show the solution of {number} {task.name}?{left}"):
        typer.echo(exercises.solution_of(number))


app.command()(cli_script.script)
app.command()(cli_teacher.board)
app.command()(cli_teacher.nbgrader)
app.command()(cli_teacher.publish)
app.command(hidden=True)(cli_maintainer.build)
app.command(hidden=True)(cli_maintainer.verify)


def _bring_up_to_date(folder):
    """
    Copy the course, or its new files, into a learner's folder, and print which files changed.
    """
    from ddp_lessons.course.learner import workspace
    from ddp_lessons.course.notebooks import notebook_paths

    folder = (folder or workspace.usual_folder()).resolve()
    done = str(workspace.update(folder, notebook_paths.find_course()))
    if done:
        typer.echo(done)
    return folder


if __name__ == "__main__":
    app(prog_name="ddp-lessons")
