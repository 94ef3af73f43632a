"""
Saved optimizer state is loaded by more ranks, by fewer, or by an optimizer that is not sharded.
"""

import pytest
import torch
import torch.distributed as dist
from metric_shards import packed, run_packed
from optimizer_worlds import backward, gradient, mean_gradient, parameters, plain_run
from torch import nn, optim
from worlds import run_world

from ddp_lessons.checkpoint import Checkpoints, Run
from ddp_lessons.sharded_optimizer import (
    OwnerOptimizer,
    Zero1Optimizer,
    Zero2Optimizer,
    whole_state,
)

SETTINGS = {"lr": 0.01, "weight_decay": 0.1}
SAVED_BY, SAVED_AT, LAST = 4, 2, 4
KINDS = {"zero1": Zero1Optimizer, "zero2": Zero2Optimizer}


class _Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.all = nn.ParameterList(parameters())


def _make(kind):
    model = _Model()
    groups = [{"params": list(model.all)[:3]}, {"params": list(model.all)[3:], "lr": 0.02}]
    return model, KINDS[kind](groups, optim.AdamW, **SETTINGS)


def _save(rank, world_size, root, kind, save):
    model, optimizer = _make(kind)
    for step in range(SAVED_AT):
        optimizer.zero_grad()
        _own_backward(model, step, rank, world_size)
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.005  # as a schedule would
    optimizer.zero_grad()
    checkpoints = Checkpoints(root)
    getattr(checkpoints, save)(Run(model, optimizer, step=SAVED_AT))
    checkpoints.close()


def _own_backward(model, step, rank, world_size):
    # Each of 4 ranks has one gradient. With fewer ranks, each has the sum of several, scaled by the
    # number of ranks.
    total = torch.zeros((), dtype=torch.float64)
    for one in range(rank, SAVED_BY, world_size):
        for place, parameter in enumerate(model.all):
            own = gradient(parameter.shape, place, step, one) * (world_size / SAVED_BY)
            total = total + (parameter * own).sum()
    total.backward()


def _load(rank, world_size, root, kind):
    model, optimizer = _make(kind)
    run = Run(model, optimizer)
    choice = Checkpoints(root).load(run, exact=False)
    rates = [group["lr"] for group in optimizer.param_groups]
    for step in range(SAVED_AT, LAST):
        optimizer.zero_grad()
        _own_backward(model, step, rank, world_size)
        optimizer.step()
    return packed((choice.step, rates, [p.detach() for p in model.all]))


def _right():
    params = parameters()
    groups = [{"params": params[:3]}, {"params": params[3:], "lr": 0.02}]
    optimizer = optim.AdamW(groups, **SETTINGS)
    for step in range(LAST):
        for place, parameter in enumerate(params):
            parameter.grad = mean_gradient(parameter.shape, place, step, SAVED_BY)
        optimizer.step()
        if step == SAVED_AT - 1:
            optimizer.param_groups[0]["lr"] = 0.005
    return params


@pytest.mark.parametrize("save", ["save_sharded", "save_async"])
@pytest.mark.parametrize("kind", KINDS)
def test_saved_by_four_and_loaded_by_any_number(tmp_path, kind, save):
    """
    State, step counts and learning rates are restored, however the parameters are cut now.
    """
    run_world(SAVED_BY, _save, str(tmp_path), kind, save)
    right = _right()
    for world_size in (1, 2, 3, 4):
        for step, rates, got in run_packed(world_size, _load, str(tmp_path), kind):
            assert step == SAVED_AT
            assert rates == [0.005, 0.02]
            for one, wanted in zip(got, right, strict=True):
                # The bound covers sums of 4 whole numbers, which 3 ranks scale by thirds: a few
                # roundings in 2 steps.
                eps = torch.finfo(torch.float64).eps
                torch.testing.assert_close(one, wanted.detach(), rtol=64 * eps, atol=64 * eps)


def _hand_over(rank, world_size):
    params = parameters()
    optimizer = Zero1Optimizer(params, optim.Adam)
    for step in range(2):
        optimizer.zero_grad()
        backward(params, step, rank)
        optimizer.step()
    whole = whole_state(optimizer)
    plain = optim.Adam(params)
    plain.load_state_dict(whole)
    again = Zero2Optimizer(params, optim.Adam)
    again.load_state_dict(plain.state_dict())
    alike = [
        torch.equal(one["exp_avg"], other["exp_avg"]) and one["step"] == other["step"]
        for one, other in zip(optimizer.state.values(), again.state.values(), strict=True)
    ]
    state = {number: values["exp_avg_sq"] for number, values in plain.state_dict()["state"].items()}
    return packed((state, alike))


@pytest.mark.bitwise
@pytest.mark.parametrize("world_size", [1, 3])
def test_state_goes_to_a_plain_optimizer_and_back(world_size):
    """
    The state of a plain optimizer is that of all pieces together, in each parameter's own strides.
    It can be sharded again.
    """
    _, right = plain_run(optim.Adam, {}, 2, world_size)
    for state, alike in run_packed(world_size, _hand_over):
        assert alike == [True] * len(alike)
        for number, values in right.state_dict()["state"].items():
            assert torch.equal(state[number], values["exp_avg_sq"])


def _before_the_first_step(rank, world_size, root):
    model, optimizer = _make("zero1")
    Checkpoints(root).save_sharded(Run(model, optimizer))
    is_empty = not optimizer.state
    other, fresh = _make("zero1")
    Checkpoints(root).load(Run(other, fresh))
    return is_empty, not fresh.state, dist.get_rank() == rank


def test_saving_before_the_first_step_counts_no_step(tmp_path):
    """
    DCP steps an optimizer that has no state once, to see the shape of its state. This step must not
    count.
    """
    assert run_world(2, _before_the_first_step, str(tmp_path)) == [(True, True, True)] * 2


def _owned(rank, world_size):
    params = parameters(shapes=[(6,), (2,), (3,)])
    optimizer = OwnerOptimizer(params, optim.Adam)
    backward(params, 0, rank)
    optimizer.step()
    return sorted(optimizer.state_dict()["state"])


def test_owners_count_state_as_if_it_were_whole():
    """
    A parameter's number in the state dict does not depend on its owner.
    """
    assert run_world(2, _owned) == [[0], [1, 2]]
