"""
The build of notebooks: a text twin becomes a notebook with outputs and counts, or is refused.
"""

import os
import sys
import tempfile
from pathlib import Path

import nbformat

from ddp_lessons.course import rules
from ddp_lessons.course.building import CELL_TIMEOUT_S, DEADLINE_S, execute
from ddp_lessons.course.notebooks.canonical import canonical, dumps, plain_lines
from ddp_lessons.course.notebooks.cell_roles import role_of
from ddp_lessons.course.notebooks.starters import blank_of
from ddp_lessons.course.notebooks.text_twins import one_folder_down, read_twin
from ddp_lessons.course.rules import reading_time
from ddp_lessons.errors import NotebookRefused
from ddp_lessons.files import replace_text
from ddp_lessons.jobs.owned import DEADLINE_STATUS, run_owned

# Environment variables to remove, because they would change the outputs.
_UNWANTED = (
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "FORCE_COLOR",
    "JPY_SESSION_NAME",  # of the notebook in which the command runs
    "NO_COLOR",
    "MPLBACKEND",
    "PYTEST_ADDOPTS",
    "PYTEST_PLUGINS",
    "PYTHONHASHSEED",
    "PYTHONWARNINGS",
    "PY_COLORS",
)
_WANTED = {"IPP_NONINTERACTIVE": "1", "COLUMNS": "88", "LINES": "24"}


def notebook_environment():
    """
    Return the environment in which notebooks are built and verified.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _UNWANTED}
    return kept | _WANTED


def machine_paths():
    """
    Return the folders of this machine that no output may name.
    """
    return (Path.home(), tempfile.gettempdir(), Path.cwd(), sys.prefix)


def build(paths, *, cell_timeout_s=CELL_TIMEOUT_S, deadline_s=DEADLINE_S):
    """
    Run a text twin from the top and replace its notebooks, or refuse and do not change them.

    The one notebook has the outputs. The other is the starter (see `blank_of`).

    Args:
        paths: The NotebookPaths of the text twin and the notebooks.
        cell_timeout_s: Seconds that one cell may take.
        deadline_s: Seconds that the whole notebook may take.

    Returns:
        The canonical notebook that was written.

    Raises:
        NotebookRefused: A rule is broken. The message names every such cell and rule.
    """
    name, kind = paths.notebook.name, {"is_lesson": paths.is_lesson}
    twin = canonical(read_twin(paths.text), paths.stem)
    # Refuse faults of the source before anything runs.
    rules.refuse(name, rules.findings(twin, has_run=False, **kind))
    blank = dumps(blank_of(paths, twin))
    twin = one_folder_down(twin)
    notebook = canonical(_run(paths, twin, cell_timeout_s, deadline_s), paths.stem)
    broken = rules.findings(notebook, machine_paths=machine_paths(), **kind)
    if any(finding.rule == "error" for finding in broken):
        # No cell after the error has run, so the other findings would only repeat that.
        broken = [finding for finding in broken if finding.rule == "error"]
        _show_traceback(notebook, broken[0].cell)
    rules.refuse(name, broken)
    replace_text(paths.notebook, dumps(notebook))
    replace_text(paths.blank, blank)
    if paths.is_lesson and (warning := reading_time.warning(notebook)):
        print(f"{name}: {warning}", file=sys.stderr)
    return notebook


def run_notebook(path, folder, *, cell_timeout_s=CELL_TIMEOUT_S, deadline_s=DEADLINE_S):
    """
    Run a notebook in a fresh kernel, store its outputs in its file, and leave no process running.

    Args:
        path: Path of the notebook, which is overwritten. A file beside it, with the ending `.cell`,
            has the number of the last cell that has begun.
        folder: The folder in which the kernel runs.
        cell_timeout_s: Seconds that one cell may take.
        deadline_s: Seconds that the whole notebook may take.

    Returns:
        int: 0, a status of `execute`, or DEADLINE_STATUS; 0 even if a cell has raised.
    """
    command = [sys.executable, "-P", execute.__file__, str(path)]
    command += [f"--folder={folder}", f"--cell-timeout-s={cell_timeout_s}"]
    return run_owned(command, cwd=path.parent, env=notebook_environment(), deadline_s=deadline_s)


def _run(paths, twin, cell_timeout_s, deadline_s):
    with tempfile.TemporaryDirectory(prefix="ddp-lessons-") as folder:
        path = Path(folder) / paths.notebook.name
        path.write_text(dumps(twin), encoding="utf-8")
        paths.notebook.parent.mkdir(parents=True, exist_ok=True)
        status = run_notebook(
            path, paths.notebook.parent, cell_timeout_s=cell_timeout_s, deadline_s=deadline_s
        )
        if status:
            _refuse_status(paths, twin, path.with_suffix(".cell"), status, deadline_s)
        return nbformat.read(path, as_version=4)


def _refuse_status(paths, twin, progress, status, deadline_s):
    faults = {
        execute.TIMEOUT_STATUS: ("cell-timeout", "a cell that ends in time", "it did not"),
        execute.DEAD_KERNEL_STATUS: ("dead-kernel", "a kernel that lives", "it died"),
        DEADLINE_STATUS: ("deadline", f"a notebook that ends in {deadline_s:g} s", "it did not"),
    }
    other = ("kernel", "a kernel that starts and runs", f"exit status {status}")
    rule, expected, got = faults.get(status, other)
    where = "before the first cell"
    if progress.exists():
        number = int(progress.read_text())
        where = f"cell {number} ({role_of(twin['cells'][number - 1])})"
    raise NotebookRefused(
        f"{paths.notebook.name}, {where}, {rule}: expected {expected} (got: {got}). "
        "Run the cell in JupyterLab to see where it stands."
    )


def _show_traceback(notebook, number):
    for output in notebook["cells"][number - 1]["outputs"]:
        if output["output_type"] == "error":
            print("\n".join(plain_lines(output["traceback"])), file=sys.stderr)
