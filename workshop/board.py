"""
The class board on this hub. docs/board.md says what it shows; add it to your own file by one line:

    load_subconfig("/srv/ddp-lessons/workshop/jupyterhub_config.py")
    load_subconfig("/srv/ddp-lessons/workshop/board.py")
"""

import sys
from pathlib import Path

c = get_config()  # noqa: F821 - JupyterHub runs this file, and puts it there

# Linux lets only root listen on a port below 1024, except in Docker's containers. So while the
# board is away, no learner can listen there in its place and collect the tokens of other learners.
_BOARD = {
    "name": "board",
    "url": "http://127.0.0.1:585",
    # setpriv ends the board with the hub, even if the hub is killed.
    "command": [
        "setpriv",
        "--pdeathsig=TERM",
        sys.executable,
        "-m",
        "ddp_lessons.course.cli",
        "board",
    ],
    # The rows are in the folder board/ of the hub's working directory.
    "environment": {"DDP_LESSONS_STATE_DIR": str(Path.cwd())},
    "oauth_no_confirm": True,
}
c.JupyterHub.services.append(_BOARD)

# The hub's admins, which all `teachers` are, see the board without this role. The role lets members
# of the hub's group `board` see it, too, who may be no admins.
c.JupyterHub.load_roles.append(
    {
        "name": "board",
        "scopes": ["access:services!service=board"],
        "groups": ["board"],
        # The hub refuses to start if jupyterhub_config.py is loaded below this file, because that
        # file sets the list of services anew, and this service is then missing.
        "services": ["board"],
    }
)

# Learners' kernels send to the board itself, not through the hub's proxy: whatever certificate that
# has, plain HTTP on loopback needs none.
c.Spawner.environment.update(
    {
        "DDP_LESSONS_BOARD_URL": lambda spawner: (
            f"{_BOARD['url']}{spawner.hub.base_url.removesuffix('hub/')}services/board"
        )
    }
)
