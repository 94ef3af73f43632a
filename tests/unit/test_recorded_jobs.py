"""
The recorded jobs of tasks 09.4 and 10.1: they are complete, correct, and reveal nothing of the
machine.
"""

import importlib
import json
import re
import socket
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from packaging.version import Version
from paths import ROOT

from ddp_lessons import checks, hangs, launch
from ddp_lessons.checks.kit import Case
from ddp_lessons.checks.kit.judging import CaseResult, judge_own
from ddp_lessons.checks.kit.on_rank.rank_record import AnswerCall, RankRecord
from ddp_lessons.checks.kit.shared.corpus import recorded_jobs
from ddp_lessons.checks.kit.task_registry import find_task
from ddp_lessons.course.doctor.doctor import NEWEST_TRIED_TORCH, OLDEST_TORCH
from ddp_lessons.errors import WrongAnswer

failed, hung = (importlib.import_module(find_task(number).module) for number in ("09.4", "10.1"))
CORPORA = sorted(Path(checks.__file__).parent.glob("*/recorded/torch_*.json"))
LOGS = [file for file in CORPORA if file.parts[-3] == "launch"]
STACKS = [file for file in CORPORA if file.parts[-3] == "hangs"]
NEUTRAL_PATH = re.compile(r"/home/learner/|/usr/lib/python3\.\d+/|https://pytorch\.org/")
MOST_BYTES = 300 * 1024


def name_of(file):
    return f"{file.parts[-3]}-{file.stem}"


def jobs_of(file):
    return json.loads(file.read_text())["jobs"]


def texts_of(job):
    return [*job["files"].values()] if "files" in job else job["dumps"]


every_corpus = pytest.mark.parametrize("file", CORPORA, ids=name_of)
every_log = pytest.mark.parametrize("file", LOGS, ids=name_of)
every_stack = pytest.mark.parametrize("file", STACKS, ids=name_of)


def test_each_task_has_a_corpus_of_each_version():
    """
    Both tasks have a recording of each tested torch: the oldest, CI's and the newest one. Record
    a missing one with `make corpus TORCH=2.14.1`.
    """
    (pinned,) = re.findall(r"^torch==([\d.]+)", (ROOT / "requirements.lock").read_text(), re.M)
    tested = {Version(text).release[:2] for text in (OLDEST_TORCH, pinned, NEWEST_TRIED_TORCH)}
    for corpora in (LOGS, STACKS):
        recorded = {Version(file.stem.removeprefix("torch_")).release[:2] for file in corpora}
        assert recorded == tested


@every_corpus
def test_a_corpus_tells_nothing_of_the_machine(file):
    """
    Recordings contain no folders, hosts or process ids of the machine that made them.
    """
    assert file.stat().st_size < MOST_BYTES
    for text in (text for job in jobs_of(file) for text in texts_of(job)):
        for path in re.findall(r"(?<![\w.<])(?:/|\w+://)[\w.-]+/[^\s\"',]*", text):
            assert NEUTRAL_PATH.match(path), path
        assert {*re.findall(r"(?<=host      : )\S+", text)} <= {"node1"}
        assert all(
            4000 < int(pid) < 4010 for pid in re.findall(r"(?:pid: |PID |ocess )(\d+)", text)
        )
        assert {*re.findall(r"\d{4}-\d\d-\d\d(?=_)", text)} <= {"2026-01-15"}
        assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text) or (
            socket.gethostname() == "localhost"
        )


@pytest.mark.parametrize("module", [failed, hung], ids=["09.4", "10.1"])
@pytest.mark.parametrize("file", LOGS, ids=lambda file: file.stem)
def test_a_check_finds_what_it_draws(module, file, monkeypatch):
    """
    Each check finds recorded jobs of every kind that its cases draw. A missing kind would break
    only one check in many.
    """
    version = file.stem.removeprefix("torch_")
    monkeypatch.setattr(module, "recorded_jobs", lambda folder: recorded_jobs(folder, version))
    drawn = []
    for seed in range(40):
        for case in module._cases(Random(seed)):
            jobs = module._jobs(case if case.seed is not None else replace(case, seed=seed))
            drawn.append(json.dumps([*jobs.values()] if isinstance(jobs, dict) else jobs))
    assert len(set(drawn)) > 60  # the draws differ between checks


@every_log
def test_who_failed_is_true_of_each_log(file):
    """
    The library's own reader finds the culprit of each recorded job, so a learner's answer can, too.
    """
    for job in jobs_of(file):
        files = job["files"]
        assert sorted(files) == ["rank-0.txt", "rank-1.txt", "rank-2.txt", "torchrun.txt"]
        logs = [files[f"rank-{rank}.txt"] for rank in range(3)]
        assert launch.who_failed(files["torchrun.txt"], logs) == failed.right_answer(job)


