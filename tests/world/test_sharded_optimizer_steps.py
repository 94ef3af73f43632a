"""
A step of a sharded optimizer is that of one optimizer with the mean gradient.

Gradients are whole numbers, so their sum has no rounding. Every class does the same arithmetic on a
piece as on the whole. So results are compared to the last bit.
"""

import pytest
import torch
from metric_shards import packed, run_packed
from optimizer_worlds import backward, gradient, mean_gradient, parameters, plain_run
from torch import nn, optim
from worlds import WORLD_SIZES, run_world

from ddp_lessons.errors import BadInput
from ddp_lessons.sharded_optimizer import (
    OverlappedOptimizer,
    OwnerOptimizer,
    Zero1Optimizer,
    Zero2Optimizer,
)

NUM_STEPS = 3
CLASSES = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    "Adam": {"lr": 0.01, "betas": (0.8, 0.9), "amsgrad": True},
    "AdamW": {"lr": 0.01, "weight_decay": 0.1, "foreach": False},
    "RMSprop": {"lr": 0.01, "centered": True},
    "Adagrad": {"lr": 0.1},
    "Adadelta": {},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {},
    "ASGD": {},
    "Rprop": {},
}
KINDS = {"owners": OwnerOptimizer, "zero1": Zero1Optimizer, "zero2": Zero2Optimizer}
CAP_BYTES = 100  # small, so that there are several buckets


def _make(kind, params, optimizer_class, **settings):
    if kind == "overlapped":
        module = nn.Module()
        module.all = nn.ParameterList(params)
        return OverlappedOptimizer(module, optimizer_class, bucket_cap_bytes=CAP_BYTES, **settings)
    if kind != "owners":
        settings["bucket_cap_bytes"] = CAP_BYTES
    return KINDS[kind](params, optimizer_class, **settings)


def _finish(optimizer):
    if isinstance(optimizer, OverlappedOptimizer):
        optimizer.wait()


def _steps(rank, world_size, kind):
    found = {}
    for name, settings in CLASSES.items():
        params = parameters()
        optimizer = _make(kind, params, getattr(optim, name), **settings)
        for step in range(NUM_STEPS):
            optimizer.zero_grad()
            _finish(optimizer)  # no layer waits here, because the test reads the parameters itself
            backward(params, step, rank)
            optimizer.step()
        _finish(optimizer)
        found[name] = [p.detach() for p in params]
    return packed(found)


@pytest.mark.bitwise
@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("kind", [*KINDS, "overlapped"])
def test_every_class_steps_as_if_it_were_not_sharded(kind, world_size):
    """
    Every class of optimizer gives the same step, sharded or not, on every rank. Parameters may be
    empty, transposed, or have fewer numbers than there are ranks.
    """
    results = run_packed(world_size, _steps, kind)
    for name, settings in CLASSES.items():
        right, _ = plain_run(getattr(optim, name), settings, NUM_STEPS, world_size)
        for found in results:
            for got, wanted in zip(found[name], right, strict=True):
                assert torch.equal(got, wanted.detach()), name


def _whole_matrix(rank, world_size):
    found = {}
    for name, settings in {"Muon": {"lr": 0.1}, "Adafactor": {"lr": 0.1}}.items():
        params = parameters(torch.float32, [(4, 3), (5, 2), (2, 2)])
        optimizer = OwnerOptimizer(params, getattr(optim, name), **settings)
        for step in range(NUM_STEPS):
            optimizer.zero_grad()
            backward(params, step, rank)
            optimizer.step()
        found[name] = [p.detach() for p in params]
    return packed(found)


@pytest.mark.bitwise
@pytest.mark.parametrize("world_size", [2, 4])
def test_owners_serve_classes_that_look_at_a_whole_matrix(world_size):
    """
    Muon and Adafactor need whole matrices, so their parameters cannot be cut, but can have owners.
    With four ranks and three parameters one rank owns none.
    """
    for found in run_packed(world_size, _whole_matrix):
        for name, got in found.items():
            params = parameters(torch.float32, [(4, 3), (5, 2), (2, 2)])
            right, _ = plain_run(getattr(optim, name), {"lr": 0.1}, NUM_STEPS, world_size, params)
            assert all(torch.equal(a, b.detach()) for a, b in zip(got, right, strict=True)), name


def _groups(rank, world_size, kind):
    params = parameters()
    params[1].requires_grad_(False)
    groups = [{"params": params[:3]}, {"params": params[3:5], "lr": 0.5}]
    optimizer = _make(kind, groups, optim.SGD, lr=0.1, momentum=0.9)
    schedule = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    rates = []
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        backward(params, step, rank)
        optimizer.step()
        schedule.step()
        rates.append([group["lr"] for group in optimizer.param_groups])
        if step == 0:
            optimizer.add_param_group({"params": params[5:], "weight_decay": 0.1})
    return packed(([p.detach() for p in params], rates, optimizer.defaults["momentum"]))


