# %% [markdown] tags=["title"]
# # Exercise 12: one number for all ranks
#
# 60 minutes, after lesson `12_metrics`.
# Stuck? `hint("12.1")` gives the next hint.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import hint
from ddp_lessons.checks import metrics as check

ranks = start_ranks(4)

# %% [markdown] tags=["task"]
# ## 12.1 A metric that any split gives
#
# `counts` is a table of this rank's samples, int64 of shape (C, C), for 3 classes or more:
# `counts[i, j]` says how many samples of class i were taken for class j. A rank may have no samples;
# all together have one at least. Return the **macro F1** of the samples of all ranks, on every rank: a
# float, or a tensor of one number. Leave `counts` as it is.
#
# The F1 of a class is 2 TP / (2 TP + FP + FN): TP are the samples of the class that were taken for
# it, FP those of others that were taken for it, FN those of the class that were taken for others.
# Macro F1 is the mean over classes, each weighing alike. A class that no label and no prediction of
# any rank names is left out.
#
# Counts may be larger than 2**32, and the result must be right to 12 digits. The price: 1 collective,
# of at most as many bytes as `counts` has.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


def macro_f1(counts):
    """
    Return the macro F1 of the samples of all ranks.
    """
    # what adds up over ranks?
    # solution
    total = counts.clone()
    dist.all_reduce(total)
    right, named = total.diagonal(), total.sum(0) + total.sum(1)
    occurs = named > 0
    return (2 * right[occurs].double() / named[occurs]).mean().item()
    # end of solution


# %% tags=["check"]
check.macro_f1()

# %% [markdown] tags=["task"]
# Each rank's own F1 by class, and what your function returned.

# %% tags=["picture"]
check.macro_f1.picture()

# %% [markdown] tags=["task"]
# ## 12.2 SyncBatchNorm, forward
#
# `layer` is an `nn.BatchNorm1d` of C channels in training mode, the same on every rank. `x` is this
# rank's batch, (n, C); n differs from rank to rank, and may be 0. All ranks together have 2 samples
# or more. Do what one process would do that calls `layer` with the samples of all ranks, of which
# you return this rank's part:
#
# - y, (n, C), of the dtype of x: from x take the mean over all samples, divide by the root of their
#   variance plus `layer.eps`, then multiply by `layer.weight` and add `layer.bias`;
# - `running_mean` and `running_var` become (1 - m) times the old plus m times the new, m being
#   `layer.momentum`. For y, a variance divides by the number of all samples, N. The new one for
#   `running_var` divides by N - 1;
# - `num_batches_tracked` grows by 1.
#
# All else in the layer stays as it is. Ranks must keep the same statistics to the last bit, so that
# they stay replicas. Values may lie around 3,000 with a spread of 1, in float32: sums in float64
# are good enough for that. No gradient is asked for.
#
# The price: 1 collective, of at most 2C + 1 numbers of 8 bytes from each rank. Write it yourself;
# the lesson's layer would pass, but leave you nothing to do.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


def sync_forward(layer, x):
    """
    Return y, and move the running statistics, by the samples of all ranks.
    """
    # what this rank has, in float64, in one tensor
    # one collective
    # the mean and the variance of all, y, and the layer's statistics
    # solution
    wide = x.double()
    own = torch.cat([wide.sum(0), wide.square().sum(0), wide.new_tensor([len(x)])])
    dist.all_reduce(own)
    total, channels = own[-1], x.shape[1]
    mean, squares = own[:-1].view(2, channels) / total
    variance = squares - mean.square()
    y = (wide - mean) * (variance + layer.eps).rsqrt() * layer.weight + layer.bias
    with torch.no_grad():
        unbiased = variance * total / (total - 1)
        layer.running_mean.lerp_(mean.to(x.dtype), layer.momentum)
        layer.running_var.lerp_(unbiased.to(x.dtype), layer.momentum)
        layer.num_batches_tracked += 1
    return y.to(x.dtype)
    # end of solution


# %% tags=["check"]
check.sync_forward()

# %% [markdown] tags=["task"]
# Channel 0 of your run's first call: each rank's own mean, and what its layer has noted.

