# %% [markdown] tags=["title"]
# # Exercise 08: lose nothing when a rank is killed
#
# 100 minutes, after lesson `08_checkpoint`.
# Stuck? `hint("08.1")` gives the next hint.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import checkpoint as check
from ddp_lessons.checks import hint

ranks = start_ranks(4)

# %% [markdown] tags=["task"]
# ## 08.1 An atomic save
#
# The lesson's script for a cluster has such a save. Write your own without a look at it, for kills that
# come again and again. All ranks call `save`, with states that differ. Save the state of rank 0 with
# `torch.save`, so that
#
# - a kill at any moment leaves the old file or the new one, complete;
# - the new file is on the disk (`fsync`) before it takes the name: a kill loses what the process had in
#   its own buffers, and a power cut also what the system had not yet written to the disk;
# - no rank returns before the new file has its name;
# - a save works even if an earlier one was killed and has left a part of its file behind;
# - afterwards no other file of yours is left, no file is open, and the files of others are as they were.
#
# Write only into the file's folder and into folders below it. Another folder may be on another file
# system, and there a rename is a copy, which is not atomic.
#
# The check looks at the folder after each call that rank 0 makes: what is there is what a kill at that
# moment would leave.

# %% tags=["answer"]
# %%px
import os
import torch
import torch.distributed as dist


