"""
TensorBoard beside a notebook: on loopback, on a port of its own, ended with the kernel.

TensorBoard asks nobody for a password, and any user of the machine can open a port of loopback. So
its address has a secret part, which is in no command line, and without it nothing is shown.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Self

from ..errors import StartFailed
from ..jobs import Job, start_job

if TYPE_CHECKING:
    from pathlib import Path

_ADDRESS = re.compile(r"at (http://127\.0\.0\.1:(\d+)/\w+)/")
_SECRET = "DDP_LESSONS_BOARD_SECRET"
_MAIN = (
    f"import os, sys; sys.argv.append('--path_prefix=/' + os.environ[{_SECRET!r}]); "
    "from tensorboard.main import run_main; run_main()"
)
_LAST_LINES = 5


def open_board(folder: Path | str, timeout_s: float = 60.0) -> Board:
    """
    Start TensorBoard, and return when it answers. Call it in the notebook, not on the ranks.

    Args:
        folder: The folder of the runs: each folder in it that holds events is a run.
        timeout_s: Seconds that it has to start.

    Returns:
        Board: In JupyterLab it shows itself as the last line of a cell.

    Raises:
        StartFailed: It ended, or did not answer in time.

    Lesson: 12_metrics.
    """
    # Port 0: the system gives a free one. The fast loader is a process that may outlive its parent.
    words = ["python", "-P", "-c", _MAIN, "--logdir", str(folder), "--host", "127.0.0.1",
             "--port", "0", "--load_fast", "false", "--reload_interval", "1"]  # fmt: skip
    # Another user may read a command line, but neither an environment nor a scratch folder.
    job = start_job(words, env={_SECRET: secrets.token_hex(16)}, has_scratch=True)
    deadline = time.monotonic() + timeout_s
    while not (found := _ADDRESS.search(job.stderr)):
        if not job.is_running or time.monotonic() > deadline:
            job.end()
            said = "; ".join(job.stderr.splitlines()[-_LAST_LINES:]) or "nothing"
            raise StartFailed(
                f"TensorBoard did not start: an address within {timeout_s:g} s expected (got "
                f"{said}). Run pip install tensorboard, or look at what it says."
            )
        job.wait(0.05)
    return Board(job, found[1], int(found[2]))


class Board:
    """
    Hold a TensorBoard that runs. Use it in a `with`, or end it; the kernel's end is its own, too.

    Attributes:
        url: Its address, on this machine only; whoever knows it can look.
        port: The port in it.
    """

    def __init__(self, job: Job, url: str, port: int) -> None:
        self.url, self.port, self._job = url, port, job

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def __repr__(self) -> str:
        # Without the port, which is another one each time.
        return f"<Board: {'on this machine only' if self._job.is_running else 'ended'}>"

    def _repr_html_(self):
        # A server of Jupyter sets this for its kernels. Without one, no browser shows the frame.
        if "JPY_SESSION_NAME" not in os.environ or not self._job.is_running:
            return None
        frame = f'<iframe src="{self.url}/" title="TensorBoard" width="100%" height="600"></iframe>'
        return (
            f'{frame}<p><a href="{self.url}/" target="_blank">In a tab of its own</a>. '
            "Nothing there? The notebook may run on another machine than the browser. Type where "
            f"the browser is: <code>ssh -L {self.port}:127.0.0.1:{self.port} machine</code>.</p>"
        )

    def runs(self) -> list[str]:
        """
        Return the names of the runs that it shows; it reads their folder once a second.
        """
        return sorted(self._ask("data/runs"))

    def scalars(self, run: str, name: str, timeout_s: float = 30.0) -> list[tuple[int, float]]:
        """
        Return the points of a curve as the page draws them: (step, value).

        Args:
            run: The folder's name.
            name: The curve's.
            timeout_s: Seconds to wait until it has read the run's folder.
        """
        deadline = time.monotonic() + timeout_s
        while run not in self.runs() and time.monotonic() < deadline:
            self._job.wait(0.1)
        query = urllib.parse.urlencode({"run": run, "tag": name})
        points = self._ask(f"data/plugin/scalars/scalars?{query}")
        return [(step, value) for _, step, value in points]

    def end(self) -> None:
        """
        End it, and wait until its processes are gone.
        """
        self._job.end()

    def _ask(self, path):
        with self._open(f"{self.url}/{path}") as reply:
            return json.load(reply)

    def _open(self, url):
        # Without a proxy: what the environment names does not lead to this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        return opener.open(url, timeout=30)
