"""
A check whether the lessons in a notebook's folder have the version of this package.

A `git pull` brings new lessons without a new package, and an upgrade brings a new package without
new lessons.
"""

import contextlib
import json
import re
from pathlib import Path

NOTES = ".ddp-lessons.json"
"""
The file in a learner's folder that lists the copied lessons and their version.
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
