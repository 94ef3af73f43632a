"""
The text twin of a notebook, which people edit, and whose cells the notebook must have.
"""

import re
from itertools import zip_longest

import jupytext
import nbformat

from ddp_lessons.course.notebooks.canonical import kept_metadata
from ddp_lessons.errors import NotebookRefused

# Magics of cells that hold no Python. jupytext writes each line of such a cell as a comment.
_SHELL_CELLS = ("%%bash", "%%sh")
_UP = "](../"  # beginning of a link that leads out of the notebook's folder
_CLAIMS = "](claims.md"  # claims.md is beside the lessons only
_MAGIC = re.compile(r"[%!]|\w+ *= *[%!]")


def read_twin(path):
    """
    Read a text twin as a notebook with the metadata of its cells, and without outputs.

    Args:
        path: Path of the py:percent file.

    Returns:
        A notebook of nbformat 4.

    Raises:
        NotebookRefused: The file is missing, or jupytext takes a comment for a command.
    """
    if not path.is_file():
        raise NotebookRefused(
            f"{path.name}, no twin: expected a text twin for every notebook (got none). "
            f"Write {path.parent.name}/{path.name}, or delete the notebook."
        )
    return twin_of(path.name, path.read_text(encoding="utf-8"))


def twin_of(name, text):
    """
    Return a text twin as a notebook (see `read_twin`).

    Args:
        name: The text twin's file name.
        text: Its text.

    Raises:
        NotebookRefused: jupytext takes a comment for a command.
    """
    notebook = jupytext.reads(text, fmt="py:percent")
    _refuse_uncommented(name, text, notebook)
    return notebook


def twin_text(name, notebook):
    """
    Return the text twin of a notebook, in the form that jupytext gives all twins.

    Cells without text are left out, as are outputs, and the folds of a starter's answers.

    Args:
        name: The text twin's file name.
        notebook: A notebook of nbformat 4.

    Raises:
        NotebookRefused: A cell would be another one after a way through its text.
    """
    cells = []
    for cell in notebook["cells"]:
        metadata = kept_metadata(cell["metadata"])
        metadata.pop("jupyter", None)
        if cell["source"].strip():
            cells.append(nbformat.from_dict({**cell, "metadata": metadata}))
    settings = {"jupytext": {"notebook_metadata_filter": "-all"}}
    plain = nbformat.v4.new_notebook(cells=cells, metadata=settings)
    # jupytext reads "# #!/bin/sh" in a text cell without the second "#".
    text = re.sub("^# #!", "# # #!", jupytext.writes(plain, fmt="py:percent"), flags=re.MULTILINE)
    back = content(twin_of(name, text))
    for number, (one, other) in enumerate(zip_longest(content(plain), back), start=1):
        if one != other:
            raise NotebookRefused(
                f"{name}, cell {number}, twin: expected a cell that a text file can hold (got "
                f"another one when its text is read). Write it differently."
            )
    return text


def _refuse_uncommented(name, text, notebook):
    # jupytext turns "# cat the pieces" into the shell command "cat the pieces", and
    # "# why?" into a call for help. The notebook would run the author's comment.
    lines = {line.strip() for line in text.splitlines()}
    for number, cell in enumerate(notebook["cells"], start=1):
        if cell["cell_type"] != "code" or cell["source"].startswith(_SHELL_CELLS):
            continue
        for line in map(str.strip, cell["source"].splitlines()):
            if not line or _MAGIC.match(line) or line in lines or f"# {line}" not in lines:
                continue
            raise NotebookRefused(
                f"{name}, cell {number}, comment: expected no comment that reads as a command "
                f"(got '# {line}', which would be run). Word the comment differently."
            )


def content(notebook):
    """
    Return the content that a notebook shares with its twin: each cell's type, metadata and source.

    Args:
        notebook: A notebook of nbformat 4.
    """
    return [
        (cell["cell_type"], kept_metadata(cell["metadata"]), cell["source"])
        for cell in notebook["cells"]
    ]


def one_folder_down(notebook):
    """
    Return a copy of a notebook for the folder below its own, with its relative links adjusted.

    Args:
        notebook: A notebook of nbformat 4.
    """
    moved = nbformat.from_dict({**notebook, "cells": [dict(cell) for cell in notebook["cells"]]})
    for cell in moved["cells"]:
        if cell["cell_type"] == "markdown":
            for link in (_UP, _CLAIMS):
                cell["source"] = cell["source"].replace(link, f"](../{link[2:]}")
    return moved


def refuse_unequal(paths, notebook):
    """
    Refuse a stored notebook whose cells differ from those of its text twin.

    Args:
        paths: The NotebookPaths of both files.
        notebook: The stored notebook.

    Raises:
        NotebookRefused: A cell's type, metadata or source differ. The first such cell is named.
    """
    stored, text = content(notebook), content(one_folder_down(read_twin(paths.text)))
    if stored == text:
        return
    pairs = enumerate(zip_longest(stored, text), start=1)
    number = next(i for i, (one, other) in pairs if one != other)
    raise NotebookRefused(
        f"{paths.notebook.name}, cell {number}, twin: expected the cells of {paths.text.name} "
        f"({len(text)} cells, got {len(stored)}; the first difference is here). "
        f"Run `python -m ddp_lessons.course build {paths.stem}`."
    )
