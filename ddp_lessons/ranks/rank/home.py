"""
Where a rank is at home: its host, its process, and what is installed there.
"""

import os
import platform
from importlib.metadata import PackageNotFoundError, version


def home(file):
    """
    Say where this process is, and whether it fits to a kernel elsewhere.

    Args:
        file: A file of the kernel's that nobody copies, in the folder that all ranks may share.

    Returns:
        dict: `host`, `pid`, the versions of `python`, `torch` and `ddp_lessons`, and `sees_file`.
    """
    return {
        "host": platform.node(),
        "pid": os.getpid(),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": _version_of("torch"),
        "ddp_lessons": _version_of("ddp-lessons"),
        "sees_file": os.path.isfile(file),
    }


def _version_of(package):
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
