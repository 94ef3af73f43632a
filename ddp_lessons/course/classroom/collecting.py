"""
The way of exercises from learners' homes to the teacher, and of feedback back into the homes.

    FOLDER/2026-11-29-1530/<learner>/00_ranks.ipynb     what the learner had there at that minute
    ~/my-course/feedback/2026-11-29-1710.html           a page that `ddp-lessons check` has written

Root reads and writes each home with its learner's rights (see `home_files`). The process that does
so belongs to the learner, who can change what it says, so its words are checked here.
"""

import argparse
import base64
import contextlib
import grp
import json
import os
import pwd
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ddp_lessons.course.classroom import home_files
from ddp_lessons.course.classroom.learner_files import shown
from ddp_lessons.course.learner import workspace
from ddp_lessons.errors import BadInput, DDPLessonsError

GROUP = "learners"
_EXERCISES = f"{workspace.NAME}/exercises"
_FEEDBACK = f"{workspace.NAME}/feedback"
_DEADLINE_S = 60
_MOST_OUTPUT_BYTES = 64 * 2**20
_NAME = re.compile(rb"[^/\0]{1,200}")


def learners():
    """
    Return the users in the group of learners, as `pwd` describes them, by name.

    Raises:
        BadInput: There is no such group.
    """
    try:
        group = grp.getgrnam(GROUP)
    except KeyError:
        raise BadInput(
            f"No learners: a group {GROUP} is expected (got none). Run workshop/learners.sh add."
        ) from None
    members = {one.pw_name: one for one in pwd.getpwall() if one.pw_gid == group.gr_gid}
    for name in group.gr_mem:
        with contextlib.suppress(KeyError):  # a user who was removed by other means
            members[name] = pwd.getpwnam(name)
    return [members[name] for name in sorted(members)]


def collect(where, say=print):
    """
    Copy all learners' exercises into a new dated folder that only the teacher can read.

    Args:
        where: Path of the folder for the dated folder. It is made if it does not exist.
        say: Function that is called with a line for each learner.

    Returns:
        (Path, list[str]): The dated folder, in which each learner has a folder, even an empty one;
            the logins whose homes could not be read in full.

    Raises:
        BadInput: This process is not root's, or there are no learners.
    """
    _refuse_all_but_root()
    everybody = learners()
    folder, failed = _new_folder(Path(where)), []
    for user in everybody:
        own = folder / user.pw_name
        own.mkdir(mode=0o700)
        is_whole, told = _collect_one(user, own)
        if not is_whole:
            failed.append(user.pw_name)
        say(f"{user.pw_name}: {told}")
    _give_to_teacher(folder)
    return folder, failed


def hand_back(folder, say=print):
    """
    Copy each learner's page of feedback into the learner's home, beside the exercises.

    Args:
        folder: Path of the folder with the pages, `<learner>.html`.
        say: Function that is called with a line for each learner.

    Returns:
        list[str]: The logins whose page could not be written.

    Raises:
        BadInput: This process is not root's, or the folder has no page of a learner.
    """
    _refuse_all_but_root()
    pages = {user: Path(folder) / f"{user.pw_name}.html" for user in learners()}
    pages = {user: page for user, page in pages.items() if page.is_file()}
    if not pages:
        raise BadInput(
            f"No feedback: expected pages such as learner01.html (got none in {folder}). Run "
            "`ddp-lessons check --feedback FOLDER` first."
        )
    name, failed = time.strftime("%Y-%m-%d-%H%M.html"), []
    for user, page in pages.items():
        done = _as_learner(user, "write", _FEEDBACK, name, sent=page.read_bytes())
        path = done.stdout.decode(errors="replace").strip()
        if not path:
            failed.append(user.pw_name)
        say(f"{user.pw_name}: {shown(path)[:200] or _fault(done)}")
    return failed


