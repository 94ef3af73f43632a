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
# - **weigh** the samples of such a step, and clip its gradient, as one device would;
# - **tell** what it saves in memory, and what it does not.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.pictures import memory_picture, timeline_picture, timeline_tracks
from ddp_lessons.trace import merge

ranks = start_ranks(4)

# %% [markdown] tags=["question"]
# ## In which order do the four lines of a loop go?

# %% [markdown] tags=["predict"]
# A guide gives the training loop in this order: forward, backward, `zero_grad`, `step`.
# The model has 4,810 weights. How many of them have moved after 50 rounds?

# %% tags=["predict"]
predict("moved_by_the_guide", ...)

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
images = digits.train_images[rank:1436:world_size]  # each rank has 359
labels = digits.train_labels[rank:1436:world_size]


def flat(tensors):
    return torch.cat([t.detach().flatten() for t in tensors])


# %% tags=["break"]
# %%px
model = DDP(digits_model(seed=0).to(device))
parameters = list(model.parameters())
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
print("more than 4,000 moved:", (flat(parameters) != start).sum().item() > 4000)

# %% tags=["run"]
# %%px
model.zero_grad()
lengths = []
for _ in range(2):
    cross_entropy(model(images), labels).backward()
    lengths.append(flat(p.grad for p in parameters).norm().item())
print(f"after two backwards, .grad is {lengths[1] / lengths[0]:.2f} times as long")

# %% [markdown] tags=["read"]
# `zero_grad` empties `.grad`, and then `step` has nothing to go by: 0 weights moved, and nothing
# complained. So [claim C15](claims.md), the guide's order, is **false**. With those two lines
# swapped the model learns. (Some weights never move: their pixel is blank in every digit.)
#
# The last line shows what `zero_grad` is for: `backward` does not replace what is in `.grad`, it
# *adds*. Two backwards make 2.00 times the gradient. This lesson rests on that.

# %% tags=["check"]
assert set(ranks.view["num_moved"]) == {0}
assert all(num > 4000 for num in ranks.view["(flat(parameters) != start).sum().item()"])
assert all(abs(b / a - 2) < 1e-5 for a, b in ranks.view["lengths"])
ok("C15 is false, no weight moved, and nothing complained", moved_by_the_guide=0)

# %% [markdown] tags=["question"]
# ## How often must ranks talk for one step?

# %% [markdown] tags=["predict"]
# You want a step from 64 samples a rank, and only 16 fit into memory. So you take four
# **micro-batches**, parts of the step's batch, and let `.grad` add up. In each `backward` DDP
# averages 4,810 gradients of 4 bytes. How many bytes does a rank hand over for the step?

# %% tags=["predict"]
predict("bytes_of_four_backwards", ...)

# %% tags=["run"]
# %%px
micro_batches = list(zip(images[:64].split(16), labels[:64].split(16), strict=True))
model.zero_grad()
with trace() as each:
    for x, y in micro_batches:
        (cross_entropy(model(x), y) / 4).backward()
reference = flat(p.grad for p in parameters)
num_bytes = sum(event.output_bytes for event in each)
print(f"{', '.join(collectives(each))}: {num_bytes} bytes")

# %% [markdown] tags=["read"]
# Four all-reduces and 76960 bytes, for a single step. Nobody looks at the first three averages, so
# one at the end would do: first each rank adds up alone, which is called **accumulation**.
#
# DDP has a switch for that, `model.no_sync()`: inside it, gradients stay on their rank. The next
# cell puts the first three backwards inside, but not their forwards.

# %% tags=["break"]
# %%px
with trace() as outside:
    for x, y in micro_batches[:3]:
        loss = cross_entropy(model(x), y) / 4
        with model.no_sync():
            loss.backward()
print(len(collectives(outside)), "all-reduces")

# %% [markdown] tags=["read"]
# Three all-reduces in 3 backwards, and nothing complains. DDP decides in the *forward* whether to
# sync, so the forward belongs inside too. The last micro-batch stays outside, and syncs the sum.
#
# You will write that in the exercise. Here `Window` does it: it is a loop over micro-batches with
# the switch in the right places.

