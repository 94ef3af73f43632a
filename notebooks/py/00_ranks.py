# %% [markdown] tags=["title"]
# # What happens when four processes answer one cell?
#
# 25 minutes, 4 ranks. This first lesson builds on nothing but PyTorch on one device.

# %% [markdown] tags=["goal"]
# When you are through, you can
#
# - **run** one cell in four processes, and tell who printed what;
# - **train** in four processes at once, and compare the models that they hold;
# - **carry on** after one of them has failed, or was killed.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.pictures import holdings_picture, loss_plot, processes_picture

ranks = start_ranks(4)

# %% [markdown] tags=["question"]
# ## Who answers a cell?

# %% [markdown] tags=["predict"]
# A cell below prints one line. It starts with `%%px`, which sends it to each
# process that was just started.
# How many lines will you see? Put your number in place of the dots and run the cell, here and in
# each section to come. Or leave the dots: nothing depends on them.

# %% tags=["predict"]
predict("lines", ...)

# %% tags=["run"]
# %%px
import torch.distributed as dist

rank, world_size = dist.get_rank(), dist.get_world_size()
print(f"hello from rank {rank} of {world_size}")

# %% tags=["picture", "nbval-ignore-output"]
processes_picture(ranks.placement.devices)

# %% [markdown] tags=["read"]
# Four lines. A **rank** is one process with a number, here 0 to 3. The **world size** is how
# many there are. The number in brackets says who printed; the lines always come in rank order.
#
# This page talks to a kernel, as always. The kernel sends a `%%px` cell to all ranks. A cell
# without `%%px` runs in the kernel alone.

# %% tags=["check"]
assert ranks.view["rank"] == [0, 1, 2, 3]
ok("4 processes answered, each with a rank of its own", lines=4)

# %% [markdown] tags=["question"]
# ## How many values has one name?

# %% [markdown] tags=["predict"]
# Each rank now keeps ten times its rank in `secret`. Which number does rank 3 hold?

# %% tags=["predict"]
predict("secret_of_rank_three", ...)

# %% tags=["run"]
# %%px
secret = 10 * rank
print(f"secret = {secret}")

# %% tags=["picture"]
holdings_picture(["secret"], [{"secret": s} for s in ranks.view["secret"]], kernel={})

# %% [markdown] tags=["read"]
# Rank 3 holds 30, rank 0 holds 0, and the kernel holds nothing. One line of code made four
# different values, because every rank ran it with its own `rank`. Nobody sees what another rank
# holds, unless it is sent. The picture asked: `ranks.view["secret"]` fetches a small value from
# every rank into the kernel.

# %% tags=["check"]
assert ranks.view["secret"] == [0, 10, 20, 30]
assert "secret" not in globals()
ok("4 values under one name, and none in the kernel", secret_of_rank_three=30)

# %% [markdown] tags=["question"]
# ## What do four ranks hold after training?

# %% [markdown] tags=["predict"]
# Each rank makes a model of its own, with random weights of its own. It trains on a quarter of
# 1,437 handwritten digits, and on none of the rest. One line wraps each model in DDP, which you
# will meet below. After 100 steps, on how many of the four ranks is the model equal to rank 0's, to
# the last bit?

# %% tags=["predict"]
predict("equal_models", ...)

# %% tags=["run"]
# %%px
import torch
from ddp_lessons.process_group import rank_device
from ddp_lessons.workloads import accuracy, digits_model, load_digits

device = rank_device()  # this rank's GPU, or the CPU
digits = load_digits().to(device)
images = digits.train_images[rank::world_size]
labels = digits.train_labels[rank::world_size]
print(f"{len(images)} of {len(digits.train_images)} digits are mine")

