# %% [markdown] tags=["title"]
# # Exercise 14: let nobody wait
#
# 60 minutes, after lesson `14_asynchronous`.
# Stuck? `hint("14.1")` gives the next hint.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import asynchronous as check
from ddp_lessons.checks import hint

ranks = start_ranks(4, device="cpu")  # NCCL cannot take whoever comes first

# %% [markdown] tags=["task"]
# ## 14.1 A server that bounds staleness
#
# Rank 0 is the server. All other ranks are workers, which the check plays. Write the server.
#
# At the start every worker has `weights`, (n,): version 0. A worker sends a gradient to rank 0 by
# `dist.send`, (n,) of the same dtype, and waits for new weights before it makes its next step. Each
# worker sends `num_steps` gradients. They come in any order: one worker may send three before
# another has sent its first.
#
# For each gradient, as it comes, take `rate` times the gradient off `weights`, in place. That makes
# the next version. Then answer by `dist.send`, with the weights as they are, each worker that waits
# and may go on: one that has made at most `bound` steps more than the slowest worker. A step is
# made when its gradient has come. Who may not go on yet waits until it may, while you take other
# gradients. In the end each worker has got `num_steps` answers.
#
# Return the log: a list of pairs (worker, age), two whole numbers, for each gradient in the order
# in which you applied them. The age says how many gradients were applied between the moment when
# this worker got the weights that it used, and the moment before its own was applied.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


def serve(weights, num_steps, bound, rate):
    """
    Serve all other ranks, and return the log.
    """
    # until all gradients have come:
    #     take the next one, whoever sent it; apply it, and note its age
    #     answer all who wait and may go on
    # solution
    workers = range(1, dist.get_world_size())
    num_made, versions = dict.fromkeys(workers, 0), dict.fromkeys(workers, 0)
    waiting, log, gradient = [], [], torch.empty_like(weights)
    while len(log) < len(workers) * num_steps:
        worker = dist.recv(gradient)
        weights -= rate * gradient
        log.append((worker, len(log) - versions[worker]))
        num_made[worker] += 1
        waiting.append(worker)
        for other in list(waiting):
            if num_made[other] - min(num_made.values()) <= bound:
                dist.send(weights, other)
                versions[other] = len(log)
                waiting.remove(other)
    return log
    # end of solution


# %% tags=["check"]
check.serve()

# %% [markdown] tags=["task"]
# The ages in your log. The check sends worker 1 ahead as far as the bound lets it.

# %% tags=["picture"]
check.serve.picture()

# %% [markdown] tags=["task"]
# ## 14.2 Local SGD
#
# Each rank has a plain `model`, with the same weights on all ranks at first; an `optimizer` of its
# trained parameters, in one group or several; and `batches` of its own: pairs of inputs (n, 4) and
# targets (n, 1), equally many on all ranks, or none. Ranks may have another n. Make one step for
# each batch, by this rank's own gradient of `mse_loss`: what an earlier backward has left in `.grad`
# counts nothing. Leave the model in the mode that it has: a part of it may be in eval mode, and stays
# so.
#
# After each `every` steps ranks meet: all go on with the mean of the weights of all ranks. If steps
# are left over at the end, they meet after the last one, too. After a meeting all have the same
# weights to the last bit. The check calls your function twice on one model; each call counts its
# steps anew. Frozen parameters stay as they are. What an optimizer remembers stays on its rank.
#
# The price: 1 collective a meeting, into which a rank puts as many bytes as the trained weights
# have.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss


def local_sgd(model, optimizer, batches, every):
    """
    Train on all batches, and average weights now and then. Return nothing.
    """
    # solution
    parameters = [p for p in model.parameters() if p.requires_grad]
    for number, (x, y) in enumerate(batches, start=1):
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        if number % every == 0 or number == len(batches):
            flat = torch.cat([p.detach().flatten() for p in parameters])
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
            sizes = [p.numel() for p in parameters]
            with torch.no_grad():
                for p, part in zip(parameters, flat.split(sizes), strict=True):
                    p.copy_(part.view_as(p))
    # end of solution


# %% tags=["check"]
check.local_sgd()

# %% [markdown] tags=["task"]
# The first weight of each rank after each step of your run. Ranks meet after steps 2, 4 and 5.

# %% tags=["picture"]
check.local_sgd.picture()

# %% [markdown] tags=["task"]
# ## 14.3 DiLoCo's outer step
#
# Ranks have trained alone for a while, and now they meet. `model` is this rank's model, where its
# inner steps have led it. `outer` is an SGD with Nesterov's momentum, the same on all ranks. Its
# parameters, `outer.param_groups[0]["params"]`, are one for each trained parameter of the model, in
# their order. They hold where all ranks began this round.
#
# Make one outer step. Its gradient is the mean over ranks of (outer parameter - model's parameter).
# Let `outer` step by it, once. Then all models go on from the outer parameters: copy them into the
# model. In the next round ranks train alone again, which must not move the outer parameters.
#
# Frozen parameters stay as they are, and the model's parts in their mode, train or eval. Ranks must
# hold the same weights to the last bit. The price: 1 collective, into which a rank puts as many bytes
# as the trained weights have.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


def outer_step(model, outer):
    """
    Make one outer step, and put where it ends into the model. Return nothing.
    """
    # solution
    common = outer.param_groups[0]["params"]
    parameters = [p for p in model.parameters() if p.requires_grad]
    with torch.no_grad():
        pairs = list(zip(common, parameters, strict=True))
        flat = torch.cat([(whole - p).flatten() for whole, p in pairs])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        parts = flat.split([whole.numel() for whole in common])
        for whole, part in zip(common, parts, strict=True):
            whole.grad = part.view_as(whole).clone()
        outer.step()
        for whole, p in pairs:
            p.copy_(whole)
    # end of solution


# %% tags=["check"]
check.outer_step()

# %% [markdown] tags=["task"]
# The first weight of each rank: where it was led alone, and where the outer step then led all.

# %% tags=["picture"]
check.outer_step.picture()

# %% [markdown] tags=["task"]
# ## 14.4 Balance by stealing work
#
# Rank r has `sizes[r]` items of work, numbered from 0; it may have none. `sizes` is the same list
# on every rank. `do(owner, number)` does item `number` of rank `owner`, on whichever rank it is
# called, and returns a tensor. Some ranks are slower than others, and nobody knows which.
#
# Have each item done once, on some rank. A rank does its own items first. When it has none left, it
# takes those of others, one at a time, until none is left. Then it returns what `do`
# returned here, as a list, in order. Nobody waits for another.
#
# `store.add(key, amount)` adds a whole number to a counter that all ranks share, and returns its
# new number, in one go. Counters begin at 0. The counter `str(r)` says how many items of rank r
# have been taken; they are taken in the order of their numbers. There is no other counter. Between
# two calls another rank may come.

# %% tags=["answer"]
# %%px
import torch.distributed as dist


def share_work(store, sizes, do):
    """
    Do this rank's items, then help the others. Return the results.
    """
    # solution
    rank, results = dist.get_rank(), []
    others = [owner for owner in range(len(sizes)) if owner != rank]
    for owner in [rank, *others]:
        while (number := store.add(str(owner), 1)) <= sizes[owner]:
            results.append(do(owner, number - 1))
    return results
    # end of solution


# %% tags=["check"]
check.share_work()

# %% [markdown] tags=["task"]
# Who did which item in a run of two ranks. Rank 1 was busy with its first item all the time.

# %% tags=["picture"]
check.share_work.picture()

# %% tags=["teardown"]
ranks.stop()
