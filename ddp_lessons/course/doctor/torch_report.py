"""
The doctor's report about torch, from a separate process that is killed at a deadline.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

DEADLINE_S = 60


@dataclass(frozen=True)
class TorchReport:
    """
    The facts that the torch probe found.

    Args:
        version: The version of torch, or None if torch could not be imported.
        cuda: Version of the CUDA (or ROCm) runtime in torch's wheel, or None.
        num_gpus: Number of GPUs that torch can use.
        backends: Names of the torch.distributed backends that torch was built with.
        fork_s: Seconds of a 2-rank all-reduce, forking the ranks included; None if it failed.
        spawn_s: The same with spawned ranks; None if it failed or was not tried.
        error: Message of the error, or "".
        num_private_names: How many private names of other packages the course uses; 0: not known.
        gone: Each private name that is gone, with the promise that is weaker without it.
        cell_s: Seconds of a cell with an all-reduce on two ranks of ours; None if it failed.
        cell_error: Message of its error, or "".
    """

    version: str | None = None
    cuda: str | None = None
    num_gpus: int = 0
    backends: tuple = ()
    fork_s: float | None = None
    spawn_s: float | None = None
    error: str = ""
    num_private_names: int = 0
    gone: tuple = ()
    cell_s: float | None = None
    cell_error: str = ""


def read_torch_report(text, error=""):
    """
    Return the TorchReport that is in the output of the torch probe.

    Args:
        text: The probe's standard output: one line of JSON for each step.
        error: Reason why the probe ended early, or "".
    """
    facts: dict = {}
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            facts |= json.loads(line)
    return TorchReport(
        version=facts.get("version"),
        cuda=facts.get("cuda"),
        num_gpus=facts.get("num_gpus", 0),
        backends=tuple(facts.get("backends", ())),
        fork_s=facts.get("fork_s"),
        spawn_s=facts.get("spawn_s"),
        error=error or facts.get("spawn_error") or facts.get("fork_error", ""),
        num_private_names=facts.get("num_private_names", 0),
        gone=tuple(map(tuple, facts.get("gone", ()))),
        cell_s=facts.get("cell_s"),
        cell_error=facts.get("cell_error", ""),
    )


def ask_torch(deadline_s=DEADLINE_S, module="ddp_lessons.course.doctor.torch_probe"):
    """
    Run the torch probe in its own process group, which is killed at the deadline.

    Args:
        deadline_s: Seconds after which the probe and its ranks are killed.
        module: The module to run; it prints JSON lines.

    Returns:
        TorchReport: The facts that it found until then.
    """
    environment = dict(os.environ)
    if sys.platform.startswith("linux"):
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory(prefix="ddp-doctor-") as folder:  # mode 0700
        output_path = Path(folder) / "output"
        with output_path.open("w") as output, open(f"{folder}/stderr", "w") as errors:
            probe = subprocess.Popen(
                [sys.executable, "-m", module, folder],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
            error = ""
            try:
                if probe.wait(timeout=deadline_s) != 0:
                    error = f"the probe ended with exit code {probe.returncode}"
            except subprocess.TimeoutExpired:
                error = f"no answer within {deadline_s:g} s"
            finally:
                # Kill the group even after a good end: a rank may have outlived its parent.
                with contextlib.suppress(OSError):
                    os.killpg(probe.pid, signal.SIGKILL)
                probe.wait()
        last_words = Path(f"{folder}/stderr").read_text(errors="replace").strip().splitlines()
        if error.startswith("the probe ended") and last_words:
            error = last_words[-1]
        return read_torch_report(output_path.read_text(), error)
