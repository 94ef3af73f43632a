# %% [markdown] tags=["title"] minutes=[45, 42]
# # When should ranks talk?
#
# 45 minutes, 4 ranks. This lesson builds on [05_replicas](05_replicas.ipynb), for averaged gradients, and
# on [06_ddp](06_ddp.ipynb), for DDP's forward.

# %% [markdown] tags=["why"]
# If the samples of a training step do not fit into a GPU's memory, you compute their gradient in
# parts. The usual loop for this sends every gradient several times, and counts some samples more than
# others. If you then use it to make the step larger, the old learning rate no longer fits. No error
# says so. Only the extra messages need two ranks or more; the rest concerns one GPU, too.

# %% [markdown] tags=["goal"]
# After this lesson you can
#
# - **accumulate** gradients over the parts of a step, and average them once;
# - **weight** the parts so that every sample counts the same;
# - **say** what accumulation saves, and choose a learning rate for the larger batch.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.pictures import memory_picture

ranks = start_ranks(4)

# %% [markdown] tags=["question"]
# ## How often do ranks talk in one step?

# %% [markdown] tags=["explain"]
# Suppose that a step uses 64 images on each rank, and only 16 of them fit into memory. Then the 64 are
# cut into four **micro-batches**. Each goes through forward and backward alone, and the optimizer
# makes one step after the fourth. This works because `backward` adds to `.grad`. Adding up the
# gradients of micro-batches is called **accumulation**. `trace` below records the collectives of a
# rank, also those that DDP calls.


# %% tags=["run"]
# %%px
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector
from ddp_lessons.process_group import rank_device
from ddp_lessons.trace import collectives, trace
from ddp_lessons.workloads import digits_model, load_digits

rank, world_size, device = dist.get_rank(), dist.get_world_size(), rank_device()
digits = load_digits().to(device)
images = digits.train_images[rank::world_size]
labels = digits.train_labels[rank::world_size]


def gradient_of(model):
    """Return all gradients, one after the other in a flat tensor."""
    return parameters_to_vector(p.grad for p in model.parameters())


def percent_off(gradient, right):
    return 100 * ((gradient - right).norm() / right.norm()).item()


# %% tags=["run"]
# %%px
model = DDP(digits_model(seed=0).to(device))
micro_batches = list(zip(images[:64].split(16), labels[:64].split(16), strict=True))
with trace() as events:
    for x, y in micro_batches:
        loss = cross_entropy(model(x), y) / 4  # a sum of four such losses is their mean
        loss.backward()
num_plain = collectives(events).count("all_reduce")
plain_gradient = gradient_of(model)
if rank == 0:
    print(f"plain loop: {num_plain} all-reduces")

# %% [markdown] tags=["explain"]
# After the loop come `optimizer.step()` and then `optimizer.zero_grad()`. A guide calls `zero_grad`
# between `backward` and `step`:

# %% tags=["break"]
# %%px
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
weights_before = parameters_to_vector(model.parameters())
optimizer.zero_grad()
optimizer.step()
weights = parameters_to_vector(model.parameters())
num_moved = (weights != weights_before).sum().item()
if rank == 0:
    print(f"zero_grad, then step: {num_moved} of {len(weights)} weights moved")

# %% [markdown] tags=["read"]
# [Claim C15](claims.md), that `zero_grad` comes between `backward` and `step`, is **false**: `step`
# finds no gradient, moves 0 weights, and raises no error. (At the beginning of the loop `zero_grad` is
# right, too.)
#
# In the plain loop, each `backward` averaged all gradients over the ranks. But the optimizer reads
# `.grad` only once, after the fourth, so one all-reduce of the sums is enough. DDP has a context
# manager for this: inside of `with model.no_sync():`, DDP does not average.

# %% [markdown] tags=["predict"]
# In the cell below, three of the four backwards are inside `no_sync`, and their forwards are not. How
# many all-reduces do the four backwards make?

# %% tags=["predict"]
predict("all_reduces", ...)

