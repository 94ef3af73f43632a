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
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.pictures import samples_picture, timeline_plot, timeline_tracks
from ddp_lessons.trace import merge

ranks = start_ranks(4)
world_size = len(ranks)

# %% [markdown] tags=["question"]
# ## Which samples does a rank see?

# %% [markdown] tags=["predict"]
# Ten samples, four ranks, one sample a rank and step. A **sampler** says which samples a loader
# fetches, and in which order. Torch's `DistributedSampler` gives each rank a **shard**, its own
# part of them. How many samples do the ranks fetch together in one pass?

# %% tags=["predict"]
predict("samples_fetched", ...)

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
# They fetch 12. Ten do not divide by four, so the sampler repeats the first of its order, here 4 and
# 1, until all ranks have equally many. This is **padding**.
#
# In each step the four ranks see four different samples. So [claim C07](claims.md), that in
# synchronous training every device processes the same data, is **false**. What is the same is the
# weights, as lesson 00 showed.

# %% tags=["check"]
steps = list(zip(*ranks.view["batches"], strict=True))
fetched = [sample for step in steps for batch in step for sample in batch]
assert all(len({batch[0] for batch in step}) == world_size for step in steps)
assert set(fetched) == set(range(10))
assert len(fetched) == 12
ok("C07 is false, 4 samples in each step", samples_fetched=len(fetched))

# %% [markdown] tags=["question"]
# ## What changes from epoch to epoch?

# %% [markdown] tags=["predict"]
# The sampler shuffles by default. You go through the same loader three times, three epochs. How
# many different orders will a rank see?

# %% tags=["predict"]
predict("orders_in_three_epochs", ...)

# %% tags=["run"]
# %%px
loader = DataLoader(dataset, batch_size=3, sampler=sampler)
alike = [batches_of(loader)[0] for epoch in range(3)]
anew = []
for epoch in range(3):
    sampler.set_epoch(epoch)
    anew.append(batches_of(loader)[0])
num_orders = [len({tuple(order) for order in orders}) for orders in (alike, anew)]
if rank == 0:
    print(f"without set_epoch {alike}: {num_orders[0]} order")
    print(f"with it {anew}: {num_orders[1]} orders")
    dice = torch.Generator().manual_seed(0 + 2)  # seed 0, epoch 2
    print(f"of all ranks in epoch 2: {torch.randperm(10, generator=dice).tolist()}")

# %% [markdown] tags=["read"]
# 1 order without it, 3 with it. The order comes from a generator of its own that starts at the seed
# plus the epoch, so every rank computes the same one, with no message. Rank 0 takes its samples at
# places 0, 4 and 8. Only you can tell the sampler which epoch it is.
#
# [Claim C06](claims.md), that each process gets a different subset, is **half true**: padding
# repeats some, and the subsets stay the same unless you call `set_epoch`.

# %% tags=["check"]
assert ranks.view["num_orders"] == [[1, 3]] * world_size
shards = [set(orders[0]) for orders in ranks.view["alike"]]
assert sum(len(shard) for shard in shards) - len(set.union(*shards)) == 2
num_orders = ranks.view["num_orders"][0][0]
ok("C06 is half true: 1 order, and 2 repeats", orders_in_three_epochs=num_orders)

# %% [markdown] tags=["question"]
# ## What if the loader never gets the sampler?

# %% [markdown] tags=["predict"]
# A guide makes a `DistributedSampler`, calls the data distributed, and forgets to hand it to the
# loader. No error, no warning. How many samples do four ranks now fetch together?

# %% tags=["predict"]
predict("samples_without_handing_over", ...)

# %% tags=["break"]
# %%px
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=2)
broken = batches_of(loader)
print(f"{sum(map(len, broken))} samples in {len(broken)} steps")

# %% tags=["picture"]
samples_picture(ranks.view["broken"], num_samples=10)

# %% tags=["mend"]
# %%px
loader = DataLoader(dataset, batch_size=2, sampler=sampler)
batches = batches_of(loader)
print(f"{sum(map(len, batches))} samples in {len(batches)} steps")

# %% tags=["break", "raises-exception"]
# %%px
DataLoader(dataset, batch_size=2, sampler=sampler, shuffle=True)

# %% [markdown] tags=["read"]
# Each rank fetches all 10, together 40. Four ranks do the work of one, four times. Nothing
# complains, so you do not notice. So [claim C05](claims.md), that creating the sampler
# distributes the data, is **false**: only `sampler=sampler` does. It shuffles, too: a loader that gets
# `shuffle=True` besides raises.
#
# One thing gives it away: the number of steps, 5 where 2 were meant. In this loader, which does not
# shuffle, the first batch is also the same on all ranks.

