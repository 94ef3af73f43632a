# %% [markdown] tags=["title"]
# # Exercise 06: use DDP without being fooled
#
# 50 minutes, after lesson `06_ddp`.
# Stuck? `hint("06.1")` gives the next hint.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import ddp as check
from ddp_lessons.checks import hint

ranks = start_ranks(4)

# %% [markdown] tags=["task"]
# ## 06.1 A half-precision hook with error feedback
#
# Write a communication hook. It averages each bucket over the ranks and sends bfloat16. What rounding
# takes away from this rank's message it keeps, and adds to the next one, so that next to nothing is
# lost.
#
# `bucket.buffer()` holds gradients, (n,) float32 or float64. `bucket.parameters()` lists the parameters
# whose gradients lie there, side by side. `residuals` is a dictionary, empty at first, in which to keep
# what you like. DDP makes new buckets after step 1, and debts must survive that.
#
# Return a future of the average, in any float dtype, and do not wait in the hook. Average over the
# default group. The price: one call and 2n bytes a bucket.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


def half_hook(residuals, bucket):
    """
    Average a bucket in bfloat16; return a torch.futures.Future of the result, (n,).
    """
    # target: this rank's share of the mean, and what it owes
    # message: the target in bfloat16
    # owed from now on: the target less the message, for each parameter
    # return a future: when all messages are added up, copy them to the buffer
    # solution
    buffer, parameters = bucket.buffer(), bucket.parameters()
    target = buffer / dist.get_world_size()
    parts = target.split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        part += residuals.get(parameter, 0)
    message = target.bfloat16()
    target -= message
    residuals.update(zip(parameters, parts, strict=True))
    work = dist.all_reduce(message, async_op=True)
    return work.get_future().then(lambda _: buffer.copy_(message))
    # end of solution


# %% tags=["check"]
check.half_hook()

# %% [markdown] tags=["task"]
# This is what your own run did in its last step. The first all-reduce begins before backward ends.

# %% tags=["picture"]
check.half_hook.picture()

# %% [markdown] tags=["task"]
# ## 06.2 Find the unused branch
#
# `model` is not wrapped yet, and `loss` was made with it. Return two lists of parameter names, in the
# order of `model.named_parameters()` and the same on every rank. `freeze`: those that no rank's loss
# reaches. `find`: those that some ranks' losses reach and others' do not, for which DDP needs
# `find_unused_parameters=True`. Parameters that are frozen already are in neither list.
#
# Each rank's loss reaches a parameter that is not frozen. There may be gradients of an earlier step in
# `.grad`. Leave them, and the model, as they are. The price: 1 collective, and at most 8 bytes a
# parameter.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


def find_unused(model, loss):
    """
    Return freeze, find: names that no rank reaches, and those that only some reach.
    """
    # for each trainable parameter: does this rank's loss reach it
    # for each of them: on how many ranks
    # solution
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    flags = [gradient is not None for gradient in gradients]
    counts = torch.tensor(flags, dtype=torch.int64, device=loss.device)
    dist.all_reduce(counts)
    counts = dict(zip(trained, counts.tolist(), strict=True))
    freeze = [name for name, count in counts.items() if count == 0]
    find = [n for n, count in counts.items() if 0 < count < dist.get_world_size()]
    return freeze, find
    # end of solution


# %% tags=["check"]
check.find_unused()

# %% [markdown] tags=["task"]
# Each row is a rank: the heads that its loss used, and the weights on your two lists.

# %% tags=["picture"]
check.find_unused.picture()

# %% [markdown] tags=["task"]
# ## 06.3 Keep BatchNorm honest
#
# `layer` is a `BatchNorm1d` of C channels with momentum 1: it keeps the statistics of the last batch,
# `running_mean` (C,) and `running_var` (C,). Each rank's batch had `num_samples` samples, 2 or more, and
# other ranks had other numbers. Make both, on every rank, what one process would have after a batch of
# all samples: float32 still. Leave the rest of the layer as it is.
#
# `running_var` is the sum of squared distances from the mean, divided by the number of samples less 1. Means
# may be near 1,000 while variances are near 1. The price: at most 2 collectives.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


