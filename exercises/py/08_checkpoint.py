# %% [markdown] tags=["title"]
# # Exercise 08: lose nothing when a rank is killed
#
# 70 minutes, after lesson `08_checkpoint`.
# Stuck? `hint("08.1")` gives the next hint.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import checkpoint as check
from ddp_lessons.checks import hint

ranks = start_ranks(4)

# %% [markdown] tags=["task"]
# ## 08.1 An atomic save
#
# All ranks call `save` with states that differ. Save that of rank 0 with `torch.save`, so that a
# kill at any moment leaves the old file or the new one, whole. The new one must be on the disk
# (`fsync`) before it takes the name, and no rank may return before it has it. Leave no other file
# behind and no file open, and the files of others as they are. Keep to the file's folder and what is
# below it: what is elsewhere may be on another file system, where a rename is no single act. And
# what a killed save has left must not disturb the next one.
#
# A kill loses what the process had in its buffers, a power cut what the system had not yet written
# to the disk. `fsync` is for the second.
#
# The check looks at the file after every call that rank 0 makes: what is there then is what a kill
# would leave.

# %% tags=["answer"]
# %%px
import os
import torch
import torch.distributed as dist


def save(state, path):
    """
    Save rank 0's state; return on every rank when it is there.

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
# `capture` returns all that moves this rank's run, as tensors and plain values: the check takes it
# through `torch.save` and `torch.load`. `restore` puts it into another run of the same model, which
# may have made fewer steps or more. Then both must make the same next four steps, to the last bit.
# `ddp_lessons.checkpoint` would pass, but leave you nothing to do.
#
# A `run` has `model`, `optimizer`, `scheduler` and `sampler`, each with `state_dict` and
# `load_state_dict`, and two numbers, `epoch` and `step`.
# The model has parameters and a buffer. The loop adds noise to the images: `torch.randn`, on the
# CPU, with other numbers on each rank. What is restored may be older than the last `capture`.

# %% tags=["answer"]
# %%px
import torch


def capture(run):
    """
    Return a dictionary from which this rank can go on. The run stays as it is.
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
    # end of solution


# %% tags=["check"]
check.capture()

# %% tags=["picture"]
check.capture.picture()

# %% [markdown] tags=["task"]
# ## 08.3 Resume in the middle of an epoch
#
# Write the loop of a program that may be killed at any step, and is then started again from its
# first line. It trains for `num_epochs` epochs and saves after each step whose number `every`
# divides; one save more when all is done is allowed. However often it is killed: no sample is lost
# or comes twice, and the weights at the end are those of a run that nobody killed. A run that was
# saved at its end makes no step more.
#
# `saves` is the lesson's `Checkpoints`: `saves.load(run)` puts a run back to the latest checkpoint,
# and leaves it alone if there is none. It restores `run.epoch` (the epoch to go on with),
# `run.step`, and the place of `run.sampler`. `set_epoch` with the epoch that the sampler is in
# leaves it at its place; any other epoch begins at its start. The sampler pads the end of an epoch,
# as in lesson 04: the picture shows the last epoch with 2 repeats, which are no mistake.

# %% tags=["answer"]
# %%px
def train(run, batches, train_step, saves, num_epochs, every):
    """
    Train to the end, from the latest checkpoint or from the start.

    Args:
        run: At epoch 0, step 0. run.sampler.set_epoch(epoch) chooses an epoch.
        batches: Looped over, it gives what run.sampler has left of its epoch.
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
# A tensor of `num_rows` rows was saved in pieces, by some other number of ranks. Now `w` ranks load
# it, as `fully_shard` splits: each has `ceil(num_rows / w)` rows, in rank order, as far as rows
# last. So the last ranks may have fewer, or none. Fill this rank's part.
#
# The least it can cost: each rank reads its own rows, once, and sends nothing.

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
# All of part 1 in one function. It trains on digits with any number of ranks. Each step takes one
# batch of `batches`, the same on all ranks: each rank takes its share, `micro_batch` samples at a
# time, and ranks talk once a step, beside loading and saving: they average gradients. The gradient
# is the mean over the batch.
#
# The check lets four ranks train, kills them in the middle of a step, and calls your function
# again, on as many ranks and on fewer. As many must end with the weights of a run without a kill,
# to the last bit. With fewer, each step must be the one that four would make, up to rounding. Each
# run was warmed up by the idle pass of the lesson, so DDP's buckets are the same in all of them.
#
# `saves` is the lesson's `Checkpoints`, so `save_sharded` lets every rank write its part at once,
# and `load` with `exact=False` takes also what another number of ranks has saved. With as many
# ranks it is exact all the same. One save more when all is done is allowed.

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
        batches: For each step the B samples of all ranks together, (B,) int64.
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
