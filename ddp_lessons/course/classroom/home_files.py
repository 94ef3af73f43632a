"""
A process that reads a learner's exercises, or writes a page of feedback, with the learner's rights.

`collecting` starts this file as the learner, in the learner's home. So it reaches no file that the
learner could not reach, whatever links the learner has made. It imports nothing of this package,
so that it works from any folder.
"""

import base64
import contextlib
import json
import os
import stat
import sys

MOST_FILES = 200
MOST_BYTES = 16 * 2**20
ENDINGS = (".ipynb", ".zip")


def read(folder):
    """
    Print a line of JSON for each file of a folder: its name and its content, or why it is left out.

    A folder that does not exist has no files: its learner has never logged in.
    """
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(ENDINGS))
    except FileNotFoundError:
        return
    for name in names[:MOST_FILES]:
        print(json.dumps({"name": name, **_content(os.path.join(folder, name))}))
    for name in names[MOST_FILES:]:
        print(json.dumps({"name": name, "left_out": f"more than {MOST_FILES} files"}))


def _content(path):
    # Never follow a link, and never wait for a pipe.
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        return {"left_out": "a link" if os.path.islink(path) else error.strerror}
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode):
        os.close(handle)
        return {"left_out": "not a file"}
    with open(handle, "rb") as file:
        if about.st_size > MOST_BYTES:
            return {"left_out": f"larger than {MOST_BYTES >> 20} MiB"}
        content = file.read(MOST_BYTES)
        return {"content": base64.b64encode(content).decode(), "saved_s": about.st_mtime}


def write(folder, name):
    """
    Write standard input to a new file in a folder, and print the file's path.
    """
    content = sys.stdin.buffer.read()
    os.makedirs(folder, exist_ok=True)
    stem, ending = os.path.splitext(name)
    for number in range(1, MOST_FILES):
        path = os.path.join(folder, name if number == 1 else f"{stem}-{number}{ending}")
        with contextlib.suppress(FileExistsError), open(path, "xb") as file:
            file.write(content)
            print(path)
            return
    sys.exit(f"{MOST_FILES} files of this name are there")


if __name__ == "__main__":
    if sys.argv[1] == "read":
        read(sys.argv[2])
    else:
        write(*sys.argv[2:])
