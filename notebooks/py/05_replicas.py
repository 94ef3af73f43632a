# %% [markdown] tags=["title"] minutes=[40, 48]
# # How do replicas stay equal?
#
# 45 minutes, 4 ranks. This lesson builds on [02_collectives](02_collectives.ipynb), for `broadcast`,
# `all_reduce` and handles, and on [03_ring](03_ring.ipynb), for what an all-reduce costs.

# %% [markdown] tags=["why"]
# If the copies of a model drift apart during training, every rank trains a model of its own, and no
# error says so. This concerns every job with two ranks or more, also the jobs that use
# `DistributedDataParallel` (DDP), because DDP has rules that your model and your loop must keep.
#
# From a few hundred million parameters on, a second problem comes: GPUs stand still while gradients
# travel. The gradients of 350 million parameters in float32 have 1.4 GB. In a ring of 8 ranks each
# rank sends 2 x 7/8 of them, 2.45 GB. On a network that moves 10 GB/s, this takes 0.25&nbsp;s. If
# forward and backward take 0.5&nbsp;s, each GPU stands still for a third of the step. (NVLink, which
# connects the GPUs of one machine, is far faster.)

# %% [markdown] tags=["goal"]
# After this lesson you can
#
# - **write** data-parallel training with `broadcast` and `all_reduce`, without DDP;
# - **pack** many gradients into few all-reduces, and say what a larger or a smaller bucket changes;
# - **send** gradients while `backward` still computes others.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.pictures import buckets_picture

ranks = start_ranks(4)

# %% [markdown] tags=["question"]
# ## Do equal gradients make replicas equal?

# %% [markdown] tags=["explain"]
# In **data-parallel** training each rank holds its own copy of the model, a **replica**, and its own
# samples. The ranks average their gradients in each step, and each rank's optimizer then changes its
# own replica. Three lines of plain torch do the averaging: for each gradient, `dist.all_reduce`
# replaces it in place by the sum over all ranks, and a division turns the sum into the mean.
#
# We measure how far the replicas are from each other by `replica_distance(model)`: the L2 norm of all
# differences between the weights of every other rank and those of rank 0. It is 0 if all replicas are
# equal bit for bit.

# %% tags=["run"]
# %%px
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector
from ddp_lessons.process_group import rank_device
from ddp_lessons.replicas import replica_distance
from ddp_lessons.workloads import digits_model, load_digits

rank, world_size, device = dist.get_rank(), dist.get_world_size(), rank_device()
digits = load_digits().to(device)
all_images, all_labels = digits.train_images[:64], digits.train_labels[:64]
# a fourth of the 64 images for each rank
images, labels = all_images[rank::world_size], all_labels[rank::world_size]
print(f"my shard: {len(images)} of {len(all_images)} images")