# %% tags=["check"]
counts = {}
for name in ("broken", "batches"):
    counts[name] = sum(len(b) for own in ranks.view[name] for b in own)
assert counts == {"broken": 10 * world_size, "batches": 12}
assert all(own == ranks.view["broken"][0] for own in ranks.view["broken"])
num_broken = counts["broken"]
ok("C05 is false: 12 when handed over", samples_without_handing_over=num_broken)

# %% [markdown] tags=["question"]
# ## What accuracy do four ranks find?

# %% [markdown] tags=["predict"]
# Five samples to evaluate, four ranks. The model gets sample 0 wrong, and the others right: 0.8. Each
# rank takes its share from a `DistributedSampler` that does not shuffle, and the result is the mean
# of the ranks' accuracies. What accuracy is that?

# %% tags=["predict"]
predict("accuracy_of_padded_ranks", ...)

# %% tags=["run"]
# %%px
from ddp_lessons.samplers import ExactSampler

tests, found = torch.arange(5), []
for kind in (DistributedSampler(tests, shuffle=False), ExactSampler(tests)):
    seen = torch.cat(list(DataLoader(tests, sampler=kind)))
    num_right = (seen != 0).sum().item()  # the model is wrong about sample 0
    own = num_right / len(seen)
    sums = torch.tensor([own, num_right, len(seen)], device=device)
    dist.all_reduce(sums)  # of all ranks
    found.append([(sums[0] / world_size).item(), (sums[1] / sums[2]).item()])
    print(f"{type(kind).__name__:18} sees {seen.tolist()}")

# %% tags=["run"]
for name, (mean, counted) in zip(
    ("padded", "exact"), ranks.view["found"][0], strict=True
):
    print(f"{name:6}  mean of ranks {mean:.3g}, counts {counted:.3g}")

# %% [markdown] tags=["read"]
# They find 0.75. Padding repeated samples 0, 1 and 2, and so counted the mistake twice. Our
# `ExactSampler` repeats nothing. But now rank 0 has two samples and the others one, and the mean of
# the ranks, 0.875, weighs them alike. Only 0.8 is right: every sample once, right ones and all
# added up over the ranks, and divided at the end.

# %% tags=["check"]
(padded, padded_counts), (mean, counted) = ranks.view["found"][0]
assert (padded, padded_counts) == (6 / 8, 6 / 8)
assert mean == (1 / 2 + 1 + 1 + 1) / 4
assert abs(counted - 4 / 5) < 1e-6
ok("0.8 from exact counts, 0.875 from a mean", accuracy_of_padded_ranks=padded)

# %% [markdown] tags=["question"]
# ## What if a rank runs out of data?

# %% [markdown] tags=["predict"]
# Rank 0 has two batches, the others have three. DDP averages gradients over all ranks in each
# `backward()`. How many ranks come to the end of their loop?

# %% tags=["predict"]
predict("ranks_that_finish", ...)

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
# 1, rank 0. The others wait for it in their third backward.
# (`all_reduce 10` is its name in the message: the number counts the group's calls.)
#
# Inside **Join** a rank that is through answers the others' collectives with zeros. So rank 0 made 2
# steps, the others 3. The third gradient is 0.75: three ranks gave 1, one gave 0, and DDP still
# divided by 4.

# %% tags=["check"]
assert ranks.view["gradients"] == [[1, 1]] + [[1, 1, 0.75]] * 3
ok("inside Join all 4 come to the end, one of them a step early", ranks_that_finish=1)

# %% [markdown] tags=["question"]
# ## How is load balanced?

# %% [markdown] tags=["predict"]
# Rank 3 takes three times as long for a sample. An epoch has 120 samples, 30 for each rank. A guide
# says: balance the load by changing the learning rate. How many samples should rank 3 get, so that
# all ranks need equally long?

# %% tags=["predict"]
predict("samples_for_a_slow_rank", ...)

# %% tags=["run"]
# %%px
sample_s = 0.018 if rank == 3 else 0.006  # waiting plays the part of a device's work


def epoch(loader, lr=0.1):
    model = DDP(torch.nn.Linear(1, 1, bias=False).to(device))
    torch.nn.init.ones_(model.module.weight)
    optimizer, num_seen = torch.optim.SGD(model.parameters(), lr), 0
    start = time.perf_counter()
    for batch in loader:
        with events.span("work"):  # a bar in the picture; `events` is the open trace
            time.sleep(len(batch) * sample_s)
        optimizer.zero_grad()
        model(batch.to(device)).mean().backward()
        optimizer.step()
        num_seen += len(batch)
    return num_seen, time.perf_counter() - start, model.module.weight.item()