# %% tags=["break"]
# %%px
with trace() as events:
    for x, y in micro_batches[:-1]:
        loss = cross_entropy(model(x), y) / 4
        with model.no_sync():
            loss.backward()
    x, y = micro_batches[-1]
    (cross_entropy(model(x), y) / 4).backward()
num_all_reduces = collectives(events).count("all_reduce")
if rank == 0:
    print(f"forward outside of no_sync: {num_all_reduces} all-reduces")

# %% [markdown] tags=["read"]
# The four backwards make 4 all-reduces, as without `no_sync`, and no error says so. DDP's *forward*
# switches the averaging of the next `backward` on, as in [lesson 06](06_ddp.ipynb). Here each forward ran
# outside of `no_sync`, so `no_sync` came too late. Put forward **and** backward of all micro-batches but
# the last inside, and those of the last one outside:

# %% tags=["mend"]
# %%px
model.zero_grad()
with trace() as events:
    with model.no_sync():
        for x, y in micro_batches[:-1]:
            (cross_entropy(model(x), y) / 4).backward()
    x, y = micro_batches[-1]
    (cross_entropy(model(x), y) / 4).backward()
num_mended = collectives(events).count("all_reduce")
percent_mended = percent_off(gradient_of(model), plain_gradient)
if rank == 0:
    print(f"forward and backward inside: {num_mended} all-reduce")
    print(f"less than 0.001 % off the plain loop: {percent_mended < 0.001}")

# %% [markdown] tags=["read"]
# Now there is 1 all-reduce, inside the last call of `backward`, after its last gradient. (This small
# model fits into one bucket; a larger one has an all-reduce for each bucket.) The gradient is that of
# the plain loop, up to rounding. The plain loop also averaged the earlier sum in `.grad` again and
# again, which changes nothing, because all ranks hold the same sum.
#
# With `no_sync`, ranks may have different numbers of micro-batches, because each rank averages once.
# But a rank without any makes the others hang.
#
# Some guides accumulate with `reduce_scatter` or `all_gather` ([claim C16](claims.md)). With DDP this is
# **false**: a rank adds its own gradients, without a message. (Sharded gradients differ: lesson 15.)
#
# The gain depends on the network. In lesson 05's example, forward and backward took 0.5&nbsp;s, and the
# all-reduce 0.25&nbsp;s. Without overlap, four micro-batches take 3&nbsp;s with four all-reduces, and
# 2.25&nbsp;s with one: a quarter less. With overlap, or with NVLink, the gain is smaller.

# %% tags=["check"]
assert ranks.view["num_plain"] == [4] * 4
assert ranks.view["num_mended"] == [1] * 4
assert max(ranks.view["percent_mended"]) < 0.001
assert ranks.view["num_moved"] == [0] * 4
num_all_reduces = ranks.view["num_all_reduces"][0]
ok(
    "C15 is false, C16 is false, and no_sync must hold the forward, too",
    all_reduces=num_all_reduces,
)

# %% [markdown] tags=["question"]
# ## How much must each micro-batch count?

# %% [markdown] tags=["explain"]
# Dividing each loss by 4 is right for equal micro-batches. But the last batch of an epoch is often
# short, and texts have different numbers of tokens. Let N be the number of samples (or tokens) in the
# whole step, on all ranks together, and n the number in one micro-batch.
#
# - **The goal**: each sample counts 1 / N. In the mean that `cross_entropy` returns, each counts 1 / n.
# - **DDP's average**: it adds the gradients of all ranks, and divides by the world size.

# %% [markdown] tags=["predict"]
# Rank 0 has micro-batches of 24 and 8 images. Each of the other three ranks has two of 8. By which
# number must rank 0 multiply the loss of its 24 images?

# %% tags=["predict"]
predict("factor_of_the_large_loss", ...)

