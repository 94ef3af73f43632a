"""
The publication of a teacher's edits: learners get them while the course's clone stays as it was.

    /srv/ddp-lessons/                   the clone, in which a teacher edits; then as committed again
    /srv/ddp-lessons-published/
        notebooks/00_ranks.ipynb        what learners get in place of the clone's
        notebooks/py/00_ranks.py        the teacher's version as a text twin
        notebooks/base/00_ranks.py      the committed text twin that it is based on
        exercises/...                   the same for exercises
        published.json                  a digest of each notebook, which `start_ranks` looks at
        edits/2026-01-31T09-00-00.0/    all that was ever taken out of the clone or replaced

After a `git pull`, the differences between `base` and the new committed twin are merged into the
teacher's version. `edited_texts.py` has what is done to the texts.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from ddp_lessons.course.classroom.edited_texts import (
    broken_rules,
    merge_edits,
    refuse_unless_starter,
)
from ddp_lessons.course.learner.workspace import text_for_learners
from ddp_lessons.course.notebooks.notebook_paths import (
    all_notebooks,
    choose,
    moved_to,
    published_folder,
)
from ddp_lessons.errors import BadInput, NotebookRefused
from ddp_lessons.files import replace_text
from ddp_lessons.progress.renewal import digest
from ddp_lessons.ranks.system.version_check import PUBLISHED


@dataclass(frozen=True)
class _Shelf:
    """
    The course's clone, and the folder that keeps what was published from it.

    Args:
        course: Path of the clone.
        folder: Path of the folder of published notebooks.
        edits: Path of a new folder in it, for files that this command takes away or replaces.
        say: Function that prints a line for the teacher.
    """

    course: Path
    folder: Path
    edits: Path
    say: Callable

    def name(self, path):
        return path.relative_to(self.course).as_posix()

    def base_of(self, paths):
        theirs = moved_to(self.folder, paths).text
        return theirs.parents[1] / "base" / theirs.name

    def earlier(self, paths):
        """
        Return the text twin that was published before and its base; () if there is none.
        """
        files = (moved_to(self.folder, paths).text, self.base_of(paths))
        is_there = all(path.exists() for path in files)  # else a first publication was killed
        return [path.read_text("utf-8") for path in files if is_there]

    def keep(self, path, root):
        """
        Copy a file to `edits`, before something takes it away or replaces it.
        """
        kept = self.edits / path.relative_to(root)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, kept)
        return kept

    def write_digests(self):
        digests = {
            path.relative_to(self.folder).as_posix(): digest(path.name, path.read_text("utf-8"))
            for path in sorted(self.folder.glob("*/*.ipynb"))
        }
        replace_text(self.folder / PUBLISHED, json.dumps(digests, indent=1) + "\n")


def publish(course, say=print):
    """
    Hand out each lesson and exercise that a teacher has edited in the course's clone.

    The clone's files are put back as they were committed, so that `git pull` goes on working.

    Args:
        course: Path of the clone.
        say: Function that prints a line for the teacher.

    Returns:
        int: Number of lessons and exercises that were refused, or conflict with the course's text.

    Raises:
        BadInput: The course is no git clone, git is missing, or a folder cannot be written to.
    """
    with _open_shelf(course, say) as shelf:
        changed, handled, num_failed = _changed_files(shelf.course), set(), 0
        for paths in all_notebooks(shelf.course):
            files = (paths.text, paths.blank, paths.notebook)
            edited = [path for path in files if shelf.name(path) in changed]
            is_edit = paths.text in edited or paths.blank in edited
            if is_edit or moved_to(shelf.folder, paths).text.exists():
                handled |= set(map(shelf.name, edited))
                num_failed += not _publish_one(shelf, paths, edited)
        shelf.write_digests()
        _tell_others([name for name in changed if name not in handled], say)
        return num_failed


def withdraw(course, name, say=print):
    """
    Take published lessons and exercises back: learners get those of the course again.

    Args:
        course: Path of the clone.
        name: A lesson id such as "00_ranks", or "exercises/00_ranks" for the exercise alone.
        say: Function that prints a line for the teacher.

    Raises:
        BadInput: Nothing of that name is published, or a folder cannot be written to.
    """
    with _open_shelf(course, say) as shelf:
        known = all_notebooks(shelf.course)
        published = [paths for paths in known if moved_to(shelf.folder, paths).text.exists()]
        chosen = [paths for paths in choose(shelf.course, [name]) if paths in published]
        if not chosen:
            names = ", ".join(map(_name_of, published)) or "none"
            raise BadInput(
                f"Not published: expected one of {names} (got {name}). Name one of those."
            )
        for paths in chosen:
            kept = _take_back(shelf, paths)
            say(
                f"{_name_of(paths)}: withdrawn. Learners get the course's own at the next start of "
                f"their server. Your version is kept in {kept}."
            )
        shelf.write_digests()


@contextmanager
def _open_shelf(course, say):
    course = Path(course).resolve()
    top = _git(course, "rev-parse", "--show-toplevel").strip()
    if Path(top).resolve() != course:
        raise BadInput(
            f"No git clone: expected the folder of the course's clone (got {course}, a part of "
            f"{top}). Clone the course, or name the folder of your clone."
        )
    folder = published_folder(course)
    edits = folder / "edits" / datetime.now().strftime("%Y-%m-%dT%H-%M-%S.%f")
    umask = os.umask(0o022)  # learners read all that this writes, and git in the clone
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _warn_if_private(folder, say)
        yield _Shelf(course, folder, edits, say)
    except OSError as error:
        raise BadInput(
            f"Cannot write there: expected to write to {folder} and {course} (got "
            f"{error.filename}: {error.strerror}). Run this as the user to whom they belong, or "
            "name another folder with DDP_LESSONS_PUBLISHED, here and in the hub's configuration."
        ) from error
    finally:
        os.umask(umask)


def _warn_if_private(folder, say):
    private = [path for path in (folder, *folder.parents) if not path.stat().st_mode & 0o001]
    if private:
        say(
            f"warning: other users cannot read {folder}, because {private[-1]} is private. On a "
            f"hub, run `chmod o+x {private[-1]}`, or set DDP_LESSONS_PUBLISHED to another folder."
        )


def _git(course, *arguments):
    try:
        command = ["git", "-C", course, *arguments]
        done = subprocess.run(command, capture_output=True, encoding="utf-8")
    except FileNotFoundError:
        raise BadInput(
            "git is missing: expected the command, which finds your edits (got none). Install git."
        ) from None
    if done.returncode:
        raise BadInput(
            f"git failed: expected the course's git clone (got {course}: {done.stderr.strip()}). "
            "Clone the course, or name the folder of your clone."
        )
    return done.stdout


def _changed_files(course):
    """
    Return the files of the clone that differ from its commit, as paths in the clone.
    """
    changed = []
    for entry in _git(course, "status", "--porcelain", "-z", "-uall", "--no-renames").split("\0"):
        state, name = entry[:2], entry[3:]
        if "U" in state or state in ("AA", "DD"):
            raise BadInput(
                f"A merge is open: expected a clone without one (got a conflict in {name}). Finish "
                "it with git, or end it with `git merge --abort`."
            )
        changed += [name] if name else []
    return changed


def _publish_one(shelf, paths, edited):
    """
    Publish one lesson or exercise, and return whether its version is settled and in force.
    """
    name = shelf.name(paths.text)
    if not _git(shelf.course, "ls-tree", "HEAD", "--", name):
        shelf.say(f"{_name_of(paths)}: not committed. Learners get it from the clone, as it is.")
        return True
    head = _git(shelf.course, "show", f"HEAD:{name}")
    try:
        merged = merge_edits(paths, edited, head, *shelf.earlier(paths))
        refuse_unless_starter(paths, merged.text, head)
    except NotebookRefused as error:
        shelf.say(f"{_name_of(paths)}: refused. {error} Nothing of it was changed.")
        return False
    for line in _put_in_force(shelf, paths, merged, head):
        shelf.say(f"{_name_of(paths)}{line}")
    _put_back(shelf, edited)
    return merged.is_settled


def _put_in_force(shelf, paths, merged, head):
    """
    Write the files of a published version, and return the lines that say so.
    """
    home = moved_to(shelf.folder, paths)
    if not merged.is_settled:
        return (
            ": conflict. You and the course have changed the same lines; yours stay in force.",
            f", yours: {home.text}",
            f", the course's: {paths.text}. Edit it so that it says what you want, and publish.",
        )
    if merged.is_as_committed:
        if merged.before is None:
            return (": nothing to publish. Only outputs or predictions differ from the course.",)
        return (f": now the same as in the course. Yours is kept in {_take_back(shelf, paths)}.",)
    is_new, earlier = _write(shelf, paths, merged, head)
    if not is_new:
        return (": published before, and in force.",)
    if merged.has_clash:
        return (f": published. It replaces lines of your earlier version, kept in {earlier}.",)
    return (f": published. Your version is {home.text}.",)


def _write(shelf, paths, merged, head):
    """
    Write the files of a version. Return whether it is new, and where the earlier one is kept.
    """
    home, earlier = moved_to(shelf.folder, paths), None
    is_new = merged.text != merged.before
    if is_new and merged.before is not None:
        earlier = shelf.keep(home.text, shelf.folder.parent)
    if is_new:
        replace_text(home.text, merged.text)
    replace_text(shelf.base_of(paths), head)
    starter = text_for_learners(replace(paths, text=home.text), home.blank)
    if not home.blank.is_file() or home.blank.read_text("utf-8") != starter:
        is_new = True  # also if the teacher has edited the published text itself
        replace_text(home.blank, starter)
    for finding in broken_rules(paths, merged.text) if is_new else ():
        shelf.say(f"warning: {_name_of(paths)}, {finding}")
    return is_new, earlier


def _take_back(shelf, paths):
    home = moved_to(shelf.folder, paths)
    kept = shelf.keep(home.text, shelf.folder.parent)
    for path in (home.blank, home.text, shelf.base_of(paths)):
        path.unlink(missing_ok=True)
    return kept


def _put_back(shelf, edited):
    """
    Keep edited files of the clone in `edits`, and then put them back as they were committed.
    """
    for path in edited:
        name = shelf.name(path)
        if path.exists():
            shelf.keep(path, shelf.course.parent)
        if _git(shelf.course, "ls-tree", "HEAD", "--", name):
            _git(shelf.course, "restore", "--source=HEAD", "--staged", "--worktree", "--", name)


def _tell_others(names, say):
    others = [name for name in names if not re.match(r"notebooks/([^/]*\.md|py/[^/]*\.py)$", name)]
    if others:
        say("changed, but handed out to nobody:")
        for name in others:
            say(f"  {name}")
        say(
            "  Learners' servers load the package when they start: after a change of it, stop all "
            "servers on the hub's admin page, then `git pull && workshop/install.sh`. To put a "
            "file back: `git restore FILE`."
        )


def _name_of(paths):
    return f"{paths.blank.parent.name}/{paths.stem}"