# %% tags=["run"]
# %%px
def train(model):
    """Train 20 steps, with the same mean gradients on all ranks."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)  # the sum over all ranks
            parameter.grad /= world_size  # the mean
        optimizer.step()


# %% [markdown] tags=["predict"]
# SGD subtracts `lr` times the gradient from each weight. Below, each rank draws its own first weights
# (`seed=rank`), as happens when a script sets no common seed. Then all ranks train 20 steps with the
# loop above. What percentage of the distance between the replicas is left?

# %% tags=["predict"]
predict("percent_of_distance_left", ...)

# %% tags=["break"]
# %%px
model = digits_model(seed=rank).to(device)
distance_before = replica_distance(model)
train(model)
percent_left = 100 * replica_distance(model) / distance_before
print(f"{percent_left:.1f} % of the distance is left")

# %% [markdown] tags=["read"]
# 100.0&nbsp;% of the distance is left. All ranks subtracted the same numbers from different weights,
# so the differences stayed as they were. These are four models that never meet, and no error says so.
#
# The repair is to broadcast the parameters of rank 0 before the first step:

# %% tags=["mend"]
# %%px
model = digits_model(seed=rank).to(device)
for parameter in model.parameters():
    # detach() gives a tensor with the same memory, into which torch lets us write
    dist.broadcast(parameter.detach(), src=0)
train(model)
distance = replica_distance(model)
print(f"distance after 20 steps: {distance:.1f}")

# %% [markdown] tags=["read"]
# Now the distance is 0.0. The whole recipe is: **equal start, equal gradients, equal steps**, that is,
# the same optimizer with the same settings. (A model may also have buffers, such as the running mean
# of BatchNorm. Broadcast them, too.)
#
# If the numbers of a tensor have gaps between them in memory, like every second column of a matrix,
# Gloo's `broadcast` sends wrong numbers and raises nothing. Then broadcast a contiguous copy, and
# write it back ([lesson 02](02_collectives.ipynb)). [Task 05.1](../exercises/05_replicas.ipynb) needs
# this.

# %% tags=["check"]
percents = [round(percent, 1) for percent in ranks.view["percent_left"]]
assert percents == [100] * 4
assert ranks.view["distance"] == [0.0] * 4
ok("replicas need an equal start, too", percent_of_distance_left=percents[0])

# %% [markdown] tags=["question"]
# ## Is the sum of the gradients the right one?

# %% [markdown] tags=["explain"]
# The page [claims.md](claims.md) lists what popular guides say. In [claim C12](claims.md) a guide calls
# `all_reduce(gradients, SUM)`, then `step()`, and does not divide. (`all_reduce` takes one tensor, so
# read the line as a loop over the gradients.)
#
# The right gradient is the one that one process would compute from all 64 images. The loss can be the
# mean over the images, which is the default of `cross_entropy`, or their sum (`reduction="sum"`).
# The gradient of a mean is the mean of the images' gradients, and the gradient of a sum is their sum.

# %% [markdown] tags=["predict"]
# The four ranks and the one process use the same kind of loss. For which kind do four ranks get the
# right gradient without a division: (a) only for a mean, (b) only for a sum, (c) for both, or (d) for
# neither?

# %% tags=["predict"]
predict("loss_that_needs_no_division", "...")

# %% tags=["run"]
# %%px
model = digits_model(seed=0).to(device, torch.float64)


def gradient_of(images, labels, reduction="mean"):
    """Return all gradients of the loss, one after the other in a flat tensor."""
    loss = cross_entropy(model(images.double()), labels, reduction=reduction)
    return parameters_to_vector(torch.autograd.grad(loss, model.parameters()))


factors = {}
for reduction in ("mean", "sum"):
    one_process = gradient_of(all_images, all_labels, reduction)
    four_ranks = gradient_of(images, labels, reduction)
    dist.all_reduce(four_ranks)  # SUM is the default
    factors[reduction] = round((four_ranks.norm() / one_process.norm()).item(), 3)
    if rank == 0:
        print(f"{reduction} loss: {factors[reduction]} times as large as it should be")

# %% [markdown] tags=["read"]
# The answer is (b). With a mean loss the sum is 4.0 times as large as it should be, so plain SGD
# takes steps that are four times as long. With a sum loss the factor is 1.0. (Adam hardly notices a
# constant factor, because it divides each gradient by its usual size.)
#
# [Claim C12](claims.md) is **half true**: without a division the sum is right for a sum loss, a condition
# that the guide leaves out. Most losses are means. With a mean loss, divide the sum by the world size:

# %% tags=["run"]
# %%px
whole_gradient = gradient_of(all_images, all_labels)  # one process, 64 images
mean = gradient_of(images, labels)
dist.all_reduce(mean)
mean /= world_size
difference = (mean - whole_gradient).abs().max().item()
if rank == 0:
    print(f"the mean is off by less than 1e-14: {difference < 1e-14}")

# %% [markdown] tags=["read"]
# The mean over ranks is the gradient of one process. The difference, less than 1e-14, is rounding in
# float64, because the numbers are added in another order. A real mistake would be far larger.
#
# This division is right if each rank has the same number of samples. If not, each rank multiplies its
# gradient by its share of all samples before the sum instead. The second "More" shows this, and
# [task 05.2](../exercises/05_replicas.ipynb) needs it. (DDP divides by the world size for every loss. So
# with DDP on four ranks, a sum loss gives a quarter of the gradient of one process.)

# %% tags=["check"]
factors = ranks.view["factors"][0]
assert factors == {"mean": 4, "sum": 1}
assert max(ranks.view["difference"]) < 1e-14
letters = {("mean",): "a", ("sum",): "b", ("mean", "sum"): "c", (): "d"}
letter = letters[tuple(loss for loss, factor in factors.items() if factor == 1)]
ok("C12 is half true: divide for a mean loss", loss_that_needs_no_division=letter)

# %% [markdown] tags=["question"]
# ## How many all-reduces does a step need?

# %% [markdown] tags=["explain"]
# Our loop calls `all_reduce` once for each gradient, and each call costs its latency, however few
# bytes it moves ([lesson 03](03_ring.ipynb)). ResNet-50 has 161 gradients, most of them small. The calls
# become fewer if gradients travel together: `torch.cat` puts them into one flat tensor, one
# `all_reduce` sums it, and `split` takes it apart.
#
# One flat tensor for all gradients would need one call, but that call must wait for the last gradient.
# To start earlier, DDP takes a middle way: **buckets**. A bucket is a set of gradients that travel in
# one flat tensor. Its **cap** is a number of bytes that says when it is full:
#
# - Go through the trained parameters, those with `requires_grad=True`, from the last layer to the first,
#   because `backward` computes the gradients of the last layer first. Put each gradient into the open
#   bucket.
# - As soon as the open bucket holds its cap **or more**, close it. A gradient is never cut in two.
#
# Two kinds of parameters need care. A **frozen** parameter has `requires_grad=False`: its `.grad`
# stays None, so a loop over gradients must skip it. (Test `requires_grad` for this. The `.grad` of a
# trained parameter can be None on some ranks only: see the first "More".) A **tied** parameter
# belongs to two layers, for example to the first and the last one. Its gradient is the sum over both
# uses. `model.parameters()` yields it once, at its first place, so a loop over `model.parameters()`
# also sends it once.
#
# These are the gradients of a model with three layers, from the last layer to the first:
#
# | gradient | `4.bias` | `4.weight` | `2.bias` | `2.weight` | `0.bias` | `0.weight` |
# | --- | --- | --- | --- | --- | --- | --- |
# | bytes | 40 | 10,240 | 1,024 | 262,144 | 1,024 | 65,536 |

# %% [markdown] tags=["predict"]
# Together these are 340,008 bytes. The cap is 64 KiB, which are 65,536 bytes. How many buckets are
# there? Go through the table.

# %% tags=["predict"]
predict("buckets_for_six_gradients", ...)


# %% tags=["run"]
# %%px
def plan_buckets(model, cap_bytes):
    """Return buckets, lists of parameters, in the order in which they are sent."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    buckets, open_bucket, num_bytes = [], [], 0
    for parameter in reversed(trained):
        open_bucket.append(parameter)
        num_bytes += parameter.nbytes  # a gradient is as large as its parameter
        if num_bytes >= cap_bytes:
            buckets.append(open_bucket)
            open_bucket, num_bytes = [], 0
    return [*buckets, open_bucket] if open_bucket else buckets