# %% tags=["run"]
# %%px
all_images, all_labels = digits.train_images[:80].double(), digits.train_labels[:80]
my_images = all_images.split([32, 16, 16, 16])[rank]
my_labels = all_labels.split([32, 16, 16, 16])[rank]
my_sizes = [24, 8] if rank == 0 else [8, 8]
pairs = zip(my_images.split(my_sizes), my_labels.split(my_sizes), strict=True)
micro_batches = list(pairs)

# the gradient that one process computes from all 80 images, in float64
plain_model = digits_model(seed=0).to(device, torch.float64)
cross_entropy(plain_model(all_images), all_labels).backward()
wanted = gradient_of(plain_model)
print(f"images of my micro-batches: {my_sizes}")


# %% tags=["run"]
# %%px
def accumulate(model, micro_batches, factors):
    """Return the gradient of a step in which each loss is multiplied by its factor."""
    model.zero_grad()
    parts = list(zip(micro_batches, factors, strict=True))
    with model.no_sync():
        for (x, y), factor in parts[:-1]:
            (cross_entropy(model(x), y) * factor).backward()
    (x, y), factor = parts[-1]
    (cross_entropy(model(x), y) * factor).backward()
    return gradient_of(model)


# %% tags=["break"]
# %%px
model = DDP(digits_model(seed=0).to(device, torch.float64))
equal = accumulate(model, micro_batches, [1 / 2, 1 / 2])
percent_equal = percent_off(equal, wanted)
if rank == 0:
    print(f"factors 1/2 and 1/2: off by {percent_equal:.0f} %")

# %% tags=["mend"]
# %%px
num_images = torch.tensor(len(my_labels), device=device)
dist.all_reduce(num_images)  # N, which is 80
factors = [world_size * n / num_images.item() for n in my_sizes]
weighted = accumulate(model, micro_batches, factors)
percent_weighted = percent_off(weighted, wanted)
is_right = percent_weighted < 1e-10
print(f"factors {factors}: less than 1e-10 % off: {is_right}")

# %% [markdown] tags=["read"]
# Rank 0 must multiply by 1.2: by n / N = 24 / 80, so that each sample counts 1 / N, and by 4, which
# undoes DDP's division. The rule is: **multiply each loss by `world_size * n / N`.** The all-reduce of
# N sends one number a step. If every rank has m samples in the step, N = `world_size` x m, the factor
# is n / m, and the all-reduce is not needed. In language models, N and n count the target tokens that
# enter the loss.
#
# No factor repairs BatchNorm: this layer computes its mean and variance from one micro-batch, so its
# gradients are not those of the large batch. With dropout, gradients differ by chance, because the
# masks do.
#
# (The class `Window` in `ddp_lessons.accumulation` has the loop of `accumulate` and these factors.)

# %% tags=["check"]
assert min(ranks.view["percent_equal"]) > 1
assert all(ranks.view["is_right"])
factor = round(ranks.view["factors"][0][0], 3)
ok("all samples count alike", factor_of_the_large_loss=factor)

# %% [markdown] tags=["question"]
# ## What does accumulation save?

# %% [markdown] tags=["explain"]
# Four kinds of tensors fill a GPU's memory: parameters, gradients, the optimizer's state (Adam keeps two
# numbers for each parameter) and **activations**. Activations are the tensors that forward keeps because
# backward needs them. Each sample has its own, and `backward` frees them.
#
# `step_bytes` makes a step and returns the bytes of each kind. For activations, it counts the tensors
# that autograd keeps for backward, and returns the peak.

# %% [markdown] tags=["predict"]
# A step has 96 images. They go through the model below at once, and then in 4 micro-batches of 24.
# Which kinds shrink: (a) activations and gradients, (b) activations alone, (c) all four, or (d) none,
# because the micro-batches together have the same 96 images?

# %% tags=["predict"]
predict("kinds_that_shrink", "...")

# %% tags=["run"]
# %%px
from ddp_lessons.accumulation import example, step_bytes

