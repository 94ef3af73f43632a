"""
Recording works under the torch that is installed, and its texts are like the stored ones.
"""

import importlib
import re
import subprocess
import sys

import pytest
from paths import ROOT

from ddp_lessons import hangs, launch
from ddp_lessons.checks.kit.fixtures.corpus import recorded_jobs
from ddp_lessons.checks.kit.task_registry import find_task

failed, hung = (importlib.import_module(find_task(number).module) for number in ("09.4", "10.1"))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """
    A folder with a few jobs, recorded now.
    """
    folder = tmp_path_factory.mktemp("recorded")
    script = ROOT / "scripts" / "corpus" / "record.py"
    subprocess.run([sys.executable, script, "--few", "--into", folder], check=True)
    return folder


def kinds_of_lines(text):
    """
    Return the lines without what differs from job to job: numbers, signals, and ranks' own text.
    """
    lines = [line for line in text.splitlines() if not line.startswith(("    ", "  File"))]
    return {re.sub(r"\(SIG\w+\)|signal SIG\w+|-?\d+|[=-]{9,}", "#", line).strip() for line in lines}


def test_logs_are_like_the_stored_ones(recorded):
    """
    A torch that reports in another way needs a corpus of its own: `make corpus`.
    """
    stored = {
        line
        for job in recorded_jobs(failed._RECORDED)
        for line in kinds_of_lines(job["files"]["torchrun.txt"])
    }
    jobs = recorded_jobs(recorded / "launch" / "recorded")
    assert [job["kind"] for job in jobs] == ["raised", "left", "stopped"]
    for job in jobs:
        report = job["files"]["torchrun.txt"]
        logs = [job["files"][f"rank-{rank}.txt"] for rank in range(3)]
        assert launch.who_failed(report, logs) == failed.right_answer(job)
        assert kinds_of_lines(report) <= stored


def test_stacks_are_like_the_stored_ones(recorded):
    """
    A stack that begins in another way, or has other lines, would be read by nobody.
    """
    (job,) = recorded_jobs(recorded / "hangs" / "recorded")
    stacks = {rank: hangs.read_stack(dump) for rank, dump in enumerate(job["dumps"])}
    ((rank, frame),) = hangs.odd_frames(stacks, hung.SCRIPT).items()
    assert (rank, frame.line) == hung.right_answer(job)
    heads = {
        dump.splitlines()[0] for stored in recorded_jobs(hung._RECORDED) for dump in stored["dumps"]
    }
    assert {dump.splitlines()[0] for dump in job["dumps"]} <= heads
