"""
The version of the lessons that a notebook lies among, which may not be this package's.

A pull brings new texts and no new package; an upgrade brings a new package and no new texts.
"""

import contextlib
import json
import re
from pathlib import Path

NOTES = ".ddp-lessons.json"
"""
The file in a learner's folder that says what was given to them, and of which version it is.
"""
_VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)


def difference(start=None):
    """
    Return the sentence on a version that differs, or "" if all is of one, or nothing is known.

    Args:
        start: The folder of a notebook; the current one if None.
    """
    from ddp_lessons import __version__  # which imports us

    found = None
    with contextlib.suppress(OSError):  # a folder that was removed below us
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
