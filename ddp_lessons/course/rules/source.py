"""
The rules about the source of cells: style, and limits on the cells and lines of a lesson.
"""

import ast
import io
import statistics
import tokenize
from functools import partial

from IPython.core.inputtransformer2 import TransformerManager

from ddp_lessons.course.notebooks.cell_roles import (
    MARKS,
    RAISES,
    ROLES,
    ask,
    first_reading,
    found,
    is_explained,
    numbered,
    tags_of,
)

MOST_COLUMNS = 88
MOST_LINES = 25
MOST_SETUP_LINES = 6
# Limits of lessons that were written before the template that explains.
MOST_CODE_CELLS_BEFORE = 25
MOST_MEDIAN_LINES_BEFORE = 6
MOST_LINES_BEFORE = 15
MOST_DEF_LINES_BEFORE = 15

# Cells with these magics hold Python. Cells with other magics are not parsed.
_PYTHON_MAGICS = ("%%px", "%%time", "%%timeit", "%%capture", "%%prun")
_BLANK_TOKENS = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


def findings(notebook, *, is_lesson):
    """
    Return every broken rule about the source of cells.

    Args:
        notebook: A notebook of nbformat 4.
        is_lesson: Whether to apply the limits of a lesson, too.
    """
    rules = {
        "columns": _columns,
        "semicolon": _semicolon,
        "syntax": _syntax,
        "px-expression": _px_expression,
    }
    is_before = is_lesson and not is_explained(notebook)
    if is_lesson:
        most = MOST_LINES_BEFORE if is_before else MOST_LINES
        rules["cell-lines"] = partial(_cell_lines, most=most)
    if is_before:
        rules["def-lines"] = _def_lines
    broken = _budgets(notebook) if is_before else []
    for number, cell in numbered(notebook, "code"):
        broken += ask(rules, number, cell)
    if is_lesson:
        for number, cell in numbered(notebook):
            broken += ask({"unknown-tag": _unknown_tag}, number, cell)
    return broken


def body_of(source):
    """
    Return (name of the cell magic or "", the rest of the cell).
    """
    if not source.startswith("%%"):
        return "", source
    magic, _, body = source.partition("\n")
    return magic.split()[0], body


def parse(source):
    """
    Return the syntax tree of a cell's Python, with line magics translated.

    Returns:
        The tree; None where the cell does not parse or is not Python.
    """
    magic, body = body_of(source)
    if magic and magic not in _PYTHON_MAGICS:
        return None
    try:
        return ast.parse(TransformerManager().transform_cell(body))
    except SyntaxError:
        return None


def num_lines(source):
    """
    Count the lines of a cell that are not blank.
    """
    return sum(bool(line.strip()) for line in source.splitlines())


def _columns(cell):
    for i, line in enumerate(cell["source"].splitlines(), start=1):
        if len(line) > MOST_COLUMNS:
            got = f"{len(line)} in line {i}"
            yield f"lines of at most {MOST_COLUMNS} columns", got, "Break the line."


def _semicolon(cell):
    if _last_token(body_of(cell["source"])[1]) == ";":
        got = "one, which hides a result in Jupyter and not under nbval"
        yield "no `;` at the end of a cell", got, "Assign the result to a name."


def _last_token(body):
    last = ""
    try:
        for token in tokenize.generate_tokens(io.StringIO(body).readline):
            last = last if token.type in _BLANK_TOKENS else token.string
    except (SyntaxError, tokenize.TokenError):
        # The cell is broken on purpose, or is not Python: return its last character.
        return body.rstrip()[-1:]
    return last


def _syntax(cell):
    magic, _ = body_of(cell["source"])
    is_python = not magic or magic in _PYTHON_MAGICS
    if is_python and RAISES not in tags_of(cell) and parse(cell["source"]) is None:
        then = f"Mend it, or tag the cell {RAISES} if that is the point."
        yield "Python that parses", "a syntax error", then


def _px_expression(cell):
    magic, _ = body_of(cell["source"])
    tree = parse(cell["source"])
    if magic != "%%px" or tree is None or not tree.body:
        return
    last = tree.body[-1]
    # A call may return None, as print does. If it returns a value, the rule px-result finds it.
    if isinstance(last, ast.Expr) and not isinstance(last.value, ast.Call):
        got = f"`{ast.unparse(last)}`, whose display holds times and identities"
        yield "a %%px cell that ends in a statement or a call", got, "Print it."


def _cell_lines(cell, most):
    most = MOST_SETUP_LINES if "setup" in tags_of(cell) else most
    lines = num_lines(cell["source"])
    if lines > most:
        then = "Split the cell, or move code into the package."
        yield f"at most {most} lines that are not blank", lines, then


def _def_lines(cell):
    for node in ast.walk(parse(cell["source"]) or ast.Module([], [])):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MOST_DEF_LINES_BEFORE:
                then = "Move it into the package, where it gets a test."
                yield (
                    f"a def of at most {MOST_DEF_LINES_BEFORE} lines",
                    f"{lines} in {node.name}",
                    then,
                )


def _unknown_tag(cell):
    known = (*ROLES, *MARKS)
    for tag in tags_of(cell):
        if tag not in known:
            then = "Correct the tag: one that nothing reads does nothing."
            yield f"tags among {', '.join(known)}", tag, then


def _budgets(notebook):
    # The cell that takes a predicted number is no code to read.
    code = [cell for _, cell in numbered(notebook, "code") if "predict" not in tags_of(cell)]
    first = [cell for _, cell in first_reading(notebook, "code") if "predict" not in tags_of(cell)]
    median = statistics.median([num_lines(cell["source"]) for cell in code] or [0])
    broken = []
    if len(first) > MOST_CODE_CELLS_BEFORE:
        expected = f"at most {MOST_CODE_CELLS_BEFORE} code cells outside of More"
        broken.append(found("code-cells", None, None, expected, len(first), "Leave some out."))
    if median > MOST_MEDIAN_LINES_BEFORE:
        expected = f"a median code cell of at most {MOST_MEDIAN_LINES_BEFORE} lines"
        then = "Split the longest cells, or move code into the package."
        broken.append(found("median-lines", None, None, expected, f"{median:g}", then))
    return broken
