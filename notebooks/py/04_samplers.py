# %% [markdown] tags=["title"]
# # Who sees which sample?
#
# 30 minutes, 4 ranks. It builds on [00_ranks](00_ranks.ipynb), where DDP averaged gradients, and
# on [02_collectives](02_collectives.ipynb).

# %% [markdown] tags=["goal"]
# When you are through, you can
#
# - **draw** which rank sees which sample in which step, and spot repeats and gaps;
# - **evaluate** on several ranks so that the number is the one that a single process gets;
# - **train** when ranks have unequal data or unequal speed, without waiting for ever or for long.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.pictures import samples_picture, timeline_plot, timeline_tracks
from ddp_lessons.trace import merge

ranks = start_ranks(4)
world_size = len(ranks)

# %% [markdown] tags=["question"]
# ## In each step every rank sees other samples.

# %% [markdown] tags=["predict"]
# Ten samples, four ranks, one sample a rank and step. A **sampler** says which samples a loader
# fetches, and in which order. Torch's `DistributedSampler` gives each rank a **shard**, its own
# part of them. How many samples do the ranks fetch together in one pass?
#
# *Your number:*

# %% tags=["run"]
# %%px
import time
import torch
import torch.distributed as dist
from ddp_lessons.process_group import rank_device
from ddp_lessons.trace import trace
from torch.utils.data import DataLoader, DistributedSampler

rank, world_size, device = dist.get_rank(), dist.get_world_size(), rank_device()
dataset = torch.arange(10)  # each sample is its own number


def batches_of(loader):
    return [batch.tolist() for batch in loader]


# %% tags=["run"]
# %%px
sampler = DistributedSampler(dataset)
batches = batches_of(DataLoader(dataset, batch_size=1, sampler=sampler))
print(f"step by step: {batches}")

# %% tags=["picture"]
samples_picture(ranks.view["batches"], num_samples=10)

# %% [markdown] tags=["read"]
# They fetch 12. In each step the four ranks see four different samples: the same step, but not the
# same data. So a claim that you will read, that in synchronous training every device processes the
# same data, C07 in our list, is **false**. What is the same is the weights, as lesson 00 showed.
#
# Ten do not divide by four. The sampler repeats 2 samples, so that all ranks have equally many.
# This is **padding**.

# %% tags=["check"]
steps = list(zip(*ranks.view["batches"], strict=True))
fetched = [sample for step in steps for batch in step for sample in batch]
assert all(len({batch[0] for batch in step}) == world_size for step in steps)
assert set(fetched) == set(range(10))
assert len(fetched) == 12
print("ok: C07 is false, 4 different samples in each step; 12 fetched, 2 of them twice")

# %% [markdown] tags=["question"]
# ## Without `set_epoch` every epoch has the same order.

# %% [markdown] tags=["predict"]
# The sampler shuffles by default. You go through the data three times, three epochs. How many
# different orders will a rank see?
#
# *Your number:*

# %% tags=["run"]
# %%px
loader = DataLoader(dataset, batch_size=3, sampler=sampler)
alike = [batches_of(loader)[0] for epoch in range(3)]
anew = []
for epoch in range(3):
    sampler.set_epoch(epoch)
    anew.append(batches_of(loader)[0])
print(f"without set_epoch {alike}, with it {anew}")

# %% [markdown] tags=["read"]
# One order without it, 3 with it. The order is computed from the seed plus the epoch, on every rank
# alike, with no message. Nobody but you can tell the sampler which epoch it is.
#
# So the claim that `DistributedSampler` gives each process a different subset, C06, is **half
# true**: subsets differ, but for padding; and they stay the same for ever unless you call
# `set_epoch`.

# %% tags=["check"]
for alike, anew in zip(ranks.view["alike"], ranks.view["anew"], strict=True):
    assert len({tuple(order) for order in alike}) == 1
    assert len({tuple(order) for order in anew}) == 3
shards = [set(orders[0]) for orders in ranks.view["alike"]]
num_twice = sum(len(shard) for shard in shards) - len(set.union(*shards))
assert num_twice == 2
print("ok: C06 is half true: 2 samples in two shards, and 1 order where 3 were meant")

# %% [markdown] tags=["question"]
# ## A sampler that the loader never gets does nothing.

# %% [markdown] tags=["predict"]
# A guide makes a `DistributedSampler`, calls the data distributed, and forgets to hand it to the
# loader. No error, no warning. How many samples do four ranks now fetch in an epoch of ten?
#
# *Your number:*

# %% tags=["break"]
# %%px
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=2)
batches = batches_of(loader)
print(f"{sum(map(len, batches))} samples in {len(batches)} steps")

# %% tags=["picture"]
samples_picture(ranks.view["batches"], num_samples=10)

