# %% [markdown] tags=["title"]
# # Exercise 16: port a loop, and find what a framework changed
#
# 60 minutes, after lesson `16_frameworks`.
# Stuck? `hint("16.1")` gives the next hint.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import frameworks as check
from ddp_lessons.checks import hint

ranks = start_ranks(4, device="cpu")  # frameworks choose devices by themselves

# %% [markdown] tags=["task"]
# ## 16.1 Port a loop
#
# This loop is plain DDP. It accumulates over windows of `every` micro-batches; an epoch has a
# multiple of `every`.
#
# ```python
# def plain(model, dataset, every, path):
#     replica = DistributedDataParallel(model)
#     optimizer = torch.optim.SGD(replica.parameters(), lr=0.3, momentum=0.9)
#     schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
#     sampler = DistributedSampler(dataset, seed=3)
#     loader = DataLoader(dataset, batch_size=2, sampler=sampler)
#     losses = []
#     for epoch in range(2):
#         sampler.set_epoch(epoch)
#         for number, (x, y) in enumerate(loader, start=1):
#             ends = number % every == 0
#             with nullcontext() if ends else replica.no_sync():
#                 loss = cross_entropy(replica(x), y)
#                 (loss / every).backward()
#             losses.append(loss.item())
#             if ends:
#                 clip_grad_norm_(replica.parameters(), 0.5)
#                 optimizer.step()
#                 optimizer.zero_grad()
#                 schedule.step()
#     if dist.get_rank() == 0:
#         torch.save(model.state_dict(), path)
#     return losses
# ```
#
# Tell it by Accelerate or by Lightning Fabric, whichever you like. The framework must wrap the
# model. All else stays as it is: which samples each rank fetches, and in which order; its losses,
# one a micro-batch, which may be off by rounding only; one averaging of gradients a window; `model`
# itself trained; and a file at `path` that `torch.load` reads, written by rank 0 and nobody else.
# Each rank's `path` is on a disk of its own.
#
# The ranks look as if torchrun had started them in a script. They are on the CPU:
# `Accelerator(cpu=True)` of `accelerate`, or `Fabric(accelerator="cpu",
# devices=dist.get_world_size(), strategy="ddp")` of `lightning_fabric`.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def ported(model, dataset, every, path):
    """
    Train as `plain` does, told by a framework, and return this rank's losses.
    """
    # solution
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=every)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    replica, optimizer = accelerator.prepare(model, optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    sampler = DistributedSampler(dataset, seed=3)
    loader = DataLoader(dataset, batch_size=2, sampler=sampler)
    losses = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            with accelerator.accumulate(replica):
                loss = cross_entropy(replica(x), y)
                accelerator.backward(loss)  # divides
                losses.append(loss.item())
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(replica.parameters(), 0.5)
                optimizer.step()  # both do nothing within a window
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                schedule.step()
    accelerator.save(model.state_dict(), path)  # on rank 0
    return losses
    # end of solution


# %% tags=["check"]
check.ported()

# %% [markdown] tags=["task"]
# What each rank fetched first, its first and last loss, and who has a file.

# %% tags=["picture"]
check.ported.picture()

# %% [markdown] tags=["task"]
# ## 16.2 Find what a framework changed
#
# Two runs were to be the same: one in plain DDP, and one told by Accelerate or Fabric. In the second,
# one line may make a difference. Say which.
#
# `plain` and `other` are what was seen of the two: for each rank, in rank order, a dictionary of
#
# - "samples": for each of 2 epochs its batches, each a list of sample numbers;
# - "losses": the loss of each batch, before the step;
# - "gradients": for each step of the optimizer, the length of all gradients as one vector, right
#   before it;
# - "rates": the learning rate of each step;
# - "all_reduces": how many there were.
#
# Samples, batches and ranks divide evenly, so nothing is padded. Return one of these texts:
#
# - "sharded twice": a sampler divided the samples, and the framework did, too;
# - "dealt in batches": ranks got whole batches in turn, in place of every w-th sample;
# - "shuffled": the samples come in another order, where plain DDP took them as they are;
# - "new order each epoch": the framework told the sampler the epoch, and plain DDP did not;
# - "not averaged": ranks kept their own gradients;
# - "loss divided": backward divided each loss by 2 or 3;
# - "accumulated": only after each second or third batch there was a step, by their mean;
# - "schedule too fast": the schedule made a step for each rank;
# - "less precise": forward was computed in bfloat16;
# - "nothing": the two are the same, to the last bit.
#
# The check makes both runs anew for each case. Every rank gets what was seen on all: send nothing.

# %% tags=["answer"]
# %%px


def what_changed(plain, other):
    """
    Return what is otherwise in the second run.
    """
    # solution
    was, now = ([rank["samples"] for rank in runs] for runs in (plain, other))
    if was != now:
        if len(now[0][0]) < len(was[0][0]):
            return "sharded twice"
        if all(new[0] == old[0] for old, new in zip(was, now, strict=True)):
            return "new order each epoch"
        first = now[0][0][0]
        if first == list(range(first[0], first[0] + len(first))):
            return "dealt in batches"
        return "shuffled"
    first, second = plain[0], other[0]
    if first["losses"][0] != second["losses"][0]:
        return "less precise"
    if len(second["gradients"]) < len(first["gradients"]):
        return "accumulated"
    if len({rank["gradients"][0] for rank in other}) > 1:
        return "not averaged"
    if first["gradients"][0] != second["gradients"][0]:
        return "loss divided"
    return "nothing" if first["rates"] == second["rates"] else "schedule too fast"
    # end of solution


# %% tags=["check"]
check.what_changed()

# %% [markdown] tags=["task"]
# In the first pair of runs: the first batch of each rank, and its loss.

# %% tags=["picture"]
check.what_changed.picture()

# %% tags=["teardown"]
ranks.stop()
