"""
An extension of Sphinx for this project's docstrings: plain text, with code in single backticks.

Sphinx expects reStructuredText, in which an indented drawing is a quotation, and a star begins
emphasis. This extension runs before napoleon, which parses "Args:".
"""

import re

_HEADER = re.compile(r"(Args|Attributes|Raises|Returns|Yields):$")
_CODE = re.compile(r"(?P<before>\w?)`(?P<code>[^`]+)`")
_EMPHASIS = re.compile(r"(\*\w+\*)")
_SPECIAL = re.compile(r"[*|\\]|(?<=\w)_(?!\w)")


def plain_to_rst(lines):
    """
    Return the lines of a docstring as reStructuredText.

    Args:
        lines: List of its lines, without their common indent.
    """
    written = []
    for is_drawing, block in _blocks(lines):
        if is_drawing:
            written += ["::", "", *block]
        else:
            written += _escaped("\n".join(block)).split("\n")
    return written


def _blocks(lines):
    """
    Return (whether it is a drawing, its lines) for each part of a docstring.

    A drawing, or an example, is an indented block after an empty line that belongs to no header
    and to no item of a list.
    """
    blocks = [(False, [])]
    owner = ""  # the last line without an indent
    for number, line in enumerate(lines):
        is_drawing = blocks[-1][0]
        if line and not line.startswith(" "):
            owner = line
            if is_drawing:
                blocks.append((False, []))
        elif line and not is_drawing and _follows_nothing(lines, number) and _is_free(owner):
            blocks.append((True, []))
        blocks[-1][1].append(line)
    return blocks


def _follows_nothing(lines, number):
    return number > 0 and not lines[number - 1].strip()


def _is_free(owner):
    return not _HEADER.match(owner) and not owner.startswith("- ")


def _escaped(text):
    parts, end = [], 0
    for found in _CODE.finditer(text):
        parts.append(_without_marks(text[end : found.start()] + found["before"]))
        # reStructuredText needs an empty escape between code and a letter that touches it.
        before = r"\ " if found["before"] else ""
        after = r"\ " if text[found.end() : found.end() + 1].isalnum() else ""
        parts.append(f"{before}``{found['code']}``{after}")
        end = found.end()
    return "".join([*parts, _without_marks(text[end:])])


def _without_marks(text):
    pieces = _EMPHASIS.split(text)
    return "".join(
        piece if number % 2 else _SPECIAL.sub(r"\\\g<0>", piece)
        for number, piece in enumerate(pieces)
    )


def _process(app, what, name, obj, options, lines):
    lines[:] = plain_to_rst(lines)


def setup(app):
    """
    Register this extension with Sphinx.
    """
    app.connect("autodoc-process-docstring", _process, priority=400)  # before napoleon's 500
    return {"parallel_read_safe": True, "parallel_write_safe": True}
