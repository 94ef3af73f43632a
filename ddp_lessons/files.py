"""
A function that writes a file as a whole or not at all.
"""

import os


def replace_text(path, text):
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