network, adam = example.deep_network(device)  # eight layers and Adam
whole_step = step_bytes(network, adam, images[:96], labels[:96], micro_batch_size=96)
in_parts = step_bytes(network, adam, images[:96], labels[:96], micro_batch_size=24)
if rank == 0:
    for kind in whole_step:
        kib, parts_kib = whole_step[kind] / 1024, in_parts[kind] / 1024
        print(f"{kind}: {kib:.0f} KiB at once, {parts_kib:.0f} KiB in micro-batches")

# %% tags=["picture"]
memory_picture({name: ranks.view[name][0] for name in ("whole_step", "in_parts")})

# %% [markdown] tags=["read"]
# The answer is (b). The activations shrank from 409 to 102 KiB, because only one micro-batch at a
# time is between its forward and its backward. The other kinds grow with the model, not with the
# batch. (The peak of all four kinds together shrinks by less than these 307 KiB, because the
# gradients of the whole batch do not exist yet when its activations peak; from the second micro-batch
# on, they do. And DDP's buckets, which are not counted here, are a second copy of the gradients,
# unless you pass `gradient_as_bucket_view=True`.)
#
# Some guides say that accumulation helps when the *parameters* do not fit into memory ([claim
# C17](claims.md)). This is **false**: then shard parameters, gradients and optimizer state over the
# ranks (lessons 13 and 15).
#
# If the whole batch fits, one large forward usually keeps the GPU busier than several small ones. On a
# slow network accumulation can pay off all the same, because ranks send less often. But then an epoch
# has fewer steps, and the next section shows the consequence.

# %% tags=["check"]
for whole, parts in zip(ranks.view["whole_step"], ranks.view["in_parts"], strict=True):
    assert parts["activations"] < 0.26 * whole["activations"]
    for kind in ("parameters", "gradients", "optimizer"):
        assert parts[kind] == whole[kind]
shrunk = tuple(kind for kind in whole if parts[kind] < whole[kind])
letters = {("activations", "gradients"): "a", ("activations",): "b", tuple(whole): "c"}
ok("C17 is false, only activations shrink", kinds_that_shrink=letters.get(shrunk, "d"))

# %% [markdown] tags=["question"]
# ## Which learning rate fits the larger batch?

# %% [markdown] tags=["explain"]
# The **effective batch size** is the number of samples in one optimizer step: samples in a micro-batch
# x ranks x micro-batches. Below, each of 4 ranks trains 8 epochs of 320 images, in micro-batches of 8.
# With one micro-batch a step, the effective batch size is 32, and there are 320 steps. With eight
# micro-batches a step, it is 256, and there are 40 steps.
#
# SGD subtracts rate x gradient. The gradient of 256 images is the mean of eight gradients of 32
# images, and its random error is smaller by the square root of 8, which is 2.8.