# %% tags=["mend"]
# %%px
from ddp_lessons.accumulation import Window, gathered_gradient, windows
from ddp_lessons.accumulation.example import window_gradient

model.zero_grad()
with trace(model) as once, Window(model, micro_batches) as window:
    for x, y in window:
        window.backward(cross_entropy(model(x), y))  # it divides by 4
mended = flat(p.grad for p in parameters)
with trace() as guide:
    gathered = gathered_gradient(model.module, micro_batches, cross_entropy)
for events in (once, guide):
    num_bytes = sum(event.output_bytes for event in events if event.is_communication)
    print(f"{', '.join(collectives(events))}: {num_bytes} bytes come out")

# %% tags=["picture"]
timeline_picture(timeline_tracks(merge(ranks.view["once"])), "events, in order")

# %% [markdown] tags=["read"]
# One all-reduce of 19240 bytes, in the last backward.
#
# The second line is a guide's way: accumulate with `reduce_scatter` or, as here,
# `all_gather`. Every rank
# gathers the gradients of all after each micro-batch. They come out right, for 307840 bytes. So
# [claim C16](claims.md) is **false**: to add up its own gradients, a rank needs nobody.

# %% tags=["check"]
for name in ("gathered", "mended"):
    for got, right in zip(ranks.view[name], ranks.view["reference"], strict=True):
        # the same float32 numbers, added in another order: about 7 digits agree
        assert (got - right).norm() < 1e-5 * right.norm()
assert set(ranks.view["len(collectives(once)), len(outside)"]) == {(1, 3)}
ok("C16 is false, 1 all-reduce and nothing gathered", bytes_of_four_backwards=76960)

# %% [markdown] tags=["question"]
# ## Does every sample count as much as the others?

# %% [markdown] tags=["predict"]
# Another guide: call `step` after every 4th batch. A rank has 156 samples, in nine batches of 16
# and a last one of 12. How many of its 156 samples are in no step when the epoch is over?

# %% tags=["predict"]
predict("samples_without_a_step", ...)

# %% tags=["break"]
# %%px
batches = list(zip(images[:156].split(16), labels[:156].split(16), strict=True))
model.zero_grad()
num_stepped = 0
for number, (x, y) in enumerate(batches, start=1):
    cross_entropy(model(x), y).backward()
    if number % 4 == 0:
        second = flat(p.grad for p in parameters)  # it would step by this
        num_stepped += 4 * 16
        model.zero_grad()
rest = flat(p.grad for p in parameters)
num_lost = 156 - num_stepped
print(f"{num_lost} of 156 samples are in no step")

# %% tags=["mend"]
# %%px
ours = [window_gradient(model, part) for part in windows(batches, 4)]
whole = window_gradient(model, [(images[128:156], labels[128:156])])  # the last 28
times = (second.norm() / ours[1].norm()).item()
off = [((got - whole).norm() / whole.norm()).item() for got in (rest / 2, ours[2])]
print(f"{times:.2f} times too long. Last: {off[0]:.0%} off, ours {off[1]:.0%} off")

# %% [markdown] tags=["read"]
# 28 samples are in no step. Their gradient stays in `.grad`: used late, or never. And undivided
# gradients are 4.00 times too long.
#
# Dividing is not enough. Half of each mean gives one of the 12 samples more weight than one of the
# 16: 7% off. A **window** is the micro-batches of one step. `windows` yields the shorter last one
# too, and `window_gradient`, a loop over a `Window`, weighs by samples. So [claim C18](claims.md)
# is **half true**.

# %% tags=["check"]
for times, off in zip(ranks.view["times"], ranks.view["off"], strict=True):
    assert round(times, 3) == 4
    assert off[1] < 1e-5 < 0.01 < off[0]  # 28 samples in float32
assert set(ranks.view["num_lost"]) == {28}
ok("C18 is half true, weigh them all", samples_without_a_step=28)

