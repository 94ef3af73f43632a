# %% [markdown] tags=["title"] minutes=[32, 32, 28]
# # What happens when four processes answer one cell?
#
# 35 minutes, 4 ranks. This first lesson builds on nothing but PyTorch on one device.

# %% [markdown] tags=["why"]
# A model that trains for weeks on one GPU trains up to four times as fast on four GPUs, because each
# GPU works on its own quarter of the data. Four processes do this: they run the same program and
# exchange numbers, and if one of them makes a mistake, the other three often stand still, and no error
# says why. As soon as you use two GPUs, you need to know which process runs which line, what each
# process holds in memory, and what is left when one of them fails.

# %% [markdown] tags=["goal"]
# After this lesson you can
#
# - **run** one cell in four processes, and say which process printed which line;
# - **train** one model in four processes, and test whether all of them hold the same weights;
# - **continue** after one process has raised an error, and after one was killed.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.pictures import holdings_picture, loss_plot, processes_picture

ranks = start_ranks(4)

# %% [markdown] tags=["question"]
# ## Which processes answer a cell?

# %% [markdown] tags=["explain"]
# A notebook has one Python process that runs its cells: the **kernel**. `start_ranks(4)` has started
# four more Python processes that can run cells. Each of them has a number from 0 to 3, its **rank**.
# The number of these processes, here 4, is the **world size**. It is usual to call the process itself
# a rank, too: "rank 2 prints a line".
#
# `start_ranks` has also connected the four ranks, so that they can send each other messages: they are
# a process group, or **group** for short. Its output names the library that carries the messages.
# **Gloo** does so between CPUs, and **NCCL** between NVIDIA GPUs. (Each rank uses one thread for
# its own computations, because four ranks share the cores of this machine.)
#
# A cell whose first line is `%%px` runs in every rank, and not in the kernel. Every other cell runs
# in the kernel alone.

# %% [markdown] tags=["predict"]
# Five processes can now run your code: the kernel and four ranks. The `%%px` cell below has one
# `print`. How many lines will you see? Put your number in place of the dots, and run the cell.
#
# The answer is folded away until the cells above it have run. (Outside of JupyterLab it may stay folded:
# click on it.)

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
# You see 4 lines. Each rank ran the cell once, and the kernel did not run it. The number in brackets
# is the rank that printed the line. The notebook sorts the lines by rank, whichever rank was first.
#
# The picture shows how the cell got there. The kernel hands it to the controller, one more process,
# which runs none of your code: it passes cells to the ranks, and their output back. The lines between
# the ranks are the group's connections. The dashed lines show on which device each rank computes.

# %% tags=["check"]
answers = ranks.view["rank"]  # the value of `rank` in each rank
assert answers == [0, 1, 2, 3]
ok("each of 4 processes answered, and each has its own rank", lines=len(answers))

# %% [markdown] tags=["question"]
# ## How many values has one variable?

# %% [markdown] tags=["explain"]
# Every process has its own memory. A rank cannot read or change the variables of another rank, even
# on the same machine. A rank knows a value of another rank only if that rank has sent it. The kernel
# can ask: `ranks.view["name"]` has every rank send its value of `name`, and returns a list of them.

# %% [markdown] tags=["predict"]
# The `%%px` cell below has one assignment: `secret = 10 * (rank // 2)`. How many different values of
# `secret` exist after it, in all five processes together?

# %% tags=["predict"]
predict("values_of_secret", ...)

