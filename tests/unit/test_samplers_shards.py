"""
Which rank sees which sample, compared index by index with torch's own sampler.

Indices are compared as integers. Tensors in a set compare by identity, so two ranks with the same
samples would seem to share none.
"""

from collections import Counter

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from sampler_worlds import QUICK, SIZES, WORLDS
from torch.utils.data import DataLoader, DistributedSampler

from ddp_lessons.errors import BadInput
from ddp_lessons.samplers import (
    ExactSampler,
    ResumableSampler,
    ShardSampler,
    epoch_order,
    shard_indices,
    shard_repeats,
)


def shards_of(world_size, num_samples, **options):
    return [shard_indices(num_samples, rank, world_size, **options) for rank in range(world_size)]


@QUICK
@given(SIZES, WORLDS, st.booleans(), st.integers(0, 9), st.integers(0, 9), st.booleans())
@example(2, 7, True, 0, 0, False)  # fewer samples than ranks, so some repeat more than once
@example(2, 7, True, 0, 0, True)
def test_shards_equal_torchs_index_for_index(num_samples, world_size, shuffle, seed, epoch, drop):
    """
    Our samplers give the same indices as torch's, so that a learner who replaces torch's trains on
    the same batches.
    """
    for rank in range(world_size):
        theirs = DistributedSampler(range(num_samples), world_size, rank, shuffle, seed, drop)
        theirs.set_epoch(epoch)
        for kind in (ShardSampler, ResumableSampler):
            ours = kind(range(num_samples), shuffle, seed, drop, rank=rank, world_size=world_size)
            ours.set_epoch(epoch)
            assert list(ours) == list(theirs)
            assert len(ours) == len(theirs)


@QUICK
@given(SIZES, WORLDS, st.booleans())
def test_shard_repeats_marks_the_padding_and_nothing_else(num_samples, world_size, drop):
    """
    Unmarked indices are every sample once, and marked ones are repeats (claim C06).
    """
    first, again = Counter(), Counter()
    for rank in range(world_size):
        indices = shard_indices(num_samples, rank, world_size, drop_last=drop)
        repeats = shard_repeats(num_samples, rank, world_size, drop)
        assert (
            repeats
            == ShardSampler(
                range(num_samples), drop_last=drop, rank=rank, world_size=world_size
            ).repeats
        )
        for index, is_repeat in zip(indices, repeats, strict=True):
            (again if is_repeat else first)[index] += 1
    assert set(first.values()) <= {1}
    assert set(again) <= set(first)
    num_dropped = num_samples % world_size if drop else 0
    assert len(first) == num_samples - num_dropped
    assert again.total() == (0 if drop else -num_samples % world_size)


def test_epoch_order_leaves_the_global_random_state_alone():
    """
    The order is drawn from a generator of its own. Draws from the global state would change the
    weights that are made later.
    """
    before = torch.get_rng_state()
    epoch_order(10, seed=3)
    assert torch.equal(before, torch.get_rng_state())


def test_set_epoch_is_what_changes_the_order():
    """
    Only `set_epoch` changes the order. Without it all epochs are alike (claim C06).
    """
    sampler = ShardSampler(range(100), rank=0, world_size=2)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first


def test_shards_are_equal_only_if_every_rank_has_the_same_seed():
    """
    Shards are a partition only if all ranks have the same seed. Different seeds give shards of the
    right length that overlap and leave gaps.
    """
    right = Counter(index for shard in shards_of(4, 100) for index in shard)
    wrong = Counter(index for rank in range(4) for index in shard_indices(100, rank, 4, seed=rank))
    assert right == Counter(range(100))
    assert wrong.total() == 100
    assert len(wrong) < 100


def test_a_sampler_that_the_loader_never_gets_distributes_nothing():
    """
    A sampler without `sampler=` in the loader has no effect: each rank sees every sample (claims
    C05, C07).
    """
    without, with_it = [], []
    for rank in range(2):
        sampler = ShardSampler(range(10), rank=rank, world_size=2)
        without.append([int(i) for i in DataLoader(range(10))])
        with_it.append([int(i) for i in DataLoader(range(10), sampler=sampler)])
    assert without[0] == without[1] == list(range(10))
    as_tensors = [set(map(torch.tensor, seen)) for seen in without]
    assert not as_tensors[0] & as_tensors[1], "in a set of tensors the overlap is not seen"
    assert not set(with_it[0]) & set(with_it[1])
    assert sorted(with_it[0] + with_it[1]) == list(range(10))


@pytest.mark.parametrize("place", [{"rank": 2}, {"rank": -1}])
def test_a_rank_outside_the_world_is_refused(place):
    """
    A rank outside the world is refused, because it would silently get no samples, or another
    rank's.
    """
    with pytest.raises(BadInput, match=r"^Bad rank: expected 0 to 1 \(got"):
        ShardSampler(range(4), **place, world_size=2)


def test_without_a_group_rank_and_world_size_are_needed():
    """
    Without a group, rank and world size are required, because a guess of one rank would give every
    rank all samples.
    """
    with pytest.raises(BadInput, match=r"^No process group"):
        ExactSampler(range(4))
