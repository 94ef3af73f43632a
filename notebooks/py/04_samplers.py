# %% [markdown] tags=["title"] minutes=[50, 42, 43, 44]
# # Who sees which sample?
#
# 45 minutes, 4 ranks. This lesson builds on [00_ranks](00_ranks.ipynb), where DDP averaged
# gradients, and on [02_collectives](02_collectives.ipynb).

# %% [markdown] tags=["why"]
# Ranks train faster than one process only if each rank works on different samples from the other
# ranks. One forgotten argument of the data loader undoes that, on two ranks as on a thousand: every
# rank then works on all samples, and no error says so. Other mistakes make the accuracy on a small
# test set wrong by some percent, or let a whole job stand still because one rank has one batch less than
# the others.

# %% [markdown] tags=["goal"]
# After this lesson you can
#
# - **draw** which rank sees which sample in which step, and find repeats and gaps;
# - **evaluate** a model on several ranks, and get the number that one process would get;
# - **train** to the end when the ranks have unequal numbers of batches.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.pictures import samples_picture, timeline_plot, timeline_tracks
from ddp_lessons.trace import merge

ranks = start_ranks(4)
world_size = len(ranks)

# %% [markdown] tags=["question"]
# ## Which samples does each rank get?

# %% [markdown] tags=["explain"]
# A `DataLoader` does not choose the samples. It asks its **sampler**, an object that yields the
# indices of the samples in the order in which the loader shall fetch them. For several ranks, torch
# has the `DistributedSampler`. It gives each rank its own shard by these rules:
#
# 1. Every rank shuffles the indices of all samples in the same way. No message is needed for that,
#    because every rank draws the order from a random generator that starts with the same seed.
# 2. With four ranks, rank 0 takes the positions 0, 4, 8 and so on of this order, rank 1 the
#    positions 1, 5, 9 and so on.
# 3. All shards are equally long, so that all ranks make the same number of steps. By default, every
#    sample is in at least one shard.

# %% [markdown] tags=["predict"]
# The dataset below has 10 samples, and each of the four ranks fetches one sample a step. How many
# samples do the four ranks fetch together in one pass?

# %% tags=["predict"]
predict("samples_fetched", ...)

# %% tags=["run"]
# %%px
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

rank, world_size = dist.get_rank(), dist.get_world_size()
dataset = torch.arange(10)  # the sample with index 7 is the number 7

sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=1, sampler=sampler)
batches = [batch.tolist() for batch in loader]
print(f"my batches, step by step: {batches}")

# %% tags=["run"]
batches_of_rank = ranks.view["batches"]
fetched = [s for batches in batches_of_rank for batch in batches for s in batch]
print(f"{len(fetched)} samples fetched, {len(set(fetched))} different ones")

# %% tags=["picture"]
samples_picture(batches_of_rank, num_samples=10)

# %% [markdown] tags=["read"]
# The ranks fetch 12 samples. Ten is not a multiple of four, and all shards are equally long, so the
# sampler repeats the first samples of its shuffled order, here 4 and 1. This is **padding**. In the
# picture a repeated sample is hatched.
#
# The alternative is to leave out the samples at the end of the order. You choose it with
# `drop_last=True`; the default is False.

# %% tags=["run"]
# %%px
short_shard = list(DistributedSampler(dataset, drop_last=True))
print(f"my samples with drop_last=True: {short_shard}")

# %% tags=["picture"]
samples_picture([[[s] for s in shard] for shard in ranks.view["short_shard"]], 10)

# %% [markdown] tags=["read"]
# Now the ranks fetch 8 samples, and the last line of the picture names the two that no rank sees: 2
# and 6.
#
# In each step of the first picture the four ranks see four different samples. A popular guide says
# that in synchronous training every device processes the same data ([claim C07](claims.md) of the
# page that lists what popular guides say). The claim is **false** for data parallel training: the
# weights are the same on all ranks, and the data must differ. To see what each rank of your own job
# gets, print the first batches of its loader.

# %% tags=["check"]
steps = list(zip(*batches_of_rank, strict=True))
assert all(len({batch[0] for batch in step}) == world_size for step in steps)
assert sum(map(len, ranks.view["short_shard"])) == 8
ok("C07 is false: 4 different samples in each step", samples_fetched=len(fetched))