# %% tags=["run"]
# %%px
model = digits_model(seed=0, size="medium").to(device)
name_of = {parameter: name for name, parameter in model.named_parameters()}
buckets = plan_buckets(model, cap_bytes=64 * 1024)
plan = [[name_of[parameter] for parameter in bucket] for bucket in buckets]
num_bytes = [(name, parameter.nbytes) for name, parameter in model.named_parameters()]
if rank == 0:
    print(f"{len(plan)} buckets: {plan}")

# %% tags=["picture"]
buckets_picture(ranks.view["num_bytes"][0], ranks.view["plan"][0])

# %% [markdown] tags=["read"]
# A cap of 64 KiB makes 2 buckets. The first bucket was open until `2.weight` came, and that gradient
# took it far past the cap, to 273,448 bytes. The picture shows each bucket with its gradients. Now we
# send the buckets, with this cap, with a tiny one and with a large one:


# %% tags=["run"]
# %%px
def pack(bucket):
    """Return a bucket's gradients in one flat tensor, divided by the world size."""
    flat = torch.cat([parameter.grad.flatten() for parameter in bucket])
    return flat / world_size  # a sum of float16 could overflow, so divide before


def unpack(flat, bucket):
    """Make each part of the flat tensor the gradient of its parameter."""
    parts = flat.split([parameter.numel() for parameter in bucket])
    for parameter, part in zip(bucket, parts, strict=True):
        parameter.grad = part.view_as(parameter)


