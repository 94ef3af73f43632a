"""
The messages at a start of ranks about the lessons in the notebook's folder.

One says that the lessons have another version than this package: a `git pull` brings new lessons
without a new package, and an upgrade brings a new package without new lessons. The other one says
that a teacher has published a new version of a lesson or an exercise.
"""

import contextlib
import json
import os
import re
from pathlib import Path

from ddp_lessons.progress.renewal import NOTES, read_notes, renew

PUBLISHED = "published.json"
"""
The file in a folder of published notebooks with a digest of each.
"""
_MOST_AT_ONCE = 2
"""
Notebooks that one start of ranks renews at most, so that learners need not wait for it.
"""
_VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)


def difference(start: Path | str | None = None) -> str:
    """
    Return a sentence about the lessons' version if it differs from this package's, else "".

    Return "" also if the lessons' version is not known.

    Args:
        start: The folder of a notebook; the current one if None.
    """
    from ddp_lessons import __version__  # imported here, because `ddp_lessons` imports this module

    found = None
    with contextlib.suppress(OSError):  # the current folder may have been removed
        start = Path(start or Path.cwd())
        versions = map(_version_in, (start, *start.parents))
        found = next(filter(None, versions), None)
    if found in (None, __version__):
        return ""
    return (
        f"These lessons are of version {found}, and the package is {__version__}: what a cell "
        "prints may differ. Run `ddp-lessons copy` in a terminal, or install the package anew."
    )


def _version_in(folder):
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return json.loads((folder / NOTES).read_text(encoding="utf-8")).get("version")
    with contextlib.suppress(OSError):
        found = _VERSION.search((folder / "ddp_lessons" / "__init__.py").read_text())
        return found and found[1]
    return None


def news(start: Path | str | None = None) -> str:
    """
    Give a learner the notebooks that a teacher has published, and return a line about them.

    A notebook that is edited, or that a kernel of this user may have open, stays, and its new
    version is put beside it. Return "" if nothing was published, or outside of a Jupyter server.

    Args:
        start: The folder of a notebook; the current one if None.
    """
    try:
        update = _take_published(Path(start or Path.cwd()))
    except Exception as error:  # whatever it is, the ranks must start
        return (
            f"A published lesson could not be read or copied ({type(error).__name__}: {error}). "
            "Go on with the one that you have, and tell your teacher."
        )
    lines = str(update or "").splitlines()
    return f"News of the course: {'; '.join(lines)}." if lines else ""


def _take_published(start):
    mine = os.environ.get("JPY_SESSION_NAME")
    folder = next((one for one in (start, *start.parents) if (one / NOTES).is_file()), None)
    if not mine or folder is None:
        return None
    notes = read_notes(folder)
    published = Path(notes.get("published", folder))
    if not (published / PUBLISHED).is_file():
        return None
    digests = json.loads((published / PUBLISHED).read_text(encoding="utf-8"))
    fresh = [
        name
        for name, digest in digests.items()
        if name in notes["given"]  # else this hub hands it out in another way
        and digest not in (notes["given"][name], notes["offered"].get(name))
    ]
    if not fresh:
        return None
    fresh.sort(key=lambda name: not _is_same(folder / name, mine))
    files = {name: (published / name).read_text("utf-8") for name in fresh[:_MOST_AT_ONCE]}
    opened = _open_notebooks()
    return renew(
        folder,
        files,
        lambda path: mine not in opened or any(_is_same(path, one) for one in opened),
    )


def _open_notebooks():
    """
    Return the notebooks for which kernels of this user were started; none if that is unknown.
    """
    found = set()
    with contextlib.suppress(OSError):  # a system without /proc
        for process in os.scandir("/proc"):
            with contextlib.suppress(OSError):  # ended, or another user's
                environment = Path(process.path, "environ").read_bytes().split(b"\0")
                found |= {line for line in environment if line.startswith(b"JPY_SESSION_NAME=")}
    return {os.fsdecode(line.partition(b"=")[2]) for line in found}


def _is_same(path, other):
    return os.path.realpath(path) == os.path.realpath(other)