@torch.no_grad()
def pool_statistics(layer, num_samples):
    """
    Make running_mean and running_var, both (C,), those of all ranks' samples.
    """
    # mean: the sum of all samples, divided by their number
    # squared distances of a rank's samples from that mean:
    #     those from its own mean, and the distance of its mean, once for each sample
    # solution
    own_mean, own_variance = layer.running_mean.double(), layer.running_var.double()
    sums = torch.stack([own_mean * num_samples, torch.full_like(own_mean, num_samples)])
    dist.all_reduce(sums)
    total, mean = sums[1], sums[0] / sums[1]
    spread = own_variance * (num_samples - 1) + num_samples * (own_mean - mean) ** 2
    dist.all_reduce(spread)
    layer.running_mean.copy_(mean)
    layer.running_var.copy_(spread / (total - 1))
    # end of solution


# %% tags=["check"]
check.pool_statistics()

# %% [markdown] tags=["task"]
# These are the statistics of the first channel: what each rank had, and what you made of it.

# %% tags=["picture"]
check.pool_statistics.picture()

# %% [markdown] tags=["task"]
# ## 06.4 Mend four broken scripts
#
# Four people trained on several ranks, and each made one mistake that guides make. All four want the
# same: train `net`, one step a batch, by the mean of all ranks' gradients, so that every rank ends with
# the same weights. All ranks get the same `net`. `batches` is a list of pairs: inputs (n, 6), targets
# (n, 1). In script 3, the spare head has no part in the loss and stays as it is. In script 4, rank 0
# also returns the loss on `test`, a pair that is in no batch, in eval mode. BatchNorm's statistics may
# be those of rank 0, or of all ranks.
#
# In each script, delete the line that raises and mend what follows. One check tries all four, and tells
# which of them is still broken, and how. The price: wrap a model at most once.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DataParallel, DistributedDataParallel as DDP


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    for inputs, targets in batches:
        optimizer.zero_grad()
        mse_loss(model(inputs), targets).backward()
        optimizer.step()


def script_1(net, batches):
    # solution
    # | model = DataParallel(net)
    # | train(model, batches)
    model = DDP(net)
    train(model, batches)
    # end of solution


def script_2(net, batches):
    # solution
    # | model = DDP(net)
    # | optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    # | for inputs, targets in batches:
    # |     optimizer.zero_grad()
    # |     outputs = net(inputs)
    # |     mse_loss(outputs, targets).backward()
    # |     optimizer.step()
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    for inputs, targets in batches:
        optimizer.zero_grad()
        outputs = model(inputs)
        mse_loss(outputs, targets).backward()
        optimizer.step()
    # end of solution


def script_3(net, batches):
    # solution
    # | model = DDP(net)
    # | net.spare.requires_grad_(False)
    # | train(model, batches)
    net.spare.requires_grad_(False)
    model = DDP(net)
    train(model, batches)
    # end of solution


def script_4(net, batches, test):
    # net has BatchNorm; only rank 0 has to return a loss
    # solution
    # | model, loss = DDP(net), None
    # | train(model, batches)
    # | inputs, targets = test
    # | if dist.get_rank() == 0:
    # |     model.eval()
    # |     with torch.no_grad():
    # |         loss = mse_loss(model(inputs), targets).item()
    # | return loss
    model, loss = DDP(net), None
    train(model, batches)
    inputs, targets = test
    if dist.get_rank() == 0:
        net.eval()
        with torch.no_grad():
            loss = mse_loss(net(inputs), targets).item()
    return loss
    # end of solution


def scripts():
    """
    Return the four, for the check.
    """
    return script_1, script_2, script_3, script_4


# %% tags=["check"]
check.scripts()

# %% [markdown] tags=["task"]
# This is what script 1 does since you mended it. Wrapping sends the model, and each of the three
# backward passes sends its gradients. Before the second, DDP agrees on new buckets.

# %% tags=["picture"]
check.scripts.picture()

# %% tags=["teardown"]
ranks.stop()