# %% [markdown] tags=["question"]
# ## What changes from epoch to epoch?

# %% [markdown] tags=["explain"]
# The sampler shuffles by default. In each pass it makes a new random generator, seeds it with the
# sum of its attributes `seed` and `epoch`, and draws an order from it.

# %% [markdown] tags=["predict"]
# The cell below goes through one loader three times: three epochs. A batch has three samples, so
# one batch is a rank's whole shard, and shows its order. How many different orders does a rank see?

# %% tags=["predict"]
predict("orders_in_three_epochs", ...)

# %% tags=["break"]
# %%px
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=3, sampler=sampler)
orders = []
for epoch in range(3):
    for batch in loader:
        orders.append(batch.tolist())
print(f"{orders}: different orders: {len(set(map(tuple, orders)))}")

# %% [markdown] tags=["read"]
# A rank sees 1 order, in all three epochs. The sampler's `seed` and `epoch` are 0 until you set
# them, and a loop over the loader does not set them. The model then gets the same batches over and
# over, and no warning says so. With `drop_last=True` this is worse: the samples 2 and 6 of the
# picture above would be lost in every epoch. The repair is one line at the beginning of each epoch:

# %% tags=["mend"]
# %%px
new_orders = []
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch in loader:
        new_orders.append(batch.tolist())
print(f"{new_orders}: different orders: {len(set(map(tuple, new_orders)))}")

# %% [markdown] tags=["explain"]
# `set_epoch` must get the same number on all ranks. A rank with another number would cut its shard
# out of another order, so that some samples would come twice and others never. The next cell does
# in plain torch what the sampler does in epoch 2:

# %% tags=["run"]
# %%px
generator = torch.Generator().manual_seed(0 + 2)  # seed 0, epoch 2
order = torch.randperm(10, generator=generator).tolist()
num_repeats = -len(order) % world_size  # 2: 10 and 2 are 12, a multiple of 4
padded_order = order + order[:num_repeats]
plain_shard = padded_order[rank::world_size]
print(f"{plain_shard}, equal to the sampler's: {plain_shard == new_orders[2]}")

# %% [markdown] tags=["read"]
# The lists are equal. The sampler draws from a generator of its own, and not from torch's global
# one, which dropout uses.
#
# [Claim C06](claims.md) says that the `DistributedSampler` gives each process a different subset.
# It is **half true**: the subsets are disjoint only if the world size divides the number of samples
# (here samples 4 and 1 were in two shards), or with `drop_last=True`. And each process gets the
# same subset in every epoch until you call `set_epoch`. So call it in each epoch.

# %% tags=["check"]
assert ranks.view["plain_shard"] == [own[2] for own in ranks.view["new_orders"]]
(num_orders,) = {len(set(map(tuple, own))) for own in ranks.view["orders"]}
ok("C06 is half true: 1 order without set_epoch", orders_in_three_epochs=num_orders)

# %% [markdown] tags=["question"]
# ## What does it take to distribute a dataset?

# %% [markdown] tags=["explain"]
# A `DataLoader` that gets no sampler makes one of its own. By default that sampler yields the
# indices 0, 1, 2 and so on of the whole dataset, and with `shuffle=True` the same indices in a
# random order.

# %% [markdown] tags=["predict"]
# Read the next cell before you run it: each rank fetches batches of two samples. How many different
# samples do the four ranks fetch together in their first step?

# %% tags=["predict"]
predict("different_samples_in_first_step", ...)

# %% tags=["break"]
# %%px
sampler = DistributedSampler(dataset)
sampler.set_epoch(0)
loader = DataLoader(dataset, batch_size=2)
batches = [batch.tolist() for batch in loader]
print(f"my batches: {batches}. Steps: {len(loader)}")

# %% tags=["run"]
batches_of_rank = ranks.view["batches"]
first_step = {sample for batches in batches_of_rank for sample in batches[0]}
num_fetched = sum(len(batch) for batches in batches_of_rank for batch in batches)
print(f"first step: {len(first_step)} different samples; fetched in all: {num_fetched}")

