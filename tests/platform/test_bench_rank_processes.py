"""
Tests of the ranks of benchmarks, and of the benchmark that compares a training step.
"""

import ast
import importlib

import pytest
from paths import BENCHMARKS


@pytest.fixture
def bench(monkeypatch):
    """
    Return a function that imports a module of the benchmarks, with the import path of its script.
    """
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


def test_in_turns_lets_each_begin_equally_often(bench):
    """
    Each sample goes first equally often, because the first one finds the machine in another state.
    """
    orders = [bench("rank_processes").in_turns(["a", "b", "c"], number) for number in range(3)]
    assert [order[0] for order in orders] == ["a", "b", "c"]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)


def test_training_step_runs_the_scripts_own_text_in_a_cell(bench):
    """
    The benchmark's cell contains the functions of the script itself, so that the same code is
    measured in both places.
    """
    training_step = bench("training_step")
    script = (BENCHMARKS / "training_script.py").read_text()
    cell, mark, rest = script.partition(training_step._END)
    assert mark
    names = {node.name for node in ast.parse(cell).body if isinstance(node, ast.FunctionDef)}
    assert names == {"prepare", "step_s"}
    assert "def main" in rest
    assert not any(f"def {name}" in rest for name in names)


def test_plans_of_training_step_hold_the_course_to_its_figure(bench):
    """
    The plans hold the cell to its limit of 1.03 times the script's time, so that no limit is lost.
    """
    training_step = bench("training_step")
    figures = bench("figures")
    limits = {plan.sample: plan.limit for plan in training_step.make_plans()}
    assert limits == {
        ("cell", "small"): 1.03,
        ("script, again", "small"): None,
        ("cell", "large"): 1.03,
        ("script, again", "large"): None,
    }
    samples = {("cell", "small"): [1.0, 10.4], ("script", "small"): [1.0, 10.0]}
    made = figures.make_figures(training_step.make_plans(), samples)
    assert [(round(figure.ratio, 2), figure.verdict) for figure in made] == [(1.02, "pass")]


def double(rank, number):
    """
    Return this rank and twice a number.
    """
    return rank, 2 * number


def fail_on_rank_1(rank):
    """
    Raise on rank 1, while the other rank waits for it.
    """
    import torch
    import torch.distributed as dist

    if rank == 1:
        raise RuntimeError("on purpose")
    dist.all_reduce(torch.zeros(1))


def test_run_ranks_returns_what_every_rank_returned(bench):
    """
    run_ranks returns the results of all ranks in rank order, because the ring's benchmark takes the
    slowest.
    """
    assert bench("rank_processes").run_ranks(2, double, 21) == [(0, 42), (1, 42)]


@pytest.mark.parametrize(("num_starts", "shares"), [(2, [3, 2]), (9, [1] * 5)])
def test_run_starts_shares_all_rounds_out(bench, num_starts, shares):
    """
    run_starts distributes all rounds over its starts, and makes no start without a round.
    """
    starts = bench("rank_processes").run_starts(num_starts, 5, 2, double)
    assert list(starts) == [[(0, 2 * share), (1, 2 * share)] for share in shares]


def test_run_ranks_ends_when_a_rank_raises(bench):
    """
    run_ranks ends with an error when a rank raises: a hanging benchmark would block all later ones.
    """
    with pytest.raises(bench("kernel").BenchmarkFailed, match="a rank raised or died"):
        bench("rank_processes").run_ranks(2, fail_on_rank_1)
