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
# ## 07.1 A window of unknown length
#
# In the lesson, a window was a list. A loader gives you an iterator: you learn that a micro-batch was the
# last one only when you ask for the next. `model` is a DDP model, and `micro_batches` is an iterator over
# pairs: inputs (n, 6), targets (n, 1). There is at least one pair, perhaps only one. The number n may
# differ from pair to pair, but pair number j has the same n on all ranks.
#
# Leave in `.grad` the gradient of the mean loss over all samples of all ranks, on every rank. The loss is
# `mse_loss`. `.grad` is empty when you begin, and nothing else may change: make no step. One parameter
# is frozen, and its `.grad` stays None. The check calls your function twice on one model, and empties
# `.grad` in between.
#
# The price: 1 all-reduce for the window, since the model fits into one bucket, and the activations of one
# micro-batch at a time. At any time, at most two micro-batches may be waiting for their backward. So do
# not make a list of them, as `Window` does.

# %% tags=["answer"]
# %%px
from torch.nn.functional import mse_loss


def accumulate(model, micro_batches):
    """
    Leave a window's mean gradient in .grad, the same on every rank; return nothing.
    """
    # while there is a next micro-batch: add the current one to .grad, without a message
    # add the last one, with an all-reduce
    # make a mean over all samples of what .grad holds
    # solution
    num_samples, current = 0, next(micro_batches)
    for following in micro_batches:
        x, y = current
        with model.no_sync():
            mse_loss(model(x), y, reduction="sum").backward()
        num_samples += len(y)
        current = following
    x, y = current
    mse_loss(model(x), y, reduction="sum").backward()
    num_samples += len(y)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= num_samples
    # end of solution


# %% tags=["check"]
check.accumulate()

# %% [markdown] tags=["task"]
# The picture shows your own run: the backwards of each rank as solid bars, and its all-reduce as a
# hatched one.

# %% tags=["picture"]
check.accumulate.picture()

# %% [markdown] tags=["task"]
# ## 07.2 The last window
#
# Now a whole epoch. `batches` is a list of pairs as above, and `optimizer` is the model's: SGD with
# momentum. Make one step for each window of k batches, from the front of the list, and then one step for
# the batches that are left over. The last batch may have fewer samples. Each step uses the mean over all
# samples of its window, on all ranks: each sample counts the same.
#
# `.grad` is empty before the first epoch. The check trains two epochs on the same model, and compares
# the gradient of each step, and the weights. Leave the optimizer's settings as they are.
#
# Batch number i has the same size on all ranks. The price: 1 all-reduce a step, and the activations of one
# batch at a time.

# %% tags=["answer"]
# %%px
from torch.nn.functional import mse_loss


def train_epoch(model, optimizer, batches, k):
    """
    Train on every batch once, with a step for each k of them. Return nothing.
    """
    # for each window: the next k batches, or those that are left
    #     for each of its batches: add its part to .grad, by its share of the samples
    #     all-reduce with the last one, then step, then empty .grad
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
# The picture shows the samples that each of your steps used. With 4 ranks, sample 0 is the first one of
# rank 0, sample 1 is the first one of rank 1, and so on.

# %% tags=["picture"]
check.train_epoch.picture()

# %% [markdown] tags=["task"]
# ## 07.3 Clip by the global norm
#
# `micro_batches` is a list of pairs with n samples each. Leave the gradient of the mean loss in `.grad`,
# with one all-reduce; you may use the lesson's `Window`. Then clip it: if its norm is above `max_norm`,
# scale it down to that norm, and keep its direction. Otherwise it stays as it is, also if it is all zeros.
# The norm is the L2 norm of all gradients as one vector. Return the norm before clipping, as a float or a
# tensor of one number in the gradients' dtype. Nothing but `.grad` changes.
#
# The price: 1 all-reduce for all of it, that of the window. Write the clip by hand: torch's own function
# would pass, but you would learn nothing from it. A frozen parameter's `.grad` is None.

# %% tags=["answer"]
# %%px
import torch
from ddp_lessons.accumulation import Window
from torch.nn.functional import mse_loss


def clipped_window(model, micro_batches, max_norm):
    """
    Leave a window's gradient in .grad, clipped. Return its norm before, one number.
    """
    # loop over a Window, which makes one all-reduce
    # then find the norm, and scale if it is too large
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
# The picture shows each rank's norm before and after, and how many collectives it called.

# %% tags=["picture"]
check.clipped_window.picture()

# %% [markdown] tags=["task"]
# ## 07.4 A plateau schedule that all ranks agree on
#
# Each rank has its own optimizer, and for it a `schedule`, torch's `ReduceLROnPlateau`. After each
# evaluation your function is called once on every rank. `total` is the sum of the losses over this
# rank's samples, a float, and `num_samples` is their number. Ranks have different numbers of samples, some
# perhaps none; all together have at least one. In the next call the numbers may be different.
#
# Make one step of the schedule on every rank, with one number that is the same on all ranks to the last
# bit: the mean loss over all samples of all ranks. It is nan if a loss is nan. Return that mean, a float
# or a tensor of one number. The price: 1 collective of at most 16 bytes from each rank, enough for two
# numbers in float64. Put the tensor that you send on `rank_device()`.

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
# The picture shows the learning rate of each rank after each step of your run.

# %% tags=["picture"]
check.plateau_step.picture()

# %% tags=["teardown"]
ranks.stop()
