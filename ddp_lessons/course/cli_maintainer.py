"""
The maintainers' commands `ddp-lessons build` and `verify`, which `--help` does not list.

Each command imports its modules only when it runs, so that `--help` answers at once.
"""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ddp_lessons.course.building import CELL_TIMEOUT_S, DEADLINE_S
from ddp_lessons.errors import BadInput, NotebookRefused

_Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME]...",
        help="Such as 00_ranks, or exercises/00_ranks for the exercise alone; else all.",
    ),
]
_Root = Annotated[Path | None, typer.Option(help="Folder of the course.", show_default="found")]
_CellTimeout = Annotated[float, typer.Option("--cell-timeout-s", help="Limit of one cell.")]
_Deadline = Annotated[float, typer.Option("--deadline-s", help="Limit of one notebook.")]


def build(
    names: _Names = None,
    root: _Root = None,
    cell_timeout_s: _CellTimeout = CELL_TIMEOUT_S,
    deadline_s: _Deadline = DEADLINE_S,
):
    """
    Run text twins and replace their notebooks, or refuse and say why.
    """
    from ddp_lessons.course.building.build import build

    _run_each(build, "built", names, root, cell_timeout_s, deadline_s)


def verify(
    names: _Names = None,
    root: _Root = None,
    cell_timeout_s: _CellTimeout = CELL_TIMEOUT_S,
    deadline_s: _Deadline = DEADLINE_S,
):
    """
    Run stored notebooks under strict nbval and compare every output.
    """
    from ddp_lessons.course.building.verify import verify

    _run_each(verify, "verified", names, root, cell_timeout_s, deadline_s)


def _run_each(
    act: Callable[..., Any],
    done: str,
    names: list[str] | None,
    root: Path | None,
    cell_timeout_s: float,
    deadline_s: float,
) -> None:
    """
    Run an act on notebooks, one after the other. Exit with 1 if one is refused, 2 on wrong names.
    """
    from ddp_lessons.course.notebooks.notebook_paths import choose, find_root

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        all_paths = choose(root or find_root(), names or [])
    except BadInput as error:
        typer.echo(error, err=True)
        raise typer.Exit(2) from None
    num_refused = 0
    for paths in all_paths:
        started = time.monotonic()
        try:
            act(paths, cell_timeout_s=cell_timeout_s, deadline_s=deadline_s)
        except NotebookRefused as error:
            num_refused += 1
            typer.echo(error, err=True)
        else:
            seconds = time.monotonic() - started
            typer.echo(f"{paths.kind} {paths.stem}: {done} in {seconds:.1f} s")
    raise typer.Exit(int(num_refused > 0))


def _stop(number: int, frame: object) -> None:
    # SystemExit unwinds the stack, so the processes of a command are ended before this one ends.
    raise SystemExit(128 + number)
