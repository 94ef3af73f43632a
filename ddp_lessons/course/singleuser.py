"""
A learner's JupyterLab under JupyterHub: the command that a hub starts for each of them.

    c.Spawner.cmd = [sys.executable, "-m", "ddp_lessons.course.singleuser"]

It runs as the learner and in their home, so it needs no rights of the hub, and is the same on one
server and in a container. Each time it brings the learner's folder up to date, as `ddp-lessons lab`
does: what they have edited is never overwritten.
"""

import importlib.util
import os
import resource
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from ddp_lessons.course import workspace
from ddp_lessons.course.lab import FIRST_LESSON, lab_environment
from ddp_lessons.course.notebooks.notebook_paths import find_course
from ddp_lessons.errors import DDPLessonsError, StartFailed
from ddp_lessons.ranks.system.resource_limits import memory_that_nobody_bounds, setting

_WRITTEN_TO = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
_NEEDED_BYTES = 1 << 20
_GO_FIRST = 500
"""
From 0, as all others, to 1000. A process counts as if it held half of all memory more.
"""


def server_command(rest=()):
    """
    Return the command of the learner's server.

    Args:
        rest: Arguments that the hub gives.

    Returns:
        list[str]: The command and its arguments.
    """
    return [sys.executable, "-m", "jupyterhub.singleuser", *rest]


def server_environment(environment, folder):
    """
    Return the environment of the learner's server: the course's settings, and where it opens.

    Args:
        environment: The environment that the hub gives.
        folder: The learner's folder.
    """
    found = lab_environment(environment) | _places_if_full(folder.parent)
    lesson = folder / FIRST_LESSON
    if lesson.is_file():  # not if the home is full
        paths = lesson.relative_to(folder.parent).as_posix()
        found.setdefault("JUPYTERHUB_DEFAULT_URL", f"/lab/tree/{paths}")
    return found


def _places_if_full(home):
    """
    Return what has a server write elsewhere if its user's home is full; {} if it is not.

    It writes before it opens, and would not start. Nobody could delete anything then.
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
    Hold this user to DDP_LESSONS_MAX_PROCESSES processes and threads, if that is set.

    Whoever forks for ever then gets an error, and the server's other users get their cores.
    """
    most = setting("DDP_LESSONS_MAX_PROCESSES")
    if most is not None:
        _, allowed = resource.getrlimit(resource.RLIMIT_NPROC)
        if allowed != resource.RLIM_INFINITY:
            most = min(most, allowed)
        resource.setrlimit(resource.RLIMIT_NPROC, (int(most), int(most)))


def bound_memory():
    """
    Hold each process of this user's to MEM_LIMIT bytes of its own, if only the hub says so.

    Whoever fills memory then gets a MemoryError in their cell. Several processes can still fill
    more together: for that, the hub needs a spawner that bounds them all, or a container each.
    """
    most = memory_that_nobody_bounds()
    if most is not None:
        _, allowed = resource.getrlimit(resource.RLIMIT_DATA)
        if allowed != resource.RLIM_INFINITY:
            most = min(most, allowed)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def go_first():
    """
    Have the system end something of this user's, and not the hub, if memory runs out.
    """
    score = Path("/proc/self/oom_score_adj")
    with suppress(OSError):  # not Linux, or a container that has said so already
        score.write_text(str(max(_GO_FIRST, int(score.read_text()))))


def main(rest=()):
    """
    Become the learner's server: this process is replaced, so the hub's signals go straight to it.

    Args:
        rest: Arguments that the hub gives.

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
    except DDPLessonsError as error:  # a home that is full: Lab opens all the same, to make room
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