@pytest.mark.bitwise
@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_groups_schedules_and_frozen_parameters(kind, world_size):
    """
    As with one optimizer, each group keeps its settings, a schedule changes the optimizer that
    steps, and frozen parameters do not change.
    """
    params = parameters()
    params[1].requires_grad_(False)
    groups = [{"params": params[:3]}, {"params": params[3:5], "lr": 0.5}]
    optimizer = optim.SGD(groups, lr=0.1, momentum=0.9)
    schedule = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    rates = []
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        for place, parameter in enumerate(params):
            if parameter.requires_grad:
                parameter.grad = mean_gradient(parameter.shape, place, step, world_size)
        optimizer.step()
        schedule.step()
        rates.append([group["lr"] for group in optimizer.param_groups])
        if step == 0:
            optimizer.add_param_group({"params": params[5:], "weight_decay": 0.1})
    for got, got_rates, momentum in run_packed(world_size, _groups, kind):
        assert got_rates == rates
        assert momentum == 0.9
        assert all(torch.equal(a, b.detach()) for a, b in zip(got, params, strict=True))


def _closures(rank, world_size, kind):
    params, calls = parameters(), []
    optimizer = _make(kind, params, optim.Adam)

    def closure():
        optimizer.zero_grad()
        calls.append(torch.is_grad_enabled())
        return backward(params, len(calls) - 1, rank)

    losses = [optimizer.step(closure).item() for _ in range(NUM_STEPS)]
    _finish(optimizer)
    return packed(([p.detach() for p in params], calls, len(set(losses))))


@pytest.mark.bitwise
@pytest.mark.parametrize("kind", [*KINDS, "overlapped"])
def test_closure_is_called_once_with_gradients_on(kind):
    """
    The closure is called once, with gradients on, before the messages, which need its gradients.
    """
    right, _ = plain_run(optim.Adam, {}, NUM_STEPS, 2)
    for got, calls, num_losses in run_packed(2, _closures, kind):
        assert calls == [True] * NUM_STEPS
        assert num_losses == NUM_STEPS
        assert all(torch.equal(a, b.detach()) for a, b in zip(got, right, strict=True))


def _absent(rank, world_size, kind):
    # Only rank 0 reaches the last parameter, and no rank reaches the first one.
    params = parameters(shapes=[(3,), (4,), (2, 3)])
    optimizer = _make(kind, params, optim.SGD, lr=1.0)
    for step in range(2):
        optimizer.zero_grad()
        reached = params[1:] if rank == 0 else params[1:2]
        backward([nn.Parameter(torch.zeros(0)), *reached], step, rank)
        optimizer.step()
    return packed([p.detach() for p in params])


@pytest.mark.bitwise
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_that_is_not_there_counts_as_zeros(kind):
    """
    A missing gradient counts as zeros, because ranks that take different branches must still send
    the same messages.
    """
    params = parameters(shapes=[(3,), (4,), (2, 3)])
    wanted = [parameter.detach().clone() for parameter in params]
    for step in range(2):
        wanted[1] -= mean_gradient((4,), 1, step, 2)
        wanted[2] -= gradient((2, 3), 2, step, 0) / 2
    for got in run_packed(2, _absent, kind):
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def _averaged(rank, world_size):
    torch.manual_seed(rank)  # the ranks' weights differ, and the optimizer makes them equal
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    params = list(model.parameters())
    optimizer = Zero1Optimizer(params, optim.AdamW, averaged=True, weight_decay=0.1)
    start = [p.detach().clone() for p in params]  # rank 0's first weights
    for step in range(NUM_STEPS):
        for place, parameter in enumerate(params[:-1]):  # the last one never has a gradient
            parameter.grad = mean_gradient(parameter.shape, place, step, world_size, torch.float32)
        optimizer.step()
    return packed((start, [p.detach() for p in params]))


@pytest.mark.bitwise
@pytest.mark.parametrize("world_size", [2, 3])
def test_gradients_that_are_averaged_already(world_size):
    """
    After DDP the optimizer does not reduce gradients again. A parameter without a gradient does not
    change, even with weight decay, as with any optimizer.
    """
    results = run_packed(world_size, _averaged)
    for start, got in results:
        assert all(torch.equal(a, b) for a, b in zip(start, results[0][0], strict=True))
        params = [nn.Parameter(tensor.clone()) for tensor in start]
        optimizer = optim.AdamW(params, weight_decay=0.1)
        for step in range(NUM_STEPS):
            for place, p in enumerate(params[:-1]):
                p.grad = mean_gradient(p.shape, place, step, world_size, torch.float32)
            optimizer.step()
        assert all(torch.equal(a, b.detach()) for a, b in zip(got, params, strict=True))