# %% tags=["run"]
# %%px
from ddp_lessons.samplers import (
    BalancedBatchSampler,
    balanced_shares,
    gather_throughputs,
)

samples = torch.ones(120, 1)  # all alike: their order does not matter
start = time.perf_counter()
time.sleep(20 * sample_s)  # 20 samples of work alone: who waits for others seems slow
speeds = gather_throughputs(20 / (time.perf_counter() - start))
equal = DataLoader(samples, batch_size=10, sampler=DistributedSampler(samples))
fair = BalancedBatchSampler(samples, 40, speeds)  # 40 samples a step, over all ranks
if rank == 0:
    print("by speeds of 3, 3, 3 and 1:", balanced_shares(120, [3, 3, 3, 1]))

# %% tags=["run"]
# %%px
with trace() as events:
    num_seen_lr, lr_s, weight_lr = epoch(equal, lr=0.1 / 3)
with trace() as events:
    num_seen, equal_s, weight = epoch(equal)
    num_fair, fair_s, _ = epoch(DataLoader(samples, batch_sampler=fair))
print(f"{num_seen} samples; {num_seen_lr} with another learning rate")

# %% tags=["picture"]
tracks = timeline_tracks(merge(ranks.view["events"], "wall"), per_unit=1000)
timeline_plot(tracks, "time in ms: equal shares, then fair ones")

# %% [markdown] tags=["read"]
# Hatched is an all-reduce: with equal shares three ranks are in it early, and wait for rank 3. With
# another learning rate rank 3 still gets 30 samples. So [claim C08](claims.md), that the learning
# rate balances load, is **false**.
#
# Shares move load. At a third of the speed, 12 samples are fair. Each rank measured its samples a
# second, its **throughput**, and shares follow it. Batches now differ in size, so gradients need a
# weight: lesson 05.

# %% tags=["check"]
assert ranks.view["num_seen"] == ranks.view["num_seen_lr"] == [30] * 4
assert ranks.view["weight"] != ranks.view["weight_lr"]
assert sum(ranks.view["num_fair"]) == 120
assert ranks.view["num_fair"][3] < 20 < min(ranks.view["num_fair"][:3])
equal_s, lr_s, fair_s = (max(ranks.view[n]) for n in ("equal_s", "lr_s", "fair_s"))
# Work alone: 30 samples of rank 3 take 540 ms, its fair 12 take 216 ms, 2.5 times less.
assert equal_s > 1.5 * fair_s
assert lr_s > 1.5 * fair_s
ok("C08 is false; fair shares took less than two thirds", samples_for_a_slow_rank=12)

# %% [markdown] tags=["question"]
# ## More: where does an epoch go on after a stop?

# %% [markdown] tags=["predict"]
# An epoch has 12 samples, and each of four ranks takes one a step. After the first step the run is
# stopped. A new run makes the same sampler, sets the same epoch, and trains it to its end. How many
# samples were seen twice?

# %% tags=["predict"]
predict("samples_seen_twice", ...)

# %% tags=["run"]
# %%px
from itertools import islice

twelve = torch.arange(12)
first_run = DataLoader(twelve, batch_size=1, sampler=DistributedSampler(twelve))
before = batches_of(islice(first_run, 1))  # stopped after one step
second_run = DataLoader(twelve, batch_size=1, sampler=DistributedSampler(twelve))
again = batches_of(second_run)

# %% tags=["mend"]
# %%px
rest = batches_of(islice(second_run, len(before), None))

# %% tags=["run"]
def samples_of(name):
    return {batch[0] for batches in ranks.view[name] for batch in batches}


num_twice = len(samples_of("before") & samples_of("again"))
num_mended = len(samples_of("before") & samples_of("rest"))
print(f"seen twice: {num_twice}, mended: {num_mended}")

# %% [markdown] tags=["read"]
# 4: the first step's. The order comes from the seed and the epoch alone, so the new run draws the same
# one, and begins at its beginning. One number says where to go on: how far the epoch has come. Here
# the mend fetches what was seen and drops it. A sampler that knows the number need not fetch it:
# exercise 04.3.

# %% tags=["check"]
assert samples_of("before") | samples_of("rest") == set(range(12))
assert num_mended == 0
ok("an epoch begins anew unless its place is saved", samples_seen_twice=num_twice)

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
