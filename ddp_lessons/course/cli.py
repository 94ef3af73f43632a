"""
The command line: `ddp-lessons doctor`, `ddp-lessons lab`.

Each command imports what it needs when it runs, so that `--help` answers at once.
"""

from typing import Annotated

import typer

from ddp_lessons import __version__
from ddp_lessons.errors import DDPLessonsError

app = typer.Typer(
    name="ddp-lessons",
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
def doctor():
    """
    Say what this machine can do for the course, and how to mend what it cannot.

    Starts two ranks for a moment and has them talk. Exits with status 1 if the course cannot run.
    """
    from ddp_lessons.course.doctor import can_run, judge
    from ddp_lessons.course.doctor_table import show_findings
    from ddp_lessons.course.machine import look_at_machine

    findings = judge(look_at_machine())
    show_findings(findings)
    raise typer.Exit(0 if can_run(findings) else 1)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def lab(
    context: typer.Context,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port to listen on.", show_default=False)
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Open no browser.")] = False,
):
    """
    Open JupyterLab at the first lesson.

    Options that are not listed here go to JupyterLab as they are.
    """
    from ddp_lessons.course.lab import open_lab

    try:
        open_lab(port, not no_browser, context.args)
    except DDPLessonsError as error:
        typer.echo(f"ddp-lessons lab: {error}", err=True)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    app(prog_name="ddp-lessons")
