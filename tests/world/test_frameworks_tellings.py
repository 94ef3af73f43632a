"""
One run in four versions: plain DDP, Accelerate, Fabric, and an optimizer that averages gradients.
"""

import os
import sys

import pytest
import torch
from framework_worlds import WORLD_SIZES, needs_frameworks, samples, small_model
from paths import ROOT
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from waiting import HANGS_AFTER_S
from worlds import run_world

from ddp_lessons.frameworks import (
    AveragingOptimizer,
    num_different_losses,
    num_models,
    quiet,
    tally,
    told,
    train_plain,
    train_with_accelerate,
    train_with_fabric,
)
from ddp_lessons.jobs import run_job
from ddp_lessons.trace import trace

BATCH_SIZE = 3


def _flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def _train_in_one_process(world_size):
    """
    Train on the samples that all ranks together have in each step, without DDP.
    """
    model, dataset = small_model(), samples()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loaders = [
        DataLoader(dataset, BATCH_SIZE, sampler=DistributedSampler(dataset, world_size, r, False))
        for r in range(world_size)
    ]
    for batches in zip(*loaders, strict=True):
        images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
    return _flat(model)


def _tellings(rank, world_size):
    """
    Train with each version.

        Return float64 weights, a comparison of losses and calls with plain DDP, and the numbers of
        all-reduces and steps.
    """
    quiet()
    weights, same = [], []
    with told():
        for train in (train_plain, train_with_accelerate, train_with_fabric):
            model = small_model()
            train(model, samples(), BATCH_SIZE)
            weights.append(_flat(model))
    dataset = samples(dtype=torch.float32)
    with trace() as events:
        losses = train_plain(small_model(torch.float32), dataset, BATCH_SIZE)
    plain = tally(events)
    with told():
        for train in (train_with_accelerate, train_with_fabric):
            with trace() as events:
                others = train(small_model(torch.float32), dataset, BATCH_SIZE)
            same.append((num_different_losses(losses, others), tally(events) == plain))
    return weights, same, plain.all_reduces, len(losses)


@pytest.fixture(scope="module", params=WORLD_SIZES)
def tellings(request):
    """
    Train once in each world size, because every new process imports the frameworks again.
    """
    return request.param, run_world(request.param, _tellings)


@needs_frameworks
def test_every_telling_is_the_run_of_one_process(tellings):
    """
    Each version gives the weights of one process, since three versions that agree could all be
    wrong.
    """
    world_size, ranks = tellings
    expected = torch.tensor(_train_in_one_process(world_size), dtype=torch.float64)
    for found, *_ in ranks:
        for weights in found:
            off = torch.tensor(weights, dtype=torch.float64) - expected
            # The bound covers sums of 12 samples over 16 steps in another order: a few roundings of
            # 1e-16 each.
            assert off.norm() < 1e-12 * expected.norm()


@needs_frameworks
@pytest.mark.bitwise
def test_tellings_have_the_same_losses_and_the_same_calls(tellings):
    """
    Accelerate and Fabric have the losses and calls of plain DDP, to the last bit and byte, as the
    lesson says.
    """
    _, ranks = tellings
    for _, same, num_all_reduces, num_steps in ranks:
        assert same == [(0, True), (0, True)]
        assert num_all_reduces == num_steps


SCRIPT = """
import sys, torch, torch.distributed as dist
from framework_worlds import samples, small_model
from ddp_lessons.frameworks import *
quiet()
torch.set_num_threads(1)
dist.init_process_group("gloo")
data = samples(dtype=torch.float32)
tellings = train_plain, train_with_accelerate, train_with_fabric
losses = [train(small_model(torch.float32), data, 3) for train in tellings]
differ = [num_different_losses(losses[0], others) for others in losses[1:]]
sys.stdout.write(f"differ: {differ}\\n")  # at once, or two ranks' words mix
dist.destroy_process_group()
"""


@needs_frameworks
@pytest.mark.bitwise
def test_tellings_are_the_same_under_torchrun(tmp_path):
    """
    The versions also agree in a script that torchrun starts, which needs no `told`.
    """
    (tmp_path / "script.py").write_text(SCRIPT)
    paths = os.pathsep.join([str(ROOT / "tests" / "support"), str(ROOT)])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", "script.py"]
    job = run_job(command, timeout_s=HANGS_AFTER_S, folder=tmp_path, env={"PYTHONPATH": paths})
    assert job.returncode == 0, job.stderr
    assert job.stdout.splitlines() == ["differ: [0, 0]"] * 2


def _average(rank, world_size):
    model, dataset = small_model(), samples()
    if rank:
        torch.nn.init.zeros_(model[0].weight)  # the optimizer must take rank 0's weights
    optimizer = AveragingOptimizer(torch.optim.SGD(model.parameters(), lr=0.5))
    sampler = DistributedSampler(dataset, shuffle=False)
    with trace() as events:
        for images, labels in DataLoader(dataset, BATCH_SIZE, sampler=sampler):
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()
    return _flat(model), num_models(model), tally(events).all_reduces, len(sampler)


def _start_from_a_slice(rank, world_size):
    table = torch.full((3, 4), float(rank + 1))
    sliced = torch.nn.Parameter(table[:, 1:3])
    AveragingOptimizer(torch.optim.SGD([sliced], lr=0.5))
    return table.tolist()


def test_averaging_optimizer_starts_a_parameter_with_gaps_and_leaves_what_lies_between():
    """
    Gloo takes a tensor for contiguous memory: it would send the gaps, and raise no error.
    """
    first, second = run_world(2, _start_from_a_slice)
    assert first == [[1.0] * 4] * 3
    assert second == [[2.0, 1.0, 1.0, 2.0]] * 3


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_averaging_optimizer_is_the_run_of_one_process(world_size):
    """
    The averaging optimizer gives the run of one process. Horovod promised the same, with a message
    for each gradient.
    """
    expected = torch.tensor(_train_in_one_process(world_size), dtype=torch.float64)
    for weights, different, num_all_reduces, num_samples in run_world(world_size, _average):
        off = torch.tensor(weights, dtype=torch.float64) - expected
        assert off.norm() < 1e-12 * expected.norm()
        assert different == 1
        assert num_all_reduces == 4 * -(-num_samples // BATCH_SIZE)
