"""
The renewal of a learner's files: which of them are edited, and what their new version takes over.

A notebook that was only run, or in which only predictions were filled in, is not edited. Its new
version replaces it and takes the predictions over. An edited file stays unchanged, and its new
version is written into another file beside it.

`start_ranks` uses this module inside a learner's cell, so it reads notebooks as plain JSON: the
import of nbformat alone would take longer than the renewal.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ddp_lessons.files import replace_text

if TYPE_CHECKING:
    from pathlib import Path

NOTES = ".ddp-lessons.json"
"""
The file in a learner's folder with the version of the lessons, the folder of published ones, and a
digest of each file that the learner was given, and of each new version that was put beside one.
"""
_FEW = 4
_PREDICT = re.compile(r"""predict\(\s*(["'])(\w+)\1\s*(?:\)|,(?P<said>.*))""")
_OPEN = ("", ")", "...)", '"...")', "'...')")


@dataclass
class Update:
    """
    The changes that an update made in a learner's folder. File names are paths inside the folder.

    Args:
        new: List of files that were missing.
        renewed: List of files without edits that were replaced by their new version.
        beside: Dict from a file that stays to the file beside it with the course's new version.
        changed_tasks: List of sentences, one for each task of such a file that asks for something
            else now. `course/learner/workspace.py` writes them.
    """

    new: list[str] = field(default_factory=list)
    renewed: list[str] = field(default_factory=list)
    beside: dict[str, str] = field(default_factory=dict)
    changed_tasks: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = []
        if self.new:
            lines.append(f"new: {_few(self.new)}")
        if self.renewed:
            lines.append(f"brought up to date: {_few(self.renewed)}")
        lines += [
            f"{mine}: yours is kept, the new one is {new}" for mine, new in self.beside.items()
        ]
        return "\n".join([*lines, *self.changed_tasks])


def _few(names):
    return ", ".join(names) if len(names) <= _FEW else f"{len(names)} files"


def renew(
    folder: Path,
    files: Mapping[str, str],
    is_open: Callable[[Path], bool] = lambda path: False,
    **noted: object,
) -> Update:
    """
    Write the course's files into a learner's folder, and never over an edited file.

    Args:
        folder: Path of the learner's folder, which exists.
        files: Dict from a path in the folder to the text of the course's file.
        is_open: Function that tells of a file's path whether a learner may have the file open. An
            open file stays, too.
        noted: Further entries for the folder's NOTES.

    Returns:
        Update: The changes that were made.
    """
    notes, done = read_notes(folder), Update()
    for name, text in files.items():
        _renew_file(folder, name, text, notes, done, is_open)
    noted = {**notes, **noted}
    replace_text(folder / NOTES, json.dumps(noted, indent=1, sort_keys=True) + "\n")
    return done


def _renew_file(folder, name, text, notes, done, is_open):
    path, new = folder / name, digest(name, text)
    given, offered = notes["given"].get(name), notes["offered"].get(name)
    mine = _text_in(path)
    if mine is None:
        replace_text(path, text)
        done.new.append(name)
    elif digest(name, mine) != new:

        def is_unused(beside):
            return not is_open(beside) and _is_as_offered(name, _text_in(beside), mine, offered)

        if is_open(path) or not _is_as_given(name, mine, given):
            if new not in (given, offered):
                beside = _put_beside(path, with_predictions(text, mine), new, is_unused)
                notes["offered"][name] = new
                done.beside[name] = beside.relative_to(folder).as_posix()
            return
        replace_text(path, with_predictions(text, mine))
        notes["offered"].pop(name, None)
        for beside in filter(is_unused, path.parent.glob(f"{path.stem}.new*{path.suffix}")):
            beside.unlink()
        done.renewed.append(name)
    notes["given"][name] = new


def _is_as_given(name, mine, given):
    # Notes of earlier versions of the course have digests in which predictions count.
    return given in (digest(name, mine), digest(name, mine, is_verbatim=True))


def digest(name: str, text: str, is_verbatim: bool = False) -> str:
    """
    Return a digest of a file's text; for a notebook, of what counts as an edit in it.

    Outputs, metadata, cells without text and the predictions that were filled in do not count.

    Args:
        name: The file's name.
        text: The file's text.
        is_verbatim: Whether predictions and cells without text count, too.
    """
    if name.endswith(".ipynb"):
        cells = [
            (cell["cell_type"], _source(cell) if is_verbatim else predicted(cell) or _source(cell))
            for cell in _cells_in(text) or ()
            if is_verbatim or _source(cell).strip()
        ]
        text = json.dumps(cells) if cells else text
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def predicted(cell: Mapping[str, Any]) -> str | None:
    """
    Return the name of the prediction if a cell holds nothing but its `predict` call; else None.

    Args:
        cell: A cell of a notebook.
    """
    call = _call_in(cell)
    return call and call[2]


def _call_in(cell):
    return _PREDICT.fullmatch(_source(cell).strip()) if cell["cell_type"] == "code" else None


def predictions(cells: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """
    Return the predictions that were filled in: a dict from a name to the source of its cell.

    Args:
        cells: List of a notebook's cells.
    """
    calls = [(_call_in(cell), _source(cell)) for cell in cells]
    filled = [pair for pair in calls if pair[0] and (pair[0]["said"] or "").strip() not in _OPEN]
    return {call[2]: source for call, source in filled}


def with_predictions(text: str, mine: str) -> str:
    """
    Return the text of a notebook with the predictions that another notebook has filled in.

    Args:
        text: Text of the notebook's file.
        mine: Text of the other one's file. If it is no notebook, `text` is returned.
    """
    said = predictions(_cells_in(mine) or ())
    if not said or not _cells_in(text):
        return text
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        name = predicted(cell)
        cell["source"] = [said[name]] if name in said else cell["source"]
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def read_notes(folder: Path) -> dict[str, Any]:
    """
    Return the NOTES of a learner's folder; if they cannot be read, every file counts as edited.

    Args:
        folder: Path of the learner's folder.
    """
    try:
        notes = json.loads((folder / NOTES).read_text(encoding="utf-8"))
        return {**notes, "given": dict(notes["given"]), "offered": dict(notes["offered"])}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {"given": {}, "offered": {}}


def _source(cell):
    return "".join(cell["source"])


def _cells_in(text):
    """
    Return the list of cells in the text of a notebook's file; None for another text.
    """
    with suppress(ValueError, KeyError, TypeError):
        cells = json.loads(text)["cells"]
        return (
            cells
            if all(cell["cell_type"] and _source(cell) is not None for cell in cells)
            else None
        )
    return None


def _text_in(path):
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _is_as_offered(name, text, mine, offered):
    # A copy that was put beside a file, and in which nobody has worked since.
    cells = _cells_in(text) or ()
    has_run = any(cell.get("outputs") for cell in cells)
    said, own = predictions(cells), predictions(_cells_in(mine) or ())
    return digest(name, text) == offered and not has_run and said.items() <= own.items()


def _put_beside(path, text, new, is_unused):
    for number in itertools.count(1):
        ending = ".new" if number == 1 else f".new-{number}"
        beside = path.with_name(f"{path.stem}{ending}{path.suffix}")
        if not beside.exists() or is_unused(beside):
            replace_text(beside, text)
            break
        if digest(path.name, _text_in(beside)) == new:
            break
    return beside
