# %% [markdown] tags=["title"]
# # What do frameworks add?
#
# 30 minutes, 4 ranks. It builds on [04_samplers](04_samplers.ipynb), on [06_ddp](06_ddp.ipynb),
# on [07_accumulation](07_accumulation.ipynb), and on [09_launch](09_launch.ipynb) for what a
# launcher tells.

# %% [markdown] tags=["goal"]
# When you are through, you can
#
# - **tell** what a framework writes for you, and count what it sends;
# - **find** the line that makes two tellings of one run differ;
# - **place** Horovod, and everything else that is called "a way to distribute".

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.pictures import samples_picture

ranks = start_ranks(4, device="cpu")  # frameworks choose devices by themselves

# %% [markdown] tags=["question"]
# ## Who tells a framework how many ranks there are?

# %% [markdown] tags=["predict"]
# **Accelerate** and **Lightning Fabric** are libraries around a loop that you write. They read the
# variables of lesson 09 to find their ranks. Take these away, as if somebody else had started the
# 4 ranks: they are still in a group. Each makes an `Accelerator`, hands it a model and an optimizer,
# and steps by samples of its own. How many different models are there then? (Where a library is not
# installed, cells say so and show what came out elsewhere.)

# %% tags=["predict"]
predict("models_without_variables", ...)

# %% tags=["run"]
# %%px
import torch, torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from ddp_lessons.frameworks import num_models, real_or_stored, told, untold
from ddp_lessons.workloads import digits_batch, digits_model, load_digits

rank, world_size = dist.get_rank(), dist.get_world_size()
x, y = digits_batch(load_digits(), 32, rank=rank)


def model_and_optimizer(lr=0.1):
    model = digits_model(seed=0)
    return model, torch.optim.SGD(model.parameters(), lr)


# %% tags=["break"]
# %%px
def with_accelerate():
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(*model_and_optimizer())
    accelerator.backward(cross_entropy(model(x), y))
    optimizer.step()
    return [accelerator.num_processes, type(model).__name__, num_models(model)]


with untold():
    alone = real_or_stored("Accelerate, not told", with_accelerate)
if rank == 0:
    print("processes {}, model a {}, different models {}".format(*alone))

# %% tags=["break"]
# %%px
def refused_by_fabric():
    from lightning_fabric import Fabric
    try:
        Fabric(accelerator="cpu", devices=world_size, strategy="ddp")
    except RuntimeError as error:
        return [str(error).partition(". ")[0]]


(refusal,) = real_or_stored("Fabric, at a prompt", refused_by_fabric)
if rank == 0:
    print(refusal)

# %% tags=["mend"]
# %%px
def with_fabric():
    from lightning_fabric import Fabric
    fabric = Fabric(accelerator="cpu", devices=world_size, strategy="ddp")
    fabric.launch()  # joins ranks; ours are joined
    model, optimizer = fabric.setup(*model_and_optimizer())
    fabric.backward(cross_entropy(model(x), y))
    optimizer.step()
    return [fabric.world_size, type(model).__name__, num_models(model)]


with told():  # as torchrun would tell a script
    together = real_or_stored("Accelerate, told", with_accelerate)
    of_fabric = real_or_stored("Fabric, told", with_fabric)
for told_so in (together, of_fabric):
    if rank == 0:
        print("processes {}, model a {}, different models {}".format(*told_so))

# %% [markdown] tags=["read"]
# 4 different models: without the variables `Accelerator` takes itself for the only process. It
# returns the model as it was, and nothing complains. Fabric looks for something else, too: a
# notebook has a prompt, and there it refuses.
#
# `told` sets the variables and hides the prompt, so that a rank looks like a script of torchrun's.
# Then there is 1 model under each.

# %% tags=["check"]
assert {tuple(one) for one in ranks.view["alone"]} == {(1, "Sequential", 4)}
assert all("interactive environment" in refusal for refusal in ranks.view["refusal"])
for name in ("together", "of_fabric"):
    assert {(one[0], one[2]) for one in ranks.view[name]} == {(4, 1)}
ok("untold, it trains alone", models_without_variables=ranks.view["alone"][0][2])

# %% [markdown] tags=["question"]
# ## Which lines does a framework change?

# %% [markdown] tags=["predict"]
# One epoch in plain DDP makes 12 steps on each rank. The model fits into one bucket. Now the same
# epoch is told by Accelerate, which wraps the model and runs backward for you. How many all-reduces
# does a rank make in it?

