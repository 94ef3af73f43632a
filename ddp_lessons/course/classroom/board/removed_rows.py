"""
Rows that the teacher has removed: their learners can come back only under another name.

A learner's kernel goes on sending, so without this module a removed row would come back at once.
The module does not keep names, only digests, which tell whether a name is the same.
"""

import hashlib
import json
from pathlib import Path

from ddp_lessons.files import replace_text


class Removed:
    """
    The rows that were removed today, also on the disk, because a board may be started again.

    Args:
        path: Path of the file, which need not exist.
        told: The parsed content of the file; {} if there is no file.
    """

    def __init__(self, path, told):
        self._path = Path(path)
        self._told = told

    def __contains__(self, row):
        return row in self._told

    def has(self, row, name):
        """
        Tell whether a row was removed while it had this name.
        """
        return row in self._told and self._told[row]["name"] == _digest(name)

    def note(self, row, name, now_s):
        """
        Record that a row is removed, with its name's digest and the time.
        """
        self._told[row] = {"name": _digest(name), "at_s": now_s}
        self._write()

    def forget(self, row):
        """
        Delete the record of a removed row, as if it had never been removed.
        """
        if self._told.pop(row, None) is not None:
            self._write()

    def forget_before(self, oldest_s):
        """
        Delete the records of rows that were removed before a time.
        """
        for row in [row for row, one in self._told.items() if one["at_s"] < oldest_s]:
            self.forget(row)

    def _write(self):
        replace_text(self._path, json.dumps(self._told))


def _digest(name):
    return hashlib.sha256(name.casefold().encode()).hexdigest()