# %% tags=["run"]
# %%px
secret = 10 * (rank // 2)
print(f"secret = {secret}")

# %% tags=["run"]
values = ranks.view["secret"]
print(f"ranks 0 to 3 have {values}: {len(set(values))} different values")
print("the kernel has a variable of that name:", "secret" in globals())

# %% tags=["picture"]
holdings_picture(["secret"], [{"secret": value} for value in values], kernel={})

# %% [markdown] tags=["read"]
# There are 2 different values. Each rank made its own variable `secret`, and computed the value from
# its own `rank`: ranks 0 and 1 got 0, and ranks 2 and 3 got 10. The kernel did not run the cell, so it
# has no variable of that name, and its box in the picture is empty.
#
# This is the pattern of every program in this course. All ranks run the same lines, and `rank` makes
# the difference, for example which part of the data a rank reads.

# %% tags=["check"]
assert values == [0, 0, 10, 10]
assert "secret" not in globals()
num_values = len(set(values))
ok("each rank has its own value, the kernel has none", values_of_secret=num_values)

# %% [markdown] tags=["question"]
# ## What do four ranks hold after training?

# %% [markdown] tags=["explain"]
# To train one model on four ranks, each rank gets its own copy of the model, a **replica**, and its
# own part of the data, a **shard**. `DistributedDataParallel`, in short **DDP**, wraps the model on
# each rank and does two things:
#
# - when the model is wrapped, DDP copies the weights of rank 0 into the replicas of all ranks;
# - during every `backward()`, DDP replaces each gradient by its mean over all ranks.
#
# Apart from that, the loop is the one that you know. The data are 1,437 images of handwritten digits
# for training, and 360 others for testing. Each rank takes every fourth image.

# %% tags=["run"]
# %%px
import torch
from ddp_lessons.process_group import rank_device
from ddp_lessons.workloads import accuracy, digits_model, load_digits

device = rank_device()  # this rank's GPU, or the CPU
digits = load_digits().to(device)
# every fourth image, from image `rank` on
images = digits.train_images[rank::world_size]
labels = digits.train_labels[rank::world_size]
print(f"my shard has {len(images)} of {len(digits.train_images)} images")

# %% [markdown] tags=["predict"]
# Below, each rank makes its model with other random weights (`seed=rank`), and trains it on its own
# shard for 100 steps. How many of the four replicas, rank 0's included, will then be equal to rank
# 0's bit for bit?

# %% tags=["predict"]
predict("equal_models", ...)

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
weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
weights_of_rank = [torch.empty_like(weights) for _ in range(world_size)]
# Every rank gets the weights of all ranks. Lesson 02 explains this call.
dist.all_gather(weights_of_rank, weights)
num_equal = sum(torch.equal(other, weights_of_rank[0]) for other in weights_of_rank)
print(f"equal to rank 0's: {num_equal} of {world_size} replicas")

# %% tags=["run"]
# %%px
plain_model = model.module  # the model inside of the DDP wrapper
score = accuracy(plain_model, digits.test_images, digits.test_labels)
print(f"at least 95 % of the test images are right: {score >= 0.95}")

# %% [markdown] tags=["read"]
# All 4 replicas are equal. They began with the same weights, because DDP copied rank 0's. In every
# step all optimizers got the same mean gradients, so they made the same change. Equal weights that
# change equally stay equal.
#
# The plot has one curve for each rank. They differ, although the weights do not, because each rank
# computes the loss of its own shard. The model that they all hold has learnt from all 1,437 images,
# though no rank saw more than 360 of them, and gets at least 95&nbsp;% of the test images right.

# %% tags=["check"]
equal_models = ranks.view["num_equal"][0]
assert ranks.view["num_equal"] == [4] * 4
assert min(ranks.view["score"]) >= 0.95
ok("4 ranks trained one model on 4 shards", equal_models=equal_models)

# %% [markdown] tags=["question"]
# ## What is lost when one rank raises an error?

# %% [markdown] tags=["explain"]
# `dist.barrier()` blocks a rank until all ranks have called it. If one rank never calls it, but
# lives on, the others wait until a time limit is reached: by default 30 minutes with Gloo and 10
# minutes with NCCL. In this course's notebooks, ranks that can only wait are **released**: the barrier
# raises an error in them, and the cell ends. (In a script under `torchrun`, the launcher of lesson 09,
# an error ends the process, and `torchrun` then ends the others.)
#
# A rank handles an error as the kernel does: it shows the error, and waits for the next cell.

# %% [markdown] tags=["predict"]
# In the `%%px` cell below, rank 2 raises an error, and the other three ranks call the barrier. On how
# many of the four ranks will the variable `model`, with its trained weights, exist afterwards?

# %% tags=["predict"]
predict("models_kept", ...)

# %% tags=["break", "raises-exception"]
# %%px
if rank == 2:
    raise RuntimeError("my data is gone")
dist.barrier()

# %% tags=["run"]
# %%px
score_after_error = accuracy(model.module, digits.test_images, digits.test_labels)
print(f"the model is here, and as good as before: {score_after_error == score}")

# %% tags=["run"]
num_kept = sum(score >= 0.95 for score in ranks.view["score_after_error"])
print(f"{num_kept} of 4 ranks still have the trained model")

# %% [markdown] tags=["read"]
# All 4 ranks still have it, rank 2 included. The message says which rank failed, at which line (line 1
# is the line below `%%px`), and which ranks were released where.
#
# Only the group is lost. Its connections were closed to release the ranks, and the ranks have joined
# a new group at once. But the DDP wrapper still uses the old one, as the message says. The message
# suggests to run the cell that made `model` again, but that cell also makes new random weights. To
# keep the trained ones, take the plain model out of the wrapper, and wrap it again.

# %% tags=["mend"]
# %%px
model = DDP(model.module)

# %% tags=["check"]
assert num_kept == 4
ok("an error on one rank costs the group, and no variable", models_kept=num_kept)

# %% [markdown] tags=["question"]
# ## What is lost when one rank is killed?

# %% [markdown] tags=["explain"]
# When a machine's main memory runs out, the system ends a process by the signal SIGKILL. (A GPU whose
# memory runs out raises an ordinary error instead.) Nothing that the process had in memory is left,
# and no `except` or `finally` of it runs. In these notebooks a new process with empty memory starts
# in its place, and gets its rank. (`torchrun` would also end the other three processes. With its
# option `--max-restarts=1` it then starts all four anew, once.)
#
# We set up the new process as before: it imports everything, and makes a model with random weights.
# Then all four ranks wrap their models in DDP.

# %% [markdown] tags=["predict"]
# The cell below kills rank 0. In the two cells after it, the new rank 0 makes a new model, the other
# three ranks take the model that they have, and all of them wrap it in DDP. On how many of the four
# ranks will the wrapped model then get at least 95&nbsp;% of the test images right?

# %% tags=["predict"]
predict("good_models_left", ...)

# %% tags=["break", "raises-exception"]
# %%px
import os
import signal

if rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()

# %% tags=["run"]
# %%px
import copy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from ddp_lessons.process_group import rank_device
from ddp_lessons.workloads import accuracy, digits_model, load_digits

rank, world_size, device = dist.get_rank(), dist.get_world_size(), rank_device()
digits = load_digits().to(device)
is_new = "losses" not in globals()  # a new process has run no training cell yet
own_model = digits_model(seed=7).to(device) if is_new else model.module

# %% tags=["run"]
# %%px
wrapped = DDP(copy.deepcopy(own_model))  # wrap a copy, so that own_model stays as it is
score_wrapped = accuracy(wrapped.module, digits.test_images, digits.test_labels)
print(f"new process: {is_new}. 95 % right: {score_wrapped >= 0.95}")

# %% tags=["run"]
num_good = sum(score >= 0.95 for score in ranks.view["score_wrapped"])
print(f"{num_good} of 4 ranks have a good model in the wrapper")

# %% [markdown] tags=["read"]
# No rank has one: 0 of 4. Three ranks had a good model, but DDP copies the weights of rank 0 into the
# replicas of all ranks, and rank 0 is the new process. Its random weights overwrote what the other
# three ranks had wrapped. If rank 1 had been killed, the same cells would have worked.
#
# Fortunately, the ranks wrapped copies: the three good models still exist as `own_model`. The repair
# is to send one of them to all ranks before DDP wraps anything. First the ranks tell each other which
# of them are new, and each finds the first rank that is not: the survivor. Then the survivor sends
# its weights to all. (Lesson 02 explains both calls.)

# %% tags=["mend"]
# %%px
is_new_of_rank = [None] * world_size
# every rank gets the answers of all ranks
dist.all_gather_object(is_new_of_rank, is_new)
survivor = is_new_of_rank.index(False)
print(f"new: {is_new_of_rank}, so rank {survivor} sends")

# %% tags=["mend"]
# %%px
for tensor in own_model.state_dict().values():
    # overwrites the weights of own_model, which share their memory with these tensors
    dist.broadcast(tensor, src=survivor)
model = DDP(own_model)

# %% tags=["run"]
# %%px
images = digits.train_images[rank::world_size]
labels = digits.train_labels[rank::world_size]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
score_mended = accuracy(model.module, digits.test_images, digits.test_labels)
is_good = score_mended >= 0.95
print(f"weights of rank {survivor}, 10 more steps. 95 % right: {is_good}")

# %% tags=["picture", "nbval-ignore-output"]
ranks.status()

# %% [markdown] tags=["read"]
# All 4 ranks now have the weights of rank 1, and train on. The new process also had to load its images
# again. And all ranks made a new optimizer, because the momentum that the old rank 0 had was lost, and
# replicas stay equal only if all of them take the same steps. The table lists the ranks' processes.
#
# If all four ranks had been killed, no rank could have sent the weights. A long run therefore writes
# its state to the disk now and then: a checkpoint, the subject of [lesson 08](08_checkpoint.ipynb).

# %% tags=["check"]
assert num_good == 0
assert ranks.view["survivor"] == [1] * 4
assert len(set(ranks.view["score_mended"])) == 1
assert min(ranks.view["score_mended"]) >= 0.95
ok("rank 0 is new, has the weights of rank 1, and trains on", good_models_left=num_good)

# %% [markdown] tags=["question"]
# ## More: must you install CUDA before PyTorch?

# %% [markdown] tags=["explain"]
# Some guides say: to use a GPU, install NVIDIA's CUDA toolkit first, and then PyTorch. On a machine with
# an NVIDIA GPU you can see whether a program uses that toolkit: the files of the libraries that it has
# loaded are listed in `/proc/self/maps`. If you have no GPU, read on all the same.

# %% [markdown] tags=["predict"]
# How many CUDA libraries has a rank loaded from outside of its Python environment? (The driver's
# library, `libcuda`, does not count: it comes with the driver, which every guide asks for.)

# %% tags=["predict"]
predict("cuda_from_outside", ...)

# %% tags=["run"]
# %%px
import re
import sys
from pathlib import Path

environment = (sys.prefix, str(Path(torch.__file__).parents[1]))
maps = Path("/proc/self/maps").read_text()
files = {line.split()[-1] for line in maps.splitlines() if ".so" in line}
pattern = re.compile(r"/lib(cudart|cudnn|cublas|nccl)[^/]*$")
cuda = [file for file in files if pattern.search(file)]
outside = [file for file in cuda if not file.startswith(environment)]
print(f"CUDA libraries from outside: {len(outside)}")

# %% [markdown] tags=["read"]
# A rank has loaded 0 of them. The packages that pip and conda install for GPUs bring the CUDA libraries
# and NCCL with them, and PyTorch loads these, also on a machine without a GPU. So for PyTorch itself you
# need the driver, and no toolkit: [claim C01](claims.md) is **false**. You need the toolkit, or at least
# its compiler `nvcc`, only to compile CUDA code of your own, or packages that are not distributed in
# compiled form. (A PyTorch built for CPUs loads no CUDA library at all, so there the 0 decides nothing.
# `ddp-lessons doctor`, in a terminal, says whether your PyTorch was built for GPUs or for CPUs.)

# %% tags=["check"]
num_outside = max(len(files) for files in ranks.view["outside"])
assert num_outside == 0  # in a PyTorch built for GPUs: C01 is false
ok("no CUDA library came from outside", cuda_from_outside=num_outside)

# %% [markdown] tags=["recap"]
# You have run one cell in four processes and found a value in each, trained one model in all of
# them, and continued after an error and after a death.
#
# Rule of thumb: **write one program for all ranks, let `rank` choose the data, and send what
# another rank must know.**

# %% [markdown] tags=["next"]
# - **Exercise** [00](../exercises/00_ranks.ipynb): a first function, to learn how checks, hints and
#   reset work.
# - **Next lesson** [01](01_process_group.ipynb): how do processes become a group?
# - **Sources**: S. Li and others,
#   [PyTorch Distributed](https://arxiv.org/abs/2006.15704), VLDB 2020, section 3, on how DDP
#   averages gradients; the
#   [DDP notes](https://docs.pytorch.org/docs/stable/notes/ddp.html) in PyTorch's documentation.

# %% tags=["teardown"]
ranks.stop()