# %% tags=["run"]
# %%px
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(digits_model(seed=rank).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
losses = []
for step in range(100):
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

# %% tags=["picture"]
loss_plot(ranks.view["losses"])

# %% tags=["run"]
# %%px
# model.module is the plain model inside DDP
score = accuracy(model.module, digits.test_images, digits.test_labels)
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
everyone = [torch.empty_like(weights) for _ in range(world_size)]
dist.all_gather(everyone, weights)  # now each rank holds the weights of all
num_equal = sum(torch.equal(weights, other) for other in everyone)
print(f"95 % or more: {score >= 0.95}. Equal models: {num_equal} of {world_size}")

# %% [markdown] tags=["read"]
# It gets 95&nbsp;% or more right, though no rank trained on more than 360 digits. Each rank has its own
# loss curve, for its own digits, and yet all 4 models are equal to the last bit.
#
# `DistributedDataParallel`, **DDP**, did that. It copied rank 0's weights to all at the start.
# In every `backward()` it averaged the gradients over the ranks; lesson 06 looks inside. Equal
# weights, moved by equal gradients, stay equal.

# %% tags=["check"]
assert min(ranks.view["score"]) >= 0.95
assert ranks.view["num_equal"] == [4] * 4
assert all(losses[-1] < losses[0] / 10 for losses in ranks.view["losses"])
ok("one model, trained by 4 ranks, right in 95 % of cases", equal_models=4)

# %% [markdown] tags=["question"]
# ## Who goes down with a rank that fails?

# %% [markdown] tags=["predict"]
# Rank 2 raises an exception. The other three are in a barrier, where each waits for all. On how many
# ranks will the trained model still be there afterwards?

# %% tags=["predict"]
predict("models_kept", ...)

# %% tags=["break", "raises-exception"]
# %%px
if rank == 2:
    raise RuntimeError("my data is gone")
dist.barrier()

# %% [markdown] tags=["read"]
# The first line names the culprit, rank 2, and its line, counted from the one after `%%px`. The
# others were **released**: left alone, they would wait for Gloo's limit of 1,800&nbsp;s. All
# variables are kept, those of rank 2 too.
#
# What is lost is the **group**, the tie between the ranks. They joined a new one at once. But
# `model` still holds the old group, as the third line says. So wrap it again; its weights are
# there.

# %% tags=["mend"]
# %%px
model = DDP(model.module)
score_after = accuracy(model.module, digits.test_images, digits.test_labels)
is_kept = score_after == score

# %% tags=["run"]
num_kept = sum(ranks.view["is_kept"])
print(f"{num_kept} of 4 ranks score as before")

# %% tags=["check"]
assert num_kept == 4
ok("all ranks go on with the weights they had", models_kept=num_kept)

# %% [markdown] tags=["question"]
# ## What does a killed rank come back with?

# %% [markdown] tags=["predict"]
# Now rank 0's process is killed, as happens when memory runs out. The newborn in its place gets a
# model with random weights, and all make the DDP model again, as before. On how many of the four
# ranks will the model still get 95&nbsp;% right?

# %% tags=["predict"]
predict("good_models_left", ...)

# %% tags=["break", "raises-exception"]
# %%px
import os, signal

if rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()

# %% tags=["picture", "nbval-ignore-output"]
ranks.status()

# %% tags=["run"]
# %%px
import copy, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from ddp_lessons.process_group import rank_device
from ddp_lessons.workloads import accuracy, digits_model, load_digits

rank, world_size, device = dist.get_rank(), dist.get_world_size(), rank_device()
digits = load_digits().to(device)
is_new = "losses" not in globals()
mine = digits_model(seed=7).to(device) if is_new else model.module
wrapped = DDP(copy.deepcopy(mine))  # of a copy, so that we can try again
score_after = accuracy(wrapped.module, digits.test_images, digits.test_labels)
print(f"new: {is_new}. 95 % or more: {score_after >= 0.95}")

# %% [markdown] tags=["read"]
# None. A new process took the number 0, with an empty memory; three of four still had the model.
# Then DDP copied rank 0's weights to all: random weights wiped copies of three
# good models. Had rank 1 been killed, the same cell would have been right. So let a
# survivor send first.
#
# The table shows all processes. The tab marked IP in JupyterLab's left side bar lists these ranks
# too, and can end them.

# %% tags=["mend"]
# %%px
newborn = [None] * world_size
dist.all_gather_object(newborn, is_new)
survivor = newborn.index(False)
for tensor in mine.state_dict().values():
    dist.broadcast(tensor, src=survivor)
model = DDP(mine)

# %% tags=["run"]
# %%px
images = digits.train_images[rank::world_size]
labels = digits.train_labels[rank::world_size]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
score_after = accuracy(model.module, digits.test_images, digits.test_labels)
print(f"weights of rank {survivor}, 10 steps more. 95 % or more: {score_after >= 0.95}")

# %% [markdown] tags=["read"]
# All four have the weights of rank 1, and train on. The newborn needed the rest too, digits and
# optimizer. Had all four died, nothing would be left: long runs save a
# [checkpoint](08_checkpoint.ipynb).

# %% tags=["check"]
assert ranks.view["survivor"] == [1] * 4
assert len(set(ranks.view["score_after"])) == 1
assert min(ranks.view["score_after"]) >= 0.95
ok("rank 0 is new, has the weights of rank 1, and trains on", good_models_left=0)

# %% [markdown] tags=["question"]
# ## More: must you install CUDA?

# %% [markdown] tags=["predict"]
# A guide says: to use a GPU, install the CUDA toolkit next to PyTorch. How many CUDA libraries
# has a rank loaded from outside its Python environment, the driver's `libcuda` left out?

# %% tags=["predict"]
predict("cuda_from_outside", ...)

# %% tags=["run"]
# %%px
import re, sys
from pathlib import Path

home = (sys.prefix, str(Path(torch.__file__).parents[1]))
with open("/proc/self/maps") as maps:
    files = {line.split()[-1] for line in maps if ".so" in line}
cuda = [f for f in files if re.search(r"/lib(cuda|cudart|cudnn|cublas|nccl)[^/]*$", f)]
outside = [f for f in cuda if not f.startswith(home) and "libcuda.so" not in f]
print(f"CUDA libraries from outside: {len(outside)}")

# %% [markdown] tags=["read"]
# From outside come 0, on every rank. A PyTorch that was built for GPUs loads its CUDA libraries from
# inside the environment, because its own package carries the CUDA runtime, and NCCL, which moves
# tensors between GPUs. The machine brings the driver, and nothing else. A PyTorch that was built for
# the CPU loads none at all. So [claim C01](claims.md) is **false**. In a terminal,
# `ddp-lessons doctor` prints what this machine has, and which build of PyTorch.

# %% tags=["check"]
assert ranks.view["outside"] == [[]] * 4
ok("C01 is false, no CUDA library came from a toolkit", cuda_from_outside=0)

# %% [markdown] tags=["recap"]
# You have run one cell in four processes, trained one model in all of them, and trained on after
# an error and a death.
#
# Rule of thumb: **every rank runs the same code on its own data; what they share, they send.**

# %% [markdown] tags=["next"]
# - **Exercise** [00](../exercises/00_ranks.ipynb): a first function, to learn how checking, hints
#   and reset work.
# - **Next lesson** [01](01_process_group.ipynb): how do strangers become a group?
# - **Sources**: S. Li and others,
#   [PyTorch Distributed](https://arxiv.org/abs/2006.15704), VLDB 2020, section 3, on how DDP
#   averages gradients; the
#   [DDP notes](https://docs.pytorch.org/docs/stable/notes/ddp.html) of PyTorch's documentation.

# %% tags=["teardown"]
ranks.stop()
