"""
The contents that a kill would leave in a file: look at the file after every call that a save makes.

A kill leaves the names and the lengths of files as they are at that moment. So looking after every
call shows what a kill at each moment would leave. A power failure can lose more: to judge that, the
calls of fsync are noted, each with its file.
"""

import io
import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

import torch

_SYNCS = ("fsync", "fdatasync")
_MOVES = ("rename", "replace")
_PROGRAMS = ("fork_exec", "posix_spawn", "posix_spawnp", "system")
_OWN = {name: getattr(os, name) for name in (*_SYNCS, *_MOVES) if hasattr(os, name)}

LEFT = b"Left by a save that was killed. "
"""
Bytes that `left_by_kills` appends, repeated, to the files that it keeps.
"""


class FileWatch:
    """
    A watch on a file during a `with` block, in the thread that opens the block.

    Calls of os.fsync and os.replace are noted in every thread, because the functions are replaced
    in `os`. An answer may hold the original of a function from before. Its calls are seen only in
    this thread and without their argument, so such a sync counts for every open file.

    Args:
        path: The file, which need not exist.

    Attributes:
        versions: A tuple for each content that the file had, in order: when it was first seen, in
            nanoseconds of the monotonic clock, and its bytes, or None if there was no such file.
        num_saves: Number of calls of torch.save with a target other than a BytesIO.
        num_moves: Number of calls that gave a file this name, by a function that is still in `os`.
        synced: Whether the last version was fully synced to the disk before it got this name.
        was_beside: Whether the last version had another name in the same folder, or in one below
            it, before it got this name.
        was_written_over: Whether the last version is the same file (inode) as the version before,
            with other bytes in it.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.versions: list[tuple[int, bytes | None]] = []
        self.num_saves = self.num_moves = 0
        self.synced = self.was_beside = self.was_written_over = False
        self._key: object = None
        self._profile: Callable[..., object] | None = None
        self._lengths, self._beside = {}, set()
        self._wrappers = {name: self._wrapped(name) for name in _OWN}

    def __enter__(self) -> Self:
        self._key = object()  # so that the first look notes the present state
        self._look()
        for name, wrapper in self._wrappers.items():
            setattr(os, name, wrapper)
        self._profile = sys.getprofile()
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._profile)
        for name, own in _OWN.items():
            setattr(os, name, own)
        self._look()

    def _wrapped(self, name):
        def wrapper(*args, **kwargs):
            if name in _MOVES:
                self._beside = _inodes_below(self.path.parent)
                (_, target, *_) = (*args, *kwargs.values())
                self.num_moves += os.fsdecode(target) == str(self.path)
            result = _OWN[name](*args, **kwargs)
            if name in _SYNCS:
                (file,) = (*args, *kwargs.values())
                self._note_sync(file if isinstance(file, int) else file.fileno())
            return result

        return wrapper

    def _on_event(self, frame, event, called):
        if event == "call" and frame.f_code is torch.save.__code__:
            self.num_saves += not isinstance(frame.f_locals.get("f"), io.BytesIO)
        self._look()
        if frame.f_code is self._wrappers["fsync"].__code__ or not event.startswith("c_"):
            return  # all wrappers share one code, and note their calls
        if event == "c_call" and called in [_OWN[name] for name in _MOVES]:
            self._beside = _inodes_below(self.path.parent)
        if event == "c_call" and getattr(called, "__name__", "") in _PROGRAMS:
            self._beside = _inodes_below(self.path.parent)  # the program may rename files
        if event == "c_return" and called in [_OWN[name] for name in _SYNCS if name in _OWN]:
            for handle in map(int, os.listdir("/dev/fd")):
                with suppress(OSError):  # the descriptor of the listing is closed
                    self._note_sync(handle)

    def _note_sync(self, handle):
        status = os.fstat(handle)
        self._lengths[status.st_ino] = status.st_size

    def _look(self):
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            status = None
        key = status and (status.st_ino, status.st_size, status.st_mtime_ns)
        if key == self._key:
            return
        before, self._key = self._key, key
        content = self.path.read_bytes() if status else None
        is_new = not self.versions or content != self.versions[-1][1]
        if is_new:
            self.versions.append((time.monotonic_ns(), content))
        if status:
            self.synced = self._lengths.get(status.st_ino) == status.st_size
            self.was_beside = status.st_ino in self._beside
            if is_new:
                is_old_file = isinstance(before, tuple) and before[0] == status.st_ino
                self.was_written_over = is_old_file


def open_below(folder: Path | str) -> list[str]:
    """
    Return the names of the files that this process has open in a folder or below it.

    If the process has the folder itself open, its name is among them.
    """
    both = [(Path(folder), os.stat(folder)), *_files_below(folder)]
    names = {(status.st_dev, status.st_ino): file.name for file, status in both}
    found = set()
    for handle in map(int, os.listdir("/dev/fd")):
        with suppress(OSError):  # the descriptor of the listing is closed
            status = os.fstat(handle)
            found.add(names.get((status.st_dev, status.st_ino)))
    return sorted(found - {None})  # type: ignore[arg-type]  # only texts are left


def _inodes_below(folder):
    return {status.st_ino for _, status in _files_below(folder)}


def _files_below(folder):
    for at, _, names in os.walk(folder):
        for file in (Path(at, name) for name in names):
            with suppress(OSError):  # a thread may have renamed it meanwhile
                yield file, os.lstat(file)


def left_by_kills(path: Path | str, save: Callable[[], object]) -> list[Path]:
    """
    Call a function that saves, and copy its folder whenever a kill would leave other files.

    The folder is copied each time that the set of its files with bytes in them changes, apart from
    the saved file. So a copy is made when the first bytes of a file are there. Then `LEFT` is
    appended to the file in the copy until it is longer than the saved file, as if a larger state
    had been cut off.

    Args:
        path: The file that it saves; its folder must have no other file in it.
        save: Function without arguments.

    Returns:
        list: Paths of the copies, folders next to the file's folder.
    """
    path, copies, known = Path(path), [], [set()]

    def look(*_):
        files = _files_below(path.parent)
        others = {file for file, status in files if file != path and status.st_size}
        if others in known:
            return
        copy = path.parent.with_name(f"{path.parent.name}-{len(copies)}")
        try:
            shutil.copytree(path.parent, copy)
        except OSError:  # a thread has renamed a file meanwhile
            shutil.rmtree(copy, ignore_errors=True)
            return
        known.append(others)
        copies.append(copy)

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        save()
    finally:
        sys.setprofile(before)
    rest = LEFT * (path.stat().st_size // len(LEFT) + 1)
    for copy in copies:
        for file, status in _files_below(copy):
            if file != copy / path.name and status.st_size:
                with open(file, "ab") as left:
                    left.write(rest)
    return copies