# %% tags=["picture"]
check.sync_forward.picture()

# %% [markdown] tags=["task"]
# ## 12.3 SyncBatchNorm, backward
#
# The layer computes y = weight * normal + bias, where normal = (x - mean) * inverse, and inverse is
# 1 / sqrt(variance + eps). Mean and variance are those of the samples of all ranks: so every y of
# every rank depends on this rank's x.
#
# You get `grad_y`, the gradients of the loss by this rank's y, and `normal`, both (n, C); `inverse`
# and `weight`, both (C,), alike on all ranks; and `num_global`, the number of samples of all ranks.
# n may be 0. The loss is the sum of all ranks' losses. Return three tensors of the same dtype:
#
# - `grad_x`, (n, C), as one process with all samples has it for this rank's part. With means over
#   the samples of all ranks it is
#   weight * inverse * (grad_y - mean of grad_y - normal * mean of (grad_y * normal));
# - `grad_weight` and `grad_bias`, both (C,), of this rank's samples alone: DDP averages those of
#   all ranks afterwards.
#
# The price: 1 collective, of at most 2C numbers of 8 bytes from each rank.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


def sync_backward(grad_y, normal, inverse, weight, num_global):
    """
    Return grad_x, grad_weight and grad_bias.
    """
    # solution
    grad_bias = grad_y.sum(0)
    grad_weight = (grad_y * normal).sum(0)
    sums = torch.stack([grad_bias, grad_weight])
    dist.all_reduce(sums)
    mean, slope = sums / num_global
    grad_x = weight * inverse * (grad_y - mean - normal * slope)
    return grad_x, grad_weight, grad_bias
    # end of solution


# %% tags=["check"]
check.sync_backward()

# %% [markdown] tags=["task"]
# Channel 0 of your run. Whoever adds the same to every x of all ranks changes nothing, so the
# gradients of all ranks add up to nearly 0; `eps` and `weight` do not change that.

# %% tags=["picture"]
check.sync_backward.picture()

# %% [markdown] tags=["task"]
# ## 12.4 Stop early, together
#
# Each rank has `notes`, a dictionary that stays with it from call to call. `notes["best"]` is the
# lowest mean loss so far that counted as better, infinite at first, and `notes["bad_epochs"]` how
# many calls have passed since then. `notes["patience"]`, 1 or more, and `notes["min_delta"]` stay as
# they are.
#
# After each epoch your function is called once on every rank. `total` is the sum of the losses over
# this rank's samples, and `num_samples` how many they are: unequally many, perhaps none. If nobody
# has any, the loss is not a number. `time_is_up` is True on a rank whose job is about to be ended.
#
# A loss is the mean over the samples of all ranks. It is better if it is below `best` by **more**
# than `min_delta`: then it is the new best, and there are 0 bad epochs. Otherwise there is one more,
# also if the loss is not a number. Return True if there are as many as `patience` or more, or if in
# this call time is up on any rank; otherwise False. All ranks must return the same, and note the
# same. You may be called again after True.
#
# The price: 1 collective, of at most 24 bytes from each rank. What you send should lie on
# `rank_device()`.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist
from ddp_lessons.process_group import rank_device


def should_stop(notes, total, num_samples, time_is_up):
    """
    Return whether to stop, alike on all ranks, and keep the notes.
    """
    # solution
    own = [total, num_samples, float(time_is_up)]
    sums = torch.tensor(own, dtype=torch.float64, device=rank_device())
    dist.all_reduce(sums)
    total, num_samples, num_wishes = sums.tolist()
    loss = total / num_samples if num_samples else float("nan")
    if loss < notes["best"] - notes["min_delta"]:
        notes["best"], notes["bad_epochs"] = loss, 0
    else:
        notes["bad_epochs"] += 1
    return notes["bad_epochs"] >= notes["patience"] or num_wishes > 0
    # end of solution


# %% tags=["check"]
check.should_stop()

# %% [markdown] tags=["task"]
# What each rank decided in your run of 12 calls, and its notes after the last.

# %% tags=["picture"]
check.should_stop.picture()

# %% tags=["teardown"]
ranks.stop()