# %% tags=["run"]
# %%px
calls = {}
for cap_bytes in (1, 64 * 1024, 25 * 1024**2):
    model.zero_grad()
    cross_entropy(model(images), labels).backward()
    calls[cap_bytes] = []
    for bucket in plan_buckets(model, cap_bytes):
        flat = pack(bucket)
        dist.all_reduce(flat)
        unpack(flat, bucket)
        calls[cap_bytes].append(flat.nbytes)
    if rank == 0:
        print(f"cap in bytes {cap_bytes:,}: all-reduces of {calls[cap_bytes]} bytes")

# %% [markdown] tags=["read"]
# A cap of 1 byte closes each bucket after one gradient, so it is our loop again, with 6 all-reduces. A
# cap of 25 MiB is never reached here, so one bucket holds all. The bytes are 340,008 each time. Only
# the number of latencies differs.
#
# DDP's default cap is 25 MiB, and 1 MiB for the first bucket. (After its first step, DDP makes the
# buckets again, in the order in which the gradients became ready.)

# %% tags=["check"]
plan, calls = ranks.view["plan"][0], ranks.view["calls"][0]
assert [len(sizes) for sizes in calls.values()] == [6, 2, 1]
assert {sum(sizes) for sizes in calls.values()} == {340_008}
ok("6, 2 or 1 calls move the same bytes", buckets_for_six_gradients=len(plan))

# %% [markdown] tags=["question"]
# ## When can a bucket leave?

# %% [markdown] tags=["explain"]
# While our loop communicates, the device computes nothing. But a gradient does not change any more
# once `backward` has computed it, so it could travel while `backward` computes the next ones. Computing
# and sending at the same time is called **overlap**:
#
# ```text
# without   | forward | backward             | bucket 0 | bucket 1 | step |
#
# with      | forward | backward             |          | step |
# overlap                     | bucket 0 |   | bucket 1 |
#           +------------------------------------------------------------> time
# ```
#
# The last bucket can leave only at the end of `backward`, so it is not hidden.
#
# A **hook** tells us when a gradient is ready: a function that autograd calls while `backward` runs.
# `parameter.register_post_accumulate_grad_hook(function)` has autograd call `function(parameter)` as
# soon as `parameter.grad` is complete: once, also for a tied parameter, when both layers have added their
# part. Our hook counts how many gradients its bucket still lacks. When none is missing, it starts the
# all-reduce with `async_op=True`. This call returns a handle at once, so `backward` goes on.

# %% tags=["run"]
# %%px
from functools import partial


class Overlap:
    """Average the gradients of one backward, bucket by bucket, while it runs."""

    def __init__(self, model, cap_bytes):
        self.buckets = plan_buckets(model, cap_bytes)
        self.num_missing = [len(bucket) for bucket in self.buckets]
        self.sent, self.history = [], []
        for number, bucket in enumerate(self.buckets):
            for parameter in bucket:
                # autograd gives the parameter, and partial the bucket's number
                hook = partial(self.gradient_ready, number)
                parameter.register_post_accumulate_grad_hook(hook)

    def gradient_ready(self, number, parameter):
        self.history.append("gradient")
        self.num_missing[number] -= 1
        if self.num_missing[number] == 0:
            start_all_reduce(self, number)


# %% tags=["run"]
# %%px
def start_all_reduce(overlap, number):
    bucket = overlap.buckets[number]
    flat = pack(bucket)
    overlap.history.append("ALL-REDUCE")
    handle = dist.all_reduce(flat, async_op=True)  # starts it, and does not wait
    overlap.sent.append((bucket, flat, handle))


def wait_for_averages(overlap):
    for bucket, flat, handle in overlap.sent:
        handle.wait()  # only now may we read the flat tensor
        unpack(flat, bucket)


