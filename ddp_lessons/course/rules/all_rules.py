"""
All rules of a notebook together, as pure functions of the notebook.

`findings` applies every rule, `refuse` raises an error with the findings, and `uncompared` finds
only the cells that nbval would pass without comparing them.

    source      style of the code, and the limits of a lesson
    outputs     no output that differs between runs or machines
    cell_order  which cells a lesson has, and in which order
    prose       what the text of a lesson must have
"""

from ddp_lessons.course.notebooks.cell_roles import IGNORED, RAISES, ask, found, numbered, tags_of
from ddp_lessons.course.rules import cell_order as rules_rhythm
from ddp_lessons.course.rules import outputs as rules_outputs
from ddp_lessons.course.rules import prose as rules_words
from ddp_lessons.course.rules import source as rules_source
from ddp_lessons.errors import NotebookRefused

MOST_IGNORED = 2
# nbval reads these as tags and as comments.
_NBVAL_TAGS = ("nbval-", "pytest-validate-")
_NBVAL_COMMENTS = ("NBVAL_", "PYTEST_VALIDATE_")


def findings(notebook, *, is_lesson=True, has_run=True, machine_paths=()):
    """
    Return every broken rule of a notebook, in the order of its cells.

    Args:
        notebook: A notebook of nbformat 4.
        is_lesson: Whether to apply the rules for lessons, too.
        has_run: Whether the notebook was run, so that its outputs are judged, too.
        machine_paths: Folders of this machine that no output may name.
    """
    broken = rules_source.findings(notebook, is_lesson=is_lesson) + uncompared(notebook, has_run)
    if is_lesson:
        broken += rules_rhythm.findings(notebook) + rules_words.findings(notebook, has_run)
    if has_run:
        broken += rules_outputs.findings(notebook, machine_paths)
    return sorted(broken, key=lambda finding: finding.cell or 0)


def refuse(name, broken):
    """
    Raise an error with one line for each broken rule, or return if there is none.

    Args:
        name: The notebook's file name.
        broken: List of Findings, which may be empty.

    Raises:
        NotebookRefused: There is at least one finding.
    """
    if broken:
        raise NotebookRefused("\n".join(f"{name}, {finding}" for finding in broken))


def uncompared(notebook, has_run=True):
    """
    Return findings about the cells that nbval would pass without comparing them.

    Args:
        notebook: A notebook of nbformat 4.
        has_run: Whether the notebook was run, so that execution counts are judged, too.
    """
    rules = {"nbval-mark": _nbval_mark}
    if has_run:
        rules["null-count"] = _null_count
    broken = _too_many_ignored(notebook)
    for number, cell in numbered(notebook, "code"):
        broken += ask(rules, number, cell)
    return broken


def _null_count(cell):
    if cell["execution_count"] is None:
        got = "none, so nbval would never compare it"
        yield "an execution count on every code cell", got, "Build the notebook."


def _nbval_mark(cell):
    lines = [line.strip() for line in cell["source"].splitlines()]
    marks = [tag for tag in tags_of(cell) if tag.startswith(_NBVAL_TAGS) and tag != IGNORED]
    marks += [line for line in lines if line.lstrip("# ").startswith(_NBVAL_COMMENTS)]
    for mark in marks:
        yield f"no mark for nbval but the tags {RAISES} and {IGNORED}", mark, "Remove it."


def _too_many_ignored(notebook):
    cells = [(number, cell) for number, cell in numbered(notebook) if IGNORED in tags_of(cell)]
    ignored = [(number, cell) for number, cell in cells if "setup" not in tags_of(cell)]
    expected = f"at most {MOST_IGNORED} cells tagged {IGNORED} besides the setup cell"
    then = "Print what is the same on every run, or assert a ratio."
    return [
        found("ignored-output", number, cell, expected, f"number {i}", then)
        for i, (number, cell) in enumerate(ignored, start=1)
        if i > MOST_IGNORED
    ]
