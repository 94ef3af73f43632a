"""
The names that all rules of a notebook share: cell roles, tags, and the BrokenRule of a broken rule.
"""

from dataclasses import dataclass

# The role tags of a lesson's cells. Each cell has exactly one.
MARKDOWN_ROLES = ("title", "why", "goal", "question", "explain", "read", "recap", "next")
CODE_ROLES = ("setup", "run", "break", "mend", "picture", "check", "teardown")
# "predict": a text cell asks, and a code cell takes the answer. "cluster": commands and files that
# the reader takes to another machine.
EITHER_ROLES = ("predict", "cluster")
ROLES = (*MARKDOWN_ROLES, *CODE_ROLES, *EITHER_ROLES)

RAISES = "raises-exception"
IGNORED = "nbval-ignore-output"
SCRIPT = "script"  # the cell belongs to the script that `ddp-lessons script` makes
ANSWER = "answer"  # the cell gives a prediction's answer: it is folded in what learners open
MARKS = (RAISES, IGNORED, SCRIPT, ANSWER)


@dataclass(frozen=True)
class BrokenRule:
    """
    One broken rule of a notebook.

    Args:
        rule: The rule's name.
        cell: Number of the cell, from 1, markdown cells counted. None for the whole notebook.
        role: The cell's role tag, or its type where it has none.
        message: Text that says what was expected, what was found, and the next step.
    """

    rule: str
    cell: int | None
    role: str
    message: str

    def __str__(self):
        where = "notebook" if self.cell is None else f"cell {self.cell} ({self.role})"
        return f"{where}, {self.rule}: {self.message}"


def text_of(cell):
    """
    Return the stripped source of a cell, with a line feed at each line's end.
    """
    return "\n".join(cell["source"].strip().splitlines())


def tags_of(cell):
    """
    Return the tags of a cell.
    """
    return list(cell["metadata"].get("tags", ()))


def roles_of(cell):
    """
    Return the tags of a cell that are roles. A valid cell of a lesson has one.
    """
    return [tag for tag in tags_of(cell) if tag in ROLES]


def role_of(cell):
    """
    Return the first role tag of a cell, or its type where it has none.
    """
    return (roles_of(cell) or [cell["cell_type"]])[0]


def numbered(notebook, kind=None):
    """
    Return (number from 1, cell) for each cell, or for each of one type.
    """
    pairs = enumerate(notebook["cells"], start=1)
    return [(number, cell) for number, cell in pairs if kind in (None, cell["cell_type"])]


def is_explained(notebook):
    """
    Return whether a lesson follows the template that explains: such a lesson has a "why" cell.

    Lessons that were written before that template keep the older rules until they are rewritten.
    """
    return any(role_of(cell) == "why" for cell in notebook["cells"])


def first_reading(notebook, kind=None):
    """
    Return (number from 1, cell) for each cell outside of the sections that may be skipped.

    The headings of these sections begin with "More:", and they are the last sections.
    """
    kept, may_be_skipped = [], False
    for number, cell in numbered(notebook):
        if role_of(cell) in ("question", "recap"):
            may_be_skipped = cell["source"].startswith("## More: ")
        if not may_be_skipped and kind in (None, cell["cell_type"]):
            kept.append((number, cell))
    return kept


def found(rule, number, cell, expected, got, then):
    """
    Return a finding, worded the same way for every rule.

    Args:
        rule: The rule's name.
        number: The cell's number, or None for the whole notebook.
        cell: The cell, or None.
        expected: State of a valid notebook, as the message says it after "expected".
        got: State of this notebook, as the message says it after "got".
        then: The next step, as a sentence.
    """
    role = "" if cell is None else role_of(cell)
    return BrokenRule(rule, number, role, f"expected {expected} (got {got}). {then}")


def ask(rules, number, cell):
    """
    Return the findings of each rule about one cell.

    Args:
        rules: Dict from a rule's name to a function of the cell that yields (expected, got, then).
        number: The cell's number.
        cell: The cell.
    """
    return [found(name, number, cell, *said) for name, rule in rules.items() for said in rule(cell)]


def texts_of(output):
    """
    Return (kind, text) for every text of an output.

    The kind is "stream", "error", "traceback" or a MIME type.

    Args:
        output: An output of nbformat 4.
    """
    if output["output_type"] == "stream":
        return [("stream", output["text"])]
    if output["output_type"] == "error":
        return [
            ("error", f"{output['ename']}: {output['evalue']}"),
            ("traceback", "\n".join(output["traceback"])),
        ]
    return [(mime, text) for mime, text in output["data"].items() if isinstance(text, str)]
