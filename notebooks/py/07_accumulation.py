# %% [markdown] tags=["title"]
# # When should ranks talk?
#
# 30 minutes, 4 ranks; works with any number of ranks from 2. It builds on
# [06_ddp](06_ddp.ipynb), which looks inside DDP, and on the epochs of
# [04_samplers](04_samplers.ipynb).

# %% [markdown] tags=["goal"]
# When you are through, you can
#
# - **make** one step from several batches, with one message instead of one for each;
# - **tell** what that saves in memory, and what it does not;
# - **choose** a learning rate, and say when ranks must agree on it.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.pictures import memory_picture, timeline_picture, timeline_tracks
from ddp_lessons.trace import merge

ranks = start_ranks(4)

# %% [markdown] tags=["question"]
# ## A gradient stays in `.grad` until somebody zeroes it.

# %% [markdown] tags=["predict"]
# A guide gives the training loop in this order: forward, backward, `zero_grad`, `step`.
# The model has 4,810 weights. How many of them have moved after 50 rounds?
#
# *Your number:*

# %% tags=["run"]
# %%px
import torch, torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from ddp_lessons.process_group import rank_device
from ddp_lessons.trace import collectives, trace
from ddp_lessons.workloads import digits_model, load_digits

rank, world_size, device = dist.get_rank(), dist.get_world_size(), rank_device()
digits = load_digits().to(device)
images = digits.train_images[rank:1436:world_size]  # one digit is left out
labels = digits.train_labels[rank:1436:world_size]
model = DDP(digits_model(seed=0).to(device))
parameters = list(model.parameters())


def flat(tensors):
    return torch.cat([t.detach().flatten() for t in tensors])


# %% tags=["break"]
# %%px
start, optimizer = flat(parameters), torch.optim.SGD(parameters, lr=0.1)
for _ in range(50):
    cross_entropy(model(images), labels).backward()
    optimizer.zero_grad()
    optimizer.step()
num_moved = (flat(parameters) != start).sum().item()
print(f"weights that moved: {num_moved}")

