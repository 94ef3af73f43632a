"""
What a kill would leave of a file: look at it after every call that a save makes.

A kill leaves the names and the lengths of files as they are at that moment. So who looks at each
moment sees what is left after a kill at each moment. What is lost when the power fails is another
matter: for that, the calls of fsync are noted.
"""

import io
import os
import sys
import time
from pathlib import Path

import torch

_SYNCS = (os.fsync, getattr(os, "fdatasync", os.fsync))
_RENAMES = (os.rename, os.replace)


class FileWatch:
    """
    Watch a file while a block runs in this thread.

    Args:
        path: The file, which need not exist.

    Attributes:
        versions: For each content that was seen under the name, in order, a tuple: when it was
            first seen, in nanoseconds of the monotonic clock, and its bytes; None: no such file.
        num_saves: How often torch.save was called with something else than memory.
        synced: Whether the last version was written to the disk as a whole before it had the name.
        was_beside: Whether the last version lay in the same folder under another name before.
    """

    def __init__(self, path):
        self.path = Path(path)
        self.versions = []
        self.num_saves = 0
        self.synced = self.was_beside = False
        self._key = self._profile = None
        self._lengths, self._beside = {}, set()

    def __enter__(self):
        self._key = object()  # so that the first look notes what is there
        self._look()
        self._profile = sys.getprofile()
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *_):
        sys.setprofile(self._profile)
        self._look()

    def _on_event(self, frame, event, called):
        if event == "call" and frame.f_code is torch.save.__code__:
            self.num_saves += not isinstance(frame.f_locals.get("f"), io.BytesIO)
        self._look()
        if event == "c_call" and called in _RENAMES:
            self._beside = {entry.inode() for entry in os.scandir(self.path.parent)}
        if event == "c_return" and called in _SYNCS:
            for entry in os.scandir(self.path.parent):
                self._lengths[entry.inode()] = entry.stat().st_size

    def _look(self):
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            status = None
        key = status and (status.st_ino, status.st_size, status.st_mtime_ns)
        if key == self._key:
            return
        self._key = key
        content = self.path.read_bytes() if status else None
        if not self.versions or content != self.versions[-1][1]:
            self.versions.append((time.monotonic_ns(), content))
        if status:
            self.synced = self._lengths.get(status.st_ino) == status.st_size
            self.was_beside = status.st_ino in self._beside
