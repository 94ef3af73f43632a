"""
An interrupted epoch is resumed: no sample comes twice, and none is lost.
"""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampler_worlds import QUICK, SIZES, WORLDS
from torch.utils.data import DataLoader

from ddp_lessons.errors import BadInput
from ddp_lessons.samplers import (
    ResumableSampler,
    shard_indices,
)


def world_of(world_size, num_samples, state=None, epoch=0, **options):
    """
    Return the samplers of all ranks of a world, resumed if a state is given.
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
    With the same world size, every rank continues with exactly the sample that would have come
    next.
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
    However often the world size changes, every sample that is not marked as padding occurs exactly
    once. Only `drop_last` leaves samples out: fewer than there are ranks, at the end.
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
    A state that is saved after an epoch, and resumed with that epoch's number, does not repeat the
    epoch.
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
    Only the first pass after loading is short; `set_epoch` of the same epoch does not change that.
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


def test_deliver_counts_what_the_loop_got_and_not_what_workers_read_ahead():
    """
    Two workers with two batches each read 8 samples more than the loop has got. A state that
    counted these would lose them.
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
    # 16 samples are left in batches of 3: the last batch has one, and the epoch ends with it.
    assert positions == [8 + 2 * 3 * k for k in range(1, 6)] + [40]
    assert resumed.state_dict()["position"] == 40


@pytest.mark.parametrize("num_batches", [0, 1, 3])
def test_deliver_without_workers_and_over_epochs(num_batches):
    """
    The count starts again with each epoch, and an abandoned epoch has no effect on it.
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
    A generator that is still open must not count for the next epoch.
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
    A loader that does not use this sampler is refused, because its batches are not the sampler's to
    count (claim C05).
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
    A position in another order is meaningless: some samples would come twice, and others never.
    """
    sampler = world_of(2, 10)[0]
    with pytest.raises(BadInput, match=fault):
        sampler.load_state_dict({**sampler.state_dict(), **change})
    with pytest.raises(BadInput, match="got nothing"):
        sampler.load_state_dict({})


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("cut", [0, 3, 5])
def test_resumable_sampler_serves_a_stateful_data_loader(num_workers, cut):
    """
    torchdata asks a sampler for its state at each batch, and restores it by the same two methods.
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
    # The next pass is complete again.
    assert [i for batch in loader for i in batch.tolist()] == whole


def test_resumable_sampler_keeps_the_protocol_that_torchdata_expects():
    """
    This tests torchdata's protocol where it is not installed. The state is taken before a pass
    ends. It is loaded after a first iterator was made and dropped. A second iterator follows at
    once if the epoch had ended.
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