# %% tags=["mend"]
# %%px
for _ in range(50):
    cross_entropy(model(images), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
num_mended = (flat(parameters) != start).sum().item()

# %% [markdown] tags=["read"]
# C15, the guide's order, is **false**: 0 weights moved, and nothing complained. `backward` adds to
# `.grad`, `zero_grad` empties it, and `step` then has nothing to go by.
#
# With the last two lines swapped, it learns. (Not all weights move: some pixels are blank in every
# digit.) Note the word *adds*: two backwards without a `zero_grad` between them leave the sum of
# both gradients. This lesson rests on it.

# %% tags=["check"]
assert set(ranks.view["num_moved"]) == {0}
assert min(ranks.view["num_mended"]) > 4000
print("ok: C15 is false, 0 weights moved; the other way round, more than 4,000")

# %% [markdown] tags=["question"]
# ## One step needs one sync, however many batches go into it.

# %% [markdown] tags=["predict"]
# You want a step from 64 samples a rank, and only 16 fit into memory. So you make four
# **micro-batches**, parts of the step's batch, and let `.grad` add up. DDP averages gradients in
# each `backward`. How many all-reduces is that for a step, and how many would do?
#
# *Your number:*

# %% tags=["run"]
# %%px
micro_batches = list(zip(images[:64].split(16), labels[:64].split(16), strict=True))
with trace() as each_time:
    for x, y in micro_batches:
        (cross_entropy(model(x), y) / 4).backward()
print(", ".join(collectives(each_time)))

# %% tags=["run"]
# %%px
reference = flat(p.grad for p in parameters)
total = torch.zeros_like(reference)
with trace() as guide:
    for x, y in micro_batches:
        loss = cross_entropy(model.module(x), y) / 4
        gradient = flat(torch.autograd.grad(loss, parameters))
        everyone = [torch.empty_like(gradient) for _ in range(world_size)]
        dist.all_gather(everyone, gradient)
        total += sum(everyone) / world_size
num_received = sum(event.output_bytes for event in guide)
print(f"{', '.join(collectives(guide))}: {num_received:,} bytes come in")

# %% tags=["run"]
# %%px
model.zero_grad()
with trace(model) as once:
    with model.no_sync():
        for x, y in micro_batches[:-1]:
            (cross_entropy(model(x), y) / 4).backward()
    x, y = micro_batches[-1]
    (cross_entropy(model(x), y) / 4).backward()
mended = flat(p.grad for p in parameters)
num_once = sum(event.output_bytes for event in once if event.is_communication)
calls = collectives(once)
print(f"{', '.join(calls)}: {num_once:,} bytes")

# %% tags=["picture"]
timeline_picture(timeline_tracks(merge(ranks.view["once"])), "events, in order")

# %% [markdown] tags=["read"]
# `no_sync` tells DDP to leave gradients where they are. Only the fourth backward talks, about
# 19,240 bytes instead of four times as many. The forward stands inside too: DDP decides there
# whether to sync.
#
# C16 says: accumulate with `reduce_scatter` or `all_gather`. It is **false**. The second cell did
# so: four collectives, 307,840 bytes, the same gradient. **Accumulation** is a local sum, and
# `.grad` keeps it.

# %% tags=["check"]
for name in ("total", "mended"):
    for got, right in zip(ranks.view[name], ranks.view["reference"], strict=True):
        # the same float32 numbers, added in another order: about 7 digits agree
        assert (got - right).norm() < 1e-5 * right.norm()
assert all(calls == ["all_reduce"] for calls in ranks.view["calls"])
print("ok: C16 is false, 1 all-reduce in place of 4, and nothing gathered")

# %% [markdown] tags=["question"]
# ## Each micro-batch counts as much as its samples.

# %% [markdown] tags=["predict"]
# Another guide: call `step` after every 4th batch. A rank has 10 batches of 16 samples.
# How many of its 160 samples never reach a step? And how many times too long is a gradient?
#
# *Your number:*

# %% tags=["break"]
# %%px
batches = list(zip(images[:160].split(16), labels[:160].split(16), strict=True))
model.zero_grad()
num_stepped, lengths = 0, []
for number, (x, y) in enumerate(batches, start=1):
    cross_entropy(model(x), y).backward()
    if number % 4 == 0:
        lengths.append(flat(p.grad for p in parameters).norm().item())
        num_stepped += 64
        model.zero_grad()  # the step before it is left out, so that lengths compare
lengths.append(flat(p.grad for p in parameters).norm().item() / 4)
print(f"{num_stepped} of 160 samples reached a step")

# %% tags=["mend"]
# %%px
from ddp_lessons.accumulation import Window, windows

mended = []
for part in windows(batches, 4):
    sizes = [len(y) for _, y in part]
    model.zero_grad()
    with Window(model, part, sizes) as window:
        for x, y in window:
            window.backward(cross_entropy(model(x), y))
    mended.append(flat(p.grad for p in parameters))
model.zero_grad()
cross_entropy(model(images[128:160]), labels[128:160]).backward()  # its last, whole
whole = flat(p.grad for p in parameters)
ratios = [bad / good.norm().item() for bad, good in zip(lengths, mended, strict=True)]
print("their lengths over ours:", *(f"{ratio:.2f}" for ratio in ratios))

# %% [markdown] tags=["read"]
# C18 is **half true**. Undivided, a gradient is 4.00 times too long. The last two batches get no
# step, and 32 samples are lost. Worse, their gradient stays, and adds to the next epoch's first.
# A step for them divided by 4 would have 0.50 of the length: two batches, not four.
#
# `windows` yields the shorter last **window** too, the batches of one step. `Window` weighs each
# loss by its samples: [window.py](../ddp_lessons/accumulation/window.py), `_run` and `scale`.

# %% tags=["check"]
for mended, whole in zip(ranks.view["mended"], ranks.view["whole"], strict=True):
    assert (mended[-1] - whole).norm() < 1e-5 * whole.norm()  # 32 samples in float32
for ratios in ranks.view["ratios"]:
    assert [round(ratio, 3) for ratio in ratios] == [4, 4, 0.5]
assert set(ranks.view["num_stepped"]) == {128}
print("ok: C18 is half true, it takes weights and a step for the last window")

# %% [markdown] tags=["question"]
# ## Accumulation saves activations, and nothing else.

# %% [markdown] tags=["predict"]
# A step of 160 samples, once whole, once as 8 micro-batches. **Activations** are what forward
# keeps for backward. To which part do they shrink? And parameters, gradients and what the
# optimizer keeps?
#
# *Your number:*

# %% tags=["run"]
# %%px
from ddp_lessons.accumulation import SavedBytes, state_bytes

layers = [m for _ in range(8) for m in (torch.nn.Linear(64, 64), torch.nn.GELU())]
deep, used = torch.nn.Sequential(*layers).to(device), {}
adam = torch.optim.Adam(deep.parameters())
for name, size in (("whole", 160), ("micro", 20), ("bf16", 160)):
    with SavedBytes(deep) as saved:
        for x, y in zip(
            images[:160].split(size), labels[:160].split(size), strict=True
        ):
            with torch.autocast(device.type, torch.bfloat16, enabled=name == "bf16"):
                loss = cross_entropy(deep(x.clone()), y.clone()) * size / 160
            loss.backward()
    adam.step()
    used[name] = {"activations": saved.peak_bytes, **state_bytes(deep, adam)}

# %% tags=["picture"]
memory_picture([used["whole"] for used in ranks.view["used"]])

# %% tags=["picture"]
memory_picture([used["micro"] for used in ranks.view["used"]])

# %% [markdown] tags=["read"]
# The eighth part: 85.2 KiB of activations instead of 681 KiB. All else stays as it was. So
# C17, that accumulation helps when the *parameters* do not fit, is **false**. For that,
# ranks must split them, as later lessons do.
#
# `clone` gives a micro-batch memory of its own, as a loader does; a slice would keep the whole
# batch alive. Autocast, which computes in a type of half the bytes where that is safe, also
# saves activations only.

# %% tags=["check"]
for used in ranks.view["used"]:
    stays = [{**used[name], "activations": 0} for name in ("whole", "micro", "bf16")]
    assert stays[0] == stays[1] == stays[2]
    assert used["micro"]["activations"] - 4 == (used["whole"]["activations"] - 4) / 8
    assert used["bf16"]["activations"] < 0.7 * used["whole"]["activations"]
print("ok: C17 is false, an eighth of the activations, and all of the parameters")

# %% [markdown] tags=["question"]
# ## Gradients are clipped once, after the sync.

# %% [markdown] tags=["predict"]
# To clip is to shorten a gradient that is longer than a limit. A loop on one device clips
# after each `backward`; now it accumulates 4 micro-batches. By how many percent does its step
# differ from the right one?
#
# *Your number:*

# %% tags=["run"]
# %%px
from ddp_lessons.accumulation import clip_gradients


def step_gradient(clips_each):
    model.zero_grad()
    with Window(model, batches[:4]) as window:
        for x, y in window:
            window.backward(cross_entropy(model(x), y))
            if clips_each:
                torch.nn.utils.clip_grad_norm_(parameters, 0.05)
    return clip_gradients(parameters, 0.05).item(), flat(p.grad for p in parameters)


with trace() as clipping:
    (_, early), (length, late) = step_gradient(True), step_gradient(False)
off = ((early - late).norm() / late.norm()).item()
print(f"{off:.0%} off. Length {length:.2f}, {', '.join(collectives(clipping))}")

# %% [markdown] tags=["read"]
# 60&nbsp;% off, though both steps have the same length. Each clip shortens the sum so far, and the
# next micro-batch then comes in whole: the last one counts most. And before the sync, each rank
# shortens by a factor of its own.
#
# After the sync, all ranks hold equal gradients. So each finds the length 0.42 by itself, and
# shortens alike. The 2 all-reduces are those of the two steps.

# %% tags=["check"]
assert len(set(ranks.view["length"])) == 1
assert min(ranks.view["length"]) > 0.05  # there was something to clip
assert min(ranks.view["off"]) > 0.1
assert all(len(events) == 2 for events in ranks.view["list(clipping)"])
print("ok: one clip, after the sync, on the length that all ranks agree on")

# %% [markdown] tags=["question"]
# ## Ranks must agree on a learning rate only where a metric decides it.

# %% [markdown] tags=["predict"]
# A window of 8 makes steps of 8 times the samples, and an eighth as many. What becomes of a
# learning rate of 0.1? Later each of 4 ranks lowers its rate when its own loss stops falling. How
# many different rates will there be after 20 steps?
#
# *Your numbers:*

# %% tags=["run"]
# %%px
from ddp_lessons.accumulation import effective_batch_size, scaled_learning_rate
from ddp_lessons.accumulation import set_learning_rate, warmup_cosine


def train(k, peak_rate):
    model = DDP(digits_model(seed=0).to(device))
    optimizer = torch.optim.SGD(model.parameters())
    parts = 4 * list(windows(zip(images.split(8), labels.split(8), strict=True), k))
    for step, part in enumerate(parts):
        set_learning_rate(optimizer, warmup_cosine(step, len(parts), peak_rate, 2))
        with Window(model, part, [len(y) for _, y in part]) as window:
            for x, y in window:
                window.backward(cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    return cross_entropy(model.module(images), labels).item(), len(parts)


# %% tags=["run"]
# %%px
batch = effective_batch_size(8, world_size, 8)
rate = scaled_learning_rate(0.1, effective_batch_size(8, world_size), batch)
with trace() as training:
    runs = [train(1, 0.1), train(8, 0.1), train(8, rate)]
print(f"{batch} samples, rate {rate:.1f}:", *(f"loss {loss:.1f}" for loss, _ in runs))

# %% [markdown] tags=["read"]
# The **effective batch size**, the samples of one step over all ranks, grew from 32 to 256. With
# the old rate, four epochs of such steps leave the loss at 2.2. Eight times the rate, 0.8, gives
# back what was lost. That is the linear rule; it is for SGD, and fails for very large batches.
#
# `warmup_cosine` computes each rate from the step. All ranks count the same steps, so there was
# no message but one all-reduce a step.

# %% tags=["break"]
# %%px
from torch.optim.lr_scheduler import ReduceLROnPlateau

x = digits.test_images[rank::world_size]
y = digits.test_labels[rank::world_size].roll(rank // (world_size - 1))  # last: spoiled
model = DDP(digits_model(seed=0).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.8)
schedule = ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
for _ in range(20):
    cross_entropy(model(images), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step(cross_entropy(model.module(x), y).item())
own_rate, apart = optimizer.param_groups[0]["lr"], flat(model.parameters())
print(f"rate {own_rate:.3f}")

# %% tags=["mend"]
# %%px
from ddp_lessons.accumulation import PlateauSchedule

model = DDP(digits_model(seed=0).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.8)
schedule = PlateauSchedule(optimizer, factor=0.5, patience=2)
for _ in range(20):
    cross_entropy(model(images), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step(cross_entropy(model.module(x), y, reduction="sum").item(), len(y))
shared_rate, together = optimizer.param_groups[0]["lr"], flat(model.parameters())
print(f"rate {shared_rate:.3f}")

# %% [markdown] tags=["read"]
# Rank 3's loss rises, for its labels are spoiled, and it lowers its rate alone: to 0.025, where the
# others keep 0.800. Equal gradients times different rates move the replicas apart, and DDP does
# not notice.
#
# `PlateauSchedule` feeds every rank the mean over all samples, for one small all-gather a step. So
# C19, that ranks must synchronise their rates, is **half true**: a rate that follows from the step
# is the same already.

# %% tags=["check"]
own, shared, apart, together = (
    ranks.view[name] for name in ("own_rate", "shared_rate", "apart", "together")
)
assert len(set(own)) == 2
assert not apart[0].equal(apart[-1])
assert len(set(shared)) == 1
assert all(together[0].equal(other) for other in together)
for runs, calls in zip(
    ranks.view["runs"], ranks.view["collectives(training)"], strict=True
):
    assert runs[2][0] < runs[1][0] / 1.5  # the scaled rate brings the loss further down
    assert calls.count("all_reduce") == sum(num_steps for _, num_steps in runs)
print("ok: C19 is half true, only the rate that follows a metric needed messages")

# %% [markdown] tags=["recap"]
# You have made one step from several batches with one all-reduce, counted what that saves, and
# chosen a rate for the larger step.
#
# Rule of thumb: **add up locally, weigh by samples, sync once, then clip, step and zero.**

# %% [markdown] tags=["next"]
# - **Exercise** [07](../exercises/07_accumulation.ipynb): a window with one sync, the last window,
#   clipping by the global norm, and a plateau schedule that all ranks agree on.
# - **Next lesson** [08](08_checkpoint.ipynb): what must be saved so that nothing is lost?
# - **Sources**: P. Goyal and others, [Accurate, Large Minibatch
#   SGD](https://arxiv.org/abs/1706.02677), 2017, sections 2.1 and 2.2 on the linear rule and its
#   warm-up; PyTorch's documentation of
#   [`DistributedDataParallel.no_sync`](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html);
#   Hugging Face's guide [Gradient
#   synchronization](https://huggingface.co/docs/accelerate/concept_guides/gradient_synchronization),
#   on what a needless sync costs.

# %% tags=["teardown"]
ranks.stop()
