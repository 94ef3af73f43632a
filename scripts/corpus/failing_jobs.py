"""
Jobs under torchrun that fail, and the logs that they leave.
"""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from neutral import JOB, neutral

NUM_WORKERS = 3
DETAILS = {
    # kind of failure -> what differs from job to job
    "raised": ("batch 17 is empty", "loss is nan", "no such column: price", "shape (3, 4)"),
    "disk": ((28, "No space left on device"), (5, "Input/output error"), (122, "Quota exceeded")),
    "late": ("price", "label", "user id"),
    "exited": (1, 3, 134, 137, 139),  # a shell writes 128 + n for an end by signal n
    "killed": (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV),
    "left": ("",),
    "stopped": (signal.SIGTERM, signal.SIGINT, signal.SIGHUP),
}
STYLES = (
    ("--standalone",),
    ("--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"),
    ("--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=42"),
)
WATCHED_EVERY_S = (0.1, 0.3, 1.0)  # by torchrun: if long, collateral ranks fail before it looks
JOB_ENDS_WITHIN_S = 90.0


@dataclass(frozen=True)
class Plan:
    """
    The plan of one job: which rank fails, how, and what the other ranks do.

    Args:
        kind: One of DETAILS.
        culprit: The rank that fails. -1: torchrun itself gets a signal.
        detail: A message, (number, message) of an OSError, an exit code or a signal.
        survivors: Ranks that print the traceback of an error that they survive.
        busy: A rank that writes a checkpoint meanwhile, and notices nothing; -1: no rank.
        has_slow_disk: Whether tracebacks are written slowly, so that torchrun may cut them.
        style: Options of torchrun.
        watched_every_s: Seconds between two looks of torchrun at its ranks.
    """

    kind: str
    culprit: int
    detail: object
    survivors: tuple
    busy: int
    has_slow_disk: bool
    style: tuple
    watched_every_s: float


def plans(num_variants):
    """
    Return the Plans of a corpus: each kind with each culprit and each detail.

    Args:
        num_variants: Smallest number of jobs of each kind with each culprit.
    """
    found = []
    for kind, details in DETAILS.items():
        culprits = (-1,) if kind == "stopped" else range(NUM_WORKERS)
        variants = range(max(num_variants, len(details)))
        found += [_plan(kind, *each) for each in itertools.product(culprits, variants)]
    return found


def few_plans():
    """
    Return three Plans: a rank fails, torchrun's root cause is a collateral rank, no rank fails.
    """
    return [_plan("raised", 1, 0), _plan("left", 2, 0), _plan("stopped", -1, 0)]


def _plan(kind, culprit, variant):
    rng = Random(f"{kind} {culprit} {variant}")
    details = DETAILS[kind]
    others = [rank for rank in range(NUM_WORKERS) if rank != culprit]
    survivor, busy = rng.sample(others, 2)
    survives_first = kind in ("raised", "disk", "killed") and variant % 2 == 0
    can_be_busy = kind in ("raised", "disk", "exited", "killed") and variant % 3 != 2
    return Plan(
        kind=kind,
        culprit=culprit,
        detail=details[variant % len(details)],
        survivors=(survivor, culprit) if survives_first else (survivor,),
        busy=busy if can_be_busy else -1,
        has_slow_disk=variant % 2 == 1,
        style=STYLES[variant % len(STYLES)],
        watched_every_s=rng.choice(WATCHED_EVERY_S),
    )


def record(plan, folder):
    """
    Run a job to its end, and return its record: kind, culprit, detail, and the log files.

    Args:
        plan: The Plan.
        folder: An empty folder for the job.
    """
    shutil.copy(Path(__file__).with_name("train.py"), folder)
    report = Path(folder, "torchrun.txt")
    with report.open("w") as said:
        process = subprocess.Popen(
            _command(plan),
            cwd=folder,
            env=os.environ | {"JOB": json.dumps(asdict(plan)), "OMP_NUM_THREADS": "1"},
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C ends the recording, and does not reach the job
        )
    try:
        if plan.kind == "stopped":
            _wait_until_all_work(folder)
            process.send_signal(plan.detail)
        process.wait(JOB_ENDS_WITHIN_S)
    finally:
        process.kill()
    files = {"torchrun.txt": report.read_text()}
    for rank, log in enumerate(_logs(folder)):
        files[f"rank-{rank}.txt"] = log.read_text()
    return {
        "kind": plan.kind,
        "culprit": None if plan.culprit < 0 else plan.culprit,
        "detail": plan.detail,
        "files": neutral(files, {folder: JOB}),
    }


def _command(plan):
    options = [*plan.style, f"--monitor-interval={plan.watched_every_s}"]
    logs = ["--redirects=3", "--log-dir=logs", f"--nproc-per-node={NUM_WORKERS}"]
    return [sys.executable, "-m", "torch.distributed.run", *options, *logs, "train.py"]


def _logs(folder):
    return sorted(Path(folder).glob("logs/*/attempt_0/*/stdout.log"))


def _wait_until_all_work(folder):
    give_up_at = time.monotonic() + JOB_ENDS_WITHIN_S
    while time.monotonic() < give_up_at:
        logs = [log.read_text() for log in _logs(folder)]
        if len(logs) == NUM_WORKERS and all("step 3" in log for log in logs):
            return
        time.sleep(0.05)
    raise TimeoutError(
        f"The job did not start: expected step 3 of {NUM_WORKERS} ranks within "
        f"{JOB_ENDS_WITHIN_S:g} s (got {len(logs)} logs). Read {folder}."
    )
