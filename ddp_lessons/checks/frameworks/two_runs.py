"""
The two runs of task 16.2: one in plain DDP, and one by a framework that differs in one thing.

Legend: w ranks; B samples in a batch; m batches of a rank in an epoch.
"""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from ddp_lessons.checks.frameworks.material import Samples, classifier
from ddp_lessons.frameworks import tally, told, untold
from ddp_lessons.trace import trace

NUM_EPOCHS = 2
CAUSES = {
    "nothing": ("accelerate", "fabric"),
    "sharded twice": ("accelerate",),
    "dealt in batches": ("accelerate",),
    "shuffled": ("accelerate", "fabric"),
    "new order each epoch": ("fabric",),
    "not averaged": ("accelerate", "fabric"),
    "loss divided": ("accelerate",),
    "accumulated": ("accelerate",),
    "schedule too fast": ("accelerate",),
    "less precise": ("accelerate", "fabric"),
}
"""
For each change the frameworks in which an ordinary line of code makes it.
"""


def observed_plain(context):
    """
    Train in plain DDP, and return a list with the observations of each rank.

    Collective: every rank of the case must call it.
    """
    run = _Run(context)
    sampler = run.sampler()
    epochs = range(NUM_EPOCHS) if context["cause"] != "new order each epoch" else None
    replica = DistributedDataParallel(run.model)
    loader = DataLoader(run.data, context["batch"], sampler=sampler)
    return run.observe(replica, run.optimizer, loader, run.schedule(), sampler, epochs)


def observed_by_accelerate(context):
    """
    Train by Accelerate, with the case's cause, and return a list with each rank's observations.

    Collective: every rank of the case must call it.
    """
    from accelerate import Accelerator

    cause, run = context["cause"], _Run(context)
    settings = {}
    if cause == "less precise":
        settings["mixed_precision"] = "bf16"
    if cause in ("loss divided", "accumulated"):
        settings["gradient_accumulation_steps"] = context["every"]
    with untold() if cause == "not averaged" else told():
        accelerator = Accelerator(cpu=True, **settings)
        replica, optimizer = accelerator.prepare(run.model, run.optimizer)
        sampler = run.sampler()
        loader = DataLoader(run.data, context["batch"], sampler=sampler)
        if cause in ("dealt in batches", "shuffled"):
            loader = DataLoader(run.data, context["batch"], shuffle=cause == "shuffled")
        if cause in ("sharded twice", "dealt in batches", "shuffled"):
            loader = accelerator.prepare(loader)
        schedule = run.schedule()
        if cause == "schedule too fast":
            schedule = accelerator.prepare(schedule)
        window = accelerator.accumulate if cause == "accumulated" else None
        backward, epochs = accelerator.backward, range(NUM_EPOCHS)
        return run.observe(replica, optimizer, loader, schedule, sampler, epochs, backward, window)


def observed_by_fabric(context):
    """
    Train by Fabric, with the case's cause, and return a list with each rank's observations.

    Collective: every rank of the case must call it.
    """
    from lightning_fabric import Fabric

    cause, run = context["cause"], _Run(context)
    settings: dict = {"accelerator": "cpu", "devices": context.world_size, "strategy": "ddp"}
    if cause == "less precise":
        settings["precision"] = "bf16-mixed"
    with told():
        fabric = Fabric(**settings)
        fabric.launch()
        replica, optimizer = fabric.setup(run.model, run.optimizer)
        sampler = run.sampler()
        loader = DataLoader(run.data, context["batch"], sampler=sampler)
        if cause == "shuffled":
            loader = DataLoader(run.data, context["batch"], shuffle=True)
        set_up = fabric.setup_dataloaders(loader)
        window = fabric.no_backward_sync if cause == "not averaged" else None
        epochs = None if cause == "new order each epoch" else range(NUM_EPOCHS)
        schedule, backward = run.schedule(), fabric.backward
        return run.observe(replica, optimizer, set_up, schedule, sampler, epochs, backward, window)


class _Run:
    def __init__(self, context):
        self.context = context
        self.data = Samples(context.case, context["samples"], torch.float32)
        self.model = classifier(context.case, torch.float32)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2)

    def sampler(self):
        shuffles, seed = self.context["shuffles"], self.context["sampler seed"]
        return DistributedSampler(self.data, shuffle=shuffles, seed=seed)

    def schedule(self):
        return torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.5)

    def observe(
        self, replica, optimizer, loader, schedule, sampler, epochs, backward=None, window=None
    ):
        rates: list = []
        seen: dict = {"samples": [], "losses": [], "gradients": [], "rates": rates}

        def note(*_):  # called before each step that the optimizer really makes
            parameters = list(self.model.parameters())
            whole = torch.cat([parameter.grad.flatten() for parameter in parameters])
            seen["gradients"].append(whole.norm().item())
            rates.append(self.optimizer.param_groups[0]["lr"])

        hook = self.optimizer.register_step_pre_hook(note)
        with trace() as events:
            for epoch in range(NUM_EPOCHS):
                if epochs is not None:
                    sampler.set_epoch(epochs[epoch])
                self.data.fetched.clear()
                for x, y in loader:
                    loss, num_steps = self._batch(replica, x, y, backward, window), len(rates)
                    optimizer.step()
                    optimizer.zero_grad()
                    if len(rates) > num_steps:
                        schedule.step()
                    seen["losses"].append(loss.item())
                seen["samples"].append(self._in_batches())
        hook.remove()
        seen["all_reduces"] = tally(events).all_reduces
        everyone: list = [None] * self.context.world_size
        dist.all_gather_object(everyone, seen)
        return everyone

    def _batch(self, replica, x, y, backward, window):
        if window is None:
            loss = cross_entropy(replica(x), y)
            (backward or torch.Tensor.backward)(loss)
            return loss
        with window(replica):
            loss = cross_entropy(replica(x), y)
            backward(loss)
        return loss

    def _in_batches(self):
        fetched, size = self.data.fetched, self.context["batch"]
        return [fetched[start : start + size] for start in range(0, len(fetched), size)]
