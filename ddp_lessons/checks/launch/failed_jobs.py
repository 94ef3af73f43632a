"""
Jobs of torchrun that fail while a check waits for them, and what they leave: real logs.

A rank has torch imported already. So a fork of it is a torchrun at once, and its workers need no
torch. Each job takes less than a second.
"""

import os
import shutil
import signal
import sys
import time
import warnings
from pathlib import Path

from ddp_lessons.checks.launch import worker
from ddp_lessons.errors import StartFailed

NUM_WORKERS = 3
WAYS = ("raised", "exited", "killed", "left", "late", "stopped")
_LOOK_EVERY_S = 0.02


def import_torchrun():
    """
    Import what a fork needs, which takes a while the first time.
    """
    import torch.distributed.run  # noqa: F401


def make_logs(folder, wanted):
    """
    Run jobs of torchrun, side by side, to their ends.

    Args:
        folder: A folder that is there. Each job gets a folder in it.
        wanted: For each job (name, way, culprit, text), as `worker.main` takes them.

    Returns:
        dict: Name -> the folder with its logs: torchrun.txt, and rank-0.txt and so on.
    """
    started = {}
    for name, way, culprit, text in wanted:
        job = Path(folder, name)
        job.mkdir()
        started[name] = (job, way, _fork(job, way, culprit, text))
    until = time.monotonic() + worker.PATIENCE_S
    while any(pid for _, _, pid in started.values()) and time.monotonic() < until:
        for name, (job, way, pid) in started.items():
            if pid and way == "stopped" and _all_work(job):
                os.kill(pid, signal.SIGTERM)
                way = "was stopped"
            if pid and os.waitpid(pid, os.WNOHANG)[0]:
                pid = None
            started[name] = (job, way, pid)
        time.sleep(_LOOK_EVERY_S)
    late = [pid for _, _, pid in started.values() if pid]
    for pid in late:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if late:
        raise StartFailed(
            f"A job of the check did not end: expected all within {worker.PATIENCE_S:g} s (got "
            f"{len(late)} that still ran). Run the check again."
        )
    return {name: _gathered(job) for name, (job, *_) in started.items()}


def _fork(job, way, culprit, text):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of ours are not needed there
        pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        _be_torchrun(job, way, culprit, text)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def _be_torchrun(job, way, culprit, text):
    import torch.distributed.run

    os.setpgid(0, 0)
    os.chdir(job)
    said = os.open("torchrun.txt", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(said, stream)
    sys.stdout = sys.stderr = open(2, "w", closefd=False, buffering=1)  # noqa: SIM115
    sys.excepthook = sys.__excepthook__
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.environ["OMP_NUM_THREADS"] = "1"
    limits = ["--monitor-interval=0.05", f"--nproc-per-node={NUM_WORKERS}"]
    logs = ["--redirects=3", "--log-dir=logs", "--no-python", sys.executable, "-SE"]
    arguments = [*limits, "--standalone", *logs, worker.__file__, way, str(culprit), str(text)]
    torch.distributed.run.main(arguments)


def _all_work(job):
    files = [*job.glob("logs/*/attempt_0/*/stdout.log")]
    return len(files) == NUM_WORKERS and all("step 3" in file.read_text() for file in files)


def _gathered(job):
    for file in job.glob("logs/*/attempt_0/*/stdout.log"):
        shutil.copy(file, job / f"rank-{file.parent.name}.txt")
    shutil.rmtree(job / "logs")
    (job / "door").unlink(missing_ok=True)
    return job
