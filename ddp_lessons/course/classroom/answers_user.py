"""
The user who runs answers that root checks: without rights, and without homes or other answers.

As root, each submission runs in mount and process namespaces of its own (`unshare` of util-linux).
The folders with homes, submissions and the roster are hidden in them. Anybody else runs answers as
themselves, and is told so. So does root in a container that is lent for this alone, if asked to.
"""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ddp_lessons.errors import BadInput

USER_VARIABLE = "DDP_LESSONS_ANSWERS_USER"
USUAL_USER = "ddp-answers"
_ROOM = Path(__file__).with_name("answers_room.py")
_PACKAGE = Path(__file__).resolve().parents[2]
_COVERED = ("/home", "/root", "/srv", "/tmp", "/var/tmp", "/dev/shm", "/mnt", "/media", "/run")


def find_user():
    """
    Return the user who runs answers, as `pwd` describes it; None if they run as this process does.

    Raises:
        BadInput: This process is root's, and there is no such user.
    """
    name = os.environ.get(USER_VARIABLE, USUAL_USER)
    if os.geteuid() != 0 or name == "root":
        return None
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise BadInput(
            f"Root runs no answers: a user without rights is expected for them (got no user "
            f"{name}). Run: useradd --system --user-group --no-create-home {name}\n"
            f"In a container that is lent for this alone, set {USER_VARIABLE}=root."
        ) from None


class AnswersRoom:
    """
    The namespaces in which one submission runs as a user without rights.

    Args:
        user: The user, as `find_user` returns it.
        folder: Path of the folder that the submission may write to. It becomes the user's.
        hidden: Paths of files and folders that it must not see, beside all homes.
    """

    def __init__(self, user, folder, hidden=()):
        self._user, self._folder = user, Path(folder)
        self._hidden = list(map(os.path.realpath, hidden))

    def give(self):
        """
        Give the folder and all that is in it to the user.
        """
        for path in (self._folder, *self._folder.rglob("*")):
            shutil.chown(path, self._user.pw_uid, self._user.pw_gid)

    def command(self, words):
        """
        Return the command that runs another one in this room.

        Args:
            words: The other command and its arguments.
        """
        return [
            *("unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child"),
            *("--mount-proc", sys.executable, "-I", str(_ROOM)),
            *(f"--user-id={self._user.pw_uid}", f"--group-id={self._user.pw_gid}"),
            *(f"--own={self._folder}", "--cover", *_COVERED, "--hide", *self._hidden),
            *("--show", *_needed(), "--", *words),
        ]


def _needed():
    # Python, and where it finds packages; a folder from which this was started is not among these.
    found = {sys.prefix, sys.base_prefix, str(_PACKAGE), *filter(os.path.isdir, sys.path)}
    return sorted(found - {"", os.getcwd()})


def refuse_unusable(user):
    """
    Refuse a user who cannot run this package in an AnswersRoom, before any answer is run.

    Args:
        user: The user, as `find_user` returns it.

    Raises:
        BadInput: The user cannot run it. The message has the reason.
    """
    with tempfile.TemporaryDirectory(prefix="ddp-lessons-") as folder:
        room = AnswersRoom(user, os.path.realpath(folder))
        room.give()
        words = [sys.executable, "-P", "-c", "import ddp_lessons.checks"]
        done = subprocess.run(room.command(words), capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise BadInput(
            f"Answers cannot run here: {user.pw_name} must be able to run {sys.executable} and to "
            f"read {_PACKAGE} (got {last!r}). Put both into a folder that everybody can read."
        )
