"""
Who sees which sample: against torch's own sampler, and as properties of whole worlds.

Indices are compared as integers. Tensors put in a set compare by identity: two ranks that see the
same samples would seem to share none.
"""

from collections import Counter
from fractions import Fraction

import pytest
import torch
import torch.distributed as dist
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler
from worlds import run_world

from ddp_lessons.errors import BadInput
from ddp_lessons.samplers import (
    BalancedBatchSampler,
    ExactSampler,
    ResumableSampler,
    ShardSampler,
    balanced_shares,
    epoch_order,
    exact_accuracy,
    gather_throughputs,
    shard_indices,
    shard_repeats,
    sum_counts,
)

SIZES = st.integers(0, 60)
WORLDS = st.integers(1, 7)
QUICK = settings(max_examples=40, deadline=None)  # no deadline: the machine may be busy


def shards_of(world_size, num_samples, **options):
    return [shard_indices(num_samples, rank, world_size, **options) for rank in range(world_size)]


@pytest.fixture
def lone_group():
    """
    A group of this process alone.
    """
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# Shards


@QUICK
@given(SIZES, WORLDS, st.booleans(), st.integers(0, 9), st.integers(0, 9), st.booleans())
@example(2, 7, True, 0, 0, False)  # fewer samples than ranks: repeated more than once
@example(2, 7, True, 0, 0, True)
def test_shards_equal_torchs_index_for_index(num_samples, world_size, shuffle, seed, epoch, drop):
    """
    A learner who replaces torch's sampler by ours must train on the same batches.
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
    What is not marked is every sample once; what is marked has been seen (C06).
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
    A sampler that draws from the global state would change the weights that are made after it.
    """
    before = torch.get_rng_state()
    epoch_order(10, seed=3)
    assert torch.equal(before, torch.get_rng_state())


def test_set_epoch_is_what_changes_the_order():
    """
    Without it all epochs are alike (C06).
    """
    sampler = ShardSampler(range(100), rank=0, world_size=2)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first


def test_shards_are_equal_only_if_every_rank_has_the_same_seed():
    """
    A seed of its own for each rank gives shards of the right length that overlap and leave gaps.
    """
    right = Counter(index for shard in shards_of(4, 100) for index in shard)
    wrong = Counter(index for rank in range(4) for index in shard_indices(100, rank, 4, seed=rank))
    assert right == Counter(range(100))
    assert wrong.total() == 100
    assert len(wrong) < 100


def test_a_sampler_that_the_loader_never_gets_distributes_nothing():
    """
    Making a sampler is not enough: without `sampler=` each rank sees every sample (C05, C07).
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
    It would silently get nothing, or another rank's samples.
    """
    with pytest.raises(BadInput, match=r"^Bad rank: expected 0 to 1 \(got"):
        ShardSampler(range(4), **place, world_size=2)


def test_without_a_group_rank_and_world_size_are_needed():
    """
    Guessing one rank of one would give every rank everything.
    """
    with pytest.raises(BadInput, match=r"^No process group"):
        ExactSampler(range(4))


# Exact evaluation


def _accuracies(rank, world_size, num_samples):
    is_right = [index % 3 == 0 for index in range(num_samples)]
    exact = list(ExactSampler(range(num_samples)))
    padded = list(ShardSampler(range(num_samples), shuffle=False))
    return (
        exact,
        exact_accuracy(sum(is_right[i] for i in exact), len(exact)),
        exact_accuracy(torch.tensor(sum(is_right[i] for i in padded)), len(padded)),
    )


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("world_size", "num_samples"), [(1, 7), (2, 7), (3, 7), (4, 7), (4, 3), (4, 8)]
)
def test_exact_accuracy_counts_every_sample_once(world_size, num_samples):
    """
    Padding biases the accuracy wherever the shards do not come out even; a rank may have none.
    """
    results = run_world(world_size, _accuracies, num_samples)
    seen = sorted(index for exact, _, _ in results for index in exact)
    assert seen == list(range(num_samples))
    right = sum(index % 3 == 0 for index in range(num_samples)) / num_samples
    assert [exact for _, exact, _ in results] == [right] * world_size
    if num_samples % world_size:
        assert all(padded != right for _, _, padded in results)


def test_exact_sampler_has_a_length():
    """
    A DataLoader asks for it.
    """
    samplers = [ExactSampler(range(7), rank=rank, world_size=3) for rank in range(3)]
    assert [len(sampler) for sampler in samplers] == [3, 2, 2]