def save(state, path):
    """
    Save rank 0's state, and return on every rank when the file is complete.

    Args:
        state: A dictionary of tensors and numbers.
        path: A pathlib.Path. Its folder exists; the file may.
    """
    # solution
    if dist.get_rank() == 0:
        other = path.with_name(path.name + ".new")
        with open(other, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(other, path)
    dist.barrier()
    # end of solution


# %% tags=["check"]
check.save()

# %% tags=["picture"]
check.save.picture()

# %% [markdown] tags=["task"]
# ## 08.2 Capture and restore
#
# `capture(run)` returns all that the next steps of this rank's run depend on. The check takes it through
# `torch.save` and `torch.load`, so it must consist of tensors and plain values. `restore(run, state)` puts
# it into another run of the same model, which may have made fewer steps or more. Then the next four steps
# of both runs must be equal to the last bit. The state may also be older than the last call of `capture`.
#
# A `run` has `model` (in DDP), `optimizer`, `scheduler` and `sampler`. Each of the four has `state_dict` and
# `load_state_dict`. It also has two numbers, `epoch` and `step`. The model has parameters and a buffer.
#
# This run draws more random numbers than the lesson's. The loop adds noise from `torch.randn`, on the CPU,
# and the model multiplies its hidden layer by a factor from Python's own module `random`. Both differ
# between ranks. Each rank captures and restores its own run, so no messages are needed.
# (`capture` and `restore` of `ddp_lessons.checkpoint` would pass, but leave you nothing to do.)

# %% tags=["answer"]
# %%px
import random
import torch


def capture(run):
    """
    Return a dictionary from which this rank can resume. The run stays as it is.
    """
    # solution
    return {
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "scheduler": run.scheduler.state_dict(),
        "sampler": run.sampler.state_dict(),
        "epoch": run.epoch,
        "step": run.step,
        "rng": torch.get_rng_state(),
        "random": random.getstate(),
    }
    # end of solution


def restore(run, state):
    """
    Put a run, and this rank, back to what `capture` returned on it.
    """
    # solution
    for name in ("model", "optimizer", "scheduler", "sampler"):
        getattr(run, name).load_state_dict(state[name])
    run.epoch, run.step = state["epoch"], state["step"]
    torch.set_rng_state(state["rng"])
    random.setstate(state["random"])
    # end of solution


# %% tags=["check"]
check.capture()

# %% tags=["picture"]
check.capture.picture()

# %% [markdown] tags=["task"]
# ## 08.3 Resume in the middle of an epoch
#
# Write the loop of a program that may be killed at any step, and is then started again from its first
# line. It trains for `num_epochs` epochs, and saves after each step whose number is a multiple of
# `every`. (One more save at the very end is allowed.) However often it is killed, each sample is trained
# on once, and the final weights are those of a run that was never killed. A run that was saved at its end
# makes no further step.
#
# `saves` is an object of the package's class `Checkpoints`, a folder of checkpoints. `saves.save(run)`
# saves a run. `saves.load(run)` puts the run back to its latest checkpoint: `run.epoch`, the epoch in
# which to go on, `run.step`, and the place of `run.sampler`. If there is no checkpoint, `load` changes
# nothing.
#
# `run.sampler.set_epoch(epoch)` starts another epoch at its first sample. If the sampler is in that epoch
# already, as after a load, it keeps its place. A loop over `batches` then yields what is left of the epoch.
# The sampler pads the end of an epoch, as in lesson 04: the picture shows the last epoch with 2 repeats,
# which are right.

# %% tags=["answer"]
# %%px
def train(run, batches, train_step, saves, num_epochs, every):
    """
    Train to the end, from the latest checkpoint or from the start.

    Args:
        run: At epoch 0, step 0. run.sampler.set_epoch(epoch) chooses an epoch.
        batches: A loop over it yields what run.sampler has left of its epoch.
        train_step: train_step(run, batch) makes one step and counts it in run.step.
        saves: Has load(run) and save(run), which every rank must call.
        num_epochs: Number of epochs of the whole run.
        every: Save after steps every, 2 * every and so on.
    """
    # solution
    saves.load(run)
    while run.epoch < num_epochs:
        run.sampler.set_epoch(run.epoch)
        for batch in batches:
            train_step(run, batch)
            if run.step % every == 0:
                saves.save(run)
        run.epoch += 1
    # end of solution


# %% tags=["check"]
check.train()

# %% tags=["picture"]
check.train.picture()

# %% [markdown] tags=["task"]
# ## 08.4 Shards for another number of ranks
#
# The lesson let DCP read from the files that hold a rank's rows. Now you write that reader. A tensor of
# `num_rows` rows was saved in pieces of any length, by some other number of ranks. Now `w` ranks load it,
# as `fully_shard` splits it: each rank has `ceil(num_rows / w)` rows, in rank order, as far as rows last. So
# the last ranks may have fewer rows, or none. Fill this rank's part.
#
# The target for the cost: each rank reads each of its own rows once, no other row, and sends no message.

# %% tags=["answer"]
# %%px
import torch.distributed as dist


def reshard(own, num_rows, table, read):
    """
    Fill this rank's part of a tensor from the pieces that hold it.

    Args:
        own: (k, 3) float32, this rank's k rows, to be filled in place.
        num_rows: Number of rows of the whole tensor.
        table: (name, start, stop) for each piece, in no order. It holds rows start to
            stop - 1.
        read: read(name, start, stop) returns rows of a piece, which counts from its
            own first row.
    """
    # For each piece: where do its rows and this rank's rows overlap?
    # solution
    begin = dist.get_rank() * -(-num_rows // dist.get_world_size())
    end = begin + len(own)
    for name, start, stop in table:
        low, high = max(start, begin), min(stop, end)
        if low < high:
            own[low - begin : high - begin] = read(name, low - start, high - start)
    # end of solution


# %% tags=["check"]
check.reshard()

# %% tags=["picture"]
check.reshard.picture()

# %% [markdown] tags=["task"]
# ## 08.5 Four ranks, a kill, two ranks
#
# This function needs all of part 1. It trains on digits with any number of ranks. Each step takes one
# batch of `batches`, which is the same on all ranks. Each rank takes its own share of the batch, at most
# `micro_batch` samples in one forward, and the gradient is the mean over the whole batch. Apart from
# loading and saving, ranks communicate once a step, when they average gradients.
#
# The check lets four ranks train, kills them in the middle of a step, and calls your function again, on
# as many ranks and on fewer. As many ranks must end with the weights of a run without a kill, to the last
# bit. With fewer ranks, each step must be the step of four ranks, up to rounding. Each run that you get was
# warmed up: it has made idle passes, as in the lesson, so DDP's buckets are the same in all runs.
#
# `saves` is a `Checkpoints` as in 08.3. In its `save_sharded(run)` every rank writes its own part at once.
# `load(run, exact=False)` also takes what another number of ranks has saved; with the same number of ranks
# it restores every bit all the same. One more save at the very end is allowed.

# %% tags=["answer"]
# %%px
import contextlib
import torch.distributed as dist
from torch.nn.functional import cross_entropy


def finish(run, saves, images, labels, batches, micro_batch, every):
    """
    Train to the end, from the latest checkpoint, with the ranks there are.

    Args:
        run: Has model (a DistributedDataParallel), optimizer and step, which is 0.
        saves: Has load(run, exact) and save_sharded(run), which every rank must call.
        images: (N, 64) float32.
        labels: (N,) int64.
        batches: For each step the numbers of its B samples, (B,) int64. All ranks
            together train on these samples.
        micro_batch: Most samples of one forward. It divides a rank's share, B / w.
        every: Save after steps every, 2 * every and so on.
    """
    # solution
    saves.load(run, exact=False)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for batch in batches[run.step :]:
        parts = batch[rank::world_size].split(micro_batch)
        for part in parts:
            is_last = part is parts[-1]
            with contextlib.nullcontext() if is_last else run.model.no_sync():
                loss = cross_entropy(run.model(images[part]), labels[part])
                (loss / len(parts)).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
        run.step += 1
        if run.step % every == 0:
            saves.save_sharded(run)
    # end of solution


# %% tags=["check"]
check.finish()

# %% tags=["picture"]
check.finish.picture()

# %% tags=["teardown"]
ranks.stop()