# %% [markdown] tags=["predict"]
# DDP's first bucket has a cap of 1 MiB. We use that cap for our model with its six gradients, 340,008
# bytes. How many all-reduces start while at least one gradient is still to be computed?

# %% tags=["predict"]
predict("early_all_reduces", ...)


# %% tags=["run"]
# %%px
def history_of_backward(cap_bytes):
    model = digits_model(seed=0, size="medium").to(device)
    overlap = Overlap(model, cap_bytes)
    cross_entropy(model(images), labels).backward()
    wait_for_averages(overlap)
    return overlap.history


large_cap = history_of_backward(cap_bytes=1024**2)
if rank == 0:
    print("1 MiB:", *large_cap)

# %% tags=["run"]
# %%px
medium_cap = history_of_backward(cap_bytes=64 * 1024)
small_cap = history_of_backward(cap_bytes=1)
if rank == 0:
    print("64 KiB:", *medium_cap)
    print("1 byte:", *small_cap)

# %% [markdown] tags=["read"]
# With the cap of 1 MiB, 0 all-reduces start early. All six gradients are in one bucket, and it is
# complete only when the last gradient is ready. So nothing is hidden. With 64 KiB, 1 of 2 all-reduces
# starts early, and with 1 byte it is 5 of 6.
#
# Our tiny model fits into one bucket of 1 MiB. A model with gradients of hundreds of MB fills its first
# bucket early. Keep DDP's default until you have measured the time of a step. Then try a smaller cap if
# all gradients fill only one or two buckets, and a larger one on a network with high latency.
#
# Our `Overlap` serves one `backward`: its counts are not set back. Three rules follow, and [task
# 05.4](../exercises/05_replicas.ipynb) needs them all:
#
# - Wait for the handle of a bucket before you use its gradients. DDP waits at the end of `backward`.
# - Start the all-reduces in the order of the plan on every rank, because torch pairs the first call of
#   each rank, then the second. (The third "More" shows when `Overlap` breaks this rule.)
# - If a rank's forward leaves a parameter out, its `parameter.grad` is None, and no hook runs. Send zeros
#   for it, because the ranks that use the parameter wait for this call. (The first "More" shows this.)

# %% tags=["check"]
histories = [ranks.view[name][0] for name in ("large_cap", "medium_cap", "small_cap")]
# the last entry of a history is the last all-reduce, which is never early
num_early = [history[:-1].count("ALL-REDUCE") for history in histories]
assert num_early == [0, 1, 5]
ok("a complete bucket leaves", early_all_reduces=num_early[0])

# %% [markdown] tags=["question"]
# ## More: what if a rank has no gradient for a parameter?

# %% [markdown] tags=["explain"]
# A forward may leave a part of the model out, for example a head for another task. It seems natural to
# skip the parameters of that part: `if parameter.grad is not None`.
#
# The next model has a trunk, a head and a spare head, each with a weight and a bias. In this step only
# the last rank uses the spare head in addition to the head, because only its samples need it.


# %% tags=["run"]
# %%px
class TwoHeads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = torch.nn.Linear(64, 64)
        self.head = torch.nn.Linear(64, 10)
        self.spare_head = torch.nn.Linear(64, 10)

    def forward(self, images, use_spare_head):
        hidden = self.trunk(images).relu()
        logits = self.head(hidden)
        return logits + self.spare_head(hidden) if use_spare_head else logits


# %% [markdown] tags=["predict"]
# Each rank sends the gradients that it has. With Gloo, an all-reduce blocks until all ranks have called
# it ([lesson 02](02_collectives.ipynb)). How many of the four ranks reach the last line of the cell?

# %% tags=["predict"]
predict("ranks_at_the_last_line", ...)

# %% tags=["break", "raises-exception"]
# %%px
is_finished = False
model = TwoHeads().to(device)
is_last_rank = rank == world_size - 1
cross_entropy(model(images, use_spare_head=is_last_rank), labels).backward()
for parameter in model.parameters():
    if parameter.grad is not None:
        dist.all_reduce(parameter.grad)
is_finished = True

# %% tags=["run"]
num_finished = sum(ranks.view["is_finished"])
print(f"{num_finished} of 4 ranks reached the last line")