def _large_counts(rank, world_size):
    large = 2**24 if rank == 0 else 1
    as_float = torch.tensor([float(large)])
    dist.all_reduce(as_float)
    flaws = []
    for wrong in (0.5, torch.tensor(0.5), torch.tensor([1, 2]), "3"):
        with pytest.raises(
            BadInput, match=rf"^Not a count: .*rank {rank} of {world_size}"
        ) as error:
            sum_counts(1, wrong)
        flaws.append(str(error.value))
    with pytest.raises(BadInput, match=r"^Nothing to evaluate"):
        exact_accuracy(0, 0)
    return sum_counts(large, torch.tensor(rank)), int(as_float.item()), flaws


@pytest.mark.ranks
def test_sum_counts_is_exact_where_float32_is_not():
    """
    float32 has no 2**24 + 1. And what is no count is refused before anything is sent.
    """
    for counts, as_float, flaws in run_world(2, _large_counts):
        assert counts == [2**24 + 1, 1]
        assert as_float == 2**24
        assert "float32" in flaws[1]


def test_a_group_of_one_counts_and_shares_as_one_process(lone_group):
    """
    A script that was written for many ranks runs on one.
    """
    _large_counts(0, 1)
    sampler = ExactSampler(range(5))
    assert list(sampler) == [0, 1, 2, 3, 4]
    assert exact_accuracy(4, len(sampler)) == 0.8
    assert BalancedBatchSampler(range(5), 2, gather_throughputs(7.5)).shares == [5]


# Resuming


def world_of(world_size, num_samples, state=None, epoch=0, **options):
    """
    Return the samplers of a whole world, resumed if a state is given.
    """
    samplers = []
    for rank in range(world_size):
        sampler = ResumableSampler(range(num_samples), rank=rank, world_size=world_size, **options)
        if state is None:
            sampler.set_epoch(epoch)
        else:
            sampler.load_state_dict(state)
        samplers.append(sampler)
    return samplers


@QUICK
@given(SIZES, WORLDS, st.integers(0, 12), st.booleans(), st.booleans(), st.integers(0, 3))
def test_resumed_epoch_is_the_uninterrupted_one(size, world_size, cut, shuffle, drop, epoch):
    """
    On the same world size, every rank goes on with exactly the sample that would have come next.
    """
    options = {"shuffle": shuffle, "drop_last": drop, "seed": 5}
    whole = [list(s) for s in world_of(world_size, size, epoch=epoch, **options)]
    for rank, sampler in enumerate(world_of(world_size, size, epoch=epoch, **options)):
        passing = iter(sampler)
        before = [next(passing) for _ in range(min(cut, len(sampler)))]
        state = sampler.state_dict()
        resumed = world_of(world_size, size, state, **options)[rank]
        assert len(resumed) == len(whole[rank]) - len(before)
        assert len(resumed.repeats) == len(resumed)
        assert before + list(resumed) == whole[rank]
        assert resumed.epoch == epoch


@QUICK
@given(SIZES, st.lists(WORLDS, min_size=1, max_size=4), st.lists(st.integers(0, 6)), st.booleans())
def test_resuming_on_other_world_sizes_repeats_and_loses_nothing(size, world_sizes, cuts, drop):
    """
    However often the world changes: all that is not marked as padding is every sample once; only
    `drop_last` leaves samples out, and fewer than there are ranks at the end.
    """
    seen, state = Counter(), None
    for turn, world_size in enumerate(world_sizes):
        samplers = world_of(world_size, size, state, drop_last=drop)
        is_last = turn == len(world_sizes) - 1
        num_each = len(samplers[0]) if is_last else cuts[turn] if turn < len(cuts) else 1
        states = []
        for sampler in samplers:
            passing, repeats = iter(sampler), sampler.repeats
            for _, is_repeat in zip(range(num_each), repeats, strict=False):
                index = next(passing)
                seen[index] += not is_repeat
            states.append(sampler.state_dict())
        assert all(s == states[0] for s in states), "ranks disagree after equally many steps"
        state = states[0]
    assert set(seen.values()) <= {1}
    num_lost = size - len(seen)
    assert num_lost == 0 or (drop and num_lost < max(world_sizes))


def test_an_ended_epoch_has_nothing_left_and_the_next_is_whole():
    """
    Saving after an epoch and resuming at its number must not run it twice.
    """
    done = world_of(2, 10)[0]
    list(done)
    (resumed, _) = world_of(2, 10, done.state_dict())
    seen = {}
    for epoch in range(resumed.epoch, 2):
        resumed.set_epoch(epoch)
        seen[epoch] = list(resumed)
    assert seen == {0: [], 1: shard_indices(10, 0, 2, epoch=1)}


