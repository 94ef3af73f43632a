# %% [markdown] tags=["title"]
# # Exercise 07: let ranks talk once a step
#
# 45 minutes, after lesson `07_accumulation`.
# Stuck? `hint("07.1")` gives the next hint.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import accumulation as check
from ddp_lessons.checks import hint

ranks = start_ranks(4)

# %% [markdown] tags=["task"]
# ## 07.1 A window with one sync
#
# `model` is a DDP model, `micro_batches` a list of k pairs: inputs (n, 6), targets (n, 1). All have
# n samples. Leave in `.grad` the gradient of the mean loss over all samples of all ranks. The loss
# is `mse_loss`, and `.grad` is empty when you begin. No step is wanted: nothing but `.grad`
# changes. A frozen parameter's `.grad` stays None. The check calls your function twice on one
# model, and empties `.grad` in between.
#
# The price: 1 all-reduce for the window, whatever k is, and the activations of one micro-batch at
# a time. So do not put micro-batches together. Write it with `no_sync`; the lesson's `Window` would
# pass, but leave you nothing to do.

# %% tags=["answer"]
# %%px
from torch.nn.functional import mse_loss


def accumulate(model, micro_batches):
    """
    Leave a window's mean gradient in .grad, the same on every rank; return nothing.
    """
    # for each micro-batch but the last: add its part to .grad, and do not talk
    # for the last one: add its part, and sync
    # solution
    k = len(micro_batches)
    with model.no_sync():
        for x, y in micro_batches[:-1]:
            (mse_loss(model(x), y) / k).backward()
    x, y = micro_batches[-1]
    (mse_loss(model(x), y) / k).backward()
    # end of solution


# %% tags=["check"]
check.accumulate()

# %% [markdown] tags=["task"]
# This is what your own run did: the backward passes of each rank, and its sync.

# %% tags=["picture"]
check.accumulate.picture()

# %% [markdown] tags=["task"]
# ## 07.2 The last window
#
# Now a whole epoch. `batches` is a list of pairs as above, and `optimizer` that of the model: SGD
# with momentum. Make one step for each window of k batches, from the front of the list, and then
# one for the batches that are left over. The last batch may have fewer samples. Each step goes by
# the mean over all samples of its window, on all ranks: each sample counts as much as any other.
#
# `.grad` is empty before the first epoch. The check trains two epochs on the same model, and
# compares what each step goes by, and the weights. Leave the optimizer's settings as they are.
#
# Batch i has the same size on all ranks. The price: 1 all-reduce a step, and the activations of one
# batch at a time.

# %% tags=["answer"]
# %%px
from torch.nn.functional import mse_loss


def train_epoch(model, optimizer, batches, k):
    """
    Train on every batch once, with a step for each k of them. Return nothing.
    """
    # for each window: the next k batches, or what is left
    #     for each of its batches: add its part to .grad, by its share of the samples
    #     sync with the last one, then step, then empty .grad
    # solution
    for start in range(0, len(batches), k):
        window = batches[start : start + k]
        total = sum(len(y) for _, y in window)
        with model.no_sync():
            for x, y in window[:-1]:
                (mse_loss(model(x), y) * len(y) / total).backward()
        x, y = window[-1]
        (mse_loss(model(x), y) * len(y) / total).backward()
        optimizer.step()
        optimizer.zero_grad()
    # end of solution


# %% tags=["check"]
check.train_epoch()

# %% [markdown] tags=["task"]
# The samples that each of your steps went by. With 4 ranks, sample 0 is the first one of rank 0,
# sample 1 that of rank 1, and so on.

# %% tags=["picture"]
check.train_epoch.picture()

# %% [markdown] tags=["task"]
# ## 07.3 Clip by the global norm
#
# Make a window's gradient as in 07.1; the lesson's `Window` may do it. Then clip: a gradient that
# is longer than `max_norm` is scaled down to that length, and keeps its direction. A shorter one
# stays as it is, and so does one of zeros. The length is that of all gradients as one vector. Return what
# it was before, as a float or a tensor of one number in the gradients' dtype. Nothing but `.grad`
# changes.
#
# The price: 1 all-reduce for all of it, that of the window. Write the clip by hand; torch's own
# would pass, but shows you nothing. A frozen parameter's `.grad` is None.

# %% tags=["answer"]
# %%px
import torch
from ddp_lessons.accumulation import Window
from torch.nn.functional import mse_loss


def clipped_window(model, micro_batches, max_norm):
    """
    Leave a window's gradient in .grad, clipped. Return its length before, one number.
    """
    # loop over a Window, which syncs once
    # then find the length, and scale if it is too long
    # solution
    with Window(model, micro_batches) as window:
        for x, y in window:
            window.backward(mse_loss(model(x), y))
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    if norm > max_norm:
        for gradient in gradients:
            gradient.mul_(max_norm / norm)
    return norm
    # end of solution


# %% tags=["check"]
check.clipped_window()

# %% [markdown] tags=["task"]
# What each rank had before and after, and how many collectives it made.

# %% tags=["picture"]
check.clipped_window.picture()

# %% [markdown] tags=["task"]
# ## 07.4 A plateau schedule that all ranks agree on
#
# Each rank has an optimizer of its own, and for it a `schedule`, torch's `ReduceLROnPlateau`. After
# each evaluation your function is called once on every rank. `total` is the sum of the losses over
# this rank's samples, a float, and `num_samples` says how many they are. Ranks have unequally many,
# some perhaps none; all together have at least one. The next time they may have others.
#
# Make one step of the schedule, so that all ranks go by one number, the same to the last bit: the
# mean loss over all samples of all ranks. It is nan if a loss is. Return that mean, a float or a
# tensor of one number. The price: 1 collective of at most 16 bytes from each rank, enough for two
# numbers in float64. What you send should lie on `rank_device()`.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist
from ddp_lessons.process_group import rank_device


def plateau_step(schedule, total, num_samples):
    """
    Feed the schedule with the mean over the samples of all ranks, and return it.
    """
    # solution
    numbers, device = [total, num_samples], rank_device()
    both = torch.tensor(numbers, dtype=torch.float64, device=device)
    dist.all_reduce(both)
    mean = (both[0] / both[1]).item()
    schedule.step(mean)
    return mean
    # end of solution


# %% tags=["check"]
check.plateau_step()

# %% [markdown] tags=["task"]
# The learning rate of each rank after each step of your run.

# %% tags=["picture"]
check.plateau_step.picture()

# %% tags=["teardown"]
ranks.stop()
