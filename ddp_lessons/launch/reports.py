"""
Read what torchrun says of a job that failed, and what its workers have said before.

A worker that fails takes the others along: they lose its connection, raise, and end too, or
torchrun ends them. So most of what is in the logs tells of victims.

torchrun's report lists those that it found dead, and calls one the root cause: the first that it
has *observed*. That may be a victim: of a rank that ended with exit code 0, in the middle of the
work, or of one that took long to end.

Legend: exit codes are as Python has them: -9 is an end by signal 9.
"""

import re
from collections.abc import Iterable

_BLOCK = re.compile(r"^ +rank +: (\d+).*\n +exitcode +: (-?\d+)", re.MULTILINE)
_ROOT = "Root Cause (first observed failure)"
_RAISED = re.compile(r"^(?:\[rank\d+\]: )?(\w[\w.]*(?:Error|Exception|Interrupt))\b", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last)"
_LOST_PEER = ("Connection", "connection", "peer", "Socket")
_OFTEN_SURVIVED = "OSError"  # of a file or a machine that is busy: scripts try once more
_SIGTERM = -15


def exit_codes(report: str) -> dict[int, int]:
    """
    Return {rank: exit code} of those that torchrun found dead.

    Args:
        report: What torchrun has printed.
    """
    return {int(rank): int(code) for rank, code in _BLOCK.findall(report)}


def root_cause(report: str) -> tuple[int, int] | None:
    """
    Return (rank, exit code) of what torchrun calls the root cause; None if it says nothing of it.

    Args:
        report: What torchrun has printed.

    Source: documentation of torchrun, "Error Propagation". Lesson: 09_launch.
    """
    _, found, block = report.partition(_ROOT)
    return next(iter(exit_codes(block).items()), None) if found else None


def recorded_error(report: str) -> str | None:
    """
    Return what the root cause raised, as the report has it; None if its code was not under @record.

    Args:
        report: What torchrun has printed.

    Source: documentation of torch.distributed.elastic.multiprocessing.errors. Lesson: 09_launch.
    """
    _, _, block = report.partition(_ROOT)
    _, found, trace = block.partition(_TRACEBACK)
    lines = [line.strip() for line in trace.partition("=====")[0].splitlines() if line.strip()]
    return lines[-1] if found else None


def last_error(log: str) -> str | None:
    """
    Return the name of the exception that ended a worker, or None. Not of one that it survived.

    Args:
        log: What the worker has printed.
    """
    _, found, end = log.rpartition(_TRACEBACK)
    names = _RAISED.findall(end) if found else []
    return names[-1] if names else None


def who_failed(report: str, logs: Iterable[str]) -> tuple[int | None, str]:
    """
    Return (rank, why) of the one that took the others along.

    Args:
        report: What torchrun has printed.
        logs: What each worker has printed, by rank.

    Returns:
        tuple: The rank, and "raised", "exited", "killed" or "left": an end with exit code 0, while
        others still worked. (None, "stopped") if torchrun itself was told to end.

    Lesson: 09_launch, task 09.4.
    """
    codes = exit_codes(report)
    if not codes:
        return None, "stopped"
    for rank, code in codes.items():
        if code < 0 and code != _SIGTERM:  # whatever it has raised before, and survived
            return rank, "killed"
    errors = {rank: last_error(log) for rank, log in enumerate(logs)}
    own = [
        rank
        for rank, error in errors.items()
        if error is not None and not any(word in error for word in _LOST_PEER)
    ]
    for rank, code in codes.items():
        if code > 0 and errors[rank] is None:
            return rank, "exited"
        if code > 0 and rank in own:
            return rank, "raised"
    # One that torchrun ended has raised, and took long to end; or it has survived what it raised,
    # and another one is to blame, who is not listed.
    for rank in errors:
        if rank not in codes:
            return rank, "left"
    return min(own, key=lambda rank: errors[rank] == _OFTEN_SURVIVED), "raised"