def test_a_resumed_pass_is_resumed_once():
    """
    Only the first pass after loading is short; set_epoch of the same epoch does not undo it.
    """
    sampler = world_of(2, 10)[0]
    next(iter(sampler))
    sampler.load_state_dict(sampler.state_dict())
    sampler.set_epoch(0)
    whole = shard_indices(10, 0, 2)
    assert list(sampler) == whole[1:]
    assert list(sampler) == whole
    assert len(sampler) == 5


def _break_off(sampler, loader, num_batches):
    batches = []
    for batch in sampler.deliver(loader):
        batches.append(batch.tolist())
        if len(batches) == num_batches:
            break
    return batches


@pytest.mark.ranks
def test_deliver_counts_what_the_loop_got_and_not_what_workers_read_ahead():
    """
    Two workers with two batches each draw 8 samples more than the loop has got; a state that
    counts them would lose them.
    """
    whole = shard_indices(40, 0, 2)
    make = lambda: ResumableSampler(range(40), rank=0, world_size=2)  # noqa: E731
    naive = make()
    for number, _ in enumerate(DataLoader(range(40), 2, sampler=naive, num_workers=2), start=1):
        if number == 2:
            break
    assert naive.state_dict()["position"] > 2 * 2 * 2, "this test needs a loader that reads ahead"

    sampler = make()
    loader = DataLoader(range(40), 2, sampler=sampler, num_workers=2)
    assert [i for batch in _break_off(sampler, loader, 2) for i in batch] == whole[:4]
    state = sampler.state_dict()
    assert state["position"] == 2 * 2 * 2
    resumed = make()
    resumed.load_state_dict(state)
    loader = DataLoader(range(40), 3, sampler=resumed, num_workers=1)
    positions, rest = [], []
    for batch in resumed.deliver(loader):
        rest += batch.tolist()
        positions.append(resumed.state_dict()["position"])
    assert rest == whole[4:]
    # 16 samples left in batches of 3: the last holds one, and with it the epoch has ended.
    assert positions == [8 + 2 * 3 * k for k in range(1, 6)] + [40]
    assert resumed.state_dict()["position"] == 40


@pytest.mark.parametrize("num_batches", [0, 1, 3])
def test_deliver_without_workers_and_over_epochs(num_batches):
    """
    The count starts anew with each epoch, and an abandoned one leaves nothing behind.
    """
    sampler = world_of(2, 10)[0]
    loader = DataLoader(range(10), 2, sampler=sampler)
    if num_batches:
        _break_off(sampler, loader, num_batches)
    sampler.set_epoch(1)
    assert sampler.state_dict()["position"] == 0
    got = [i for batch in sampler.deliver(loader) for i in batch.tolist()]
    assert got == shard_indices(10, 0, 2, epoch=1)


def test_set_epoch_in_the_middle_of_a_delivery_forgets_its_count():
    """
    A generator that is still open must not count for the epoch that follows.
    """
    sampler = world_of(1, 10)[0]
    batches = sampler.deliver(DataLoader(range(10), 2, sampler=sampler, num_workers=0))
    next(batches)
    sampler.set_epoch(1)
    batches.close()
    assert sampler.state_dict()["position"] == 0
    batches = sampler.deliver(DataLoader(range(10), 2, sampler=sampler))
    next(batches)
    sampler.set_epoch(2)
    next(batches)
    assert sampler.epoch == 2


@pytest.mark.parametrize(
    ("make", "missing"),
    [
        (lambda s: DataLoader(range(10), 2), "this sampler"),
        (lambda s: DataLoader(range(10), None, sampler=s), "a batch size"),
        (lambda s: DataLoader(range(10), 2, sampler=s, in_order=False), "in_order=True"),
    ],
)
def test_deliver_refuses_a_loader_that_it_cannot_count(make, missing):
    """
    A sampler that the loader never got would count somebody else's batches (C05).
    """
    sampler = world_of(2, 10)[0]
    with pytest.raises(BadInput, match=f"must have {missing} "):
        sampler.deliver(make(sampler))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"seed": 1}, "^State of another order: expected seed=0"),
        ({"shuffle": False}, "^State of another order: expected shuffle=True"),
        ({"num_samples": 11}, "^State of another order: expected num_samples=10"),
        ({"position": 11}, "^Bad position: expected 0 to 10"),
        ({"position": -1}, "^Bad position"),
        ({"position": 2.0}, "^Bad position"),
        ({"extra": 1}, "^Not a sampler's state"),
    ],
)
def test_load_state_dict_refuses_a_state_of_another_order(change, fault):
    """
    A place in another order is no place: samples would come twice, and others never.
    """
    sampler = world_of(2, 10)[0]
    with pytest.raises(BadInput, match=fault):
        sampler.load_state_dict({**sampler.state_dict(), **change})
    with pytest.raises(BadInput, match="got nothing"):
        sampler.load_state_dict({})


