"""
The files by which ipyparallel, and so JupyterLab's sidebar, finds a set of ranks.
"""

import contextlib
import json
import os
import platform
import re
import secrets
from pathlib import Path

import psutil

_OURS = "ddp-lessons-"


def new_cluster_id() -> str:
    """
    Return a unique name for a set of ranks, which contains the name of the notebook.
    """
    notebook = Path(os.environ.get("JPY_SESSION_NAME", "")).stem  # set by Jupyter's server
    name = re.sub(r"[^A-Za-z0-9_]+", "-", notebook)[:40].strip("-")
    return f"{_OURS}{name}{'-' if name else ''}{secrets.token_hex(6)}"


def files_of(profile: Path | str, cluster_id: str) -> list[Path]:
    """
    Return the paths of the files of a set of ranks. The first is the file that the sidebar lists.

    Args:
        profile: The folder of IPython's profile.
        cluster_id: Name of the set of ranks.
    """
    security = Path(profile) / "security"
    return [
        security / f"cluster-{cluster_id}.json",
        security / f"ipcontroller-{cluster_id}-client.json",
        security / f"ipcontroller-{cluster_id}-engine.json",
        Path(profile) / "log" / f"engines{cluster_id}.json",
    ]


def remove_files_of_the_dead(profile: Path | str) -> None:
    """
    Remove the files of sets of ranks on this machine whose supervisor was killed.

    A killed supervisor cannot remove these files itself.

    Args:
        profile: The folder of IPython's profile, which several machines may share.
    """
    for listed in (Path(profile) / "security").glob(f"cluster-{_OURS}*.json"):
        cluster_id = listed.stem.removeprefix("cluster-")
        files = files_of(profile, cluster_id)
        # A file that cannot be read is being written or removed by a living supervisor: leave it.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            supervisor_pid = json.loads(listed.read_text())["controller"]["state"]["supervisor_pid"]
            is_here = json.loads(files[1].read_text())["location"] == platform.node()
            if is_here and not psutil.pid_exists(supervisor_pid):
                for file in files:
                    file.unlink(missing_ok=True)