# %% [markdown] tags=["read"]
# The ranks fetch 2 different samples, 0 and 1, and all four ranks fetch the same two, because the
# loader has never got the sampler. Each rank fetches all 10 samples, together 40, so four ranks do
# the work of one, four times. Nothing complains, and `list(sampler)` would print the right shards.
#
# One number gives the mistake away: each rank should have 3 samples, so 2 batches, and the loader
# makes 5. So compare `len(loader)` with the number of steps that you expect. The repair is one
# argument:

# %% tags=["mend"]
# %%px
loader = DataLoader(dataset, batch_size=2, sampler=sampler)
batches = [batch.tolist() for batch in loader]
print(f"my batches: {batches}. Steps: {len(loader)}")

# %% [markdown] tags=["read"]
# Now each rank makes 2 steps. The sampler already shuffles, so do not pass `shuffle=True` as well:
# the loader would raise a `ValueError`.
#
# [Claim C05](claims.md) says that creating a `DistributedSampler` distributes the data. It is
# **false**, even with `set_epoch`: a sampler changes nothing until a loader uses it. Pass it to the
# loader, and then count steps.

# %% tags=["check"]
mended = [s for own in ranks.view["batches"] for batch in own for s in batch]
assert (num_fetched, len(mended)) == (40, 12)
num_different = len(first_step)
ok("C05 is false: 40 fetched, not 12", different_samples_in_first_step=num_different)

# %% [markdown] tags=["question"]
# ## What accuracy do four ranks find?

# %% [markdown] tags=["explain"]
# A test set has five samples, and the model is right about all of them but sample 0. One process
# would find an accuracy of 4/5 = 0.8. Four ranks share the work: each takes its shard from a
# `DistributedSampler`, and computes the accuracy of that shard. Then an all-reduce and a division
# give the mean of the four accuracies. With `shuffle=False` the sampler's order is 0, 1, 2, 3, 4,
# and then come the repeats.

# %% tags=["run"]
# %%px
from ddp_lessons.process_group import rank_device

device = rank_device()  # this rank's GPU, or the CPU
tests = torch.arange(5)
is_right = tests != 0  # the model is wrong about sample 0 only


def mean_of_accuracies(own_samples):
    own_accuracy = is_right[own_samples].float().mean().to(device)
    print(f"my samples {own_samples}, my accuracy {own_accuracy.item():.3g}")
    total = own_accuracy.clone()
    dist.all_reduce(total)  # the sum over all ranks
    return total.item() / world_size

# %% tags=["break"]
# %%px
own_samples = list(DistributedSampler(tests, shuffle=False))
mean_padded = mean_of_accuracies(own_samples)
if rank == 0:
    print(f"mean of four accuracies, with padding: {mean_padded:.3g}")

# %% [markdown] tags=["explain"]
# The ranks find 0.75, not 0.8. Padding has repeated the samples 0, 1 and 2, so the model's one
# mistake counts twice in eight samples.
#
# The next cell takes shards without padding, by a slice with a start and a step: rank 0 gets the
# samples 0 and 4, and each other rank gets one sample. Each sample is then counted exactly once.

# %% [markdown] tags=["predict"]
# What is the mean of the four ranks' accuracies now: (a) 0.75, (b) 0.8, or (c) another number?

# %% tags=["predict"]
predict("mean_without_padding", "...")

# %% tags=["run"]
# %%px
own_samples = list(range(rank, len(tests), world_size))
mean_unpadded = mean_of_accuracies(own_samples)
if rank == 0:
    print(f"mean of four accuracies, without padding: {mean_unpadded:.3g}")

# %% [markdown] tags=["read"]
# The mean is another number, 0.875, and still wrong. Rank 0 has two samples, and each other rank
# has one, but the mean gives all four ranks the same weight. So do not average accuracies. Add up
# numbers of samples:

# %% tags=["mend"]
# %%px
num_right = is_right[own_samples].sum().to(device)
num_seen = torch.tensor(len(own_samples), device=device)
dist.all_reduce(num_right)
dist.all_reduce(num_seen)
accuracy = num_right.item() / num_seen.item()
if rank == 0:
    print(f"{num_right.item()} right of {num_seen.item()} seen: {accuracy:.3g}")

