"""
Fast ranks get more samples, all ranks have equally many steps, and every sample occurs once.
"""

from collections import Counter
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from sampler_worlds import QUICK, SIZES
from torch.utils.data import DataLoader
from worlds import run_world

from ddp_lessons.errors import BadInput
from ddp_lessons.samplers import (
    BalancedBatchSampler,
    balanced_shares,
    gather_throughputs,
)


@QUICK
@given(SIZES, st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=8))
@example(10, [1.0, 1.0, 1.0])
def test_balanced_shares_are_the_proportions_rounded(num_samples, speeds):
    """
    Shares are rounded by largest remainder: every share is within one of its exact value, and all
    samples are distributed.
    """
    shares = balanced_shares(num_samples, speeds)
    total = sum(Fraction(s) for s in speeds)
    assert sum(shares) == num_samples
    for share, speed in zip(shares, speeds, strict=True):
        assert abs(share - num_samples * Fraction(speed) / total) < 1


def test_balanced_shares_give_ties_to_the_lower_rank():
    """
    The lower rank gets a tie. Any fixed rule would do, but without a rule ranks might disagree.
    """
    assert balanced_shares(10, [1, 1, 1]) == [4, 3, 3]
    assert balanced_shares(10, [3, 1]) == [8, 2]


@pytest.mark.parametrize("speeds", [[], [1.0, 0.0], [1.0, float("nan")], [float("inf"), 1.0]])
def test_balanced_shares_refuse_what_is_no_speed(speeds):
    """
    Speeds that are missing, zero, infinite or nan are refused: a rank that measured nothing must
    not get all samples.
    """
    with pytest.raises(BadInput, match=r"^Bad speeds"):
        balanced_shares(10, speeds)


def balanced_world(num_samples, batch_size_global, speeds, **options):
    return [
        BalancedBatchSampler(
            range(num_samples),
            batch_size_global,
            speeds,
            rank=rank,
            world_size=len(speeds),
            **options,
        )
        for rank in range(len(speeds))
    ]


@QUICK
@given(
    st.integers(0, 300),
    st.integers(20, 60),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.integers(0, 3),
)
def test_balanced_batches_hold_every_sample_once(num_samples, batch_size, speeds, epoch):
    """
    All ranks have equally many steps, no batch is empty, and each sample occurs once. DDP needs
    exactly this.
    """
    try:
        samplers = balanced_world(num_samples, batch_size, speeds)
    except BadInput:
        # The refusal is right if a rank has less than one sample a step: its exact share is below
        # the number of steps.
        num_steps = -(-num_samples // batch_size)
        assert min(balanced_shares(num_samples, speeds)) < num_steps
        return
    seen = Counter()
    for sampler in samplers:
        sampler.set_epoch(epoch)
        batches = list(sampler)
        sizes = [len(batch) for batch in batches]
        assert len(batches) == len(sampler) == -(-num_samples // batch_size)
        assert sizes == sampler.batch_sizes()
        assert not sizes or 1 <= min(sizes) >= max(sizes) - 1
        seen.update(index for batch in batches for index in batch)
    assert seen == Counter(range(num_samples))


def test_balanced_batches_equalise_the_time_of_a_step():
    """
    A rank three times as slow slows down equal shards, but not shares by speed.

        The learning rate does not enter, since it does not change the duration of a step (claim
        C08).
    """
    speeds = [300.0, 100.0]  # samples per second
    samplers = balanced_world(400, 40, speeds)
    step_s = [max(s.batch_sizes()) / speed for s, speed in zip(samplers, speeds, strict=True)]
    assert [s.shares for s in samplers] == [[300, 100]] * 2
    assert step_s == [0.1, 0.1]
    assert 20 / min(speeds) == 2 * max(step_s), "equal shards of 20 would take twice as long"


def test_balanced_sampler_shares_anew_between_epochs():
    """
    Speeds change, so shares can be set between epochs. A refused change leaves them as they are.
    """
    sampler = balanced_world(100, 20, [1, 1])[0]
    assert sampler.shares == [50, 50]
    sampler.set_throughputs([3, 1])
    assert [len(batch) for batch in sampler] == [15] * 5
    with pytest.raises(BadInput, match=r"^Bad speeds: expected one for each rank \(got 3"):
        sampler.set_throughputs([1, 1, 1])
    with pytest.raises(BadInput, match=r"^Too slow a rank: .* 5 samples, .*got 1, rank 1 of 2"):
        sampler.set_throughputs([100, 1])
    assert sampler.shares == [75, 25]
    with pytest.raises(BadInput, match=r"^Bad batch size"):
        balanced_world(100, 0, [1, 1])


def _balance(rank, world_size):
    speeds = gather_throughputs(100.0 / 3 * (rank + 1))
    sampler = BalancedBatchSampler(range(101), 20, speeds)
    loader = DataLoader(torch.arange(101), batch_sampler=sampler)
    return speeds, sampler.shares, [i for batch in loader for i in batch.tolist()], len(loader)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_agree_on_shares_from_what_each_measured(world_size):
    """
    Every rank knows only its own speed, so speeds are gathered. Shares computed from local speeds
    would overlap.
    """
    results = run_world(world_size, _balance)
    assert all(result[:2] == results[0][:2] for result in results)
    assert results[0][0] == [100.0 / 3 * (rank + 1) for rank in range(world_size)]
    assert sorted(i for result in results for i in result[2]) == list(range(101))
    assert {result[3] for result in results} == {6}
