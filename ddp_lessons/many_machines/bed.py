"""
Real hosts on this machine, for as long as a notebook needs them: `scripts/hosts.sh` from Python.

Each has an address, a name and processes of its own; a link as slow as one likes joins them. This
needs root. Whatever becomes of the notebook, they are taken down: a process that waits for the
notebook's end of a pipe does it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from ..errors import BadInput
from ..jobs import Job, start_job

SCRIPT = Path(__file__).parents[2] / "scripts" / "hosts.sh"
_TOOLS = ("ip", "tc", "sshd", "ssh-keygen", "unshare", "nsenter")
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
_ORDER_S = 60


def why_no_hosts() -> str:
    """
    Say why this machine can have no such hosts, or return an empty text.

    Lesson: 17_many_machines.
    """
    missing = [name for name in _TOOLS if shutil.which(name, path=_PATH) is None]
    if not SCRIPT.exists():
        return "scripts/hosts.sh is not here: it comes with the course's repository, not with pip"
    if os.geteuid() != 0:
        return "hosts.sh needs root, as it makes network devices"
    if missing:
        return f"hosts.sh needs {', '.join(missing)}"
    if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode:
        return "this system lets nobody make a network: a container needs --privileged"
    return ""


class TestBed:
    """
    Hold some hosts, node1 and so on. Use it in a `with`, or call `down`.

    Args:
        num_hosts: How many.
        rate: What each link carries, such as "100mbit"; None: all that it can.

    Raises:
        BadInput: This machine can have none, or they did not come up.

    Lesson: 17_many_machines.
    """

    __test__ = False  # pytest takes the name for that of a test

    def __init__(self, num_hosts: int, rate: str | None = None) -> None:
        reason = why_no_hosts()
        if reason:
            raise BadInput(f"No hosts here: expected a machine that can make some ({reason}).")
        parent = tempfile.mkdtemp(prefix="ddp-lessons-")
        self._env = {
            "DDP_LESSONS_HOSTS": str(Path(parent, "hosts")), "DDP_LESSONS_NET": "", "PATH": _PATH
        }  # fmt: skip
        # It waits until our end is closed, by `down` or because we are gone, and clears up.
        self._keeper = subprocess.Popen(
            ["bash", "-c", 'cat; "$0" down; rmdir "$1"', str(SCRIPT), parent],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, **self._env}, start_new_session=True,
        )  # fmt: skip
        self._finalizer = weakref.finalize(self, self._keeper.communicate)
        self._order("up", num_hosts, *(["--rate", rate] if rate else []))

    @property
    def folder(self) -> Path:
        """
        Their folder; ssh reaches them by the `ssh_config` in it.
        """
        return Path(self._env["DDP_LESSONS_HOSTS"])

    @property
    def net(self) -> str:
        """
        The first three numbers of their addresses; node1 has number 101.
        """
        return (self.folder / "net").read_text().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.down()

    def start(self, number: int, command: str | Sequence[str]) -> Job:
        """
        Start a command on a host, and return while it runs.

        Args:
            number: Of the host, from 1.
            command: As `start_job` takes it.

        Returns:
            Job: As `start_job` returns it.
        """
        words = command.split() if isinstance(command, str) else command
        words = [sys.executable, *words[1:]] if words[0] == "python" else words
        env = {**self._env, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        return start_job(["bash", str(SCRIPT), "run", str(number), *words], env=env)

    def cut(self, number: int) -> None:
        """
        Pull a host's cable out.
        """
        self._order("cut", number)

    def mend(self, number: int) -> None:
        """
        Put a host's cable in again.
        """
        self._order("mend", number)

    def off(self, number: int) -> None:
        """
        Switch a host off: all its processes are gone at once.
        """
        self._order("off", number)

    def down(self) -> None:
        """
        Take all hosts away, and wait until nothing is left of them.
        """
        self._finalizer()

    def _order(self, *words):
        done = subprocess.run(
            ["bash", str(SCRIPT), *map(str, words)],
            env={**os.environ, **self._env}, capture_output=True, text=True, timeout=_ORDER_S,
        )  # fmt: skip
        if done.returncode:
            self.down()
            raise BadInput(
                f"hosts.sh refuses {words[0]!r}: expected it done (got {done.stderr.strip()!r}). "
                "All hosts are down; mend what it names."
            )