# %% [markdown] tags=["read"]
# Only 0.8 is right. The rule: see every sample once, sum the numbers of correct and of all samples
# over the ranks, and divide once, at the end. For a loss, sum it with `reduction="sum"` in the same
# way. On a large test set the error of padding is small, but not zero: of 50,000 images it repeats none
# on 8 ranks and one on 7, so the same model can get another accuracy on 7.
#
# Without padding, ranks can have different numbers of batches, so the loop over the batches must
# not call a collective. DDP's forward pass can call one if the model has buffers, such as the running
# statistics of BatchNorm ([lesson 06](06_ddp.ipynb)). So evaluate the plain model, `model.module`.
# (After training, the running statistics differ slightly between ranks, because each rank last updated
# them with its own batch. [Lesson 12](12_metrics.ipynb) makes them equal.)
#
# In `ddp_lessons.samplers`, `ExactSampler` is the slice above as a sampler for a `DataLoader`, and
# `exact_accuracy` is the cell above as a function.

# %% tags=["check"]
(mean_unpadded,) = set(ranks.view["mean_unpadded"])
assert set(ranks.view["mean_padded"]) == {6 / 8}
assert set(ranks.view["accuracy"]) == {4 / 5}
letter = {0.75: "a", 0.8: "b"}.get(mean_unpadded, "c")
ok("only sums of numbers give 0.8", mean_without_padding=letter)

# %% [markdown] tags=["question"]
# ## What if one rank runs out of data?

# %% [markdown] tags=["explain"]
# You can avoid unequal numbers of batches with padding or `drop_last=True`. Neither is possible if
# the data come from streams whose lengths you do not know. In the next cells rank 0 has two
# batches, and the other ranks have three.
#
# DDP averages the gradients by an all-reduce during each `backward()`. Remember from lesson 02: an
# all-reduce ends only when all ranks of the group have called it.

# %% [markdown] tags=["predict"]
# Each rank trains on all of its batches. How many of the four ranks reach the end of the cell?

# %% tags=["predict"]
predict("ranks_that_finish", ...)

# %% tags=["run"]
# %%px
from torch.nn.parallel import DistributedDataParallel as DDP

batches = torch.ones(2 if rank == 0 else 3, 1, 1, device=device)


def make_model():
    return DDP(torch.nn.Linear(1, 1, bias=False).to(device))


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        model(batch).sum().backward()  # the gradient is the input: 1 on each rank
        optimizer.step()
    return model.module.weight.item()  # on a GPU, this waits for the last step

# %% tags=["break", "raises-exception"]
# %%px
has_finished = False
train(make_model(), batches)
has_finished = True

# %% tags=["run"]
num_finished = sum(ranks.view["has_finished"])
print(f"{num_finished} of {world_size} ranks reached the end")

# %% [markdown] tags=["read"]
# One rank reaches the end: rank 0, after its two steps. The other three wait for it in their third
# backward. The table says for each rank in which call it blocks, and for which rank it waits. (Rank
# 0 has finished, so the table gives its last call.) The number after `all_reduce` counts all
# collectives of the group since the ranks started, also those that DDP makes when it wraps a model;
# "in backward" says that DDP made the call.
#
# In a script, the outcome depends on what rank 0 does next. If it waits elsewhere, the three ranks
# block until the timeout of the group, by default 30 minutes with Gloo and 10 with NCCL. If its
# process exits, Gloo's connections to that process close, and the three ranks get an error. If rank 0
# goes on to its next epoch, its next all-reduce pairs with their third one, because torch pairs calls by
# their order ([lesson 02](02_collectives.ipynb)). Then all ranks continue without an error, in different
# epochs, and a learning rate that changes by epoch makes the replicas differ. When rank 0 has finished
# its last epoch, the others wait again.
#
# If each rank knows its number of batches before the epoch, the repair is cheap. Agree on the
# smallest number, and stop there on all ranks:

# %% tags=["mend"]
# %%px
num_batches = torch.tensor(len(batches), device=device)
dist.all_reduce(num_batches, op=dist.ReduceOp.MIN)  # the smallest number, on all ranks
num_steps = num_batches.item()
train(make_model(), batches[:num_steps])
print(f"{num_steps} steps")

# %% [markdown] tags=["read"]
# All ranks make 2 steps, and the third batch of ranks 1 to 3 is not used. If the ranks do not know
# their numbers of batches, or must use every batch, torch's `Join` helps: see the first section
# headed "More".