# %% tags=["run"]
# %%px
def train(num_micro_batches, rate):
    """Train 8 epochs, print the loss over all images, and return it."""
    model = DDP(digits_model(seed=0).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    batches = list(zip(images[:320].split(8), labels[:320].split(8), strict=True))
    batches = 8 * batches  # 8 epochs of 40 micro-batches
    factors = [1 / num_micro_batches] * num_micro_batches
    for start in range(0, len(batches), num_micro_batches):
        accumulate(model, batches[start : start + num_micro_batches], factors)
        optimizer.step()
    with torch.no_grad():
        loss = cross_entropy(model.module(digits.train_images), digits.train_labels)
    if rank == 0:
        size = 8 * world_size * num_micro_batches
        print(f"batch {size}, rate {rate}: loss {loss:.2f}")
    return loss.item()


# %% tags=["run"]
# %%px
small_batch = train(num_micro_batches=1, rate=0.1)

# %% [markdown] tags=["predict"]
# Which rate with 40 steps of 256 images comes nearest to this loss: (a) 0.1, as before, (b) 0.28,
# which is
# 2.8 times as much, (c) 0.8, which is 8 times as much, or (d) 3.2, which is 32 times as much?

# %% tags=["predict"]
predict("best_rate", "...")

# %% tags=["run"]
# %%px
rates = {"a": 0.1, "b": 0.28, "c": 0.8, "d": 3.2}
losses = {choice: train(num_micro_batches=8, rate=rates[choice]) for choice in rates}

# %% [markdown] tags=["read"]
# The answer is (c): 0.32 comes nearest to 0.29. With smaller rates, 40 steps do not lead as far,
# although the gradient of 256 images is less noisy. With 3.2 the model only guesses among ten digits,
# which has a loss of ln 10 = 2.30. Eight small steps in about the same direction are as long as one
# step with eight times the rate. This is the **linear rule** for SGD: if the effective batch size
# grows by k, multiply the rate by k. It does not promise the best rate, and it breaks if gradients
# change much within the k small steps. With 40 micro-batches a step k is 40, and the rate is 4.0:

# %% tags=["run"]
# %%px
too_large = train(num_micro_batches=40, rate=4.0)
smaller = train(num_micro_batches=40, rate=1.0)

# %% [markdown] tags=["read"]
# A quarter of the rule's rate does better: the losses are 2.09 and 1.52. (8 steps are few at any
# rate.) The limit differs from task to task; for ResNet-50 on ImageNet the rule held up to about 8,000
# images a step. It also breaks in the first steps, so use a **warm-up**: let the rate rise over them.
#
# Adam divides each gradient by its usual size, so its rule is another one, which was not run here. In
# theory, Adam's rate grows by the square root of k if gradients are noisy, and its other settings change,
# too. In practice, begin with the square root for Adam, and try half and double.

# %% tags=["check"]
losses, small_batch = ranks.view["losses"][0], ranks.view["small_batch"][0]
nearest = min(losses, key=lambda choice: abs(losses[choice] - small_batch))
assert nearest == "c"
assert min(ranks.view["too_large"]) > max(ranks.view["smaller"])
ok("with SGD the rate grows like the batch", best_rate=nearest)

# %% [markdown] tags=["question"]
# ## More: where do the last batches of an epoch go?

# %% [markdown] tags=["explain"]
# The micro-batches of one step are a **window**. A guide accumulates by calling `step`, and then
# `zero_grad`, at every 4th batch ([claim C18](claims.md)), and does not divide the loss. The count of
# batches begins anew in each epoch. Below, an epoch has 156 images on each rank: nine batches of 16
# and one of 12.

# %% [markdown] tags=["predict"]
# This loop trains two epochs. Gradients of how many images of a rank are in `.grad` when the second epoch
# makes its first step?

# %% tags=["predict"]
predict("images_in_the_step", ...)

# %% tags=["break"]
# %%px
pairs = zip(images[:156].double().split(16), labels[:156].split(16), strict=True)
batches = list(pairs)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.zero_grad()
num_waiting = 0  # images whose gradient is in .grad
for number, (x, y) in enumerate(batches, start=1):
    cross_entropy(model(x), y).backward()
    num_waiting += len(y)
    if number % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
        num_waiting = 0
num_left = num_waiting
for x, y in batches[:4]:  # the second epoch, up to its first step
    cross_entropy(model(x), y).backward()
    num_waiting += len(y)
if rank == 0:
    print(f"{num_left} of 156 images of each rank are in no step of their epoch")
    print(f"the first step of the second epoch has {num_waiting} images")

# %% [markdown] tags=["read"]
# Gradients of 92 images are in `.grad`: 64 of the second epoch, and 28 (16 and 12) of the first. After
# batch 8 the first epoch makes no step, so the gradients of its last two batches wait. Those of the last
# epoch are lost. The 28 images need a window of their own. Every rank has m = 28 images in it, so the
# factors are n / m:

# %% tags=["mend"]
# %%px
left_over = batches[8:]  # 16 and 12 images, on each rank
right_gradient = accumulate(model, left_over, [16 / 28, 12 / 28])
halved = accumulate(model, left_over, [1 / 2, 1 / 2])
undivided = accumulate(model, left_over, [1, 1])
percent_halved = percent_off(halved, right_gradient)
times_as_long = (undivided.norm() / right_gradient.norm()).item()
if rank == 0:
    print(f"factors 1/2 and 1/2: off by {percent_halved:.0f} %")
    print(f"without factors: {times_as_long:.1f} times as long")

# %% [markdown] tags=["read"]
# With 1/2 for both losses, each of the 12 images counts 1/24 on its rank, and each of the 16 counts
# 1/32, where 1/28 is right. The gradient is off by 8&nbsp;%. Without factors, as in the guide, it is
# 2.0 times as long as it should be in this window, and 4 times in a full one. A loop that divides by 4
# in every window makes it half as long as it should be in this one. [Claim C18](claims.md) is **half
# true**: weight each micro-batch, and make a step for the batches left over.

# %% tags=["check"]
assert min(ranks.view["percent_halved"]) > 1
assert min(ranks.view["times_as_long"]) > 1.9
assert ranks.view["num_left"] == [28] * 4
num_waiting = ranks.view["num_waiting"][0]
ok("C18 is half true, the rest needs a step, too", images_in_the_step=num_waiting)

# %% [markdown] tags=["question"]
# ## More: when are gradients clipped?

# %% [markdown] tags=["explain"]
# To **clip** a gradient means: if its L2 norm, over all parameters together, is above a limit,
# multiply it by limit / norm. `torch.nn.utils.clip_grad_norm_` does this in place, and returns the
# norm before.
#
# Suppose that a loop clipped after its one `backward`, and now has four of them. If the call stays in the
# loop, it runs after each of the four backwards, each time on the sum so far.

# %% [markdown] tags=["predict"]
# The limit is 0.1, and every norm is above it. Which micro-batch, 1 to 4, counts most in the end?

# %% tags=["predict"]
predict("counts_most", ...)

# %% tags=["break"]
# %%px
from contextlib import nullcontext
from torch.nn.utils import clip_grad_norm_

model.zero_grad()
counts = []  # how much each micro-batch counts in .grad
for number, (x, y) in enumerate(batches[:4], start=1):
    with nullcontext() if number == 4 else model.no_sync():
        (cross_entropy(model(x), y) / 4).backward()
    norm = clip_grad_norm_(model.parameters(), 0.1).item()
    # a clip multiplies all micro-batches that are in .grad
    counts = [count * min(1, 0.1 / norm) for count in [*counts, 1]]
clipped_early = gradient_of(model)
counts_most = 1 + counts.index(max(counts))
print(f"counts: {', '.join(f'{count:.2f}' for count in counts)}; most: {counts_most}")

# %% [markdown] tags=["explain"]
# The repair is one clip, after the last `backward`:

# %% tags=["mend"]
# %%px
accumulate(model, batches[:4], [1 / 4] * 4)
norm_before = clip_grad_norm_(model.parameters(), 0.1).item()
clipped_once = gradient_of(model)
percent_early = percent_off(clipped_early, clipped_once)
if rank == 0:
    print(f"norm {norm_before:.2f}, clipped to {clipped_once.norm():.2f}")
    print(f"clipped four times: off by {percent_early:.0f} %")

# %% [markdown] tags=["read"]
# Micro-batch 4 counts most, because it was clipped once, and the earlier ones again at each later clip.
# (The counts are the factors with which micro-batches 1 to 4 are in `.grad`.) The gradient is off by
# 40&nbsp;%. The counts also differ from rank to rank, because before the all-reduce each rank has its own
# norm. After it, all ranks have the same gradient, compute the same norm without a message, and clip
# alike. So clip once, after the all-reduce and before `step`.

# %% tags=["check"]
assert len(set(ranks.view["norm_before"])) == 1
assert min(ranks.view["norm_before"]) > 0.1
assert min(ranks.view["percent_early"]) > 10
assert len(set(ranks.view["counts_most"])) == 1
counts_most = ranks.view["counts_most"][0]
ok("clip once, after the all-reduce", counts_most=counts_most)

# %% [markdown] tags=["question"]
# ## More: must ranks agree on a learning rate?

# %% [markdown] tags=["explain"]
# In the next cells `ReduceLROnPlateau` halves the rate when a loss has stopped falling. Each rank
# gives it the loss of its own test images. To make the ranks disagree, rank 3 gets wrong labels for
# them.


# %% tags=["run"]
# %%px
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau
from ddp_lessons.replicas import num_different

test_images = digits.test_images[rank::world_size]  # 90 on each rank
shift = 1 if rank == 3 else 0
test_labels = (digits.test_labels[rank::world_size] + shift) % 10


def own_loss(model):
    with torch.no_grad():
        return cross_entropy(model(test_images), test_labels)


def train_with_plateau(test_loss_of):
    model = DDP(digits_model(seed=0).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.8)
    schedule = ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
    for _ in range(21):
        cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step(test_loss_of(model.module).item())
    return optimizer.param_groups[0]["lr"], parameters_to_vector(model.parameters())


# %% [markdown] tags=["predict"]
# The ranks train with DDP, which averages their gradients. What differs between rank 0 and rank 3 in
# the end: (a) nothing, (b) the rate alone, or (c) the rate and the weights?

# %% tags=["predict"]
predict("what_differs", "...")

# %% tags=["break"]
# %%px
own_rate, weights = train_with_plateau(own_loss)
num_versions = num_different(weights.detach())
print(f"rate {own_rate:.4f}; versions of the weights on 4 ranks: {num_versions}")

# %% [markdown] tags=["read"]
# The answer is (c). Rank 3 lowered its rate alone. Equal gradients times different rates are different
# steps, so there are 2 versions of the weights, and DDP does not notice. ([Lesson
# 05](05_replicas.ipynb): replicas need an equal start, equal gradients and equal steps.) The repair is
# to give every rank the mean loss:


# %% tags=["mend"]
# %%px
def mean_loss(model):
    loss = own_loss(model)
    dist.all_reduce(loss)  # one number
    return loss / world_size  # each rank has 90 images


shared_rate, weights = train_with_plateau(mean_loss)
num_versions_mended = num_different(weights.detach())
print(f"rate {shared_rate:.4f}; versions of the weights: {num_versions_mended}")

# %% [markdown] tags=["explain"]
# `ReduceLROnPlateau` follows a metric. Other schedules, like the next one, compute the rate from the
# number of the step:

# %% tags=["run"]
# %%px
model = DDP(digits_model(seed=0).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.8)
schedule = CosineAnnealingLR(optimizer, T_max=63)
with trace() as events:
    for _ in range(21):
        cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
num_cosine = collectives(events).count("all_reduce")
cosine_rate = optimizer.param_groups[0]["lr"]
if rank == 0:
    print(f"rate {cosine_rate:.4f}; all-reduces in 21 steps: {num_cosine}")

# %% [markdown] tags=["read"]
# With the mean loss, all ranks have one rate and 1 version of the weights, for an all-reduce of one
# number. (`PlateauSchedule` in `ddp_lessons.accumulation` does this for ranks with different numbers
# of samples, too.) The cosine needs no message: 21 steps have 21 all-reduces, those of the gradients.
#
# A guide says that learning rates must be synchronised between processes ([claim C19](claims.md)).
# This is **half true**: average the metric if a schedule follows one, and send nothing if the rate
# follows from the step.

# %% tags=["check"]
own_rates, versions = ranks.view["own_rate"], ranks.view["num_versions"][0]
assert own_rates[0] != own_rates[3]
assert versions > 1
for name in ("shared_rate", "cosine_rate"):
    assert len({*ranks.view[name]}) == 1
assert ranks.view["num_versions_mended"] == [1] * 4
assert ranks.view["num_cosine"] == [21] * 4
choice = "a" if own_rates[0] == own_rates[3] else "b" if versions == 1 else "c"
ok("C19 is half true, only a metric needs a message", what_differs=choice)

# %% [markdown] tags=["cluster"]
# ## On your own cluster
#
# Save this as `train.py`; it is complete, and needs no data:
#
# ```python
# import os
# from contextlib import nullcontext
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
# net = torch.nn.Sequential(
#     torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)
# )
# model = DDP(net.cuda(), device_ids=[local_rank])
# num_micro_batches, size = 8, 32
# batch_size = size * dist.get_world_size() * num_micro_batches
# optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * batch_size / 256)
# warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
# for step in range(100):
#     for number in range(1, num_micro_batches + 1):
#         samples = torch.randn(size, 1024, device="cuda")
#         labels = samples[:, :10].argmax(dim=1)  # which of ten numbers is the largest
#         with nullcontext() if number == num_micro_batches else model.no_sync():
#             with torch.autocast("cuda", dtype=torch.bfloat16):
#                 loss = torch.nn.functional.cross_entropy(model(samples), labels)
#             (loss / num_micro_batches).backward()
#     torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
#     optimizer.step()
#     optimizer.zero_grad()
#     warm_up.step()
# if dist.get_rank() == 0:
#     print(f"{batch_size} samples a step, last micro-batch's loss {loss.item():.2f}")
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
# | `nullcontext() if ... else model.no_sync()` | inside of `no_sync`, except for the last micro-batch; `nullcontext()` does nothing |
# | `torch.autocast` | computes forward in bfloat16; `backward` stands outside of it, and inside of `no_sync` |
# | `loss / num_micro_batches` | right here, because all micro-batches are equal; else `world_size * n / N` |
# | `clip_grad_norm_` | once, after the last `backward` (with float16 and a `GradScaler`, call its `unscale_` first) |
# | `--nproc-per-node=8` | 32 x 8 x 8 = 2,048 samples a step on one node |
# | `--nnodes=2` | 4,096 samples, and the formula for `lr` doubles the rate; to keep 2,048, halve `num_micro_batches` |
# | `lr=0.1 * batch_size / 256` | the linear rule, from a rate of 0.1 for 256 samples |
# | `LinearLR(..., total_iters=10)` | the warm-up: a tenth of the rate at first, all of it after 10 optimizer steps |
# | `--standalone`, `--rdzv-...` | where the processes find each other: [lesson 01](01_process_group.ipynb) |
#
# The script prints the loss of rank 0's last micro-batch. (A guess among ten classes has a loss of 2.3.)
#
# Both commands were run without GPUs, the second on a Slurm of two nodes, with these changes: `"gloo"`
# and `"cpu"` in place of `"nccl"` and `"cuda"`, layers of 64 in place of 1024, 3 steps, 2 processes and 2
# cores on each node, and neither `set_device`, `.cuda()`, `device_ids` nor `--gpus-per-node`.

# %% [markdown] tags=["recap"]
# You have accumulated four micro-batches with one all-reduce, with forward and backward inside of
# `no_sync`. You have weighted unequal micro-batches, also on unequal ranks. And you have seen that
# accumulation shrinks only activations, and that SGD's rate grows with the effective batch size.
#
# Rule of thumb: **weight by samples, send once, then clip, step and zero.**

# %% [markdown] tags=["next"]
# - **Exercise** [07](../exercises/07_accumulation.ipynb): a window of unknown length, the last window,
#   clipping by hand, and a plateau schedule that all ranks agree on. After the exercise, read how the
#   package does it: [window.py](../ddp_lessons/accumulation/window.py).
# - **Next lesson** [08](08_checkpoint.ipynb): what must be saved so that nothing is lost?
# - **Sources**: PyTorch's documentation of
#   [`no_sync`](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html);
#   P. Goyal and others, [Accurate, Large Minibatch SGD](https://arxiv.org/abs/1706.02677), 2017, on the
#   linear rule, its warm-up and its limit; S. Malladi and others, [On the SDEs and Scaling Rules for
#   Adaptive Gradient Algorithms](https://arxiv.org/abs/2205.10287), 2022, on the square root for Adam;
#   Hugging Face, [Gradient
#   synchronization](https://huggingface.co/docs/accelerate/concept_guides/gradient_synchronization),
#   with measured seconds.

# %% tags=["teardown"]
ranks.stop()
