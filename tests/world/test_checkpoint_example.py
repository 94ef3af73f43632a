"""
The run of lesson 08: it has state that a weights-only checkpoint loses, and it resumes exactly.
"""

import io
import os
import signal

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from worlds import run_world

from ddp_lessons import checkpoint
from ddp_lessons.checkpoint import naive
from ddp_lessons.checkpoint.example import (
    KillsWhenSaved,
    flip_bit,
    forget,
    make_run,
    train,
    weights_of,
)
from ddp_lessons.workloads.runs import digits_run

NUM_SAMPLES = 83  # 21 for each of 4 ranks, so that an epoch ends within the steps of the test


def _made(idle_pass=True):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 3))
    images = torch.arange(NUM_SAMPLES * 64.0).sin().view(NUM_SAMPLES, 64)
    return make_run(model, images, idle_pass), images, torch.arange(NUM_SAMPLES) % 3


def _stop_and_go_on(rank, world_size):
    run, *data = _made()
    train(run, *data, 3)
    exact, weights_only = (
        torch.utils._pytree.tree_map(lambda leaf: getattr(leaf, "clone", lambda: leaf)(), state)
        for state in (checkpoint.capture(run), naive.capture(run))
    )
    train(run, *data, 5)
    right = weights_of(run)
    answers = []
    for restore, state in ((checkpoint.restore, exact), (naive.restore, weights_only)):
        again, *data = _made()
        restore(again, state)
        train(again, *data, 5)
        answers.append(torch.equal(weights_of(again), right))
    return answers


@pytest.mark.bitwise
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_exact_goes_on_to_the_bit_and_weights_only_does_not(world_size):
    """
    The exact checkpoint resumes to the bit and the weights-only one does not: five more steps,
    across the end of an epoch, after a stop at step 3 (claim C21).

        The model is large enough for DDP's new order of buckets to show on 3 and 4 ranks.
    """
    assert run_world(world_size, _stop_and_go_on) == [[True, False]] * world_size


def _forget_one_part(rank, world_size):
    run, *data = _made()
    train(run, *data, 3)
    state = io.BytesIO()
    torch.save(checkpoint.capture(run), state)
    train(run, *data, 9)
    right, is_right = weights_of(run), {}
    for part in ("optimizer", "scheduler", "sampler", "rng", "idle pass", "nothing"):
        again, *data = _made(idle_pass=part != "idle pass")
        state.seek(0)  # a run that continues mutates the state it was restored from
        checkpoint.restore(again, forget(torch.load(state), checkpoint.capture(again), part))
        train(again, *data, 9)
        is_right[part] = torch.equal(weights_of(again), right)
    return is_right


@pytest.mark.bitwise
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_run_without_one_part_of_its_checkpoint_goes_another_way(world_size):
    """
    Each entry of the checkpoint matters. The idle pass matters only on three or more ranks; the
    test of sums below shows why.
    """
    for is_right in run_world(world_size, _forget_one_part):
        assert is_right.pop("nothing")
        assert is_right.pop("idle pass") or world_size > 2
        assert is_right == dict.fromkeys(("optimizer", "scheduler", "sampler", "rng"), False)


class _Straight(torch.nn.Module):
    """
    A model of two parameters whose gradients are the input. That of `last` is ready first.
    """

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(8))
        self.last = torch.nn.Parameter(torch.zeros(24))

    def forward(self, x):
        return (self.first * x).sum() + (self.last * x).sum()


def _gradients_of_three_passes(rank, world_size):
    # The gradient is a mean over ranks. 2**24 + 1 has no float32, so the order of three additions
    # shows.
    mine = world_size * (2.0**24, 1.0, -(2.0**24), 1.0)[rank]
    model, seen = DistributedDataParallel(_Straight()), []
    for _ in range(3):
        model.zero_grad()
        model(torch.tensor(mine)).backward()
        seen.append(torch.cat([p.grad for p in model.parameters()]).tolist())
    return seen


@pytest.mark.bitwise
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_sums_of_three_ranks_change_when_ddp_orders_its_buckets_anew(world_size):
    """
    This is why `make_run` makes an idle pass: on three or more ranks the same numbers, added in a
    second pass, give another sum. No result here depends on the kind of CPU. The sum of two numbers
    does not depend on their order.
    """
    for first, second, third in run_world(world_size, _gradients_of_three_passes):
        assert (first == second) is (world_size <= 2)
        assert second == third


def test_flipped_bit_makes_one_weight_infinite_without_an_error(tmp_path):
    """
    One flipped bit makes a weight infinite, and torch.load does not notice, although the archive
    has checksums (claim C20).
    """
    weights = torch.ones(1000)
    checkpoint.save(weights, tmp_path / "one.pt")
    flip_bit(tmp_path / "one.pt", weights)
    found = torch.load(tmp_path / "one.pt")["state"]
    assert found[0] == float("inf")
    assert torch.equal(found[1:], weights[1:])
    with pytest.raises(checkpoint.CheckpointRefused, match="damaged"):
        checkpoint.load(tmp_path / "one.pt")


def test_digits_run_is_the_same_each_time():
    """
    A replaced rank must make the same run as the others.
    """
    weights = []
    for idle_pass in (True, False):
        run, data = digits_run(idle_pass)
        assert [len(part) for part in data] == [1437, 1437]
        weights.append(weights_of(run))
        assert run.step == 0
    assert torch.equal(*weights)


def test_what_kills_when_saved_has_emptied_the_old_file_by_then(tmp_path, monkeypatch):
    """
    The lesson's kill must come in the middle of a save, when the old file is empty already, and not
    before it.
    """
    path, killed = tmp_path / "one.pt", []
    torch.save([1, 2], path)
    monkeypatch.setattr("os.kill", lambda *call: killed.append((call, path.stat().st_size)))
    with pytest.raises(Exception, match="__reduce__ must return"):
        torch.save([1, KillsWhenSaved()], path)
    assert killed == [((os.getpid(), signal.SIGKILL), 0)]
