"""
Functions that write a file as a whole or not at all, and read one that another user may have made.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """
    Write a new file and rename it, so that a reader sees either the old text or the new text.

    Args:
        path: Path of the file. Its folder is made if it does not exist.
        text: The new text.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def read_foreign(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """
    Return the content of a file in whose place another user may have put anything.

    A symbolic link is not followed, and nothing waits for a pipe.

    Args:
        path: Path of the file.
        most_bytes: Size of the largest file that is read.

    Returns:
        bytes: The content.

    Raises:
        OSError: There is no file, it may not be read, it is a link, or it is larger.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode) or about.st_size > most_bytes:
        os.close(handle)
        raise OSError(f"no file of at most {most_bytes} bytes: {path}")
    with open(handle, "rb") as file:
        return file.read(most_bytes)
