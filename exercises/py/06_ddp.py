# %% [markdown] tags=["title"]
# # Exercise 06: use DDP, and know what it leaves to you
#
# 80 minutes, after lesson `06_ddp`.
# Stuck? `hint("06.1")` gives the next hint.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import ddp as check
from ddp_lessons.checks import hint

ranks = start_ranks(4)

# %% [markdown] tags=["task"]
# ## 06.1 A half-precision hook with error feedback
#
# Write a communication hook that averages each bucket over all ranks, and sends it in bfloat16.
# Rounding takes a small part away from each number of this rank's message. Keep this part, the
# residual, and add it to the rank's next message, so that almost nothing is lost in the sum over all
# steps.
#
# `bucket.buffer()` is the flat tensor of the gradients, (n,) float32 or float64. `bucket.parameters()`
# lists the parameters in the order in which their gradients lie in it. `residuals` is the hook's state: a
# dictionary, empty at first, in which you may keep anything. After step 1 DDP makes other buckets, and
# no residual may be lost then.
#
# Return a future of the average, (n,), in any float dtype, and do not wait in the hook. Use the default
# group, of any world size. The price, for each bucket: one collective, into which 2 bytes go for each of
# the n numbers.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


def half_hook(residuals, bucket):
    """
    Average a bucket in bfloat16; return a torch.futures.Future of the result, (n,).
    """
    # target: this rank's part of the mean, plus the residual of each parameter
    # message: the target in bfloat16
    # the new residual of each parameter: its target minus its message
    # return a future: when the messages are added up, copy the sum into the buffer
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
# The last step of your run, as events in order; the axis has no seconds. Each rank has a bar from its
# first gradient to its last, and below it an all-reduce for each bucket. The first of them begins before
# the last gradient is ready.

# %% tags=["picture"]
check.half_hook.picture()

# %% [markdown] tags=["task"]
# ## 06.2 Find the unused branch
#
# In the lesson, DDP's error named the unused parameters of one rank. Here you find those of all
# ranks, before the model is wrapped, because ranks may use different parts of it. To look for `.grad`
# being None is not enough, because `.grad` may hold gradients of an earlier backward.
#
# `model` is not wrapped in DDP yet, and `loss` is this rank's loss, computed with it. Return two
# lists of parameter names, `freeze` and `find`. They are the same on every rank, and in the order of
# `model.named_parameters()`. `freeze` has the parameters that the loss of no rank reaches. `find` has
# those that the losses of some ranks reach, and those of others do not: they need
# `find_unused_parameters=True`. Parameters that are frozen already are in neither list.
#
# The loss of each rank reaches at least one parameter that is not frozen. Leave the model and each
# `.grad` as they are. `loss` is not used after your function, so its graph may be freed. The price,
# on each rank: 1 collective, into which at most 8 bytes go for each parameter.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


def find_unused(model, loss):
    """
    Return freeze, find: names that no rank's loss reaches, and that only some reach.
    """
    # for each parameter with requires_grad: does this rank's loss reach it?
    # for each of them: on how many ranks does the loss reach it?
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
# Each row is a rank: the heads that its loss used, and the weights on your two lists. Biases are left
# out.

# %% tags=["picture"]
check.find_unused.picture()

# %% [markdown] tags=["task"]
# ## 06.3 Pool BatchNorm's statistics
#
# `layer` is a `BatchNorm1d` of C channels with momentum 1, so its `running_mean` (C,) and
# `running_var` (C,) are those of this rank's last batch. That batch had `num_samples` samples, 2 or
# more, and other ranks may have had other numbers. On every rank, replace both by the statistics that
# one process would have after a single batch of all ranks' samples. They stay float32, and nothing
# else of the layer changes.
#
# `running_var` is the sum of the squared distances from the mean, divided by the number of samples
# minus 1. Means may be near 1,000 while variances are near 1. The price: at most 2 collectives.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


@torch.no_grad()
def pool_statistics(layer, num_samples):
    """
    Make running_mean and running_var, both (C,), those of all ranks' samples.
    """
    # the mean: the sum of all samples, divided by their number
    # the squared distances of a rank's samples from that mean have two parts:
    #     the squared distances from the rank's own mean,
    #     and the squared distance of the rank's mean, once for each of its samples
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
# The statistics of the first channel on each rank, before and after your function. Each rank had another
# number of samples.

# %% tags=["picture"]
check.pool_statistics.picture()

# %% [markdown] tags=["task"]
# ## 06.4 Repair four broken scripts
#
# Each script has one mistake that guides make. All four should do the same: train `net` with one step
# for each batch, by the mean of all ranks' gradients, so that every rank ends with the same weights.
# Every rank gets an equal `net`, and `batches` of its own: a list of pairs of inputs (n, 6) and
# targets (n, 1). In script 3, `net.spare` is a head that the loss does not use. It stays as it is. In
# script 4, rank 0 also returns the loss of the trained model, in eval mode, on `test`, a pair that is
# in no batch. BatchNorm's statistics may then be those of rank 0, or of all ranks.
#
# In each script, delete the line that raises, and repair the lines below it. One check tries all
# four, and says which one is still broken, and how. The price: wrap a model at most once.

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
    Return the four scripts for the check.
    """
    return script_1, script_2, script_3, script_4


# %% tags=["check"]
check.scripts()

# %% [markdown] tags=["task"]
# The calls of script 1 since you repaired it, as events in order; the axis has no seconds. Wrapping
# compares the models and broadcasts rank 0's. Each of the three steps sends one bucket. Two small
# broadcasts before the second `backward` carry the plan of the final buckets.

# %% tags=["picture"]
check.scripts.picture()

# %% tags=["teardown"]
ranks.stop()