# %% tags=["predict"]
predict("all_reduces_of_accelerate", ...)

# %% tags=["run"]
from ddp_lessons.frameworks import (
    changes, train_plain, train_with_accelerate, train_with_fabric
)  # fmt: skip

print(changes(train_plain, train_with_accelerate), end="\n\n")
print(changes(train_plain, train_with_fabric))

# %% tags=["run"]
# %%px
from functools import partial
from ddp_lessons.frameworks import (
    num_different_losses, tally, train_plain, train_with_accelerate, train_with_fabric
)  # fmt: skip
from ddp_lessons.trace import trace

digits = load_digits()
dataset = TensorDataset(digits.train_images, digits.train_labels)
with trace() as events:
    losses = train_plain(digits_model(seed=0), dataset)
calls = str(tally(events))
if rank == 0:
    print("plain:", calls)

# %% tags=["run"]
# %%px
def compared(train):
    with trace() as events:
        others = train(digits_model(seed=0), dataset)
    return [str(tally(events)), num_different_losses(losses, others)]


tellings = {"Accelerate": train_with_accelerate, "Fabric": train_with_fabric}
with told():
    found = {
        name: real_or_stored(f"{name}, an epoch", partial(compared, train))
        for name, train in tellings.items()
    }
for name, (same_calls, num_different) in found.items():
    if rank == 0:
        print(f"{name}: {same_calls}; losses that differ: {num_different}")

# %% [markdown] tags=["read"]
# `-` marks lines of the plain loop, `+` what stands in their place. Accelerate wraps the model, and
# runs backward. Fabric also gives the loader its sampler.
#
# All three make 12 all-reduces, and 5 others for DDP's start and its buckets. Of the losses, 0
# differ if every bit counts: below both frameworks is the same DDP. A guide counts Lightning among
# the ways to distribute. It is a way to *write* a run, which DDP distributes: [claim
# C30](claims.md) stays **half true**.

# %% tags=["check"]
for plain, found in zip(ranks.view["calls"], ranks.view["found"], strict=True):
    assert [calls for calls, _ in found.values()] == [plain, plain]
    assert [num_different for _, num_different in found.values()] == [0, 0]
num_all_reduces = int(plain.split()[0])
ok("C30 is half true, below both is DDP", all_reduces_of_accelerate=num_all_reduces)

# %% [markdown] tags=["question"]
# ## Which samples does a prepared loader hand out?

# %% [markdown] tags=["predict"]
# 64 samples, 4 ranks, batches of 4. A loader with a `DistributedSampler` has 4 batches on each rank.
# `prepare` takes loaders, too: it deals the batches of whatever loader it gets, like cards, and each
# rank keeps every fourth. You hand it that one. How many of the 64 samples does any rank see?

# %% tags=["predict"]
predict("samples_of_two_dealings", ...)

# %% tags=["run"]
# %%px
samples = list(range(64))
sampler = DistributedSampler(samples, shuffle=False)
with_sampler, without = DataLoader(samples, 4, sampler=sampler), DataLoader(samples, 4)


def prepared(loader):
    from accelerate import Accelerator
    return [batch.tolist() for batch in Accelerator(cpu=True).prepare(loader)]


def set_up(loader):
    from lightning_fabric import Fabric
    fabric = Fabric(accelerator="cpu", devices=world_size, strategy="ddp")
    fabric.launch()
    return [batch.tolist() for batch in fabric.setup_dataloaders(loader)]


# %% tags=["break"]
# %%px
own = [batch.tolist() for batch in with_sampler]
with told():
    twice = real_or_stored("a sampler, and prepare", lambda: prepared(with_sampler))

# %% tags=["mend"]
# %%px
with told():
    dealt = real_or_stored("no sampler, and prepare", lambda: prepared(without))
    fabrics = real_or_stored("no sampler, and Fabric", lambda: set_up(without))

# %% tags=["run"]
def seen_in(batches):
    return {sample for of_rank in batches for batch in of_rank for sample in batch}


for name in ("own", "twice", "dealt", "fabrics"):
    batches = ranks.view[name]
    num_seen = len(seen_in(batches))
    print(f"{name}: {num_seen} samples; rank 1 begins with {batches[1][0]}")

# %% tags=["picture"]
samples_picture(ranks.view["dealt"], num_samples=64)

