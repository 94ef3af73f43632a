"""
Tests of the proof on GPUs, without a GPU: it resumes, ends parts that overrun, and reports
failures.
"""

import importlib
import json
import subprocess
from types import SimpleNamespace

import pytest
from paths import ROOT
from processes import is_running

from ddp_lessons.errors import BadInput

BENCHMARKS = ROOT / "benchmarks"
CPU = {"gpus": [], "cuda": None, "torch": "2.13.0"}

COUNTS = """
import json, sys
from pathlib import Path
with open("runs", "a") as runs:
    runs.write("x")
outcome = {"name": "it", "status": sys.argv[2], "why": "rank 2 was late"}
Path(sys.argv[1]).write_text(json.dumps({"outcomes": [outcome]}))
"""
RAISES = "print('about to'); raise ValueError('no such GPU')"
DETACHES = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
open("child", "w").write(str(child.pid))
print("waiting for what never comes", flush=True)
time.sleep(600)
"""


@pytest.fixture
def bench(monkeypatch):
    """
    Return a function that imports a module of the benchmarks, with the import path of its script.
    """
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


@pytest.fixture
def proof(bench, tmp_path, monkeypatch):
    """
    Return a proof whose parts are small scripts: `part(name, source, ...)` makes a part, and
    `run(part, ...)` returns a result for each.
    """
    gpu_proof, parts, state = bench("gpu_proof"), bench("proof_parts"), bench("proof_state")
    monkeypatch.setattr(gpu_proof, "ROOT", tmp_path)

    def part(name, source, *words, limit_s=60, num_gpus=1):
        (tmp_path / f"{name}.py").write_text(source)
        layout = parts.Layout("shared", "4 ranks share one GPU, Gloo", 4, num_gpus)
        return parts.Part(name, layout, (f"{name}.py", "{answer}", *words), 5, limit_s)

    def run(*of, argv=(), gpu_names=("0",)):
        arguments = gpu_proof.parse_arguments(["--state", str(tmp_path / "state"), *argv])
        known = state.State(arguments.state, CPU)
        return gpu_proof.run_parts(list(of), known, arguments, list(gpu_names))

    return SimpleNamespace(part=part, run=run, folder=tmp_path)


def test_part_that_was_run_is_not_run_again(proof):
    """
    A part with a result is not run again, because GPU time is short.
    """
    part = proof.part("counts", COUNTS, "passed")
    first, again = proof.run(part), proof.run(part)
    assert first == again
    assert first[0]["status"] == "passed"
    assert (proof.folder / "runs").read_text() == "x"


def test_part_that_failed_runs_again_when_asked(proof):
    """
    With `--again` only the parts that failed are run again, as after a repair.
    """
    bad, good = proof.part("counts", COUNTS, "failed"), proof.part("good", COUNTS, "passed")
    proof.run(bad, good)
    proof.run(bad, good)
    assert (proof.folder / "runs").read_text() == "xx"
    proof.run(bad, good, argv=["--again"])
    assert (proof.folder / "runs").read_text() == "xxx"


def test_part_that_fails_is_told_with_its_log_and_the_rest_goes_on(proof, capsys):
    """
    A part that fails is reported with the end of its log, and the other parts are run.
    """
    results = proof.run(proof.part("raises", RAISES), proof.part("counts", COUNTS, "passed"))
    assert [result["status"] for result in results] == ["failed", "passed"]
    assert "exit status 1" in results[0]["why"]
    assert "ValueError: no such GPU" in results[0]["why"]
    assert "ValueError: no such GPU" in capsys.readouterr().out
    log = (proof.folder / "state" / "logs" / results[0]["log"]).read_text()
    assert log.startswith("about to\n")


def test_part_that_overruns_is_ended_with_all_that_it_started(proof):
    """
    A part that overruns is ended with all its processes: a rank that hangs would hold GPU memory
    for ever, and later parts would fail.
    """
    (result,) = proof.run(proof.part("detaches", DETACHES, limit_s=4))
    assert result["status"] == "failed"
    assert result["why"].startswith("it was ended after 4 s")
    assert "waiting for what never comes" in result["why"]
    assert not is_running(int((proof.folder / "child").read_text()))


def test_part_that_finds_nothing_has_failed(proof):
    """
    A part without an outcome has failed, even with exit status 0.
    """
    (result,) = proof.run(proof.part("silent", "print('done')"))
    assert (result["status"], result["why"]) == ("failed", "it found nothing\ndone")


def test_parts_that_do_not_fit_wait(proof):
    """
    A part that does not fit into the remaining time is not begun, because an interrupted part would
    be lost.
    """
    part = proof.part("counts", COUNTS, "passed")
    (result,) = proof.run(part, argv=["--budget-s", "4"])
    assert result["status"] == "not run yet"
    (result,) = proof.run(part, argv=["--only", "other"])
    assert result["status"] == "not run yet"
    assert not (proof.folder / "runs").exists()


def test_part_that_needs_more_gpus_is_skipped(proof):
    """
    A part that needs more GPUs is in the report as skipped, with the reason.
    """
    (result,) = proof.run(proof.part("counts", COUNTS, "passed", num_gpus=2))
    assert (result["status"], result["why"]) == ("skipped", "needs 2 GPUs (got 1)")


def test_state_of_another_machine_is_refused(bench, tmp_path):
    """
    The stored results of another machine are refused, because a report must describe one machine.
    """
    state = bench("proof_state")
    state.State(tmp_path, CPU)
    with pytest.raises(BadInput, match="Another machine's proof"):
        state.State(tmp_path, CPU | {"torch": "2.11.0"})


def test_part_sees_as_many_gpus_as_its_layout_says(bench, monkeypatch):
    """
    A part sees only as many GPUs as its layout has: with all GPUs visible, four ranks would not
    share one, and Gloo on a GPU would not be tried.
    """
    monkeypatch.setenv("PYTHONPATH", "/wheels")
    gpu_proof, names = bench("gpu_proof"), ["3", "5", "7", "9"]
    where = bench("proof_parts").layouts(4)
    seen = {
        name: gpu_proof.part_environment(SimpleNamespace(layout=layout), names)
        for name, layout in where.items()
    }
    assert {name: env["CUDA_VISIBLE_DEVICES"] for name, env in seen.items()} == {
        "shared": "3",
        "alone": "3",
        "each": "3,5,7,9",
    }
    assert seen["each"]["PYTHONPATH"] == f"{ROOT}:/wheels"
    assert where["each"].num_ranks == 4


def test_gpus_are_named_as_the_user_has_named_them(bench):
    """
    The proof uses the GPUs that CUDA_VISIBLE_DEVICES names: on a shared machine the others belong
    to other users.
    """
    visible_names = bench("gpu_proof").visible_names
    assert visible_names(None, 2) == ["0", "1"]
    assert visible_names("", 1) == ["0"]
    assert visible_names("3,GPU-8932f937", 2) == ["3", "GPU-8932f937"]
    assert visible_names("5,99", 1) == ["5"]  # CUDA ignores all names from the first missing GPU on


def test_proof_without_a_gpu_is_refused(bench, monkeypatch, capsys, tmp_path):
    """
    Without a GPU the proof is refused: a report with skipped parts only would look like a proof.
    """
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert bench("gpu_proof").main(["--state", str(tmp_path)]) == 2
    assert "No GPU: torch must see at least one (got 0)" in capsys.readouterr().err


@pytest.mark.parametrize("num_gpus", [0, 1, 2, 8])
def test_every_part_ends_in_time_and_its_script_is_there(bench, num_gpus):
    """
    The list of parts is consistent: names are unique, scripts exist, limits are long enough, and
    all lessons and exercises are in it. Without this test a mistake would first appear on a GPU
    only.
    """
    parts = bench("proof_parts").all_parts(ROOT, num_gpus)
    names = [bench("proof_state").slug(part.name) for part in parts]
    assert len(set(names)) == len(names)
    assert all((ROOT / part.command[0]).is_file() for part in parts)
    assert all("{answer}" in part.command for part in parts)
    assert all(part.expected_s < part.limit_s <= 480 for part in parts)
    stems = {path.stem for path in (ROOT / "notebooks/py").glob("*.py")}
    for layout in ("shared", "alone", "each"):
        of_layout = " ".join(name for name in names if name.endswith(layout))
        assert all(f"lesson-{stem}-{layout}" in of_layout for stem in stems)
        assert all(f"exercise-{stem}-{layout}" in of_layout for stem in stems)


@pytest.mark.timeout(600)
def test_proof_runs_on_a_cpu_and_goes_on(tmp_path):
    """
    The whole command works with a CPU in place of a GPU, from its script to the report, with real
    lessons, ranks and benchmarks, and a second run repeats no part.
    """
    command = ["scripts/gpu_proof.sh", "--stand-in", "cpu", "--state", str(tmp_path), "--only"]
    command += ["memory, alone", "lesson 00_ranks, shared", "cells, shared", "gpu tests"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert told.returncode == 0, told.stdout + told.stderr
    report = json.loads((tmp_path / "gpu-proof-cpu-stand-in.json").read_text())
    status = {part["name"]: part["status"] for part in report["parts"]}
    assert status["memory, alone"] == "passed"
    assert status["lesson 00_ranks, shared"] == "passed"
    assert status["cells, shared"] == "passed"
    assert status["gpu tests, shared"] == "skipped"
    assert status["faults 1 of 5, shared"] == "not run yet"
    assert status["ring, each"] == "skipped"
    assert (tmp_path / "gpu-proof-cpu-stand-in.md").exists()
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "..." not in again.stdout, "a part was run again"
