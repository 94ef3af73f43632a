"""
Messages in a step of a sharded optimizer: their number and sizes, and what overlaps with them.
"""

import gc

import pytest
import torch
from failed_work import FailedWork
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from worlds import run_world

from ddp_lessons.costs import sent_bytes
from ddp_lessons.replicas import num_different
from ddp_lessons.sharded_optimizer import (
    OverlappedOptimizer,
    OwnerOptimizer,
    Zero1Optimizer,
    Zero2Optimizer,
)
from ddp_lessons.sharded_optimizer.example import train_sharded
from ddp_lessons.sharded_optimizer.messages import _Handle
from ddp_lessons.trace import trace
from ddp_lessons.workloads import digits_batch, digits_model, load_digits

NUM_NUMBERS = 85_002  # numbers of the medium model, in 6 parameters
WIDTH = 21_251  # columns of a table for 4 ranks: 10 numbers are cut into 3, 3, 3 and 1


def _calls(events):
    return [(e.name, e.input_bytes, e.output_bytes) for e in events if e.is_communication]


def _step(model, optimizer, rank):
    images, labels = digits_batch(load_digits(), 16, rank=rank)
    cross_entropy(model(images), labels).backward()
    optimizer.step()


def _counted(rank, world_size):
    found = {}
    for kind in (OwnerOptimizer, Zero1Optimizer, Zero2Optimizer):
        model = digits_model(seed=0, size="medium")
        optimizer = kind(model.parameters(), torch.optim.Adam)
        with trace() as events:
            _step(model, optimizer, rank)
        found[kind.__name__] = _calls(events)
    model = DistributedDataParallel(digits_model(seed=0, size="medium"))
    optimizer = Zero1Optimizer(model.parameters(), torch.optim.Adam, averaged=True)
    with trace() as events:
        _step(model, optimizer, rank)
    found["after DDP"] = _calls(events)
    return found


def test_a_step_sends_what_an_all_reduce_of_the_gradients_would():
    """
    A step makes one reduce-scatter and one all-gather, with 3/4 of the bytes each. With owners it
    makes a call for each parameter in each direction. After DDP, DDP's all-reduce comes in
    addition.
    """
    for found in run_world(4, _counted):
        row, table = 4 * WIDTH, 16 * WIDTH
        sharded = [("reduce_scatter_tensor", table, row), ("all_gather_into_tensor", row, table)]
        assert found["Zero1Optimizer"] == found["Zero2Optimizer"] == sharded
        names = [name for name, *_ in found["OwnerOptimizer"]]
        assert names == ["reduce"] * 6 + ["broadcast"] * 6
        assert found["after DDP"][0][:2] == ("all_reduce", 4 * NUM_NUMBERS)
        assert found["after DDP"][1:] == sharded[1:]
    each = [
        sent_bytes(name, "ring", 4, 4 * WIDTH, 4)[0] for name in ("reduce_scatter", "all_gather")
    ]
    padded = sent_bytes("all_reduce", "ring", 4, 4 * WIDTH, 4)[0]
    assert sum(each) == padded  # 2 numbers of padding for 85,002


def _held_in_backward(rank, world_size, kind):
    gc.collect()
    gc.freeze()  # `gc.get_objects` leaves out frozen objects, of which torch has a million
    model = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(16)])
    optimizer = kind(model.parameters(), torch.optim.SGD, lr=0.1, bucket_cap_bytes=4 * 64 * 64)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    most = []

    def count(_):
        tensors = [one for one in gc.get_objects() if type(one) in (torch.Tensor, nn.Parameter)]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        for gradient in gradients:  # held by C++, and known to Python only from here on
            storages[gradient.untyped_storage().data_ptr()] = gradient.nbytes
        most.append(sum(num for at, num in storages.items() if at not in own))

    x = torch.randn(2, 64)
    count(None)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(count)
    model(x).sum().backward()
    assert optimizer.inner is not None  # it must live as long as its hooks
    return (max(most[1:]) - most[0]) / (4 * 64 * 64)


def test_stage_2_never_holds_all_gradients():
    """
    4 ranks have 16 equal gradients. In stage 1 a rank holds all 16. In stage 2 it holds a quarter,
    one gradient, and two tables with their rows that are being sent.
    """
    whole = run_world(4, _held_in_backward, Zero1Optimizer)
    cut = run_world(4, _held_in_backward, Zero2Optimizer)
    assert min(whole) >= 15.9  # torch itself has freed some bytes meanwhile
    # The last 0.5, 8 KiB, leaves room for activations, which this test cannot distinguish from
    # gradients.
    assert max(cut) <= 16 / 4 + 1 + 2 * (1 + 1 / 4) + 0.5


def _overlapped(rank, world_size):
    layers = [nn.Linear(8, 8) for _ in range(4)]
    model = nn.Sequential(*layers)
    optimizer = OverlappedOptimizer(model, torch.optim.Adam, bucket_cap_bytes=1)
    left = []
    for layer in layers:
        layer.register_forward_pre_hook(lambda *_: left.append(optimizer.num_under_way))
    with trace() as events:
        model(torch.randn(3, 8)).sum().backward()
        optimizer.step()
        left[:] = [optimizer.num_under_way]
        sent = [e for e in events if e.name == "broadcast"]
        early = [e for e in sent if e.wait_index is not None]
        model(torch.randn(3, 8))
    in_backward = [e.backward is not None for e in events if e.name == "all_to_all_single"]
    return len(sent), len(early), left, in_backward


