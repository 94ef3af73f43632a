"""
Write a file whole or not at all.
"""

import os


def replace_text(path, text):
    """
    Write a file beside its place and rename it: a reader sees the old one or the new one.

    Args:
        path: The file. Its folder is made if it does not exist.
        text: Its new text.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
