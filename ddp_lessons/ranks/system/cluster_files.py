"""
The files by which ipyparallel, and so JupyterLab's sidebar, knows a set of ranks.
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


def new_cluster_id():
    """
    Return a name for a set of ranks, unlike any other, with that of the notebook that starts it.
    """
    notebook = Path(os.environ.get("JPY_SESSION_NAME", "")).stem  # which Jupyter's server sets
    name = re.sub(r"[^A-Za-z0-9_]+", "-", notebook)[:40].strip("-")
    return f"{_OURS}{name}{'-' if name else ''}{secrets.token_hex(6)}"


def files_of(profile, cluster_id):
    """
    Return the files of a set of ranks, the one that the sidebar lists first.

    Args:
        profile: The folder of IPython's profile.
        cluster_id: Its name.
    """
    security = Path(profile) / "security"
    return [
        security / f"cluster-{cluster_id}.json",
        security / f"ipcontroller-{cluster_id}-client.json",
        security / f"ipcontroller-{cluster_id}-engine.json",
        Path(profile) / "log" / f"engines{cluster_id}.json",
    ]


def remove_files_of_the_dead(profile):
    """
    Remove the files of sets on this machine whose supervisor was killed before it could do so.

    Args:
        profile: The folder of IPython's profile, which several machines may share.
    """
    for listed in (Path(profile) / "security").glob(f"cluster-{_OURS}*.json"):
        cluster_id = listed.stem.removeprefix("cluster-")
        files = files_of(profile, cluster_id)
        # One that is just being written, or goes as we look, is no dead one's.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            supervisor_pid = json.loads(listed.read_text())["controller"]["state"]["supervisor_pid"]
            is_here = json.loads(files[1].read_text())["location"] == platform.node()
            if is_here and not psutil.pid_exists(supervisor_pid):
                for file in files:
                    file.unlink(missing_ok=True)