# %% [markdown] tags=["question"]
# ## What does accumulation make smaller?

# %% [markdown] tags=["predict"]
# A step of 160 samples, once whole, once as 8 micro-batches. **Activations** are what forward
# keeps for backward. How many times as many bytes of them does the whole step hold?

# %% tags=["predict"]
predict("activations_of_the_whole", ...)

# %% tags=["run"]
# %%px
from ddp_lessons.accumulation import example, step_bytes

deep, adam = example.deep_network(device)
used = {n: step_bytes(deep, adam, images[:160], labels[:160], n) for n in (160, 20)}
one, parts = (used[size]["activations"] / 1024 for size in (160, 20))
print(f"{one:.1f} KiB and {parts:.1f} KiB of activations: {one / parts:.0f} times")

# %% tags=["picture"]
memory_picture([used[20] for used in ranks.view["used"]])

# %% [markdown] tags=["read"]
# Of activations 8 times as many, 681.3 KiB: only one micro-batch at a time is between forward and
# backward. The picture shows the rest, which is the same for the whole step: parameters,
# gradients, and what Adam keeps. So [claim C17](claims.md), that
# accumulation helps when the *parameters* do not fit, is **false**. For that, ranks must split
# them.

# %% tags=["check"]
for used in ranks.view["used"]:
    # 4 bytes of the loss are there whatever the batch
    assert used[160].pop("activations") - 4 == 8 * (used[20].pop("activations") - 4)
    assert used[160] == used[20]
ok("C17 is false, all of the parameters are there", activations_of_the_whole=8)

# %% [markdown] tags=["question"]
# ## Where in a window is the gradient clipped?

# %% [markdown] tags=["predict"]
# To clip is to shorten a gradient that is longer than a limit. A loop that clipped after its one
# `backward` now clips after each of 4. Which micro-batch, 1 to 4, counts most in the end?

# %% tags=["predict"]
predict("counts_most_when_clipped", ...)

# %% tags=["break"]
# %%px
from torch.nn.utils import clip_grad_norm_

model.zero_grad()
counts = []
with Window(model, batches[:4]) as window:
    for x, y in window:
        window.backward(cross_entropy(model(x), y))
        length = clip_grad_norm_(parameters, 0.1).item()  # what it was before
        counts = [count * min(1, 0.1 / length) for count in [*counts, 1]]
early = flat(p.grad for p in parameters)
most = 1 + counts.index(max(counts))
print("they count", *(f"{count:.2f}" for count in counts), f"- most: {most}")

# %% tags=["mend"]
# %%px
window_gradient(model, batches[:4])
length = clip_grad_norm_(parameters, 0.1).item()
late = flat(p.grad for p in parameters)
off = ((early - late).norm() / late.norm()).item()
print(f"{length:.2f} to {late.norm():.2f}. Early: {early.norm():.2f}, {off:.0%} off")

# %% [markdown] tags=["read"]
# Micro-batch 4 counts most. Each clip shortens what has added up so far, and the next micro-batch
# comes in whole. Both gradients have the length 0.10, and yet the first is 46% off. And before the
# sync each rank shortens by a factor of its own: compare the lines.
#
# After the sync all hold equal gradients, of length 0.42. So all shorten alike.

# %% tags=["check"]
assert len(set(ranks.view["length"])) == 1  # all ranks agree
assert min(ranks.view["length"]) > 0.1  # there was something to clip
assert min(ranks.view["off"]) > 0.1
assert set(ranks.view["most"]) == {4}
ok("one clip, after the sync, alike on all ranks", counts_most_when_clipped=4)

# %% [markdown] tags=["question"]
# ## More: must ranks agree on a learning rate?

# %% [markdown] tags=["predict"]
# Each of 4 ranks halves its learning rate when its own test loss stops falling. Ranks 0
# to 2 have good labels. On rank 3 every test label is off by one. How many different
# rates will there be after 21 steps?

# %% tags=["predict"]
predict("different_rates", ...)

