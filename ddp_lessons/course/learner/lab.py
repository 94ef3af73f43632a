"""
The command that opens JupyterLab at the first lesson: `ddp-lessons lab`.
"""

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path

from ddp_lessons.errors import StartFailed

FIRST_LESSON = Path("notebooks") / "00_ranks.ipynb"
_SETTINGS = (
    Path(__file__).parents[1] / "jupyter"
)  # the course's defaults; a learner's own settings win


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
        # JupyterLab asks the learner nothing and looks nothing up: no news, no check for updates.
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

    With these defaults, JupyterLab does not ask in the first lesson whether it may fetch news.
    Messages of kernels are encrypted, so that other users of the machine cannot read them. The tab
    of an exercise looks different from that of its lesson. Terminals and `!` cells find
    `ddp-lessons` even if this Python environment is not activated. For that, terminals must not be
    login shells, which JupyterLab starts if the server itself has no terminal: a login shell reads
    /etc/profile, which sets another PATH.

    Args:
        environment: Dict of the environment variables to start from.
    """
    # Jupyter prefers earlier folders, so the user's own settings win.
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
    Replace this process by JupyterLab, so that Ctrl-C and signals reach JupyterLab directly.

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
