"""
Check that a hub can run on this server, and print what is missing: install.sh ends with it.

    .venv/bin/python workshop/check.py

It exits with 1 if something is missing, and names the command that mends it.
"""

import importlib
import os
import shutil
import sys
from pathlib import Path

from ddp_lessons.course.doctor.machine import others_stop_at

CLONE = Path(__file__).resolve().parents[1]
MODULES = {
    "jupyterhub": "JupyterHub",
    "jupyterhub_idle_culler": "the culler of idle servers",
    "nbgitpuller": "nbgitpuller",
    "pamela": "the module for PAM, which checks passwords",
}
AGAIN = "workshop/install.sh"
ANEW = f"make clean; PYTHON=/usr/bin/python3 {AGAIN}"
"""
The command that makes the environment anew, with the system's Python: every user can run that one.
"""


def missing_programs():
    """
    Return a sentence for each package or program that is missing.
    """
    found = []
    for module, name in MODULES.items():
        try:
            importlib.import_module(module)
        except (ImportError, AttributeError, OSError) as error:  # pamela loads a library of C
            found.append(f"Missing: {name} (got {error}). Run: {AGAIN}")
    if shutil.which("configurable-http-proxy") is None:
        found.append(f"Missing: the proxy, configurable-http-proxy, on PATH. Run: {AGAIN}")
    return found


def blocked_folder(place, clone=CLONE, environment=os.environ):
    """
    Return a sentence on the folder or file that other users cannot pass, and how to mend that.

    Args:
        place: The path of that folder or file.
        clone: The folder of the course.
        environment: Dict of the environment variables.
    """
    active = [name for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environment.get(name)]
    place = Path(place)
    if place.is_relative_to(clone):
        mend = f"chmod -R go+rX {clone}; {AGAIN}"
    elif clone.is_relative_to(place):
        mend = f"mv {clone} /srv/ddp-lessons; cd /srv/ddp-lessons; {ANEW}"
    else:
        mend = ANEW
    if active and ANEW in mend:
        mend = f"unset {' '.join(active)}; {mend}"
    return f"No learner could start: other users must be able to pass {place}. Run: {mend}"


def faults():
    """
    Return all that keeps a hub from running here, as sentences, the one that matters most last.
    """
    found = missing_programs()
    if place := others_stop_at():
        found.append(blocked_folder(place))
    return found


if __name__ == "__main__":
    if found := faults():
        sys.exit("\n".join(found))
    print(
        "A hub can run here. Next, make its users: "
        "workshop/learners.sh add 30 >/root/learners.txt (workshop/README.md goes on from there)"
    )
