"""
JupyterHub for one server and one room: a JupyterLab for each learner, who is a user of this system.

README.md beside this file says how to set the hub up. Put your own settings, such as a certificate,
into another file, so that an update of the course never overwrites them:

    load_subconfig("/srv/ddp-lessons/workshop/jupyterhub_config.py")
    c.JupyterHub.ssl_cert = "/etc/ssl/hub.pem"

The hours below come from environment variables of the hub. Set them above that first line:

    import os
    os.environ["DDP_LESSONS_IDLE_HOURS"] = "4"
"""

import asyncio
import contextlib
import os
import pwd
import sys

import psutil

from ddp_lessons.ranks.system.resource_limits import setting

c = get_config()  # noqa: F821 - JupyterHub runs this file, and puts it there

# Hours without activity after which a learner's server is stopped.
IDLE_HOURS = setting("DDP_LESSONS_IDLE_HOURS") or 2
# Hours for which a kernel that is busy counts as active, although it prints nothing. A cell that
# never ends must not keep its server for ever.
BUSY_HOURS = setting("DDP_LESSONS_BUSY_HOURS") or 12

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
    # Read by the learner's server, which tells the hub what is active.
    "DDP_LESSONS_BUSY_HOURS": f"{BUSY_HOURS:g}",
}

# Memory that no process of a learner may exceed; `start_ranks` starts no more ranks than fit
# into it. A cell that fills memory gets a MemoryError. Several processes can use more together.
c.Spawner.mem_limit = "4G"

# With the next line systemd limits the sum of a learner's processes to mem_limit and cpu_limit. The
# line needs systemd, and `pip install jupyterhub-systemdspawner`. Our tests do not run it.
# c.JupyterHub.spawner_class = "systemd"

# Thirty learners who log in at once wait only because their servers share the cores.
c.Spawner.start_timeout = 300
c.Spawner.http_timeout = 300

_END_S = 5  # for killed processes to end, which takes them milliseconds


def _end_what_is_left(name):
    # A learner whose processes have forked without end could otherwise not start a server again.
    # Processes that the learner runs outside of the hub lack this variable, and are not killed.
    killed = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("JUPYTERHUB_USER") == name:
                process.kill()
                killed.append(process)
    psutil.wait_procs(killed, timeout=_END_S)
    uid = pwd.getpwnam(name).pw_uid
    # A login of the learner's outside of the hub may use shared memory.
    if not any(
        process.info["uids"].real == uid and process.info["status"] != psutil.STATUS_ZOMBIE
        for process in psutil.process_iter(["uids", "status"])
    ):
        _delete_shared_memory(uid)


def _delete_shared_memory(uid):
    # Files in this folder hold memory until somebody deletes them. Links and folders are left.
    for entry in os.scandir("/dev/shm"):
        with contextlib.suppress(FileNotFoundError):  # another user's process has deleted its file
            is_file = entry.is_file(follow_symlinks=False)
            if is_file and entry.stat(follow_symlinks=False).st_uid == uid:
                os.unlink(entry.path)


async def _clean_up(spawner):
    # A thread does it, so that the hub answers other learners meanwhile.
    await asyncio.to_thread(_end_what_is_left, spawner.user.name)


c.Spawner.post_stop_hook = _clean_up

# ---- the hub's restarts, and idle learners ----

# If the hub is stopped, updated or killed, learners' servers go on, and the hub finds them again.
c.JupyterHub.cleanup_servers = False

# The server of a learner who has closed the browser is stopped. All work is saved, and the learner
# can log in again.
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
            f"--timeout={IDLE_HOURS * 3600:.0f}",
            "--cull-every=300",
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
