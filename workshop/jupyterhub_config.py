"""
JupyterHub for one server and one room: a JupyterLab for each learner, who is a user of this system.

README.md beside this file says how to set the hub up. Put your own settings, such as a certificate,
into another file, so that an update of the course never overwrites them:

    load_subconfig("/srv/ddp-lessons/workshop/jupyterhub_config.py")
    c.JupyterHub.ssl_cert = "/etc/ssl/hub.pem"
"""

import contextlib
import sys

import psutil

c = get_config()  # noqa: F821 - JupyterHub runs this file, and puts it there

# ---- log in: the members of two groups of this system, with the system's passwords ----

c.JupyterHub.authenticator_class = "pam"
c.PAMAuthenticator.allowed_groups = {"learners", "teachers"}
c.PAMAuthenticator.admin_groups = {"teachers"}  # teachers see all users, and can stop servers

# ---- the server of each learner ----

# This command runs as the learner, copies the course into the learner's home, and starts JupyterLab
# with the course's settings: encrypted kernels, no questions, this environment's commands on PATH.
c.Spawner.cmd = [sys.executable, "-m", "ddp_lessons.course.singleuser"]
c.Spawner.environment = {
    # Largest number of a learner's ranks in all notebooks: no lesson needs more than four.
    "DDP_LESSONS_MAX_RANKS": "8",
    # Minutes after which idle ranks are ended; ranks hold most of a learner's memory.
    "DDP_LESSONS_PARK_AFTER": "30",
    # Largest number of a learner's processes and threads, so that endless forks hit nobody else.
    "DDP_LESSONS_MAX_PROCESSES": "2000",
}

# Memory that a learner's ranks may use together, and that no process of the learner may exceed. A
# cell that fills memory gets a MemoryError, and the other learners keep their memory.
c.Spawner.mem_limit = "4G"

# Thirty learners who log in at once wait only because their servers share the cores.
c.Spawner.start_timeout = 300
c.Spawner.http_timeout = 300


def _end_what_is_left(spawner):
    # A learner whose processes have forked without end could otherwise not start a server again.
    # Processes that the learner runs outside of the hub lack this variable, and are not killed.
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("JUPYTERHUB_USER") == spawner.user.name:
                process.kill()


c.Spawner.post_stop_hook = _end_what_is_left

# ---- the hub's restarts, and idle learners ----

# If the hub is stopped, updated or killed, learners' servers go on, and the hub finds them again.
c.JupyterHub.cleanup_servers = False

# The server of a learner who has closed the browser is stopped. All work is saved, and the learner
# can log in again.
_IDLE_S, _LOOK_EVERY_S = 2 * 3600, 300
c.JupyterHub.services = [
    {
        "name": "idle-culler",
        # setpriv ends the culler with the hub, even if the hub is killed.
        "command": [
            "setpriv",
            "--pdeathsig=TERM",
            sys.executable,
            "-m",
            "jupyterhub_idle_culler",
            f"--timeout={_IDLE_S}",
            f"--cull-every={_LOOK_EVERY_S}",
        ],
    }
]
c.JupyterHub.load_roles.append(
    {
        "name": "idle-culler",
        "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
        "services": ["idle-culler"],
    }
)