# %% [markdown] tags=["read"]
# 3 ranks reached the last line. They called `all_reduce` four times, for trunk and head, and went on.
# Rank 3 had two more gradients, those of the spare head. It blocked in its fifth all-reduce, because
# no other rank called a fifth one. (The report's number counts all collectives of the lesson so far.)
#
# In a script, ranks 0 to 2 go on to the next step, and torch pairs their next all-reduce with the one in
# which rank 3 waits. If the sizes differ, as here, Gloo ends a process with an error. If the sizes are
# equal, the sums are wrong, and nothing complains.
#
# The repair is that a rank without a gradient sends zeros. `num_different(tensor)` then gathers the
# tensor of every rank, and counts the distinct versions, bit for bit; it is 1 if all ranks hold the
# same.

# %% tags=["mend"]
# %%px
from ddp_lessons.replicas import num_different

model.zero_grad()
cross_entropy(model(images, use_spare_head=is_last_rank), labels).backward()
for parameter in model.parameters():
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    dist.all_reduce(parameter.grad)
    parameter.grad /= world_size
num_mended = num_different(parameters_to_vector(p.grad for p in model.parameters()))
if rank == 0:
    print(f"distinct versions on 4 ranks: {num_mended}")

# %% [markdown] tags=["read"]
# There is 1 version of the gradients on 4 ranks. A sample that does not use a parameter has a gradient
# of zero, so the mean is right. DDP sends zeros only with `find_unused_parameters=True`
# ([lesson 06](06_ddp.ipynb)).
#
# A missing gradient runs no hook, so a bucket of our `Overlap` would never be complete. The repair is to
# send the buckets that are left after `backward`, in the order of the plan, with zeros for missing
# gradients.
#
# A parameter that is frozen on every rank may be left out everywhere. In short: what a rank sends may
# depend on the model, never on the rank's data.

# %% tags=["check"]
assert num_finished == 3
assert ranks.view["num_mended"] == [1] * 4
ok("every rank sends the same gradients, or zeros", ranks_at_the_last_line=num_finished)

# %% [markdown] tags=["question"]
# ## More: what if ranks have unequally many samples?

# %% [markdown] tags=["explain"]
# Suppose that rank 0 has 52 of the 64 images, and each other rank has 4. Each rank computes the mean
# loss of its own images. We look for the gradient of the mean over all 64, in which each image counts
# the same.

# %% [markdown] tags=["predict"]
# By which number must rank 0 multiply its gradient, so that the sum over ranks is the gradient of the
# mean over all images? Give two decimals.

# %% tags=["predict"]
predict("weight_of_a_large_shard", ...)

# %% tags=["break"]
# %%px
model = digits_model(seed=0).to(device, torch.float64)
num_images_of_rank = [52, 4, 4, 4]
my_images = all_images.split(num_images_of_rank)[rank]
my_labels = all_labels.split(num_images_of_rank)[rank]
whole_gradient = gradient_of(all_images, all_labels)
mean = gradient_of(my_images, my_labels) / world_size  # each rank counts the same
dist.all_reduce(mean)
error_by_rank = 100 * ((mean - whole_gradient).norm() / whole_gradient.norm()).item()
if rank == 0:
    print(f"each rank counts the same: off by {error_by_rank:.0f} %")

# %% [markdown] tags=["explain"]
# The repair is to weight each rank by its number of images:

# %% tags=["mend"]
# %%px
num_images = torch.tensor(len(my_images), device=device)
dist.all_reduce(num_images)  # of all ranks together
weight = len(my_images) / num_images.item()
mean = gradient_of(my_images, my_labels) * weight  # each image counts the same
dist.all_reduce(mean)
error_by_image = 100 * ((mean - whole_gradient).norm() / whole_gradient.norm()).item()
print(f"weight {weight:.2f}, off by {error_by_image:.0f} %")

# %% [markdown] tags=["read"]
# Rank 0 must multiply by 0.81, which is 52 / 64, and each other rank by 0.06, its 4 / 64. If each rank
# counts the same instead, an image of rank 1 counts 13 times as much as one of rank 0, and the
# gradient is off by 138&nbsp;%. DDP always divides by the world size. So with DDP, use samplers
# that give each rank the same number of samples ([lesson 04](04_samplers.ipynb)), or multiply each
# rank's loss by its weight times the world size.

