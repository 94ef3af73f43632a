"""
A process that hides folders from a command, and runs it as a user without rights.

`answers_user` starts this file as root, in mount and process namespaces of its own. It imports
nothing of this package, so that it works from any folder.
"""

import argparse
import os
import subprocess
from pathlib import Path

_TMPFS = "mode=755,size=256m"


def _main():
    parser = argparse.ArgumentParser(description="Hide folders from a command; change its user.")
    parser.add_argument("--user-id", type=int, required=True)
    parser.add_argument("--group-id", type=int, required=True)
    parser.add_argument("--cover", nargs="*", type=Path, default=[], help="folders to empty")
    parser.add_argument("--show", nargs="*", type=Path, default=[], help="folders in these to show")
    parser.add_argument("--hide", nargs="*", type=Path, default=[], help="what to hide in any case")
    parser.add_argument("--own", type=Path, required=True, help="the one folder it may write to")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    _cover(options.cover, [*options.show, options.own])
    for path in options.hide:
        _hide(path)
    for path in (Path("/tmp"), Path("/dev/shm")):
        path.chmod(0o1777)
    os.chdir(options.own)
    words = ["setpriv", f"--reuid={options.user_id}", f"--regid={options.group_id}"]
    words += ["--clear-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]
    os.execvp(words[0], [*words, *options.command])


def _cover(covered, shown):
    # An open folder can still be mounted after another file system has covered its path.
    opened = {path: os.open(path, os.O_RDONLY) for path in shown}
    for path in covered:
        _hide(path)
    for path, number in opened.items():
        if not path.exists():
            path.mkdir(parents=True)
            _mount(
                "--no-canonicalize", "--bind", f"/proc/self/fd/{number}", path, pass_fds=[number]
            )
        os.close(number)


def _hide(path):
    if path.is_dir():
        _mount("-t", "tmpfs", "-o", _TMPFS, "tmpfs", path)
    elif path.exists():
        _mount("--bind", os.devnull, path)


def _mount(*words, pass_fds=()):
    subprocess.run(["mount", *map(str, words)], pass_fds=pass_fds, check=True)


if __name__ == "__main__":
    _main()
