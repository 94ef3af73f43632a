"""
Where a rank is at home: its host, its process, and what is installed there.
"""

import os
import platform
from importlib.metadata import PackageNotFoundError, version


def home(folder):
    """
    Say where this process is, and whether it fits to a kernel elsewhere.

    Args:
        folder: A folder that all ranks have to see.

    Returns:
        dict: `host`, `pid`, the versions of `python`, `torch` and `ddp_lessons`, and `sees_folder`.
    """
    return {
        "host": platform.node(),
        "pid": os.getpid(),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": _version_of("torch"),
        "ddp_lessons": _version_of("ddp-lessons"),
        "sees_folder": os.path.isdir(folder),
    }


def _version_of(package):
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
