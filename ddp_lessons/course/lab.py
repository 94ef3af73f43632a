"""
Open JupyterLab at the first lesson: `ddp-lessons lab`.
"""

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path

from ddp_lessons.errors import StartFailed

FIRST_LESSON = Path("notebooks") / "00_ranks.ipynb"
_SETTINGS = Path(__file__).parent / "jupyter"  # the course's defaults; a learner's own settings win


def lab_command(folder, port=None, browser=True, rest=(), is_root=False):
    """
    Return the command that opens JupyterLab at the first lesson.

    Args:
        folder: The learner's folder; JupyterLab shows nothing outside it.
        port: The port to listen on, or None for JupyterLab's own choice.
        browser: Whether a browser is opened.
        rest: More arguments for JupyterLab.
        is_root: Whether the user is root, as in most containers.

    Returns:
        list[str]: The command and its arguments.
    """
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        f"--ServerApp.root_dir={folder}",
        f"--LabApp.default_url=/lab/tree/{FIRST_LESSON.as_posix()}",
        # A course asks no questions of its own and looks nothing up: no news, no update check.
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.handlers.announcements.NeverCheckForUpdate",
    ]
    if port is not None:
        command.append(f"--ServerApp.port={port}")
    if not browser:
        command.append("--no-browser")
    if is_root:
        command.append("--allow-root")
    return [*command, *rest]


def lab_environment(environment):
    """
    Return the environment in which JupyterLab has the course's defaults and finds its commands.

    Without the defaults it asks in a corner of the first lesson whether it may fetch news, also
    where it has no address to fetch them from; what kernels say is not encrypted, so that every
    user of the machine can read it; and the tab of an exercise looks like that of its lesson.
    `ddp-lessons` is found in terminals and in `!` cells, also if nobody has activated this
    environment. The settings keep terminals from being login shells, as they are where the server
    has no terminal of its own: those begin with /etc/profile, and so with another PATH.

    Args:
        environment: The environment variables without them.
    """
    # What comes first wins.
    settings = [*filter(None, [environment.get("JUPYTER_CONFIG_PATH")]), str(_SETTINGS)]
    extensions = [*filter(None, [environment.get("JUPYTER_PATH")]), str(_SETTINGS)]
    commands = [sysconfig.get_path("scripts"), environment.get("PATH", os.defpath)]
    return {
        **environment,
        "JUPYTER_CONFIG_PATH": os.pathsep.join(settings),
        "JUPYTER_PATH": os.pathsep.join(extensions),
        "PATH": os.pathsep.join(commands),
    }


def open_lab(folder, port=None, browser=True, rest=()):
    """
    Become JupyterLab: this process is replaced, so that Ctrl-C and signals go straight to it.

    Args:
        folder: The learner's folder.
        port: The port to listen on, or None for JupyterLab's own choice.
        browser: Whether a browser is opened.
        rest: More arguments for JupyterLab.

    Raises:
        StartFailed: JupyterLab is not installed.
    """
    if importlib.util.find_spec("jupyterlab") is None:
        raise StartFailed(
            "JupyterLab is missing: it must be installed for this Python "
            f"(got {sys.executable}). Run make setup, or use make lab."
        )
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    command = lab_command(folder, port, browser, rest, is_root)
    os.chdir(folder)
    sys.stdout.flush()
    os.execve(command[0], command, lab_environment(os.environ))