def _accumulated(rank, world_size):
    found = []
    for kind in ("zero1", "zero2"):
        params = parameters()
        optimizer = _make(kind, params, optim.SGD, lr=0.5)
        for step in range(2):
            backward(params, step, rank)
        optimizer.step()
        model_forgets = [p.grad is None for p in params if p.numel()]
        found.append(([p.detach() for p in params], model_forgets))
    return packed(found)


@pytest.mark.bitwise
def test_backwards_add_up():
    """
    After two backwards and one step the gradients are the sums: stage 1 adds locally and sends
    once, and stage 2 sends after each backward.
    """
    params = parameters()
    means = [
        sum(mean_gradient(p.shape, place, step, 2) for step in range(2))
        for place, p in enumerate(params)
    ]
    wanted = [p.detach() - 0.5 * mean for p, mean in zip(params, means, strict=True)]
    for found in run_packed(2, _accumulated):
        for got, _ in found:
            assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
        assert not any(found[0][1])
        assert all(found[1][1])  # stage 2 keeps no whole gradient


def _broken_off(rank, world_size):
    params = parameters()
    optimizer = Zero2Optimizer(params, optim.SGD, lr=0.5, bucket_cap_bytes=1 << 20)
    loss = (params[0] * params[0].detach().clone().requires_grad_()).sum()
    loss = loss + _Raises.apply(params[1]).sum()
    with pytest.raises(RuntimeError, match="on purpose"):
        loss.backward()
    optimizer.zero_grad()
    backward(params, 0, rank)
    optimizer.step()
    return packed([p.detach() for p in params])


class _Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("on purpose")


@pytest.mark.bitwise
def test_backward_that_was_broken_off_is_forgotten():
    """
    If a caller catches an error in backward and clears the gradients, the next step is as if there
    had been no error.
    """
    right, _ = plain_run(optim.SGD, {"lr": 0.5}, 1, 2)
    for got in run_packed(2, _broken_off):
        assert all(torch.equal(a, b.detach()) for a, b in zip(got, right, strict=True))


def test_refusals(lone_group):
    """
    A parameter or class that cannot be sharded is refused, and the error says what to do.
    """
    params = parameters(torch.float32)
    with pytest.raises(BadInput, match=r"a class of optimizer expected.*of type Adam\)"):
        Zero1Optimizer(params, optim.Adam(params))
    with pytest.raises(BadInput, match="Use OwnerOptimizer"):
        Zero1Optimizer(params, optim.Adafactor)
    with pytest.raises(BadInput, match="got a value of type str"):
        OwnerOptimizer(params, "Adam")
    with pytest.raises(BadInput, match="without holes"):
        Zero2Optimizer([nn.Parameter(torch.zeros(4, 4)[:, :2])], optim.Adam)


def _unequal(rank, world_size):
    said = []
    for size, lr in ((3 + rank, 0.1), (3, 0.1 + rank)):
        with pytest.raises(BadInput) as caught:
            Zero1Optimizer([nn.Parameter(torch.zeros(size))], optim.SGD, lr=lr)
        said.append(str(caught.value))
    return said


def test_ranks_that_differ_are_told_so():
    """
    Ranks with other parameters or settings are refused. They would wait for messages of other
    lengths, or drift apart.
    """
    for said in run_world(2, _unequal):
        assert "parameter 0 must be (3,) torch.float32 trained" in said[0]
        assert "lr must be 0.1 as on rank 0 (got 1.1, rank 1 of 2)" in said[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["owners", "zero1", "zero2", "overlapped"])
def test_steps_on_a_gpu(kind):
    """
    NCCL has its own reduce-scatter, and the numbers are in a GPU's memory.
    """
    import torch.distributed as dist

    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        found = []
        for sharded in (False, True):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).cuda()
            params = list(model.parameters())
            optimizer = _make(kind, params, optim.AdamW) if sharded else optim.AdamW(params)
            for _ in range(NUM_STEPS):
                optimizer.zero_grad()
                _finish(optimizer)
                model(torch.ones(4, 5, device="cuda")).square().sum().backward()
                optimizer.step()
            _finish(optimizer)
            found.append([p.detach() for p in params])
        for one, other in zip(*found, strict=True):
            # The arithmetic is the same, in CUDA kernels for tensors of other lengths: 3 steps of
            # 1e-3.
            torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    finally:
        dist.destroy_process_group()
