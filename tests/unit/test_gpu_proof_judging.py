"""
The GPU proof: how it judges a notebook and a GPU's memory, and its report.
"""

import importlib
import json

import nbformat
import pytest
from paths import BENCHMARKS

GPU = {"name": "NVIDIA H200", "memory_mib": 143771}
MACHINE = {"gpus": [GPU, GPU], "driver": "580.1", "cuda": "13.0", "nccl": "2.28"}
MACHINE |= {"torch": "2.13.0", "python": "3.12.3", "cpu": "Xeon", "num_cores": 2}


@pytest.fixture
def bench(monkeypatch):
    """
    Return a function that imports a module of the benchmarks, as running its script does.
    """
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


def test_report_says_which_device_what_failed_and_what_differs(bench):
    """
    The report names the devices, the failures and the outputs that differ, because it is all that
    remains of a borrowed machine.
    """
    report = bench("proof_report")
    common = {"layout": "4 ranks", "seconds": 3.0, "log": "x.log"}
    outcome = {"name": "lesson 03_ring", "status": "passed", "why": "", "differing_cells": [4, 9]}
    figure = bench("figures").Figure("ring", "ms", (2.0,), "NCCL", (1.0,)).as_data()
    results = [
        common | {"name": "a", "status": "failed", "why": "one|two\n\n3\n4\n5\n6"},
        common | {"name": "b", "status": "passed", "why": "", "outcomes": [outcome]},
        common | {"name": "c", "status": "passed", "why": "", "figures": [figure]},
        {"name": "d", "layout": "8 ranks", "status": "skipped", "why": "needs 8 GPUs (got 2)"},
    ]
    document = json.loads(json.dumps(report.report_document("make gpu-proof", MACHINE, results)))
    assert report.report_slug(MACHINE) == "gpu-proof-2-x-nvidia-h200"
    assert document["totals"] == {"failed": 1, "passed": 2, "skipped": 1}
    assert set(document) == {"command", "date", "machine", "totals", "parts"}
    lines = report.report_text(document).splitlines()
    assert "| device | 2 x NVIDIA H200, 143771 MiB |" in lines
    assert "| driver | 580.1 |" in lines
    assert "2 passed, 1 failed, 1 skipped." in lines
    why = "one\\|two<br>3<br>4<br>5<br>and 1 lines more"
    assert f"| a | 4 ranks | failed | 3.0 | {why} |" in lines
    assert "| d | 8 ranks | skipped |  | needs 8 GPUs (got 2) |" in lines
    assert "| c | ring | 2 ms | 1 | NCCL | 2 |" in lines
    assert "| b | 4, 9 |" in lines


def cell(text="", *, raises=False, error=""):
    """
    Return a cell that printed a text, or raised.
    """
    new = nbformat.v4.new_code_cell(metadata={"tags": ["raises-exception"] if raises else []})
    if text:
        new.outputs.append(nbformat.v4.new_output("stream", name="stdout", text=text))
    if error:
        new.outputs.append(
            nbformat.v4.new_output("error", ename=error, evalue="no", traceback=[f"{error}: no"])
        )
    return new


def judged(bench, before, after, num_ranks=4):
    """
    Return the proof's judgement of two notebooks of these cells.
    """
    made = [nbformat.v4.new_notebook(cells=cells) for cells in (before, after)]
    return bench("proof_notebook").judge(*made, num_ranks)


def test_notebook_whose_cells_print_the_same_comes_out(bench):
    """
    A notebook with the same outputs passes without differences.
    """
    cells = [cell("[0] 1"), cell("ok: true"), cell(raises=True, error="ValueError")]
    assert judged(bench, cells, cells) == ([], {})


def test_notebook_with_another_output_comes_out_and_is_told(bench):
    """
    A notebook with other outputs passes, and the differences are listed: a lesson prints its
    device, which is no fault on a GPU.
    """
    before, after = [cell("4 ranks: cpu"), cell("ok: a")], [cell("4 ranks: cuda"), cell("ok: b")]
    assert judged(bench, before, after) == ([], {1: "4 ranks: cuda", 2: "ok: b"})
    assert judged(bench, before, after, num_ranks=2) == ([], {})


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ([cell("x")], [cell(error="RankDied")], "cell 1 raised RankDied: no"),
        ([cell(raises=True, error="A")], [cell(raises=True)], "cell 1 should raise"),
        ([cell("[1] ok: one\n[2] ok: two")], [cell("[1] ok: one")], "cell 1 lacks 1 ok line"),
    ],
)
def test_notebook_with_a_fault_does_not_come_out(bench, before, after, fault):
    """
    A notebook with an unexpected error, a missing error or a missing ok line fails.
    """
    (wrong,), _ = judged(bench, before, after)
    assert wrong.startswith(fault)


def test_memory_that_is_left_is_told(bench):
    """
    Memory that is still in use after the ranks' end is reported, so that a leak of one rank's
    tensors is not taken for the driver's rounding.
    """
    judge, mib = bench("proof_memory").judge, 2**20
    clean = {"before": 0, "with ranks": 2000, "a rank killed": 1500, "it was replaced": 2000}
    clean |= {"ranks stopped": 0, "kernel killed": 1}
    counts = {moment: number * mib for moment, number in clean.items()}
    assert judge(counts, 4, "cuda") == []
    (wrong,) = judge(counts | {"kernel killed": 258 * mib}, 4, "cuda")
    assert wrong == "kernel killed: 256 MiB more than there should be"
    (wrong,) = judge(counts | {"a rank killed": 2000 * mib}, 4, "cuda")
    assert wrong.startswith("a rank killed: 256 MiB")
    (wrong,) = judge(counts | {"with ranks": 900 * mib, "it was replaced": 0, "a rank killed": 0},
                     4, "cuda")  # fmt: skip
    assert wrong.startswith("with ranks: less than they hold")