# %% tags=["check"]
assert ranks.view["num_steps"] == [2] * 4
ok("after an agreement all 4 ranks finish", ranks_that_finish=num_finished)

# %% [markdown] tags=["question"]
# ## More: what does a rank without data do for the others?

# %% [markdown] tags=["explain"]
# The repair above leaves batches out, and each rank must know its number of batches before the
# epoch. With torch's context manager **Join**, all batches are used, and no rank must know their
# number. Inside it, a rank that has run out of data does not leave: it answers the collectives of
# the other ranks with zeros, until the last rank has finished. At its end, Join makes all models
# equal: every rank gets a copy of the model of a rank that made all steps.

# %% [markdown] tags=["predict"]
# Rank 0 again has two batches, and the other ranks have three. All models begin with the weight 1, and
# the learning rate is 0.1. From each batch a rank gets the gradient 1, and DDP divides the sum of the
# gradients by the world size. Which weight does rank 0 have after the `with` block? Give three decimals.

# %% tags=["predict"]
predict("weight_of_rank_zero", ...)

# %% tags=["run"]
# %%px
from torch.distributed.algorithms.join import Join

model = make_model()
torch.nn.init.ones_(model.module.weight)  # one weight, and its value is 1
with Join([model]):
    weight_of_last_step = train(model, batches)
    gradient = model.module.weight.grad.item()
print(f"my last step: gradient {gradient:.2f}, weight {weight_of_last_step:.3f}")

# %% tags=["run"]
# %%px
weight_after_join = model.module.weight.item()
print(f"after the with block: weight {weight_after_join:.3f}")

# %% [markdown] tags=["read"]
# Rank 0 has the weight 0.725. It made 2 steps, and its weight was 0.800 then. The other ranks made 3
# steps, to 0.725, and Join ended by copying the model of one of them to all ranks.
#
# The third step is smaller than the other two, because its gradient is 0.75: three ranks gave 1, rank 0
# gave 0, and DDP divided by 4. So each sample counts 1/4, as in the steps before. With the argument
# `divide_by_initial_world_size=False`, `Join` makes DDP divide by the number of ranks that still have
# data, so the gradient would be 1.
#
# Join has three limits. It costs two more small all-reduces in each step. It copies the weights and
# the buffers, but not the state of the optimizer, such as momentum: broadcast that state from a
# rank that made all steps. And a rank without data answers only the collectives of the objects in
# the list, here those of the DDP model. If your loop calls other collectives, such as an all-reduce
# of the loss, pass `throw_on_early_termination=True`: then all ranks leave the loop with an error
# that you can catch.

# %% tags=["check"]
assert ranks.view["gradient"] == [1, 0.75, 0.75, 0.75]
weights = [round(weight, 4) for weight in ranks.view["weight_after_join"]]
assert weights == [0.725] * 4
ok("Join ends with equal models on all 4 ranks", weight_of_rank_zero=weights[0])

# %% [markdown] tags=["question"]
# ## More: how do ranks share a stream?

# %% [markdown] tags=["explain"]
# A dataset that is a **stream**, such as lines from a file that is too large for the memory, has no
# numbers that a sampler could yield. torch calls it an `IterableDataset`, and its loader accepts no
# sampler. So the dataset itself must skip the samples of other ranks, in `__iter__`. In the next
# cell each rank takes every fourth of ten lines, beginning with the line of its own number.

# %% [markdown] tags=["predict"]
# The loader makes batches of two lines. How many of the four ranks make fewer steps than rank 0?

# %% tags=["predict"]
predict("ranks_with_fewer_steps", ...)

# %% tags=["run"]
# %%px
from itertools import islice
from torch.utils.data import IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        lines = iter(range(10))  # stands for a file
        return islice(lines, rank, None, world_size)


stream_batches = [batch.tolist() for batch in DataLoader(Stream(), batch_size=2)]
print(f"from the stream: {stream_batches}")

# %% tags=["run"]
num_steps = [len(own) for own in ranks.view["stream_batches"]]
num_fewer = sum(number < num_steps[0] for number in num_steps)
print(f"steps of each rank: {num_steps}. {num_fewer} ranks make fewer than rank 0")