# %% tags=["check"]
assert min(ranks.view["error_by_rank"]) > 10
assert max(ranks.view["error_by_image"]) < 1e-10
weight = round(ranks.view["weight"][0], 2)
ok("weight a mean by its samples", weight_of_a_large_shard=weight)

# %% [markdown] tags=["question"]
# ## More: what if gradients become ready in another order?

# %% [markdown] tags=["explain"]
# The next model adds the outputs of two layers. Their weights have the same shape. The last rank calls
# the layers in the other order, so its gradients become ready in the other order. `Overlap` with
# a cap of 1 byte makes a bucket of each gradient, and sends it as soon as it is ready. torch does not
# compare names: it pairs the first all-reduce of each rank, then the second.


# %% tags=["run"]
# %%px
class SumOfTwo(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.left = torch.nn.Linear(64, 10, bias=False)
        self.right = torch.nn.Linear(64, 10, bias=False)

    def forward(self, images):
        if rank == world_size - 1:  # the last rank computes the right one first
            return self.right(2 * images) + self.left(images)
        return self.left(images) + self.right(2 * images)


# %% [markdown] tags=["predict"]
# How many of the two weights end up with a wrong gradient on rank 0?

# %% tags=["predict"]
predict("weights_with_a_wrong_gradient", ...)

# %% tags=["break"]
# %%px
model = SumOfTwo().to(device)
overlap = Overlap(model, cap_bytes=1)
cross_entropy(model(images), labels).backward()
wait_for_averages(overlap)

# %% tags=["run"]
# %%px
# the right gradients are those of one process with all 64 images
whole_loss = cross_entropy(model(all_images), all_labels)
right_gradients = torch.autograd.grad(whole_loss, model.parameters())  # runs no hook


def count_wrong(model):
    pairs = zip(model.parameters(), right_gradients, strict=True)
    return sum(not torch.allclose(p.grad, right, atol=1e-6) for p, right in pairs)


num_wrong = count_wrong(model)
print(f"without an order: {num_wrong} of 2 gradients are wrong")

# %% [markdown] tags=["explain"]
# The repair is to send the buckets in the order of the plan, which all ranks share. A bucket that is
# complete early waits until all buckets before it have been sent:


# %% tags=["mend"]
# %%px
class OverlapInOrder(Overlap):
    """Send the buckets in the order of the plan, whichever is complete first."""

    def gradient_ready(self, number, parameter):
        self.num_missing[number] -= 1
        while len(self.sent) < len(self.buckets):
            following = len(self.sent)  # the first bucket that was not sent yet
            if self.num_missing[following] > 0:
                break
            start_all_reduce(self, following)


# %% tags=["run"]
# %%px
model = SumOfTwo().to(device)
overlap = OverlapInOrder(model, cap_bytes=1)
cross_entropy(model(images), labels).backward()
wait_for_averages(overlap)
num_wrong_in_order = count_wrong(model)
print(f"in the order of the plan: {num_wrong_in_order} of 2 gradients are wrong")

# %% [markdown] tags=["read"]
# 2 of 2 gradients are wrong, on every rank, and nothing complains. The shapes match, so the first
# all-reduce added the left gradient of one rank to the right gradients of the others. In the order of
# the plan, 0 of 2 are wrong. DDP keeps one order, too, and so does the package's `OverlappedReplica`.

# %% tags=["check"]
num_wrong = ranks.view["num_wrong"][0]
assert ranks.view["num_wrong"] == [2] * 4
assert ranks.view["num_wrong_in_order"] == [0] * 4
ok("send in an order that all ranks share", weights_with_a_wrong_gradient=num_wrong)

# %% [markdown] tags=["cluster"]
# ## On your own cluster
#
# In a real job DDP does all this. Save this as `train.py`; it is complete, and needs no data:
#
# ```python
# import os
#
# import torch
# import torch.distributed as dist
# from torch.nn.parallel import DistributedDataParallel as DDP
#
# local_rank = int(os.environ["LOCAL_RANK"])  # the rank's number on its own node
# torch.cuda.set_device(local_rank)
# dist.init_process_group("nccl")
# torch.manual_seed(dist.get_rank())  # other samples on each rank
#
# layers = [torch.nn.Linear(1024, 1024) for _ in range(32)]
# model = torch.nn.Sequential(*layers).cuda()
# model = DDP(model, device_ids=[local_rank])
# optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
# for step in range(100):
#     samples = torch.randn(256, 1024, device="cuda")
#     loss = (model(samples) - samples).square().mean()
#     optimizer.zero_grad()
#     loss.backward()
#     optimizer.step()
# if dist.get_rank() == 0:
#     print(f"loss {loss.item():.4f}")
# dist.destroy_process_group()
# ```
#
# One node with 8 GPUs:
#
# ```console
# $ torchrun --standalone --nproc-per-node=8 train.py
# ```
#
# Two such nodes under Slurm: save this as `train.sbatch`, and call `sbatch train.sbatch`.
#
# ```bash
# # #!/bin/bash
# #SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=8 --cpus-per-task=32
# first_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# srun --cpus-per-task=32 torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d \
#     --rdzv-endpoint="$first_node:29500" --rdzv-id="$SLURM_JOB_ID" train.py
# ```
#
# | line or option | what it does |
# | --- | --- |
# | `manual_seed(dist.get_rank())` | each rank draws other samples, and other weights, so the start is unequal until `DDP(model, ...)` |
# | `DDP(model, ...)` | it broadcasts rank 0's parameters and buffers: the equal start |
# | `loss.backward()` | DDP's hooks divide by the world size, and all-reduce each complete bucket while `backward` runs |
# | `optimizer.step()` | every rank makes the same step, because all have the same mean gradients |
# | `bucket_cap_mb` (not set) | 25 MiB, and 1 MiB for the first bucket, which a cap of your own replaces, too; each layer here has 4 MiB of gradients |
# | `find_unused_parameters=True` (not set) | zeros for parameters that a rank's forward left out |
# | `--nnodes=2 --nproc-per-node=8` | the world size is 16, and DDP divides by 16 |
# | `--cpus-per-task=32` | processor cores for the 8 ranks of a node together; `srun` does not take the number over from `#SBATCH` |
# | `--standalone`, `--rdzv-...` | where the processes find each other: [lesson 01](01_process_group.ipynb) |
#
# To choose a cap, measure the time of a step without `bucket_cap_mb`, with 10 and with 100, and keep the
# fastest. [Lesson 09](09_launch.ipynb) explains the launchers.
#
# Both commands were run without GPUs, the second on a Slurm of two nodes, with these changes: `"gloo"`
# and `"cpu"` in place of `"nccl"` and `"cuda"`, layers of 64 in place of 1024, 3 steps, 2 processes and 2
# cores on each node, and neither `set_device`, `.cuda()`, `device_ids` nor `--gpus-per-node`.

# %% [markdown] tags=["recap"]
# You have written data-parallel training with a broadcast, an all-reduce and a division. You have
# packed six gradients into two buckets, and compared caps. And you have sent buckets from hooks while
# `backward` was still computing.
#
# Rule of thumb: **start equal, average every gradient, and have every rank send the same, in the same
# order.**

# %% [markdown] tags=["next"]
# - **Exercise** [05](../exercises/05_replicas.ipynb): start replicas equal, average their
#   gradients, plan buckets, and write a replica that overlaps. After the exercise, read how the
#   package does it: [overlapped.py](../ddp_lessons/replicas/overlapped.py).
# - **Next lesson** [06](06_ddp.ipynb): what does DistributedDataParallel do for you?
# - **Sources**: S. Li and others, [PyTorch Distributed](https://arxiv.org/abs/2006.15704), VLDB
#   2020, section 3.2, on the naive way, bucketing and overlap; [DDP
#   notes](https://docs.pytorch.org/docs/stable/notes/ddp.html) of PyTorch's documentation, section
#   "Internal Design"; Hugging Face, [The Ultra-Scale
#   Playbook](https://huggingface.co/spaces/nanotron/ultrascale-playbook), the chapter on data
#   parallelism.

# %% tags=["teardown"]
ranks.stop()
