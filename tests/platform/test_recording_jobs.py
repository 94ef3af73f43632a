"""
Tests that recording jobs works with the installed torch, and gives texts like the stored ones.
"""

import importlib
import re
import subprocess
import sys

import pytest
from paths import ROOT

from ddp_lessons import hangs, launch
from ddp_lessons.checks.kit.shared.corpus import recorded_jobs
from ddp_lessons.checks.kit.task_registry import find_task

failed, hung = (importlib.import_module(find_task(number).module) for number in ("09.4", "10.1"))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """
    Return a folder with a few jobs that were recorded for this test.
    """
    folder = tmp_path_factory.mktemp("recorded")
    script = ROOT / "scripts" / "corpus" / "record.py"
    subprocess.run([sys.executable, script, "--few", "--into", folder], check=True)
    return folder


def kinds_of_lines(text):
    """
    Return the set of lines without the parts that differ from job to job: numbers, signals, and
    tracebacks of ranks.
    """
    lines = [line for line in text.splitlines() if not line.startswith(("    ", "  File"))]
    return {re.sub(r"\(SIG\w+\)|signal SIG\w+|-?\d+|[=-]{9,}", "#", line).strip() for line in lines}


def test_logs_are_like_the_stored_ones(recorded):
    """
    Logs of new jobs are read correctly and have only lines known from the stored ones. A torch with
    other reports needs a new corpus: `make corpus`.
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
    Stacks of a new job are read correctly and begin like the stored ones: stacks of another form
    could not be read.
    """
    (job,) = recorded_jobs(recorded / "hangs" / "recorded")
    stacks = {rank: hangs.read_stack(dump) for rank, dump in enumerate(job["dumps"])}
    ((rank, frame),) = hangs.odd_frames(stacks, hung.SCRIPT).items()
    assert (rank, frame.line) == hung.right_answer(job)
    heads = {
        dump.splitlines()[0] for stored in recorded_jobs(hung._RECORDED) for dump in stored["dumps"]
    }
    assert {dump.splitlines()[0] for dump in job["dumps"]} <= heads
