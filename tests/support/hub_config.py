"""
The workshop's configuration of a hub, loaded as JupyterHub loads it.
"""

from paths import ROOT
from traitlets.config import PyFileConfigLoader

WORKSHOP = ROOT / "workshop"
HUB_LINE, BOARD_LINE = (
    f"load_subconfig({str(WORKSHOP / name)!r})" for name in ("jupyterhub_config.py", "board.py")
)
"""
The lines of a teacher's own file that load the workshop's two files.
"""
BOARD_SETTINGS = f"""{BOARD_LINE}
c.JupyterHub.services[-1]["url"] = "http://127.0.0.1:{{more_port}}"
"""
"""
The same line for a HubServer, whose board listens on a free port.
"""


def load_hub_config(folder, *lines):
    """
    Return the Config of a teacher's own file.

    Args:
        folder: The folder in which the file is written, as `ddp-hub.py`.
        lines: The file's lines.
    """
    own = folder / "ddp-hub.py"
    own.write_text("\n".join(lines), encoding="utf-8")
    return PyFileConfigLoader(str(own)).load_config()
