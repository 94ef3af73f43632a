"""
Sources from which the answers of exercise 16 are made.
"""

from bank import changing

_IMPORTS = """\
from contextlib import nullcontext
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


"""

ACCELERATE = (
    _IMPORTS
    + """\
def ported(model, dataset, every, path):
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=every)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    sampler = DistributedSampler(dataset, seed=3)
    loader = DataLoader(dataset, batch_size=2, sampler=sampler)
    replica, optimizer = accelerator.prepare(model, optimizer)
    losses = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            with accelerator.accumulate(replica):
                loss = cross_entropy(replica(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(replica.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                schedule.step()
            losses.append(loss.item())
    if accelerator.is_main_process:
        torch.save(model.state_dict(), path)
    return losses
"""
)

FABRIC = (
    _IMPORTS
    + """\
def ported(model, dataset, every, path):
    from lightning_fabric import Fabric
    fabric = Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy="ddp")
    fabric.launch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    replica, optimizer = fabric.setup(model, optimizer)
    sampler = DistributedSampler(dataset, seed=3)
    loader = fabric.setup_dataloaders(DataLoader(dataset, 2, sampler=sampler))
    losses = []
    for epoch in range(2):
        for number, (x, y) in enumerate(loader, start=1):
            ends = number % every == 0
            with fabric.no_backward_sync(replica, enabled=not ends):
                loss = cross_entropy(replica(x), y)
                fabric.backward(loss / every)
            losses.append(loss.item())
            if ends:
                fabric.clip_gradients(replica, optimizer, max_norm=0.5)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
    fabric.save(path, model.state_dict())
    return losses
"""
)

CHANGED = """\
def what_changed(plain, other):
    for old, new in zip(plain, other):
        if sum(map(len, new["samples"])) < sum(map(len, old["samples"])):
            return "sharded twice"
    for old, new in zip(plain, other):
        before, after = old["samples"], new["samples"]
        if before[0] == after[0] and before[1] != after[1]:
            return "new order each epoch"
        if before != after:
            follow = all(b == a + 1 for batch in after[0] for a, b in zip(batch, batch[1:]))
            return "dealt in batches" if follow else "shuffled"
    for old, new in zip(plain, other):
        if old["losses"][0] != new["losses"][0]:
            return "less precise"
    if len(other[0]["rates"]) != len(plain[0]["rates"]):
        return "accumulated"
    if any(rank["gradients"] != other[0]["gradients"] for rank in other):
        return "not averaged"
    if other[0]["rates"] != plain[0]["rates"]:
        return "schedule too fast"
    if other[0]["gradients"] != plain[0]["gradients"]:
        return "loss divided"
    return "nothing"
"""

altered = changing({"16.1": ACCELERATE, "16.2": CHANGED})
"""
A function that makes an answer from the right one by replacing the old texts of pairs (old, new).
"""

of_fabric = changing({"16.1": FABRIC})
"""
A function like `altered`, for the answer that uses Fabric.
"""