# %% tags=["mend"]
# %%px
broken = batches
loader = DataLoader(dataset, batch_size=2, sampler=sampler)
batches = batches_of(loader)
print(f"{sum(map(len, batches))} samples in {len(batches)} steps")

# %% [markdown] tags=["read"]
# Each rank fetches all 10, together 40. Four ranks do the work of one, four times. The loss falls
# as it should, so you do not notice. So the claim that creating the sampler distributes the data,
# C05, is **false**: only `sampler=sampler` does.
#
# Two things give it away: the number of steps, 5 where 2 were meant, and the first batch, which is
# the same on all ranks. Print both once.

# %% tags=["check"]
counts = {}
for name in ("broken", "batches"):
    counts[name] = sum(len(b) for own in ranks.view[name] for b in own)
assert counts == {"broken": 10 * world_size, "batches": 12}
assert all(own == ranks.view["broken"][0] for own in ranks.view["broken"])
print("ok: C05 is false: 40 samples fetched without handing it over, 12 with")

# %% [markdown] tags=["question"]
# ## Add counts up before you divide.

# %% [markdown] tags=["predict"]
# Five samples to evaluate, four ranks. The model gets sample 0 wrong, and the others right: 0.8.
# What accuracy do four ranks find that use a `DistributedSampler`?
#
# *Your number:*

# %% tags=["run"]
# %%px
from ddp_lessons.samplers import ExactSampler, exact_accuracy

tests = torch.arange(5)
found = {}
for kind in (DistributedSampler(tests, shuffle=False), ExactSampler(tests)):
    seen = torch.cat(list(DataLoader(tests, sampler=kind)))
    num_right = (seen != 0).sum()  # the model is wrong about sample 0
    mean = (num_right / len(seen)).to(device)
    dist.all_reduce(mean)
    counted = exact_accuracy(num_right, len(seen))
    found[type(kind).__name__] = (mean.item() / world_size, counted)
    print(f"{type(kind).__name__:18} sees {seen.tolist()}")

# %% tags=["run"]
for name, (mean, counted) in ranks.view["found"][0].items():
    print(f"{name:18} mean of ranks {mean:.3f}, counts {counted:.3f}")

# %% [markdown] tags=["read"]
# They find 0.750. Padding repeated samples 0, 1 and 2, and so counted the mistake twice. Our
# `ExactSampler` repeats nothing. But now rank 0 has two samples and the others one, and the mean of
# the ranks, 0.875, weighs them alike. Only 0.800 is right: every sample once, counts added up over
# ranks with an all-reduce, divided at the end.

# %% tags=["check"]
exact = ranks.view["found"][0]["ExactSampler"]
padded = ranks.view["found"][0]["DistributedSampler"]
assert exact[1] == 4 / 5
assert exact[0] == (1 / 2 + 1 + 1 + 1) / 4
assert padded == (6 / 8, 6 / 8)
print("ok: 0.8 from exact counts; padding gave 0.75, the mean of ranks 0.875")

# %% [markdown] tags=["question"]
# ## A rank that runs out of data leaves the others waiting, unless it joins.

# %% [markdown] tags=["predict"]
# Rank 0 has two batches, the others have three. DDP averages gradients over all ranks in each
# `backward()`. How many ranks come to the end of their loop?
#
# *Your number:*

# %% tags=["run"]
# %%px
from torch.nn.parallel import DistributedDataParallel as DDP

inputs = torch.ones(2 if rank == 0 else 3, 1, 1, device=device)


def train(model):
    for batch in inputs:
        model.zero_grad()
        model(batch).sum().backward()
        gradients.append(model.module.weight.grad.item())


# %% tags=["break", "raises-exception"]
# %%px
gradients = []
train(DDP(torch.nn.Linear(1, 1, bias=False).to(device)))

# %% tags=["mend"]
# %%px
from torch.distributed.algorithms.join import Join

gradients = []
model = DDP(torch.nn.Linear(1, 1, bias=False).to(device))
with Join([model]):
    train(model)
print(f"{len(gradients)} steps, gradients {gradients}")

# %% [markdown] tags=["read"]
# One, rank 0; the others wait for it in their third backward, as the message says.
#
# Inside **Join** a rank that is through answers the others' collectives with zeros, and takes the
# last weights at the end. So rank 0 made 2 steps, the others 3. The third gradient is 0.75: three
# ranks gave 1, one gave 0, and DDP still divided by 4.
#
# The sampler's `drop_last=True` is another way: equal steps, some samples unseen.

# %% tags=["check"]
assert ranks.view["gradients"] == [[1, 1]] + [[1, 1, 0.75]] * 3
print("ok: 4 ranks came to the end, one of them a step early")

