"""
The catalogue of faults, and the faults that are drawn from it.
"""

import ast
import re

import pytest
from faults import KINDS
from random_faults import WORLD_SIZES, plan, plan_of_kind


def test_plan_is_the_same_for_a_seed():
    """
    A seed always gives the same fault, so that the printed command repeats a failure.
    """
    assert [plan(seed) for seed in range(50)] == [plan(seed) for seed in range(50)]


def test_plan_reaches_every_kind():
    """
    Every kind of fault is drawn, and a thousand faults cover all world sizes.
    """
    assert {plan(seed).kind for seed in range(len(KINDS))} == set(KINDS)
    faults = [plan(seed) for seed in range(1000)]
    assert {fault.world_size for fault in faults} == set(WORLD_SIZES)
    assert all(fault.culprit != fault.other < fault.world_size for fault in faults)
    under_load = sum(fault.is_under_load for fault in faults)
    assert 150 < under_load < 250  # a fifth
    assert all(fault.has_model for fault in faults if KINDS[fault.kind].needs_model)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_kind_is_python_and_a_pattern(kind):
    """
    Each kind's cell compiles, and so does its pattern, because an error in a rare kind would show
    only when it is drawn.
    """
    first, second = plan_of_kind(kind, 2)
    assert first.kind == second.kind == kind
    assert first.seed < second.seed
    if kind != "syntax_error":
        cell = first.fill(KINDS[kind].cell)
        compile(cell, kind, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    re.compile(first.fill(KINDS[kind].message_pattern))
