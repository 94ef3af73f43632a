"""
The runtime folder: the private folder of one set of ranks, with connection files, stores and logs.

It is made in a place where no other user can make it first: in the user's runtime folder of the
system, XDG_RUNTIME_DIR, or in the home folder. Only where neither can be used, it is made in the
folder for temporary files.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

from ddp_lessons.errors import StartFailed

_NEEDED_BYTES = 1 << 20
_NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "afs", "fuse.sshfs")


def make_runtime_folder() -> Path:
    """
    Make a new folder that only this user can read, and prove that it can be written.

    Returns:
        Path: The folder, mode 0700.

    Raises:
        StartFailed: The disk is full, or the folder cannot be made.
    """
    chosen = os.environ.get("DDP_LESSONS_RUNTIME_DIR")
    if chosen:
        return _make_in(_parent_folder(Path(chosen), is_chosen=True))
    *better, last = _places()
    for parent in better:
        with contextlib.suppress(StartFailed):  # it is read-only or full: try the next one
            return _make_in(_parent_folder(parent))
    return _make_in(_parent_folder(last))


def _places():
    """
    Return the folders that may hold this user's runtime folders, the best first.
    """
    candidates = []
    given = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nowhere")
    if given.is_dir() and _is_mine(given) and not given.stat().st_mode & 0o077:
        candidates.append(given / "ddp-lessons")
    state = Path(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state"))
    # Under sudo it may be another user's home. That user could not write to files of root there.
    if state.is_absolute() and _is_mine(state):
        candidates.append(state / "ddp-lessons" / "runtime")
    candidates.append(Path(tempfile.gettempdir()) / f"ddp-lessons-{os.getuid()}")
    # A store on another machine's disk is slow, and its locks may not work.
    return sorted(candidates, key=lambda folder: _file_system(folder).startswith(_NETWORK))


def _is_mine(path):
    """
    Return whether this user owns a folder or, if it is missing, its nearest existing parent.
    """
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):
            return folder.stat().st_uid == os.getuid()
    return False


def _file_system(path, mounts="/proc/mounts"):
    """
    Return the kind of file system that a path is on, for example "ext4"; "" if not known.
    """
    kinds = {}
    with contextlib.suppress(OSError), open(mounts) as lines:
        for line in lines:
            _, point, kind, *_ = line.split(" ")
            kinds[Path(point)] = kind  # a later mount hides an earlier one at the same place
    path = Path(os.path.realpath(path))
    return next((kinds[folder] for folder in (path, *path.parents) if folder in kinds), "")


def _parent_folder(parent, is_chosen=False):
    """
    Make a folder for this user's runtime folders if it is missing, check its owner, and return it.
    """
    try:
        if not is_chosen:
            parent.parent.mkdir(parents=True, exist_ok=True)
        parent.mkdir(mode=0o700, parents=is_chosen, exist_ok=True)
        info = parent.lstat()
    except OSError as error:
        raise StartFailed(_not_writable(parent, error)) from None
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        raise StartFailed(
            "The runtime folder belongs to somebody else: it must be a folder of yours "
            f"(got {parent}). Set DDP_LESSONS_RUNTIME_DIR to a private folder."
        )
    if info.st_mode & 0o077 and not is_chosen:
        parent.chmod(0o700)
    return parent


def _not_writable(folder, error):
    return (
        f"The runtime folder cannot be written: ranks need about 1 MiB there "
        f"(got {folder}: {error.strerror}). Free some space, or set DDP_LESSONS_RUNTIME_DIR to "
        "a folder that you can write."
    )


def _make_in(parent):
    """
    Make a new runtime folder in a parent, and test that files in it can be written and locked.
    """
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(prefix="ranks-", dir=parent))
        probe = folder / "probe"
        with open(probe, "wb") as file:
            file.write(b"\0" * _NEEDED_BYTES)
            fcntl.flock(file, fcntl.LOCK_EX)  # a FileStore needs locks
        probe.unlink()
    except BaseException as error:  # including the KeyboardInterrupt of Stop
        if folder is not None:
            remove_runtime_folder(folder)
        if isinstance(error, OSError):
            raise StartFailed(_not_writable(parent, error)) from None
        raise
    return folder


def open_private(path: Path | str, flags: int = os.O_WRONLY | os.O_CREAT | os.O_APPEND) -> int:
    """
    Open a file that only this user can read, and return its descriptor. Make the file if missing.
    """
    return os.open(path, flags, 0o600)


def remove_runtime_folder(folder: Path | str) -> None:
    """
    Remove a runtime folder and all its contents. A missing folder is no error.
    """
    shutil.rmtree(folder, ignore_errors=True)
