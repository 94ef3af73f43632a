"""
A process that reads a learner's exercises, or writes a page of feedback, with the learner's rights.

`collecting` starts this file as the learner, in the learner's home. So it reaches no file that the
learner could not reach, whatever links the learner has made. It imports nothing of this package,
so that it works from any folder. It follows no link: it opens each folder of a path by itself.
"""

import base64
import contextlib
import json
import os
import stat
import sys

MOST_FILES = 200
MOST_BYTES = 16 * 2**20
ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar")
ENDINGS = (".ipynb", *ARCHIVES)


def read(folder):
    """
    Print a line of JSON for each file of a folder: its name and its content, or why it is left out.

    A folder that does not exist has no files: its learner has never logged in.
    """
    try:
        handle = _open_folder(folder)
    except FileNotFoundError:
        return
    names = sorted(name for name in os.listdir(handle) if name.lower().endswith(ENDINGS))
    for name in names[:MOST_FILES]:
        print(json.dumps({"name": name, **_content(name, handle)}))
    for name in names[MOST_FILES:]:
        print(json.dumps({"name": name, "left_out": f"more than {MOST_FILES} files"}))


def _open_folder(path, is_made=False):
    """
    Return the number of an open folder below the current one, and refuse a link to a folder.
    """
    handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    for part in path.split("/"):
        if is_made:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=handle)
        outer = handle
        try:
            handle = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=outer)
        except OSError:
            if _is_link(part, outer):
                sys.exit(f"{part} is a link, which is not followed")
            raise
        os.close(outer)
    return handle


def _is_link(name, folder):
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _content(name, folder):
    # Never follow a link, and never wait for a pipe.
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        return {"left_out": "a link" if _is_link(name, folder) else error.strerror}
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
    handle = _open_folder(folder, is_made=True)
    stem, ending = os.path.splitext(name)
    for number in range(1, MOST_FILES):
        new = name if number == 1 else f"{stem}-{number}{ending}"
        with contextlib.suppress(FileExistsError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with open(os.open(new, flags, 0o666, dir_fd=handle), "wb") as file:
                file.write(content)
            print(f"{folder}/{new}")
            return
    sys.exit(f"{MOST_FILES} files of this name are there")


if __name__ == "__main__":
    if sys.argv[1] == "read":
        read(sys.argv[2])
    else:
        write(*sys.argv[2:])
