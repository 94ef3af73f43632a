"""
Plans of buckets are torch's, and gradients as views into buckets save a copy.
"""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from replica_models import COPYING, batch, mlp
from worlds import run_world

from ddp_lessons.errors import BadInput
from ddp_lessons.replicas import (
    OverlappedReplica,
    plan_buckets,
)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 40), st.sampled_from([16, 32, 64])), min_size=1),
    cap_bytes=st.integers(1, 200),
    first_cap_bytes=st.integers(1, 200),
)
@settings(max_examples=100)
def test_plan_buckets_plans_as_torch_does(sizes, cap_bytes, first_cap_bytes):
    """
    The plan must be torch's own, because sums are equal bit for bit only with equal buckets.
    """
    dtypes = {16: torch.bfloat16, 32: torch.float32, 64: torch.float64}
    tensors = [torch.empty(size, dtype=dtypes[bits]) for size, bits in sizes]
    expected, _ = dist._compute_bucket_assignment_by_size(tensors, [first_cap_bytes, cap_bytes])
    assert plan_buckets(tensors, cap_bytes, first_cap_bytes) == [tuple(b) for b in expected]


def test_plan_buckets_holds_each_tensor_once():
    """
    Tensors have 8 bytes and the cap is 16: a bucket closes when the cap is reached, not when it is
    exceeded.
    """
    tensors = [torch.empty(2) for _ in range(5)]
    assert plan_buckets(tensors, cap_bytes=16) == [(0, 1), (2, 3), (4,)]
    assert plan_buckets(tensors, cap_bytes=16, first_cap_bytes=1) == [(0,), (1, 2), (3, 4)]
    assert plan_buckets([]) == []


@pytest.mark.parametrize("caps", [(0, None), (-1, None), (8, 0)])
def test_plan_buckets_refuses_a_cap_that_no_bucket_meets(caps):
    """
    A cap of 0 is refused: it could mean no cap or one tensor a bucket.
    """
    with pytest.raises(BadInput, match=r"^Bad bucket cap: .* more than 0 bytes \(got -?\d+\)\. "):
        plan_buckets([torch.empty(1)], *caps)


def _gradient_views(rank, world_size):
    answers = []
    for kind, is_view in ((OverlappedReplica, True), (COPYING, False)):
        ours = kind(mlp())
        ours(batch(rank)).sum().backward()
        kept = next(ours.parameters()).grad
        value = kept.clone()
        ours.zero_grad()
        ours(batch(rank, step=1)).sum().backward()
        answers.append(torch.equal(kept, value) is not is_view)
        largest = next(ours.parameters()).grad
        answers.append((largest.untyped_storage().nbytes() > largest.nbytes) is is_view)
    return answers


def test_gradient_as_bucket_view_saves_a_copy_and_says_its_price():
    """
    A gradient that is a view is overwritten by the next step; a copy is not.
    """
    assert run_world(2, _gradient_views) == [[True] * 4] * 2
