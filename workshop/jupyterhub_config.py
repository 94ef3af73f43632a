"""
JupyterHub for one server and one room: a JupyterLab for each learner, a user of this system.

README.md beside this file says how to stand it up. What is yours, such as a certificate, goes
into a file of your own, so that an update of the course never meets it:

    load_subconfig("/srv/ddp-lessons/workshop/jupyterhub_config.py")
    c.JupyterHub.ssl_cert = "/etc/ssl/hub.pem"
"""

import contextlib
import sys

import psutil

c = get_config()  # noqa: F821 - JupyterHub runs this file, and puts it there

# ---- who may come in: the members of two groups of this system, with the system's passwords ----

c.JupyterHub.authenticator_class = "pam"
c.PAMAuthenticator.allowed_groups = {"learners", "teachers"}
c.PAMAuthenticator.admin_groups = {"teachers"}  # they see who is there, and stop servers

# ---- what is started for each of them ----

# It runs as the learner, puts the course into their home, and becomes their JupyterLab, with the
# course's settings: encrypted kernels, no questions, this environment's commands on the path.
c.Spawner.cmd = [sys.executable, "-m", "ddp_lessons.course.singleuser"]
c.Spawner.environment = {
    # All ranks of a learner, in all of their notebooks: no lesson needs more than four at a time.
    "DDP_LESSONS_MAX_RANKS": "8",
    # Minutes after which ranks that nobody uses are ended; they hold most of a learner's memory.
    "DDP_LESSONS_PARK_AFTER": "30",
    # Processes and threads of a learner; one who forks for ever stops here, and nobody else does.
    "DDP_LESSONS_MAX_PROCESSES": "2000",
}

# What a learner's ranks may take together, and no process of theirs may exceed: who fills memory
# gets a MemoryError in that cell, and the others keep theirs.
c.Spawner.mem_limit = "4G"

# Thirty who log in at once wait for each other's cores, and for nothing else.
c.Spawner.start_timeout = 300
c.Spawner.http_timeout = 300


def _end_what_is_left(spawner):
    # Whoever has forked for ever would find no room at the next start. What they run elsewhere on
    # this machine is not in the hub's environment, and is left alone.
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("JUPYTERHUB_USER") == spawner.user.name:
                process.kill()


c.Spawner.post_stop_hook = _end_what_is_left

# ---- what goes on without them ----

# The hub may be stopped, updated or killed: learners go on, and it finds them again.
c.JupyterHub.cleanup_servers = False

# Who has closed the browser and gone is stopped, all work saved, and logs in again whenever.
_IDLE_S, _LOOK_EVERY_S = 2 * 3600, 300
c.JupyterHub.services = [
    {
        "name": "idle-culler",
        "command": [
            sys.executable,
            "-m",
            "jupyterhub_idle_culler",
            f"--timeout={_IDLE_S}",
            f"--cull-every={_LOOK_EVERY_S}",
        ],
    }
]
c.JupyterHub.load_roles = [
    {
        "name": "idle-culler",
        "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
        "services": ["idle-culler"],
    }
]