def test_gathers_are_waited_for_by_the_layers_that_need_them():
    """
    When `step` returns, no gather has been waited for. The first layer waits for its two, and the
    next layer for two more. Gradients are sent during backward.
    """
    for num_sent, num_early, left, in_backward in run_world(2, _overlapped):
        assert (num_sent, num_early) == (2 * 8, 0)
        assert left == [8, 6, 4, 2, 0]
        assert in_backward == [True] * 8


def _large(rank, world_size):
    models = [nn.Linear(500, 501) for _ in range(2)]
    optimizers = [
        OverlappedOptimizer(models[0], torch.optim.Adam),
        Zero1Optimizer(models[1].parameters(), torch.optim.Adam),
    ]
    models[1].load_state_dict(models[0].state_dict())
    for step in range(2):
        rng = torch.Generator().manual_seed(10 * step + rank)
        x = torch.randn(4, 500, generator=rng)
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            with trace() as events:
                optimizer.step()
            if model is models[0]:
                sent = [(event.name, event.input_bytes) for event in events]
    both = [model.state_dict() for model in models]
    return [torch.equal(both[0][name], both[1][name]) for name in both[0]], sent


@pytest.mark.bitwise
def test_large_pieces_go_straight_to_their_place():
    """
    A large piece is sent by its own broadcast, without a table. On two ranks the sums have the same
    bits both ways.
    """
    for rank, (are_equal, sent) in enumerate(run_world(2, _large)):
        assert are_equal == [True, True]
        # Each rank holds 251 or 250 numbers of the bias, and half of the 250,500 of the weight.
        own = [4 * (251, 250)[rank], 4 * 125_250]
        assert [num for name, num in sent if name == "broadcast" and num] == own
        assert len(sent) == 4


def _read_elsewhere(rank, world_size):
    model = nn.Linear(4, 4)
    optimizer = OverlappedOptimizer(model, torch.optim.SGD, lr=1.0)
    before = model.weight.detach().clone()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    state = model.state_dict()
    moved = bool((state["weight"] == before - 2).all())
    del optimizer
    model(torch.ones(2, 4)).sum().backward()  # its hooks do nothing now
    return moved, model.state_dict()["weight"].equal(state["weight"]), model.weight.grad is None


def test_state_dict_waits_and_hooks_do_not_outlive_their_optimizer():
    """
    `state_dict` waits, so a model saved right after a step is complete. Hooks have no effect once
    their optimizer is gone.
    """
    assert run_world(2, _read_elsewhere) == [(True, True, False)] * 2


def _train_all(rank, world_size):
    digits = load_digits()
    batches = [digits_batch(digits, 32, rank=rank, step=step) for step in range(3)]
    model = digits_model(seed=0)
    held = train_sharded(model, Zero2Optimizer(model.parameters(), torch.optim.Adam), batches)
    plain = DistributedDataParallel(digits_model(seed=0))
    whole = train_sharded(plain, torch.optim.Adam(plain.parameters()), batches)
    return held, whole


def test_train_sharded_says_what_was_held():
    """
    The lesson's table counts gradients before the step, and state after it.
    """
    for held, whole in run_world(2, _train_all):
        assert whole == {"parameters": 19240, "gradients": 19240, "optimizer": 38480}
        assert held == {"parameters": 19240, "gradients": 9620, "optimizer": 19240}


def _lost_group(rank, world_size, error):
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4, bias=False) for _ in range(3)]
    model = nn.Sequential(*layers)
    optimizer = OverlappedOptimizer(model, torch.optim.SGD, lr=0.1, bucket_cap_bytes=1)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.wait()
    bucket = optimizer.buckets()[0]
    works = FailedWork(error), FailedWork()
    optimizer._pending = [(bucket, None, None, work) for work in works]
    with pytest.raises(type(error)) as caught:
        model(torch.ones(1, 4))
    left = optimizer.num_under_way
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.wait()
    return str(caught.value), left, [num_different(layer.weight) for layer in layers]


@pytest.mark.parametrize("error", [RuntimeError("Connection closed by peer"), KeyboardInterrupt()])
def test_parameters_that_do_not_come_are_told_once_and_sent_again(error):
    """
    Parameters that do not arrive raise one error. The next step sends all pieces, so that the ranks
    are equal after it.
    """
    told = (
        "Parameters of the last step did not come: the group has ended while they were under way. "
        "Train on: the next step sends all of them again."
    )
    text = told if isinstance(error, RuntimeError) else ""
    assert run_world(2, _lost_group, error) == [(text, 0, [1, 1, 1])] * 2


def test_a_call_that_failed_is_over_only_when_all_of_its_messages_are():
    """
    A failed call has ended only when all its messages have ended: the caller may free the memory,
    into which another message could still write.
    """
    last = FailedWork()
    with pytest.raises(RuntimeError, match="Connection closed"):
        _Handle([FailedWork(), last]).wait()
    assert last.num_waits == 1
