"""
The table of the doctor's findings, which fits one screen of 24 lines by 100 columns.
"""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ddp_lessons.course.doctor.doctor import FAIL, OK, WARN, can_run

NUM_LINES, NUM_COLUMNS = 24, 100
_GAP = 2  # columns between two columns of the table
_STYLES = {OK: "green", WARN: "yellow", FAIL: "bold red"}


def findings_table(findings, num_columns=NUM_COLUMNS):
    """
    Return a table with one line for each finding. A long text is cut, so that all lines fit.

    Args:
        findings: List of Findings.
        num_columns: Columns of the screen.
    """
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    num_taken = max(len(finding.what) for finding in findings) + len(WARN) + 3 * _GAP
    table.add_column("What", no_wrap=True)
    table.add_column("", no_wrap=True)
    # Without a limit, a long text would take its width from the other two columns.
    room = max(1, num_columns - num_taken)
    table.add_column("Found", no_wrap=True, overflow="ellipsis", max_width=room)
    for finding in findings:
        status = Text(finding.status, style=_STYLES[finding.status])
        table.add_row(finding.what, status, Text(" ".join(finding.found.split())))
    return table


def mending_lines(findings, num_lines):
    """
    Return the sentences that say how to fix what is wrong, failures first.

    Args:
        findings: List of Findings.
        num_lines: Largest number of lines; if they are too few, the last line counts the rest.

    Returns:
        list[Text]: One line for each sentence.
    """
    wrong = [finding for finding in findings if finding.mend]
    wrong.sort(key=lambda finding: finding.status != FAIL)
    lines = [
        Text.assemble((finding.what, _STYLES[finding.status]), f": {finding.mend}")
        for finding in wrong
    ]
    if len(lines) > num_lines:
        num_left = len(lines) - (num_lines - 1)
        lines[num_lines - 1 :] = [Text(f"Mend these, then look again: {num_left} more.")]
    return lines


def verdict(findings):
    """
    Return the closing sentence.
    """
    if not can_run(findings):
        return Text("The course cannot run here yet.", style="bold red")
    if any(finding.status == WARN for finding in findings):
        return Text("The course runs here. What is marked warn takes something from it.")
    return Text("The course runs here.", style="green")


def room_verdict(findings, num_learners):
    """
    Return the closing sentence on a room of learners.
    """
    room = "1 learner" if num_learners == 1 else f"{num_learners} learners"
    if not can_run(findings):
        return Text(f"This server does not hold {room} yet.", style="bold red")
    if any(finding.status == WARN for finding in findings):
        return Text(f"This server holds {room}. What is marked warn makes them wait.")
    return Text(f"This server holds {room}.", style="green")


def show_findings(findings, file=None, closing=None):
    """
    Print findings, how to fix what is wrong, and whether the course runs.

    Args:
        findings: List of Findings.
        file: Text file to print to; standard output if None.
        closing: The last sentence; default: the verdict on one learner's machine.
    """
    console = Console(file=file, highlight=False)
    # A pipe has no width, and long lines are hard to read even in a wide terminal.
    console.width = min(console.width, NUM_COLUMNS) if console.is_terminal else NUM_COLUMNS
    console.print(findings_table(findings, console.width))
    console.print()
    num_taken = len(findings) + 4  # heading, two blank lines, verdict
    if lines := mending_lines(findings, NUM_LINES - num_taken - 1):  # the prompt takes one more
        for line in lines:
            console.print(line)
        console.print()
    console.print(verdict(findings) if closing is None else closing)