# %% [markdown] tags=["question"]
# ## A slow rank holds all back, until it gets a smaller share.

# %% [markdown] tags=["predict"]
# Rank 3 takes three times as long for a sample. 120 samples, 30 for each rank, are one epoch. A
# guide says: balance the load by changing the learning rate. How many samples does rank 3 get
# then? How many should it get?
#
# *Your number:*

# %% tags=["run"]
# %%px
sample_s = 0.018 if rank == 3 else 0.006  # waiting plays the part of a device's work


def epoch(loader, lr=0.1):
    model = DDP(torch.nn.Linear(1, 1, bias=False).to(device))
    torch.nn.init.ones_(model.module.weight)
    optimizer, num_seen = torch.optim.SGD(model.parameters(), lr), 0
    start = time.perf_counter()
    for batch in loader:
        with events.span("work"):
            time.sleep(len(batch) * sample_s)
        optimizer.zero_grad()
        model(batch.to(device)).mean().backward()
        optimizer.step()
        num_seen += len(batch)
    return num_seen, time.perf_counter() - start, model.module.weight.item()


# %% tags=["run"]
# %%px
samples = torch.ones(120, 1)
equal = DataLoader(samples, batch_size=10, sampler=DistributedSampler(samples))
with trace() as events:
    num_seen, equal_s, weight = epoch(equal)
    num_seen_lr, lr_s, weight_lr = epoch(equal, lr=0.1 / 3)
before = list(events)
print(f"{num_seen} samples; {num_seen_lr} with another learning rate")

# %% tags=["picture"]
timeline_plot(timeline_tracks(merge(ranks.view["before"], "wall")), "microseconds")

# %% tags=["run"]
# %%px
from ddp_lessons.samplers import BalancedBatchSampler, gather_throughputs

start = time.perf_counter()
time.sleep(20 * sample_s)  # the work of 20 samples, measured before it meets the others
speeds = gather_throughputs(20 / (time.perf_counter() - start))
fair = BalancedBatchSampler(samples, 40, speeds)
with trace() as events:
    num_fair, fair_s, _ = epoch(DataLoader(samples, batch_sampler=fair))
after = list(events)
print(f"{len(fair)} steps; fewer than 20 samples: {num_fair < 20}")

# %% tags=["picture"]
timeline_plot(timeline_tracks(merge(ranks.view["after"], "wall")), "microseconds")

# %% [markdown] tags=["read"]
# Hatched is an all-reduce: three ranks are in it early, and wait for rank 3. With another learning
# rate, in the last 3 steps, rank 3 still gets 30 samples. Only the weights differ. So C08,
# that the learning rate balances load, is **false**.
#
# Shares move load. Each rank measured its samples a second, its **throughput**. Shares by that gave
# rank 3 fewer than 20. Batches now differ in size, so a mean over ranks should weigh them by
# samples.

# %% tags=["check"]
assert ranks.view["num_seen"] == ranks.view["num_seen_lr"] == [30] * 4
assert ranks.view["weight"] != ranks.view["weight_lr"]
assert sum(ranks.view["num_fair"]) == 120
assert ranks.view["num_fair"][3] < 20 < min(ranks.view["num_fair"][:3])
equal_s, lr_s, fair_s = (max(ranks.view[n]) for n in ("equal_s", "lr_s", "fair_s"))
# Work alone: 30 samples of rank 3 take 540 ms, its fair 12 take 216 ms, 2.5 times less.
assert equal_s > 1.5 * fair_s
assert lr_s > 1.5 * fair_s
print("ok: C08 is false; fair shares took less than two thirds of the time")

# %% [markdown] tags=["recap"]
# You have drawn which rank sees what, found repeats and gaps, evaluated exactly, and trained with
# unequal data and unequal speed.
#
# Rule of thumb: **count samples, do not trust the sampler: over all ranks and one epoch, each
# sample once.**

# %% [markdown] tags=["next"]
# - **Exercise** [04](../exercises/04_samplers.ipynb): share out indices; an accuracy that is exact;
#   a sampler that goes on in the middle of an epoch; shares that follow the ranks' speed.
# - **Next lesson** [05](05_replicas.ipynb): how do replicas stay equal?
# - **Sources**: PyTorch's documentation of
#   [torch.utils.data](https://docs.pytorch.org/docs/stable/data.html), `DistributedSampler`, with
#   its warning about `set_epoch`; A. Gu, [Distributed Training with Uneven Inputs Using the Join
#   Context Manager](https://docs.pytorch.org/tutorials/advanced/generic_join.html), on how a rank
#   that is through answers the others; and the page of
#   [Join](https://docs.pytorch.org/docs/stable/distributed.algorithms.join.html).

# %% tags=["teardown"]
ranks.stop()
