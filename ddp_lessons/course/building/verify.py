"""
The verification of notebooks: strict nbval runs them again and compares every stored output.
"""

import os
import sys
from pathlib import Path

from ddp_lessons.course import rules
from ddp_lessons.course.building import CELL_TIMEOUT_S, DEADLINE_S
from ddp_lessons.course.building.build import notebook_environment
from ddp_lessons.course.notebooks.canonical import read_notebook
from ddp_lessons.course.notebooks.text_twins import refuse_unequal
from ddp_lessons.errors import NotebookRefused
from ddp_lessons.jobs.owned import DEADLINE_STATUS, run_owned

_QUICK_NBVAL = Path(__file__).with_name("nbval_main.py")


def verify(paths, *, cell_timeout_s=CELL_TIMEOUT_S, deadline_s=DEADLINE_S):
    """
    Run a stored notebook and compare its outputs with the stored ones.

    nbval prints the cells that differ. No process that the notebook starts outlives the call.

    Args:
        paths: The NotebookPaths of the notebook and its text twin.
        cell_timeout_s: Seconds that one cell may take.
        deadline_s: Seconds that the whole notebook may take.

    Raises:
        NotebookRefused: An output differs, a cell would not be compared, the text twin has other
            cells, or the deadline has passed.
    """
    notebook = read_notebook(paths.notebook)
    rules.refuse(paths.notebook.name, rules.uncompared(notebook))
    refuse_unequal(paths, notebook)
    status = run_owned(
        nbval_command(paths.notebook, cell_timeout_s, "--nbval"),
        cwd=paths.notebook.parent,
        env=nbval_environment(),
        deadline_s=deadline_s,
    )
    if status == 0:
        return
    if status == DEADLINE_STATUS:
        fault, expected, got = "deadline", f"an end within {deadline_s:g} s", "none"
    else:
        fault, expected, got = "differs", "every stored output again", f"pytest status {status}"
    raise NotebookRefused(
        f"{paths.notebook.name}, {fault}: expected {expected} (got {got}). See the cells above, "
        "which nbval counts from 0 without the text cells; mend them and build."
    )


def nbval_environment():
    """
    Return the environment in which pytest runs nbval and no other plugin.
    """
    return notebook_environment() | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def nbval_command(path, cell_timeout_s, *options):
    """
    Return the command that runs a notebook under nbval.

    Args:
        path: Path of the notebook.
        cell_timeout_s: Seconds that one cell may take.
        options: "--nbval" to compare outputs, or "--nbval-lax" not to; and options of pytest.
    """
    # Pass no configuration, plugin or conftest of the project: they might weaken the comparison.
    # -P keeps the notebook's folder from hiding modules from pytest.
    command = [sys.executable, "-P", str(_QUICK_NBVAL), "-p", "nbval.plugin"]
    command += ["-p", "no:cacheprovider", "-c", os.devnull, "--noconftest"]
    command += [f"--rootdir={path.parent}", "-q", "--no-header"]
    command += [*options, "--nbval-current-env", f"--nbval-cell-timeout={cell_timeout_s:g}"]
    if not sys.stdout.isatty():
        command.append("--color=no")
    return [*command, str(path)]