# %% tags=["break"]
# %%px
x = digits.test_images[rank::world_size]
y = (digits.test_labels[rank::world_size] + (rank == world_size - 1)) % 10
model = DDP(digits_model(seed=0).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.8)
schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
for _ in range(21):
    cross_entropy(model(images), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step(cross_entropy(model.module(x), y).item())
own_rate, apart = optimizer.param_groups[0]["lr"], flat(model.parameters())
everyone = [None] * world_size
dist.all_gather_object(everyone, own_rate)
print(f"rate {own_rate:.4f}, {len(set(everyone))} different ones")

# %% tags=["mend"]
# %%px
from ddp_lessons.accumulation import PlateauSchedule

model = DDP(digits_model(seed=0).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.8)
schedule = PlateauSchedule(optimizer, factor=0.5, patience=2)
for _ in range(21):
    cross_entropy(model(images), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
    with trace() as deciding:
        total = cross_entropy(model.module(x), y, reduction="sum").item()
        schedule.step(total, len(y))
shared_rate, together = optimizer.param_groups[0]["lr"], flat(model.parameters())
print(f"rate {shared_rate:.4f}, {', '.join(collectives(deciding))} in each step")

# %% [markdown] tags=["read"]
# 2 rates: rank 3 goes down to 0.0125 alone. Equal gradients times different rates move replicas
# apart, and DDP does not notice.
#
# `PlateauSchedule` takes the loss of all samples, which stops falling near the end. All lower their
# rate together, to 0.4000, for an all-gather of two numbers a step.
#
# Next, a rate that follows from the step: up for 2 steps, then down along half a cosine.

# %% tags=["run"]
# %%px
from ddp_lessons.accumulation import effective_batch_size, scaled_learning_rate
from ddp_lessons.accumulation.example import train_windows

batch = effective_batch_size(8, world_size, 8)
rate = scaled_learning_rate(0.1, effective_batch_size(8, world_size), batch)
runs = []
with trace() as training:
    for k, peak_rate in ((1, 0.1), (8, 0.1), (8, rate)):
        model = DDP(digits_model(seed=0).to(device))
        runs.append(train_windows(model, images, labels, k, peak_rate))
num_steps = sum(num_steps for _, num_steps in runs)
num_calls = collectives(training).count("all_reduce")
print(f"{batch} samples, rate {rate:.1f}:", *(f"loss {loss:.1f}" for loss, _ in runs))
print(f"{num_calls} all-reduces in {num_steps} steps")

# %% [markdown] tags=["read"]
# One all-reduce a step, for the gradients: ranks count the same steps, and know the same rate. So
# [claim C19](claims.md), ranks must synchronise rates, is **half true**.
#
# The **effective batch size**, the samples of one step over all ranks, grew from 32 to 256. At the
# old rate the loss stays at 2.2; at 0.8 it falls again. Eight small steps in about one direction are
# one of eight times the length: so SGD takes eight times the rate.

# %% tags=["check"]
shared, apart, together = (ranks.view[n] for n in ("shared_rate", "apart", "together"))
assert not apart[0].equal(apart[-1])
assert {*shared} == {shared[0]} != {0.8}  # lowered, by all
assert all(together[0].equal(other) for other in together)
assert ranks.view["num_calls"] == ranks.view["num_steps"]
assert all(runs[2][0] < runs[1][0] / 1.5 for runs in ranks.view["runs"])
ok("C19 is half true, only a rate that follows a metric needs messages",
   different_rates=len(set(ranks.view["own_rate"])))  # fmt: skip

# %% [markdown] tags=["recap"]
# You have made one step from several batches with one all-reduce, weighed and clipped it as one
# device would, and counted what that saves.
#
# Rule of thumb: **add up locally, weigh by samples, sync once, then clip, step and zero.**

# %% [markdown] tags=["next"]
# - **Exercise** [07](../exercises/07_accumulation.ipynb): a window with one sync, the last window,
#   clipping, and a plateau schedule. After the exercise:
#   [window.py](../ddp_lessons/accumulation/window.py), also for ranks with unequally many samples.
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
