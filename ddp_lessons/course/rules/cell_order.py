"""
The rules about the cells of a lesson: which cells it has, and in which order.

    title why goal setup
    3 to 5 sections:  question  [explain]  predict predict
                      run|break|mend|picture|explain|read ...  check
    up to 3 More:     the same
    [cluster ...]  recap next teardown

The first of the two predict cells asks, and the learner puts a number or a letter into the second.
A section whose heading begins with "More:" may be skipped: its minutes are not counted. A lesson
that was written before this template has no why, explain and cluster cells, and 3 to 6 sections.
"""

from ddp_lessons.course.notebooks.cell_roles import (
    CODE_ROLES,
    MARKDOWN_ROLES,
    ROLES,
    ask,
    first_reading,
    found,
    is_explained,
    numbered,
    role_of,
    roles_of,
)

FEWEST_SECTIONS, MOST_SECTIONS = 3, 5
MOST_SECTIONS_BEFORE = 6
"""
The most sections of a lesson that was written before the template that explains.
"""
MOST_SKIPPABLE = 3

RUNS = ("run", "break", "mend")
_INSIDE = (*RUNS, "picture", "read", "check")
_AFTER_BEFORE = {
    "": ("title",),
    "title": ("goal",),
    "goal": ("setup",),
    "setup": ("question",),
    "question": ("predict",),
    "predict": ("predict", *RUNS, "picture"),
    **dict.fromkeys((*RUNS, "picture", "read"), _INSIDE),
    "check": ("question", "recap"),
    "recap": ("next",),
    "next": ("teardown",),
    "teardown": (),
}
_AFTER = {
    **_AFTER_BEFORE,
    "title": ("why",),
    "why": ("goal",),
    "question": ("explain", "predict", *RUNS),
    "explain": ("explain", "predict", *_INSIDE),
    "predict": ("predict", "explain", *RUNS, "picture"),
    **dict.fromkeys((*RUNS, "picture", "read"), ("explain", "predict", *_INSIDE)),
    "check": ("question", "cluster", "recap"),
    "cluster": ("cluster", "recap"),
}
_NEEDED = (RUNS, ("read",), ("check",))
_CELL_TYPES = {
    **dict.fromkeys(MARKDOWN_ROLES, ("markdown",)),
    **dict.fromkeys(CODE_ROLES, ("code",)),
    "predict": ("markdown", "code"),
}


def findings(notebook):
    """
    Return every broken rule about the order of a lesson's cells.

    Args:
        notebook: A notebook of nbformat 4.
    """
    cells, broken = numbered(notebook), []
    for number, cell in cells:
        broken += ask({"role": _role, "cell-type": _cell_type}, number, cell)
    if broken:
        return broken  # the order can be judged only if every cell has one role
    after, most = (
        (_AFTER, MOST_SECTIONS) if is_explained(notebook) else (_AFTER_BEFORE, MOST_SECTIONS_BEFORE)
    )
    return _order(cells, after) + _sections(cells, most) + _break_and_mend(cells)


def sections_of(notebook):
    """
    Return the sections of a lesson, each a list of (number, cell) that begins with its question.

    Args:
        notebook: A notebook of nbformat 4.
    """
    sections: list[list] = []
    for number, cell in numbered(notebook):
        role = role_of(cell)
        if role == "question":
            sections.append([])
        if sections and role in ("question", "explain", "predict", *_INSIDE):
            sections[-1].append((number, cell))
    return sections


def _role(cell):
    roles = roles_of(cell)
    if len(roles) != 1:
        got = ", ".join(roles) or "none"
        yield f"exactly one role tag of {', '.join(ROLES)}", got, "Tag the cell."


def _cell_type(cell):
    wanted = _CELL_TYPES.get(role_of(cell), ("markdown", "code"))
    if cell["cell_type"] not in wanted:
        then = "Change the cell's type or its tag."
        yield f"a {' or '.join(wanted)} cell", cell["cell_type"], then


def _order(cells, after):
    broken, before = [], ""
    for number, cell in cells:
        role = role_of(cell)
        if role not in after.get(before, ()):
            wanted = " or ".join(after.get(before, ())) or "nothing"
            expected = f"{wanted} after {before}" if before else f"{wanted} first"
            broken.append(found("order", number, cell, expected, role, "Move or add a cell."))
        before = role
    if before != "teardown":
        got = before or "no cell"
        broken.append(found("order", None, None, "teardown at the end", got, "Add the cell."))
    return broken


def _sections(cells, most):
    sections, broken = sections_of({"cells": [cell for _, cell in cells]}), []
    first = {number for number, _ in first_reading({"cells": [cell for _, cell in cells]})}
    num_first = sum(section[0][0] in first for section in sections)
    if not FEWEST_SECTIONS <= num_first <= most:
        expected = f"{FEWEST_SECTIONS} to {most} sections, each headed by a question"
        then = "Split or join sections."
        broken.append(found("sections", None, None, expected, num_first, then))
    num_more = len(sections) - num_first
    if num_more > MOST_SKIPPABLE:
        expected = f"at most {MOST_SKIPPABLE} sections headed More"
        broken.append(found("sections", None, None, expected, num_more, "Leave some out."))
    for section in sections:
        number, question = section[0]
        roles = [role_of(cell) for _, cell in section]
        for wanted in _NEEDED:
            if not set(wanted) & set(roles):
                expected = f"a {' or '.join(wanted)} cell in every section"
                got = ", ".join(roles)
                broken.append(found("section", number, question, expected, got, "Add the cell."))
        asked = [cell["cell_type"] for _, cell in section if role_of(cell) == "predict"]
        if asked != ["markdown", "code"]:
            expected = "two predict cells: one that asks for a number, and one to put it in"
            got, then = ", ".join(asked) or "none", "Ask one question in a section."
            broken.append(found("section", number, question, expected, got, then))
    return broken


def _break_and_mend(cells):
    roles = [role_of(cell) for _, cell in cells]
    if "break" in roles and "mend" in roles[roles.index("break") :]:
        return []
    got = " then ".join(role for role in roles if role in ("break", "mend")) or "neither"
    then = "Break something on purpose, and mend it."
    return [found("break-and-mend", None, None, "a break, and a mend after it", got, then)]
