"""
The canonical form of a notebook, in which the same run gives the same bytes.

The metadata of a cell keeps its tags, the minutes of a title cell's readers, and whether its source
is folded. Outputs have none. Cell ids come from the content,
and execution counts from the order. Tracebacks become plain lines that name no machine.
"""

import hashlib
import json
import re
from collections import Counter

import nbformat

from ddp_lessons.errors import NotebookRefused

_KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}

ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")
UUID = re.compile(
    r"\b(?:[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    r"|[0-9a-f]{8}-[0-9a-f]{24}|(?=[0-9]*[a-f])[0-9a-f]{32})\b"
)
_RUNNING = re.compile(r"-+> *\d+ ")
_INSTALLED = re.compile(r"[^\s\"'(<]*/(?:site-packages|dist-packages|lib/python3\.\d+)/")
_FOLDERS = re.compile(r"(?<![\w:/.])(?:~|[A-Z]:)?(?:[/\\][^\s/\\:\"'<>()]+)+[/\\](?=[^\s/\\])")


def canonical(notebook, stem):
    """
    Return a notebook in its canonical form.

    Args:
        notebook: A notebook of nbformat 4, run or not.
        stem: The lesson id, which makes the cells' ids differ between notebooks.

    Returns:
        A new notebook; the given one is not changed.
    """
    seen: Counter = Counter()
    count, cells = 0, []
    for cell in notebook["cells"]:
        kind, source = cell["cell_type"], cell["source"]
        seen[kind, source] += 1
        new = {
            "cell_type": kind,
            "id": _identity(stem, kind, source, seen[kind, source]),
            "metadata": kept_metadata(cell["metadata"]),
            "source": source,
        }
        if kind == "code":
            if cell["execution_count"] is not None:
                count += 1
            new["execution_count"] = None if cell["execution_count"] is None else count
            new["outputs"] = _outputs(cell["outputs"], new["execution_count"])
        cells.append(new)
    return nbformat.from_dict(
        {
            "cells": cells,
            "metadata": {"kernelspec": _KERNELSPEC, "language_info": {"name": "python"}},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
    )


def kept_metadata(metadata):
    """
    Return the part of a cell's metadata that a stored notebook keeps, and shares with its twin.

    Args:
        metadata: The metadata of a cell.

    Returns:
        dict: At most "tags" (list of str), "minutes" (list of numbers, as readers reported them),
        and "jupyter" with "source_hidden", by which JupyterLab folds the cell's source.
    """
    kept: dict = {key: list(metadata[key]) for key in ("tags", "minutes") if metadata.get(key)}
    if metadata.get("jupyter", {}).get("source_hidden"):
        kept["jupyter"] = {"source_hidden": True}
    return kept


def dumps(notebook):
    """
    Return the text of a notebook file, ended by a line feed.

    Args:
        notebook: A canonical notebook.

    Raises:
        nbformat.ValidationError: Jupyter could not open the notebook.
    """
    nbformat.validate(notebook)
    return nbformat.writes(notebook, version=nbformat.NO_CONVERT).rstrip("\n") + "\n"


def read_notebook(path):
    """
    Read a stored notebook.

    Args:
        path: The file.

    Returns:
        A notebook of nbformat 4.

    Raises:
        NotebookRefused: There is no file, or it is not a notebook.
    """
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text)
        # nbformat takes a file without a version for version 1, and its error is misleading.
        if not isinstance(data, dict) or data.get("nbformat") != 4:
            raise ValueError("no notebook of nbformat 4")
        nbformat.validate(data)
        notebook = nbformat.reads(text, as_version=4)
    except (OSError, ValueError, nbformat.ValidationError) as error:
        has_conflict = re.search(r"^<<<<<<< ", text, re.MULTILINE)
        got = "the marks of a merge conflict" if has_conflict else type(error).__name__
        raise NotebookRefused(
            f"{path.name}, no notebook: expected one that can be read (got {got})."
        ) from error
    return notebook


def plain_lines(traceback):
    """
    Return a traceback as plain lines without colours, addresses, UUIDs and folders.

    A frame in a file keeps only its head and the line that was running, because the code around
    that line differs between versions of a library.

    Args:
        traceback: List of strings, each of one or more lines.
    """
    lines, is_in_file = [], False
    for line in ANSI.sub("", "\n".join(traceback)).splitlines():
        is_head = line.startswith("File ")
        is_in_file = is_head or (is_in_file and line.strip() != "")
        if is_head or not is_in_file or _RUNNING.match(line):
            lines.append(_without_machine(line).rstrip())
    return lines


def _without_machine(line):
    line = _FOLDERS.sub("", _INSTALLED.sub("", line))
    return UUID.sub("...", ADDRESS.sub("0x...", line))


def _identity(stem, kind, source, occurrence):
    # The id comes from the content, so that a cell put in the middle changes no other cell's id.
    words = json.dumps([stem, kind, source, occurrence])
    return hashlib.sha256(words.encode()).hexdigest()[:12]


def _outputs(outputs, count):
    stored: list[dict] = []
    for output in outputs:
        kind = output["output_type"]
        if kind == "stream":
            last = stored[-1] if stored else {}
            if last.get("name") == output["name"]:
                last["text"] += output["text"]
                continue
            new = {"output_type": kind, "name": output["name"], "text": output["text"]}
        elif kind == "error":
            new = {"output_type": kind, "ename": output["ename"], "evalue": output["evalue"]}
            new["traceback"] = plain_lines(output["traceback"])
        else:
            new = {"output_type": kind, "metadata": {}, "data": dict(output["data"])}
            if kind == "execute_result":
                new["execution_count"] = count
        stored.append(new)
    return stored