@every_log
def test_logs_hold_what_misleads(file):
    """
    The logs contain what misleads a reader: root causes that are collateral, errors that a rank
    survived, and tracebacks that end early.
    """
    jobs = [job for job in jobs_of(file) if job["kind"] != "stopped"]
    roots = [launch.root_cause(job["files"]["torchrun.txt"])[0] for job in jobs]
    assert any(root != job["culprit"] for root, job in zip(roots, jobs, strict=True))
    culprits = [job["files"][f"rank-{job['culprit']}.txt"] for job in jobs]
    assert any("cache.bin is busy" in log for log in culprits)
    cut = re.compile(r"Traceback [^\n]*\n(?:  [^\n]*\n)*\Z")
    assert any(cut.search(text) for job in jobs for text in job["files"].values())
    errors = {launch.last_error(log) for log in culprits}
    assert {"OSError", "ValueError", "KeyError", None} <= errors


@every_stack
def test_the_culprit_is_the_odd_one_in_each_job(file):
    """
    In each recorded job all ranks but the culprit are at the same lines of the script, and the
    library finds the culprit.
    """
    for job in jobs_of(file):
        stacks = {rank: hangs.read_stack(dump) for rank, dump in enumerate(job["dumps"])}
        ((rank, frame),) = hangs.odd_frames(stacks, hung.SCRIPT).items()
        assert (rank, frame.line) == hung.right_answer(job)
        waiting = [hangs.own_frames(stack, hung.SCRIPT) for r, stack in stacks.items() if r != rank]
        assert all(frames == waiting[0] for frames in waiting)
        digits = len(str(job["line"]))
        assert digits == job["digits"] or (digits, job["digits"]) == (1, 2)
        numbers = {frame.line for r in stacks if r != rank for frame in stacks[r]}
        assert job["line"] in numbers or job["library"] != "at the same number"


def test_the_nearest_version_is_taken(tmp_path):
    """
    The nearest version's recording is used. Another minor version prints other lines, and an older
    one is more similar than a newer one.
    """
    for minor in ("2.9", "2.13", "2.14"):
        (tmp_path / f"torch_{minor}.json").write_text(json.dumps({"jobs": [minor]}))
    versions = ("2.13.0+cpu", "2.12.1", "2.14.1", "2.20.0a0+git", "2.8.0")
    taken = [recorded_jobs(tmp_path, version)[0] for version in versions]
    assert taken == ["2.13", "2.9", "2.14", "2.14", "2.9"]


JOB = next(
    job
    for job in jobs_of(STACKS[0])
    if (job["fault"], job["digits"], job["library"]) == ("waits in a helper", 3, "at other lines")
)
CULPRIT = JOB["culprit"]
WAITING = next(rank for rank in range(3) if rank != CULPRIT)


def line_in(rank, mark):
    """
    Return the line number of the last frame of a rank's dump that is in function `mark`.
    """
    return int(re.search(rf"line (\d+) in {mark}$", JOB["dumps"][rank], re.MULTILINE)[1])


@pytest.mark.parametrize(
    ("who", "line", "mistake", "fact"),
    [
        (CULPRIT, line_in(CULPRIT, "get"), "library-line", "is a library's"),
        (WAITING, line_in(WAITING, "reduce"), "library-line", "is a library's"),
        (CULPRIT, line_in(CULPRIT, "fetch"), "other-script", f"is one of {hung.HELPER}"),
        (WAITING, line_in(WAITING, "train"), "waiting-rank", f"rank {WAITING} is where"),
        (WAITING, 1, "waiting-rank", f"rank {WAITING} is where"),
        (-1, 1, "waiting-rank", "rank -1 is"),
        (4, 1, "waiting-rank", "rank 4 is"),
        (CULPRIT, line_in(CULPRIT, "<module>"), "shared-line", "other ranks' dumps hold line"),
        (CULPRIT, line_in(CULPRIT, "main"), "outer-line", "a line further in"),
        (CULPRIT, JOB["line"] // 10, "digits", "is not all digits"),
        (CULPRIT, 99999, "no-line", "line 99999 is in no dump of that rank"),
        (CULPRIT, "7", "no-pair", "it gave no rank and line"),
    ],
)
def test_hint_says_what_the_line_is_of(who, line, mistake, fact, monkeypatch):
    """
    The hint says what the answer's line belongs to, because an answer that reads the lines of all
    files may name any rank.
    """
    monkeypatch.setattr(hung, "_jobs", lambda case: [JOB])
    task, case = find_task("10.1"), Case(1, {"faults": [JOB["fault"]]}, seed=3)
    seen = [RankRecord(0, [AnswerCall(before=(), result=(who, line))])]
    with pytest.raises(WrongAnswer) as caught:
        judge_own(CaseResult(task, case, seen, [""]))
    assert caught.value.mistake == mistake
    assert fact in str(caught.value)
    assert f"In the job whose rank {CULPRIT} waits in a helper" in str(caught.value)
