"""
A learner's JupyterLab under JupyterHub: the command that a hub starts for each learner.

    c.Spawner.cmd = [sys.executable, "-m", "ddp_lessons.course.singleuser"]

The command runs as the learner, in the learner's home. So it needs none of the hub's rights, and
is the same on one server and in a container. At each start it brings the learner's folder up to
date, as `ddp-lessons lab` does, and never overwrites a file that the learner has edited.
"""

import importlib.util
import os
import resource
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from ddp_lessons.course.learner import workspace
from ddp_lessons.course.learner.lab import FIRST_LESSON, lab_environment
from ddp_lessons.course.notebooks.notebook_paths import find_course
from ddp_lessons.errors import DDPLessonsError, StartFailed
from ddp_lessons.ranks.system.resource_limits import memory_that_nobody_bounds, setting

_WRITTEN_TO = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
_NEEDED_BYTES = 1 << 20
_GO_FIRST = 500
"""
Value of oom_score_adj: others have 0, the largest is 1000. If Linux must kill a process to get
memory, it treats this one as if it used half of all memory in addition.
"""


def server_command(rest=()):
    """
    Return the command of the learner's server.

    Args:
        rest: Further arguments, which come from the hub.

    Returns:
        list[str]: The command and its arguments.
    """
    return [sys.executable, "-m", "jupyterhub.singleuser", *rest]


def server_environment(environment, folder):
    """
    Return the environment of the learner's server: the course's settings, and its first page.

    Args:
        environment: Dict of the environment variables that the hub has set.
        folder: Path of the learner's folder.
    """
    found = lab_environment(environment) | _places_if_full(folder.parent)
    lesson = folder / FIRST_LESSON
    if lesson.is_file():  # missing if the home is full
        paths = lesson.relative_to(folder.parent).as_posix()
        found.setdefault("JUPYTERHUB_DEFAULT_URL", f"/lab/tree/{paths}")
    return found


def _places_if_full(home):
    """
    Return variables that make a server write outside a home that is full, else {}.

    A server writes files before it opens. In a full home it would not start, and the learner could
    not delete anything to make room.
    """
    try:
        with tempfile.TemporaryFile(dir=home) as file:
            file.write(bytes(_NEEDED_BYTES))
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="ddp-lessons-full-home-"))
        return {name: str(folder / name.lower()) for name in _WRITTEN_TO}
    return {}


def bound_processes():
    """
    Limit this user to DDP_LESSONS_MAX_PROCESSES processes and threads, if that is set.

    Code that forks without end then gets an error, and the server's other users keep their cores.
    """
    most = setting("DDP_LESSONS_MAX_PROCESSES")
    if most is not None:
        _, allowed = resource.getrlimit(resource.RLIMIT_NPROC)
        if allowed != resource.RLIM_INFINITY:
            most = min(most, allowed)
        resource.setrlimit(resource.RLIMIT_NPROC, (int(most), int(most)))


def bound_memory():
    """
    Limit each process of this user to MEM_LIMIT bytes, if no control group limits the user.

    A cell that fills memory then gets a MemoryError. Several processes together can still use more
    than the limit. To prevent that, use a spawner that bounds all of them, or a container each.
    """
    most = memory_that_nobody_bounds()
    if most is not None:
        _, allowed = resource.getrlimit(resource.RLIMIT_DATA)
        if allowed != resource.RLIM_INFINITY:
            most = min(most, allowed)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def go_first():
    """
    Make Linux kill a process of this user, not the hub, if memory runs out.
    """
    score = Path("/proc/self/oom_score_adj")
    with suppress(OSError):  # not Linux, or not permitted in a container
        score.write_text(str(max(_GO_FIRST, int(score.read_text()))))


def main(rest=()):
    """
    Replace this process by the learner's server, so that the hub's signals reach it directly.

    Args:
        rest: Further arguments, which come from the hub.

    Raises:
        StartFailed: JupyterHub is not installed here.
        BadInput: A setting of the hub's is wrong.
    """
    if importlib.util.find_spec("jupyterhub") is None:
        raise StartFailed(
            "JupyterHub is missing: it must be installed for the Python that the learners' servers "
            f"run (got {sys.executable}). Run workshop/install.sh, or pip install jupyterhub."
        )
    bound_processes()
    bound_memory()
    go_first()
    folder = Path.home() / workspace.NAME
    try:
        told = str(workspace.update(folder, find_course(Path.home())))
    except DDPLessonsError as error:  # such as a full home: open, so that the learner can make room
        told = str(error)
    if told:
        print(f"ddp-lessons: {told}", file=sys.stderr, flush=True)
    command = server_command(rest)
    os.execve(command[0], command, server_environment(os.environ, folder))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except DDPLessonsError as fault:
        sys.exit(f"ddp-lessons: {fault}")
