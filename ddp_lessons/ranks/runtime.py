"""
The private folder of one set of ranks: connection files, stores and logs, for this user only.
"""

import os
import shutil
import stat
import tempfile
from pathlib import Path

from ddp_lessons.errors import StartFailed

_NEEDED_BYTES = 1 << 20


def _parent_folder():
    """
    Return the folder that holds this user's runtime folders, made if it is missing.
    """
    override = os.environ.get("DDP_LESSONS_RUNTIME_DIR")
    if override:
        parent = Path(override)
    else:
        parent = Path(tempfile.gettempdir()) / f"ddp-lessons-{os.getuid()}"
    try:
        parent.mkdir(mode=0o700, parents=bool(override), exist_ok=True)
        info = parent.lstat()
    except OSError as error:
        raise StartFailed(_not_writable(parent, error)) from None
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        raise StartFailed(
            "The runtime folder belongs to somebody else: it must be a folder of yours "
            f"(got {parent}). Set DDP_LESSONS_RUNTIME_DIR to a private folder."
        )
    if info.st_mode & 0o077 and not override:
        parent.chmod(0o700)
    return parent


def _not_writable(folder, error):
    return (
        f"The runtime folder cannot be written: ranks need about 1 MiB there "
        f"(got {folder}: {error.strerror}). Free some space, or set DDP_LESSONS_RUNTIME_DIR to "
        "a folder that you can write."
    )


def make_runtime_folder():
    """
    Make a new folder that only this user can read, and prove that it can be written.

    Returns:
        Path: The folder, mode 0700.

    Raises:
        StartFailed: The disk is full, or the folder cannot be made.
    """
    parent = _parent_folder()
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(prefix="ranks-", dir=parent))
        probe = folder / "probe"
        probe.write_bytes(b"\0" * _NEEDED_BYTES)
        probe.unlink()
    except BaseException as error:  # also Stop, while a slow disk writes
        if folder is not None:
            remove_runtime_folder(folder)
        if isinstance(error, OSError):
            raise StartFailed(_not_writable(parent, error)) from None
        raise
    return folder


def open_private(path, flags=os.O_WRONLY | os.O_CREAT | os.O_APPEND):
    """
    Open a file that only this user can read, made if it is missing. Returns its descriptor.
    """
    return os.open(path, flags, 0o600)


def remove_runtime_folder(folder):
    """
    Remove a runtime folder and all that is in it. One that is gone already is fine.
    """
    shutil.rmtree(folder, ignore_errors=True)