# %% [markdown] tags=["read"]
# 16 of 64: the sampler divides, then `prepare` does. The epoch is a quarter as long, and nothing
# complains.
#
# Without a sampler all 64 are there, but rank 1 begins with 4 5 6 7: Accelerate deals whole batches.
# A `DistributedSampler` takes every fourth sample, and Fabric makes one. Both ways are right, but
# not the same run. The line that makes them differ is the one with the loader: in the section before
# it stayed out of `prepare`.

# %% tags=["check"]
own, twice, dealt, fabrics = (
    ranks.view[name] for name in ("own", "twice", "dealt", "fabrics")
)
assert own == fabrics != dealt
assert seen_in(own) == seen_in(dealt) == set(range(64))
ok("one of the two divides", samples_of_two_dealings=len(seen_in(twice)))

# %% [markdown] tags=["question"]
# ## How fast does a prepared schedule go?

# %% [markdown] tags=["predict"]
# A schedule halves the rate in every 4th step: `StepLR(optimizer, 4, 0.5)`. `prepare` takes
# schedules, too. It reckons that 4 ranks take 4 batches in each step, so each of yours becomes 4 of
# the schedule. How often has the rate been halved after 4 steps of training?

# %% tags=["predict"]
predict("halvings_of_the_rate", ...)

# %% tags=["run"]
# %%px
from math import log2


def halvings(hand_over):
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(*model_and_optimizer(lr=0.8))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    schedule = accelerator.prepare(schedule) if hand_over else schedule
    for _ in range(4):
        accelerator.backward(cross_entropy(model(x), y))
        optimizer.step()
        schedule.step()
    return [round(log2(0.8 / optimizer.param_groups[0]["lr"]))]


# %% tags=["break"]
# %%px
with told():
    (fast,) = real_or_stored("a prepared schedule", lambda: halvings(True))
if rank == 0:
    print(f"prepared: halved {fast} times, so the rate is {0.8 / 2**fast:.2f}")

# %% tags=["mend"]
# %%px
with told():
    (right,) = real_or_stored("a schedule of one's own", lambda: halvings(False))
if rank == 0:
    print(f"kept out: halved {right} time, so the rate is {0.8 / 2**right:.2f}")

# %% [markdown] tags=["read"]
# 4 times, where plain DDP has halved it once. That suits a schedule which was written for one
# device: it ends when as many *samples* have been seen. Yours was written for the steps of this run.
# So keep it out of `prepare`, or pass `step_scheduler_with_optimizer=False`.

# %% tags=["check"]
assert set(ranks.view["right"]) == {1}
ok("a prepared schedule counts ranks", halvings_of_the_rate=ranks.view["fast"][0])

# %% [markdown] tags=["question"]
# ## More: who divides the loss of a window?

# %% [markdown] tags=["predict"]
# Told of windows of 4 micro-batches, `accelerator.backward` divides each loss by 4. An epoch has 6
# micro-batches, so the second window has 2. How many times too short is its gradient, next to the
# mean of these two?

# %% tags=["predict"]
predict("last_window_too_short", ...)

# %% tags=["run"]
# %%px
from torch.nn.parallel import DistributedDataParallel as DDP
from ddp_lessons.accumulation.example import window_gradient

six_batches = TensorDataset(digits.train_images[:720], digits.train_labels[:720])


def times_too_short(model, last_two):
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    mean = window_gradient(DDP(digits_model(seed=0)), last_two)
    return [(mean.norm() / gradient.norm()).item()]


# %% tags=["break"]
# %%px
def last_of_accelerate():
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    loader = DataLoader(six_batches, 30)
    model, loader = accelerator.prepare(digits_model(seed=0), loader)
    for images, labels in loader:
        if accelerator.sync_gradients:  # a window begins
            model.zero_grad()
        with accelerator.accumulate(model):
            accelerator.backward(cross_entropy(model(images), labels))
    return times_too_short(model, list(loader)[4:])


# %% tags=["mend"]
# %%px
def last_of_fabric():
    from lightning_fabric import Fabric
    fabric = Fabric(accelerator="cpu", devices=world_size, strategy="ddp")
    fabric.launch()
    model = fabric.setup(digits_model(seed=0))
    batches = list(fabric.setup_dataloaders(DataLoader(six_batches, 30)))[4:]
    for number, (images, labels) in enumerate(batches, start=1):
        with fabric.no_backward_sync(model, enabled=number < len(batches)):
            loss = cross_entropy(model(images), labels)
            fabric.backward(loss / len(batches))
    return times_too_short(model, batches)


# %% tags=["run"]
# %%px
with told():
    (short,) = real_or_stored("windows of Accelerate", last_of_accelerate)
    (whole,) = real_or_stored("a window of Fabric", last_of_fabric)