@pytest.mark.ranks
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("cut", [0, 3, 5])
def test_resumable_sampler_serves_a_stateful_data_loader(num_workers, cut):
    """
    torchdata asks a sampler for its state at each batch and restores it by the same two methods.
    """
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    whole = shard_indices(20, 1, 2)

    def make():
        sampler = ResumableSampler(range(20), rank=1, world_size=2)
        return sampler, stateful.StatefulDataLoader(
            range(20), 2, sampler=sampler, num_workers=num_workers
        )

    sampler, loader = make()
    with pytest.raises(BadInput, match="no count of its own"):
        sampler.deliver(loader)
    batches = iter(loader)
    before = [i for _ in range(cut) for i in next(batches).tolist()]
    state = loader.state_dict()
    del batches
    _, loader = make()
    loader.load_state_dict(state)
    assert before + [i for batch in loader for i in batch.tolist()] == whole
    # The pass after it is whole again.
    assert [i for batch in loader for i in batch.tolist()] == whole


def test_resumable_sampler_keeps_the_protocol_that_torchdata_expects():
    """
    Where torchdata is not installed: the state is taken before a pass ends, loaded after a first
    iterator was made and dropped, and a second iterator follows at once if the epoch had ended.
    """
    for num_drawn in range(6):
        sampler = world_of(2, 10)[0]
        passing = iter(sampler)
        before = [next(passing) for _ in range(num_drawn)]
        state = sampler.state_dict()
        sampler = world_of(2, 10)[0]
        dropped = iter(sampler)
        sampler.load_state_dict(state)
        assert before + list(iter(sampler)) == shard_indices(10, 0, 2)
        assert list(iter(sampler)) == shard_indices(10, 0, 2)
        dropped.close()


# Balance


@QUICK
@given(SIZES, st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=8))
@example(10, [1.0, 1.0, 1.0])
def test_balanced_shares_are_the_proportions_rounded(num_samples, speeds):
    """
    Largest remainder: every share within one of its exact part, all samples given out.
    """
    shares = balanced_shares(num_samples, speeds)
    total = sum(Fraction(s) for s in speeds)
    assert sum(shares) == num_samples
    for share, speed in zip(shares, speeds, strict=True):
        assert abs(share - num_samples * Fraction(speed) / total) < 1


def test_balanced_shares_give_ties_to_the_lower_rank():
    """
    Any fixed rule will do; without one, ranks might disagree.
    """
    assert balanced_shares(10, [1, 1, 1]) == [4, 3, 3]
    assert balanced_shares(10, [3, 1]) == [8, 2]


@pytest.mark.parametrize("speeds", [[], [1.0, 0.0], [1.0, float("nan")], [float("inf"), 1.0]])
def test_balanced_shares_refuse_what_is_no_speed(speeds):
    """
    A rank that measured nothing must not get everything, or an endless share.
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
    Equally many steps on all ranks, none empty, each sample once: what DDP needs, and no more.
    """
    try:
        samplers = balanced_world(num_samples, batch_size, speeds)
    except BadInput:
        # A rank with under one sample a step: its exact share is below the number of steps.
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
    A rank three times as slow sets the pace of equal shards; with shares by speed it does not.

    A learning rate does not enter: the step takes as long as before (C08).
    """
    speeds = [300.0, 100.0]  # samples per second
    samplers = balanced_world(400, 40, speeds)
    step_s = [max(s.batch_sizes()) / speed for s, speed in zip(samplers, speeds, strict=True)]
    assert [s.shares for s in samplers] == [[300, 100]] * 2
    assert step_s == [0.1, 0.1]
    assert 20 / min(speeds) == 2 * max(step_s), "equal shards of 20 would take twice as long"


def test_balanced_sampler_shares_anew_between_epochs():
    """
    Speeds change; a refused change leaves the shares alone.
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


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_agree_on_shares_from_what_each_measured(world_size):
    """
    Every rank knows its own speed only; shares computed from that would overlap.
    """
    results = run_world(world_size, _balance)
    assert all(result[:2] == results[0][:2] for result in results)
    assert results[0][0] == [100.0 / 3 * (rank + 1) for rank in range(world_size)]
    assert sorted(i for result in results for i in result[2]) == list(range(101))
    assert {result[3] for result in results} == {6}