def _collect_one(user, folder):
    done = _as_learner(user, "read", _EXERCISES)
    num_files, left_out = 0, []
    for line in done.stdout.splitlines():
        try:
            told = json.loads(line)
            name, is_name = told["name"], _NAME.fullmatch(os.fsencode(told["name"]))
            is_wanted = name.lower().endswith(home_files.ENDINGS)
            if not is_name or not is_wanted or (folder / name).exists():
                raise ValueError(name)
            if "left_out" in told:
                left_out.append(shown(f"{name} is left out: {told['left_out']}")[:200])
                continue
            content = base64.b64decode(told["content"])
            saved_ns = int(1e9 * min(max(0.0, told["saved_s"]), time.time()))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            left_out.append("a line of what was read makes no sense, and is left out")
            continue
        (folder / name).write_bytes(content)
        os.utime(folder / name, ns=(saved_ns, saved_ns))  # of two copies the newest one counts
        num_files += 1
    if done.returncode:
        left_out.append(_fault(done))
    return done.returncode == 0, "\n    ".join([f"{num_files} files", *left_out])


def _as_learner(user, *words, sent=b""):
    """
    Run `home_files` with the rights of a learner, within bounds, and return what it has said.
    """
    command = ["prlimit", f"--fsize={_MOST_OUTPUT_BYTES}", sys.executable, "-I"]
    command += [home_files.__file__, *words]
    environment = {"PATH": os.defpath, "HOME": user.pw_dir}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            status = subprocess.run(
                command, input=sent, stdout=output, stderr=errors, cwd=user.pw_dir,
                env=environment, user=user.pw_uid, group=user.pw_gid, extra_groups=[],
                start_new_session=True,  # it must not reach the teacher's terminal
                timeout=_DEADLINE_S,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            status, fault = 1, f"no end within {_DEADLINE_S} s"
        except OSError as error:
            status, fault = 1, f"{user.pw_dir}: {error.strerror}"
        else:
            errors.seek(max(0, errors.tell() - 2000))
            fault = errors.read().decode(errors="replace").strip()
        output.seek(0)
        return subprocess.CompletedProcess(command, status, output.read(), fault)


def _fault(done):
    last = (done.stderr.splitlines() or ["it was ended"])[-1]
    return shown(f"not all could be done: {last[:200]}")


def _new_folder(where):
    where.mkdir(mode=0o711, parents=True, exist_ok=True)  # the teacher need not be its owner
    stem, number = time.strftime("%Y-%m-%d-%H%M"), 1
    while True:
        folder = where / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(mode=0o700)
            return folder
        except FileExistsError:
            number += 1


def _give_to_teacher(folder):
    # The user who called sudo is the teacher. Without sudo the files stay root's.
    uid, gid = (int(os.environ.get(name, 0)) for name in ("SUDO_UID", "SUDO_GID"))
    for path in (folder, *folder.rglob("*")):
        os.chown(path, uid, gid)


def _refuse_all_but_root():
    if os.geteuid() != 0:
        raise BadInput(f"Only root reads all homes (got user {os.geteuid()}). Run it with sudo.")


def main():
    """
    Run the command `workshop/collect.sh`.
    """
    parser = argparse.ArgumentParser(
        prog="workshop/collect.sh",
        description="Copy all learners' exercises into a new folder, or their feedback home.",
    )
    parser.add_argument("folder", nargs="?", default="/srv/ddp-handed-in")
    parser.add_argument("--feedback", metavar="FOLDER", help="copy its pages into the homes")
    options = parser.parse_args()
    try:
        if options.feedback:
            failed = hand_back(options.feedback)
        else:
            folder, failed = collect(options.folder)
            print(folder)
    except DDPLessonsError as error:
        sys.exit(f"collect.sh: {error}")
    except OSError as error:
        sys.exit(f"collect.sh: cannot write there ({error}). Make room, or name another folder.")
    if failed:
        sys.exit(f"collect.sh: not all was copied of {', '.join(failed)}. The lines above say why.")


if __name__ == "__main__":
    main()
