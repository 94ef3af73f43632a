"""
Rows from a folder with a state file for each learner. A row belongs to the owner of its file.

    <folder>/<any name>.json
    <folder>/<any name>/progress.json                          if DDP_LESSONS_STATE_DIR is set so
    <folder>/<login>/.local/state/ddp-lessons/progress.json    if the folder is /home
"""

import os
import pwd
from pathlib import Path

from ddp_lessons.course.classroom.board.columns import Row
from ddp_lessons.errors import BadInput
from ddp_lessons.files import read_foreign
from ddp_lessons.progress import state

_PATTERNS = ("*.json", "*/progress.json", "*/.local/state/ddp-lessons/progress.json")
_MOST_BYTES = 256 * 1024
_MOST_FILES = 1000


class Files:
    """
    The states in a folder, of which a file is read again only if it has changed.

    Args:
        folder: Path of the folder.

    Raises:
        BadInput: There is no such folder.
    """

    def __init__(self, folder):
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise BadInput(
                f"No such folder: expected one with a state file for each learner (got {folder}). "
                "Make it, and have learners set DDP_LESSONS_STATE_DIR to a folder of theirs in it."
            )
        self._known: dict = {}

    def rows(self):
        """
        Return the Rows that the folder holds now.

        All files of another owner are one row, with the newest state, so that no user can make rows
        for others. Each file of this user, who may have collected them, is a row that is named
        after the file or its folder.
        """
        newest: dict = {}
        for path in self._paths():
            row = self._row(path)
            if row is None:
                continue
            if row.name not in newest or row.heard_s > newest[row.name].heard_s:
                newest[row.name] = row
        return list(newest.values())

    def _paths(self):
        found = (path for pattern in _PATTERNS for path in self.folder.glob(pattern))
        return [path for path, _ in zip(found, range(_MOST_FILES), strict=False)]

    def _row(self, path):
        try:
            seen = path.lstat()
        except OSError:
            return None  # deleted meanwhile
        mark = seen.st_mtime_ns, seen.st_size, seen.st_uid
        if self._known.get(path, (None, None))[0] != mark:
            told = state_in(path)
            name = _name(self.folder, path, seen.st_uid)
            self._known[path] = mark, None if told is None else Row(name, told, seen.st_mtime)
        return self._known[path][1]


def state_in(path):
    """
    Return the state in another user's file, or None.

    If the path is a symbolic link, it is not followed; if it is a pipe, nothing waits for it.
    """
    try:
        return state.parse(read_foreign(path, _MOST_BYTES).decode())
    except (OSError, ValueError):
        return None  # missing, not readable for this user, or no state


def _name(folder, path, owner):
    if owner == os.geteuid():
        first = path.relative_to(folder).parts[0]
        return Path(first).stem if first.endswith(".json") else first
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return f"user {owner}"
