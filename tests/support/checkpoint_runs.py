"""
Small runs that the tests of checkpoints stop, kill and resume.

A run has every state that can be lost: dropout, momentum, a schedule, a shuffle that knows its
position, and numbers drawn from Python and NumPy in every step.
"""

import contextlib
import random
import resource

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddp_lessons.checkpoint import Run
from ddp_lessons.checkpoint.faults import place

NUM_SAMPLES = 26  # not a multiple of 4 ranks times 2: an epoch's last batch is short
BATCH = 2


class Shuffled:
    """
    A sampler of one rank's shard of a shuffle. It can stop and resume within an epoch.
    """

    def __init__(self, rank, world_size):
        self.rank, self.world_size, self.epoch, self.done = rank, world_size, 0, 0

    def batches(self, epoch):
        """
        Yield an epoch's batches that were not yet yielded, as index tensors.
        """
        if epoch != self.epoch:
            self.epoch, self.done = epoch, 0
        order = torch.randperm(NUM_SAMPLES, generator=torch.Generator().manual_seed(epoch))
        own = order[self.rank : NUM_SAMPLES // self.world_size * self.world_size : self.world_size]
        while self.done < len(own):
            batch = own[self.done : self.done + BATCH]
            self.done += len(batch)
            yield batch

    def state_dict(self):
        return {"epoch": self.epoch, "done": self.done}

    def load_state_dict(self, state):
        self.epoch, self.done = state["epoch"], state["done"]


def make_run(seed=0, rank_seed=100, adam=False):
    """
    Return a new Run. `seed` gives the model; the random numbers of a step differ between ranks.

    DDP makes a pass without an optimizer step, so that its buckets have the final order from the
    first step on. `test_sums_of_three_ranks_change_when_ddp_orders_its_buckets_anew` shows why.
    """
    rank, world_size = place()
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(5, 2)
    )
    if dist.is_initialized() and world_size > 1:
        model = DistributedDataParallel(model)
        model(torch.ones(1, 3)).sum().backward()
        model.zero_grad()
    if adam:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.7)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    for seeder in (torch.manual_seed, random.seed, np.random.seed):
        seeder(rank_seed + rank)
    return Run(model, optimizer, scheduler, scaler, Shuffled(rank, world_size))


def train(run, num_steps, seen=None):
    """
    Make `num_steps` more steps, and append the indices of this rank's samples to `seen`.
    """
    data = torch.arange(NUM_SAMPLES * 3.0).sin().view(NUM_SAMPLES, 3)
    last_step = run.step + num_steps
    for epoch in run.remaining_epochs(1000):
        for batch in run.sampler.batches(epoch):
            noise = random.random() + float(np.random.rand())  # noqa: NPY002
            loss = (run.model(data[batch]) * noise).square().mean()
            run.optimizer.zero_grad()
            run.scaler.scale(loss).backward()
            run.scaler.step(run.optimizer)
            run.scaler.update()
            run.scheduler.step()
            run.step += 1
            if seen is not None:
                seen.extend(batch.tolist())
            if run.step == last_step:
                return


def fingerprint(run):
    """
    Return all bits of a run's state, as nested plain values that compare with `==`.
    """
    drawn = (random.random(), float(np.random.rand()), torch.rand(2).tolist())  # noqa: NPY002
    momenta = [
        {name: _bits(value) for name, value in state.items()}
        for state in run.optimizer.state_dict()["state"].values()
    ]
    model = getattr(run.model, "module", run.model)
    return {
        "model": [_bits(tensor) for tensor in model.state_dict().values()],
        "optimizer": momenta,
        "lr": run.scheduler.get_last_lr(),
        "scaler": run.scaler.state_dict(),
        "sampler": run.sampler.state_dict(),
        "counts": (run.epoch, run.step),
        "rng": drawn,
    }


def _bits(value):
    if not isinstance(value, torch.Tensor):
        return value
    value = value.full_tensor() if hasattr(value, "full_tensor") else value
    return value.contiguous().view(-1).view(torch.uint8).tolist()


@contextlib.contextmanager
def file_size_limit(num_bytes):
    """
    Limit the files of this process to `num_bytes`. A write beyond them fails.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