if rank == 0:
    print(f"times too short: Accelerate {short:.0f}, Fabric {whole:.0f}")

# %% [markdown] tags=["read"]
# 2 times: `accumulate` knows where its loader ends, and syncs there, but `backward` divides by 4
# whatever the window holds. Fabric divides nothing. Its loop says when to sync, and divides by what
# there is, as yours did in lesson 07.
#
# Who divides by hand under Accelerate divides twice.

# %% tags=["check"]
for short, whole in zip(ranks.view["short"], ranks.view["whole"], strict=True):
    assert abs(short - 2) < 1e-3  # float32, added in another order
    assert abs(whole - 1) < 1e-3
ok("Accelerate divides, Fabric leaves it to you", last_window_too_short=round(short))

# %% [markdown] tags=["question"]
# ## More: what was Horovod?

# %% [markdown] tags=["predict"]
# Horovod came before DDP, and served other frameworks than torch, too. It wrapped the *optimizer*:
# each gradient was sent as soon as it was ready, and `step` waited for all. `AveragingOptimizer`
# does that. The model has 4 tensors of weights, and an epoch 12 steps. How many all-reduces are
# there?

# %% tags=["predict"]
predict("all_reduces_of_an_optimizer", ...)

# %% tags=["run"]
# %%px
from ddp_lessons.frameworks import AveragingOptimizer

model, sgd = model_and_optimizer(lr=0.5)
optimizer = AveragingOptimizer(sgd)
sampler = DistributedSampler(dataset, shuffle=False)
averaged = []
with trace() as events:
    for images, labels in DataLoader(dataset, 30, sampler=sampler):
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        averaged.append(loss.item())

# %% tags=["run"]
# %%px
most_off = max(abs(one - other) for one, other in zip(averaged, losses, strict=True))
num_sent = tally(events).all_reduces
if rank == 0:
    print(f"{num_sent} all-reduces; losses as in DDP to 4 decimals: {most_off < 5e-5}")

# %% [markdown] tags=["read"]
# 48, one a gradient, and the losses are those of DDP. Horovod put small gradients together in a
# buffer, so that it sent fewer, and brought a launcher of its own. DDP's buckets are the same idea,
# inside torch. Horovod's last release is of June 2023: you will meet it in older scripts, and its
# three lines (`init`, broadcast, wrap the optimizer) become one, `DistributedDataParallel(model)`.

# %% tags=["check"]
assert all(most_off < 5e-5 for most_off in ranks.view["most_off"])
num_sent = ranks.view["num_sent"][0]
ok("an optimizer can average, too", all_reduces_of_an_optimizer=num_sent)

# %% [markdown] tags=["recap"]
# You have told one run three ways, counted what each sends, and found lines that make them differ:
# who tells the ranks, who deals the samples, who counts the steps.
#
# Rule of thumb: **a framework writes lines, DDP does the work; hand over each thing to one of
# them.**

# %% [markdown] tags=["next"]
# - **Exercise** [16](../exercises/16_frameworks.ipynb): port a loop, and find what a framework has
#   changed. After the exercise: [with_accelerate.py](../ddp_lessons/frameworks/with_accelerate.py)
#   and [with_fabric.py](../ddp_lessons/frameworks/with_fabric.py).
# - **On your own cluster**: install what you use, `pip install accelerate` or `pip install
#   lightning`, whose Fabric is `lightning.fabric`. Then `torchrun --nnodes 2 --nproc-per-node 4
#   --rdzv-backend c10d --rdzv-endpoint host:29500 train.py` starts all three, with
#   `Fabric(num_nodes=2, devices=4)`. `accelerate launch` and `fabric run` are launchers around
#   torchrun.
# - **Next lesson** [17](17_many_machines.ipynb): when do more machines help?
# - **Sources**: Accelerate's documentation, [Gradient
#   accumulation](https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation) and
#   [Comparing performance across
#   setups](https://huggingface.co/docs/accelerate/concept_guides/performance), on the schedule;
#   Lightning's, [Convert PyTorch code to
#   Fabric](https://lightning.ai/docs/fabric/stable/fundamentals/convert.html); A. Sergeev and M. Del
#   Balso, [Horovod](https://arxiv.org/abs/1802.05799), 2018, and its
#   [changelog](https://github.com/horovod/horovod/blob/master/CHANGELOG.md).

# %% tags=["teardown"]
ranks.stop()
