"""
The training of the lesson on asynchronous methods, for a few steps.
"""

import torch
from worlds import run_world

from ddp_lessons.asynchronous import Queues, new_counters, weights_of
from ddp_lessons.asynchronous.comparison import compare, one_slow, seconds_of, slow_turns
from ddp_lessons.asynchronous.example import (
    WAYS,
    draw,
    make_way,
    own_items,
    serve,
    step_of_items,
    train,
)
from ddp_lessons.workloads import digits_model, load_digits


def test_own_classes_are_nobody_elses_and_all_are_there():
    """
    Each rank has its own digits, no digit has two ranks, and no digit is missing: the lesson says
    so.
    """
    digits = load_digits()
    seen = [set(), set(), set(), set()]
    for rank in range(4):
        for step in range(20):
            seen[rank] |= set(draw(digits, rank, 4, step, spread=False)[1].tolist())
    assert [sorted(own) for own in seen] == [[0, 1, 2], [3, 4], [5, 6, 7], [8, 9]]
    images, labels = draw(digits, 0, 4, 0)
    assert images.shape == (32, 64)
    assert len(set(labels.tolist())) > 5
    assert torch.equal(images, draw(digits, 0, 4, 0)[0])


def _compared(rank, world_size):
    digits = load_digits()
    trained = {
        name: [
            train(make_way(name, digits_model(seed=0)), digits, spread, num_gradients=112)
            for spread in (True, False)
        ]
        for name in WAYS
    }
    trained = {name: (both[0], both[1][0]) for name, both in trained.items()}
    served = [
        serve(digits_model(seed=0), digits, ticks, spread=spread, num_gradients=56)
        for ticks, spread in ((one_slow, True), (slow_turns, True), (one_slow, False))
    ]
    return trained, served


def test_table_counts_bytes_and_ticks():
    """
    The table counts 28 steps on 4 ranks. Local SGD and DiLoCo meet twice, with 19,240 bytes each
    time.
    """
    results = run_world(4, _compared)
    rows = compare(*map(list, zip(*results, strict=True)))
    found = {name: numbers for name, *numbers in rows}
    assert list(found) == ["lockstep", "local SGD", "DiLoCo", "gossip", "server"]
    whole = 4810 * 4
    assert found["lockstep"][:3] == [28 * whole, 84, 84]
    assert found["local SGD"][:3] == found["DiLoCo"][:3] == [2 * whole, 84, 44]
    # gossip exchanges once more at the end; every rank waits for the slow one in turn
    assert found["gossip"][:2] == [29 * whole, 84]
    assert found["server"][1] == 24  # 56 updates: two a tick, a third in every third tick
    assert all(loss < 2.5 for *_, loss, _ in rows)


def _seconds(rank, world_size):
    digits = load_digits()
    return [seconds_of(name, digits, 0.01, 16) for name in ("lockstep", "server")]


def test_seconds_are_those_of_the_last_rank():
    """
    The duration is that of the slowest rank. In lockstep each of four steps waits until rank 3 has
    slept for three ticks. With a server, one of three workers makes 6 or more of 16 gradients.
    """
    results = run_world(4, _seconds)
    assert results == [results[0]] * 4
    lockstep_s, server_s = results[0]
    assert lockstep_s >= 4 * 3 * 0.01
    assert server_s >= 6 * 0.01


def _items(rank, world_size):
    digits, found = load_digits(), []
    for take in (own_items(rank, 6), Queues(new_counters(), [6] * world_size, rank).take):
        model = digits_model(seed=0).double()
        digits = type(digits)(digits.train_images.double(), digits.train_labels, None, None)
        num_done, ticks = step_of_items(model, digits, take, 3 if rank == 1 else 1, 0.5)
        found.append((num_done, ticks, weights_of(model).tolist()))
    return found


def test_stolen_items_make_the_same_step_in_less_time():
    """
    Ranks that steal items make the same step in less time. The sums over ranks are divided by the
    number of all items; a mean of the ranks' means would be wrong, because ranks do unequal numbers
    of items.
    """
    results = run_world(2, _items)
    (own, stolen), (slow_own, slow_stolen) = results
    assert [own[:2], slow_own[:2]] == [(6, 18), (6, 18)]
    assert [stolen[:2], slow_stolen[:2]] == [(9, 9), (3, 9)]
    before = weights_of(digits_model(seed=0).double())
    for weights in (own[2], slow_own[2], slow_stolen[2]):
        off = torch.tensor(weights) - torch.tensor(stolen[2])
        assert off.abs().max() < 1e-6 < 1e-3 < (before - torch.tensor(stolen[2])).abs().max()
