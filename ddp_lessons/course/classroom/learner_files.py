"""
The files that learners have handed in, in folders that this user may perhaps not read.

Python's `glob` passes over a folder that may not be read. Its learner would seem to have handed in
nothing, so each such folder is an error here.
"""

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from ddp_lessons.errors import BadInput

MOST_BYTES = 16 * 2**20
"""
Size of the largest notebook that is read.
"""
NEXT_STEP = "Collect with workshop/collect.sh, or run this with sudo."
_NOT_HANDED_IN = {".ipynb_checkpoints", "solutions", "notebooks"}


@dataclass(frozen=True)
class LearnerFiles:
    """
    A learner's files, and the errors of folders that could not be read.

    Args:
        name: Name of the learner's folder, or from the roster.
        files: List of the files' Paths. Links are among them, and are not followed.
        errors: List of OSErrors.
    """

    name: str
    files: list
    errors: list


def learner_in(folder):
    """
    Return the LearnerFiles of a folder and below it.
    """
    files, errors = [], []
    for where, folders, names in os.walk(folder, onerror=errors.append):
        links = [name for name in folders if os.path.islink(os.path.join(where, name))]
        files += [Path(where, name) for name in sorted([*names, *links])]
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name not in _NOT_HANDED_IN
        )
    return LearnerFiles(folder.name, files, errors)


def files_in(folders):
    """
    Return the Paths in those of some folders that exist, without what is below these.

    Raises:
        OSError: A folder could not be read.
    """
    return [path for one in folders if is_folder(one) for path in sorted(one.iterdir())]


def folders_in(folder):
    """
    Return the Paths of the folders in a folder, sorted, without hidden ones; [] if it is none.

    Raises:
        OSError: The folder could not be read.
    """
    if not is_folder(folder):
        return []
    paths = (folder / name for name in sorted(os.listdir(folder)) if not name.startswith("."))
    return [path for path in paths if is_folder(path)]


def is_folder(path):
    """
    Tell whether a path leads to a folder, or to something that this user may not look at.
    """
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except PermissionError:  # reading it raises the error again
        return True
    except (OSError, ValueError):
        return False


def saved_s(path):
    """
    Return the time at which a file was saved, in seconds since 1970; 0 if it cannot be looked at.
    """
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def reason_not_to_read(path):
    """
    Return why a notebook is not read, or "".

    Raises:
        OSError: This user may not read it.
    """
    about = path.lstat()
    if not stat.S_ISREG(about.st_mode):
        return f"Not read: a file is expected (got a link or a folder, {shown(path.name)})."
    if about.st_size > MOST_BYTES:
        size = about.st_size / 2**20
        return f"Not read: at most {MOST_BYTES >> 20} MiB are expected (got {size:.1f} MiB)."
    if not os.access(path, os.R_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return ""


def no_access(error):
    """
    Return the sentence that says that a file or a folder could not be read.

    Args:
        error: The OSError.
    """
    return (
        "Not read: a folder or a file that you may read is expected (got "
        f"{shown(os.fsdecode(error.filename or 'one'))}, which could not be read: "
        f"{error.strerror})."
    )


def refusal(error):
    """
    Return the BadInput for a file or a folder that could not be read.

    Args:
        error: The OSError.
    """
    return BadInput(f"{no_access(error)} {NEXT_STEP}")


def shown(name):
    """
    Return a file's name as a terminal and a page can show it, whatever characters it has.
    """
    return name if name.isprintable() else ascii(name)