# %% [markdown] tags=["read"]
# 2 ranks make fewer steps: nothing pads, and nothing is dropped, so ranks 2 and 3 get two lines in
# one step, and ranks 0 and 1 get three lines in two. With DDP ranks 0 and 1 would block in their
# second step, unless you use Join.
#
# If the loader has worker processes (`num_workers=2`), each worker iterates over its own copy of
# the dataset, as [torch's documentation](https://docs.pytorch.org/docs/stable/data.html) says, so each
# line would come twice on a rank. Distribute the lines to the workers, too: in a worker,
# `torch.utils.data.get_worker_info()` has the worker's number, `id`, and `num_workers`.

# %% tags=["check"]
streamed = [s for own in ranks.view["stream_batches"] for batch in own for s in batch]
assert sorted(streamed) == list(range(10))
ok("each line is on one rank", ranks_with_fewer_steps=num_fewer)

# %% [markdown] tags=["question"]
# ## More: what does a sampler do for a slow rank, or after a stop?

# %% [markdown] tags=["explain"]
# In one machine all GPUs are usually alike. If one is slower, all ranks wait for it in each step,
# in the all-reduce. You cannot make it faster, but you can give it fewer samples. The number of
# samples that a rank can process in a second, without waiting for others, is its **throughput**.

# %% [markdown] tags=["predict"]
# Rank 3 needs three times as long for a sample as each other rank. An epoch has 120 samples, and
# with equal shards each rank has 30 of them. How many samples should rank 3 get, so that all four
# ranks finish at the same time?

# %% tags=["predict"]
predict("samples_for_a_slow_rank", ...)

# %% [markdown] tags=["explain"]
# The share of a rank follows from the list of throughputs: `num_samples * throughput / total`, where
# `total` is the sum of the list. In a real job, measure the throughput of each rank, and collect the
# list by `gather_throughputs` of `ddp_lessons.samplers`. All ranks shuffle alike. Then each rank takes
# its share of the order. All ranks must make equally many steps, and a step has 40 samples on all ranks
# together. So each rank cuts its share into 120 / 40 = 3 batches:

# %% tags=["run"]
# %%px
throughputs = [3, 3, 3, 1]  # samples in the time in which rank 3 processes one
shares = [120 * throughput // sum(throughputs) for throughput in throughputs]
order = torch.randperm(120, generator=torch.Generator().manual_seed(0)).tolist()
own_share, before = shares[rank], sum(shares[:rank])
own_order = order[before : before + own_share]
size = own_share // 3
plain_batches = [own_order[i : i + size] for i in range(0, own_share, size)]
print(f"my share: {own_share} samples, in {len(plain_batches)} batches of {size}")

# %% [markdown] tags=["explain"]
# `BalancedBatchSampler` yields the same batches, as lists of indices. The loader takes it as
# `batch_sampler`. It also draws another order in each epoch that `set_epoch`
# announces, and rounds shares that are not whole.
#
# Batches of unequal size need care: DDP's mean gives each rank the same weight, so a sample in a
# batch of 4 would count three times as much as one in a batch of 12. Therefore the loop below sums the
# losses of a batch, and divides by 10 on every rank. DDP then divides by 4, and each of the 40
# samples of a step counts 1/40.

# %% tags=["run"]
# %%px
import time
from ddp_lessons.samplers import BalancedBatchSampler
from ddp_lessons.trace import trace

samples = torch.ones(120, 1)
equal = DistributedSampler(samples)
equal_loader = DataLoader(samples, batch_size=10, sampler=equal)
balanced = BalancedBatchSampler(samples, 40, throughputs)  # 40 samples a step
balanced_batches = list(balanced)
balanced_loader = DataLoader(samples, batch_sampler=balanced)
sample_s = 0.018 if rank == 3 else 0.006  # seconds of work for one sample


def train_epoch(model, loader, events, lr):
    optimizer, num_samples = torch.optim.SGD(model.parameters(), lr), 0
    for batch in loader:
        with events.span("compute"):
            time.sleep(len(batch) * sample_s)  # stands for the work of a batch
        optimizer.zero_grad()
        (model(batch.to(device)).sum() / 10).backward()  # 40 samples, 4 ranks
        optimizer.step()
        num_samples += len(batch)
    return num_samples

# %% tags=["run"]
# %%px
model = make_model()
with trace() as events:
    num_equal = train_epoch(model, equal_loader, events, lr=0.1)
    num_other = train_epoch(model, equal_loader, events, lr=0.03)
    num_balanced = train_epoch(model, balanced_loader, events, lr=0.1)
print(f"samples: equal {num_equal}, other rate {num_other}, balanced {num_balanced}")

# %% tags=["picture"]
tracks = timeline_tracks(merge(ranks.view["events"], "wall"), per_unit=1000)
timeline_plot(tracks, "time in ms: equal shards, other rate, balanced shards")

# %% [markdown] tags=["read"]
# Rank 3 gets 12 samples, not 10: the samples that it loses go to the other ranks, which then need
# longer, too. The picture shows three epochs of three steps. Solid bars are compute, and dotted
# bars are waiting for the last rank. (Hatching is communication: an all-reduce in each step. In the
# second step of the first epoch, DDP also broadcasts which gradients it will send together: [lesson
# 05](05_replicas.ipynb).) In the first two epochs ranks 0 to 2 wait for rank
# 3 in each step. In the last epoch they hardly wait.
#
# [Claim C08](claims.md) says that load is balanced by changing the learning rate. It is **false**:
# with another rate rank 3 still has 30 samples, and the others wait as before. Change the shards.
#
# The order of a sampler also matters when a run is stopped in the middle of an epoch. Below, an
# epoch has 12 samples and three steps of one sample a rank. The run stops after the first step. A
# new run makes the same sampler, and makes the two steps that are left:

# %% tags=["break"]
# %%px
from itertools import islice

twelve = torch.arange(12)
first_loader = DataLoader(twelve, batch_size=1, sampler=DistributedSampler(twelve))
before_stop = [batch.item() for batch in islice(first_loader, 1)]

new_loader = DataLoader(twelve, batch_size=1, sampler=DistributedSampler(twelve))
after_stop = [batch.item() for batch in islice(new_loader, 2)]
print(f"before the stop {before_stop}, after it {after_stop}")

# %% tags=["mend"]
# %%px
mended_steps = [batch.item() for batch in islice(new_loader, len(before_stop), None)]
print(f"before the stop {before_stop}, after it {mended_steps}")

# %% [markdown] tags=["read"]
# In the first cell each rank sees the sample of the first step twice. Four samples were seen by no
# rank: those of the last step. Seed and epoch are 0 in both runs, so the new sampler draws the same
# order, and begins at its beginning. In the repair, `islice` loads the batches that were seen
# before the stop, and throws them away. A sampler that knows its position does not load them:
# exercise 04.3, and `ResumableSampler` in `ddp_lessons.samplers`.

# %% tags=["check"]
seen = ranks.view["before_stop"] + ranks.view["mended_steps"]
assert sorted(sample for own in seen for sample in own) == list(range(12))
assert ranks.view["num_other"] == ranks.view["num_equal"] == [30] * 4
assert sum(ranks.view["num_balanced"]) == 120
assert ranks.view["balanced_batches"] == ranks.view["plain_batches"]
slow_share = ranks.view["num_balanced"][3]
ok("C08 is false: only the shards follow the speed", samples_for_a_slow_rank=slow_share)

# %% [markdown] tags=["cluster"]
# ## On your own cluster
#
# This file, `train.py`, is complete: it trains and evaluates a small model on random data. (The
# commands below were run with two processes a node and both nodes on one machine, without GPUs: with
# `"gloo"` and `"cpu"` in place of `"nccl"` and `"cuda"`, and without `set_device` and `.cuda()`.)
#
# ```python
# import os
# import torch
# import torch.distributed as dist
# from torch.nn.parallel import DistributedDataParallel as DDP
# from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset
#
# def main():
#     torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
#     dist.init_process_group("nccl")
#     rank, world_size = dist.get_rank(), dist.get_world_size()
#
#     inputs = torch.randn(10_001, 20, generator=torch.Generator().manual_seed(0))
#     dataset = TensorDataset(inputs, (inputs.sum(dim=1) > 0).long())
#     train_set = Subset(dataset, range(9_000))
#     own_tests = Subset(dataset, range(9_000 + rank, 10_001, world_size))
#
#     sampler = DistributedSampler(train_set, seed=0, drop_last=True)
#     train_loader = DataLoader(train_set, batch_size=32, sampler=sampler, num_workers=2)
#     test_loader = DataLoader(own_tests, batch_size=256)
#
#     model = DDP(torch.nn.Linear(20, 2).cuda())
#     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
#     for epoch in range(3):
#         sampler.set_epoch(epoch)
#         model.train()
#         for batch, labels in train_loader:
#             optimizer.zero_grad()
#             outputs = model(batch.cuda())
#             torch.nn.functional.cross_entropy(outputs, labels.cuda()).backward()
#             optimizer.step()
#
#         model.eval()
#         num_right = torch.zeros((), dtype=torch.int64, device="cuda")
#         num_seen = torch.zeros((), dtype=torch.int64, device="cuda")
#         with torch.no_grad():
#             for batch, labels in test_loader:
#                 predicted = model.module(batch.cuda()).argmax(dim=1)
#                 num_right += (predicted == labels.cuda()).sum()
#                 num_seen += len(labels)
#         dist.all_reduce(num_right)
#         dist.all_reduce(num_seen)
#         if rank == 0:
#             print(f"epoch {epoch}: accuracy {num_right.item() / num_seen.item():.4f}")
#     dist.destroy_process_group()
#
# if __name__ == "__main__":
#     main()
# ```
#
# **One node with 8 GPUs:**
#
# ```console
# $ torchrun --standalone --nproc-per-node=8 train.py
# ```
#
# **Two such nodes**, `node1` and `node2`. Run the same command on both:
#
# ```console
# $ torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=node1:29500 --rdzv-id=42 train.py
# ```
#
# | line or option | what this lesson says of it |
# | --- | --- |
# | `DistributedSampler(train_set, ...)` | It asks the group for rank and world size, so create it after `init_process_group`. |
# | `seed=0` | The same on all ranks, else their shards come from different orders. |
# | `drop_last=True` | No repeats: with 16 ranks each gets 562 samples, and 8 of 9,000 are skipped in this epoch. |
# | `sampler=sampler`, no `shuffle` | Without it, each rank trains on all 9,000 samples. |
# | `batch_size=32` | It is the batch of one rank. A step has 256 samples on 8 ranks, and 512 on 16. |
# | `num_workers=2` | The workers only load. The sampler runs in the rank's own process, so `set_epoch` works as above. |
# | `sampler.set_epoch(epoch)` | Before each pass, else every epoch has the same order. |
# | `range(9_000 + rank, 10_001, world_size)` | Test samples without padding: 1,001 samples, each on one rank. |
# | `model.module(...)` | No collective in a loop in which ranks have unequal numbers of batches. |
# | `dist.all_reduce(num_right)`, `(num_seen)` | Sum first, divide once. |
# | `--nproc-per-node=8`, `--nnodes=2` | A world of 8, or of 16. No line of the file changes. |
# | `--standalone`, the three `--rdzv` options | How the processes find each other: lesson 09. |

# %% [markdown] tags=["recap"]
# You have drawn which rank sees which sample and found repeats and gaps, evaluated so that the
# ranks get the number of one process, and trained to the end with unequal numbers of batches.
#
# Rule of thumb: **shard by a sampler, set the epoch, and count samples when you evaluate.**

# %% [markdown] tags=["next"]
# - **Exercise** [04](../exercises/04_samplers.ipynb): shards for any number of samples; an exact
#   accuracy with one collective; a sampler that resumes in the middle of an epoch; whole shares
#   that follow the throughput of the ranks.
# - **Next lesson** [05](05_replicas.ipynb): how do replicas stay equal?
# - **Sources**: PyTorch's documentation of
#   [torch.utils.data](https://docs.pytorch.org/docs/stable/data.html), `DistributedSampler` with
#   its warning about `set_epoch`, and `IterableDataset`; A. Gu, [Distributed Training with Uneven
#   Inputs Using the Join Context
#   Manager](https://docs.pytorch.org/tutorials/advanced/generic_join.html), on how a rank without
#   data answers the others; the page of
#   [Join](https://docs.pytorch.org/docs/stable/distributed.algorithms.join.html).

# %% tags=["teardown"]
ranks.stop()
