"""
Rows that the teacher has removed: who had one comes back under another name, and not by themselves.

A learner's kernel goes on sending. Without this, a row would be back before the teacher looks up.
Names are not kept, only what tells whether a name is the same.
"""

import hashlib
import json
from pathlib import Path

from ddp_lessons.files import replace_text


class Removed:
    """
    Hold which rows were removed today, on the disk as well: a board may be started again.

    Args:
        path: The file. It need not be there.
        told: What the file holds, as parsed; {} if there is none.
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
        Note that a row is removed.
        """
        self._told[row] = {"name": _digest(name), "at_s": now_s}
        self._write()

    def forget(self, row):
        """
        Let a row be as if it had never been removed.
        """
        if self._told.pop(row, None) is not None:
            self._write()

    def forget_before(self, oldest_s):
        """
        Forget what was removed before some time.
        """
        for row in [row for row, one in self._told.items() if one["at_s"] < oldest_s]:
            self.forget(row)

    def _write(self):
        replace_text(self._path, json.dumps(self._told))


def _digest(name):
    return hashlib.sha256(name.casefold().encode()).hexdigest()
