# %% [markdown] tags=["title"]
# # Exercise 05: keep replicas equal, and hide the all-reduces
#
# 100 minutes, after lesson `05_replicas`.
# Stuck? `hint("05.1")` gives the next hint.
#
# All tasks use the same kind of model: layers named `layer0`, `layer1` and so on, then a `head`, each
# with a `weight` and a `bias`. The head's weight is tied to that of `layer0`, and the bias of
# `layer1` is frozen. A check tells how many numbers they hold: `layers [[4, 2], [10, 2]]` are two
# layers, the first with a weight of shape (1, 4) and a bias of shape (2,). Their dtype is float32,
# float64 or bfloat16. Not every tensor need be contiguous.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import hint
from ddp_lessons.checks import replicas as check

ranks = start_ranks(4)

# %% [markdown] tags=["task"]
# ## 05.1 Start equal
#
# Every rank has made the same kind of model, with its own numbers. Make all models equal to that of
# rank 0, to the last bit: every parameter and every buffer, also buffers that the state dict leaves
# out. Write into the tensors of the model, in the memory that they have. Frozen parameters stay frozen.
#
# Parameters and buffers may have gaps between their numbers, like every second column of a matrix.
# Gloo's `broadcast` then sends the numbers in the gaps, leaves the last ones out, and raises nothing.
#
# The price, on each rank: at most 1 call for each tensor, and no more bytes go into its calls than
# the model has.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


def start_equal(model):
    """
    Make a model equal to that of rank 0, in place. Return nothing.
    """
    # solution
    for tensor in [*model.parameters(), *model.buffers()]:
        numbers = tensor.detach().contiguous()  # a copy if there are gaps
        dist.broadcast(numbers, src=0)
        tensor.detach().copy_(numbers)
    # end of solution


# %% tags=["check"]
check.start_equal()

# %% [markdown] tags=["task"]
# The picture shows what your ranks held, before and after: the first number of each parameter, then of
# the buffers `mean`, `count` and `mask`.

# %% tags=["picture"]
check.start_equal.picture()

# %% [markdown] tags=["task"]
# ## 05.2 Average gradients
#
# Each rank has called `backward` with a loss that is a mean over its own `num_samples` samples. Make
# every `.grad` of a trained parameter the gradient of the mean over **all** samples, on every rank,
# equal to the last bit on all ranks. Ranks may have unequally many samples, hundreds or 0, but at least
# one rank has some. A mean over 0 samples is nan, and so is its gradient: such a rank adds nothing to
# the sum. Any other nan must stay nan. A rank that did not use a parameter has None as its `.grad`.
#
# The price, on each rank: at most 1 call for each trained parameter and 2 more, and at most the bytes of
# the gradients plus 64. `rank_device()` is the device of this rank's tensors.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist
from ddp_lessons.process_group import rank_device


def average_gradients(model, num_samples):
    """
    Make every .grad that of the whole batch. Return nothing.
    """
    # find out how many samples all ranks have together
    # for each trained parameter:
    #     make this rank's part of the whole gradient, and add up the parts of all ranks
    # solution
    total = torch.tensor(num_samples, device=rank_device())
    dist.all_reduce(total)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if parameter.grad is None or num_samples == 0:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad *= num_samples / total.item()
        dist.all_reduce(parameter.grad)
    # end of solution


# %% tags=["check"]
check.average_gradients()

# %% [markdown] tags=["task"]
# The first number of each gradient, before and after. The ranks had 4, 2, 1 and 1 samples, and rank
# 3 did not use the head.

# %% tags=["picture"]
check.average_gradients.picture()

# %% [markdown] tags=["task"]
# ## 05.3 Plan buckets
#
# Plan which parameters travel together. The lesson's planner has one cap, and returns parameters.
# Yours has two caps, and returns names.
#
# Go through the trained parameters from the last to the first, because `backward` reaches the last
# one first. Put each into the open bucket. Once a bucket holds its cap or more, it is full: close it,
# and open a new one. The cap of the first bucket is `first_cap_bytes`, and that of all other buckets
# is `cap_bytes`. Both are positive.
#
# Return a list of buckets, each a list of names as in `model.named_parameters()`, the first to be sent
# first. In a bucket, names stand in the order in which you came to them. No bucket is empty, and no
# parameter is in two buckets. If nothing is trained, there is no bucket. Every rank must make the same
# plan, without communication, and leave the model as it is.

# %% tags=["answer"]
# %%px
def plan_buckets(model, cap_bytes, first_cap_bytes):
    """
    Return the names of the parameters in each bucket, a list of lists.
    """
    # solution
    buckets, bucket, num_bytes = [], [], 0
    for name, parameter in reversed(list(model.named_parameters())):
        if not parameter.requires_grad:
            continue
        bucket.append(name)
        num_bytes += parameter.numel() * parameter.element_size()
        if num_bytes >= (cap_bytes if buckets else first_cap_bytes):
            buckets.append(bucket)
            bucket, num_bytes = [], 0
    return [*buckets, bucket] if bucket else buckets
    # end of solution


# %% tags=["check"]
check.plan_buckets()

# %% [markdown] tags=["task"]
# Your plan for five layers of float32, with caps of 40 bytes, and 16 for the first.

# %% tags=["picture"]
check.plan_buckets.picture()

# %% [markdown] tags=["task"]
# ## 05.4 An overlapped replica
#
# Average the gradients of a model while `backward` runs. The lesson's `Overlap` is for one step in
# which every rank uses every parameter. Yours is for a whole training with micro-batches, in which a
# rank may leave parameters out. It gets a model that is equal on all ranks, and a plan as in 05.3. All
# ranks have equally many samples, and the training loop is this:
#
# ```python
# replica = OverlappedReplica(model, buckets)
# for micro_batches in steps:
#     for number, micro_batch in enumerate(micro_batches):
#         replica.will_sync = number == len(micro_batches) - 1
#         loss(model, micro_batch).backward()
#     replica.wait_for_gradients()  # now every .grad is the mean over ranks
#     optimizer.step()
#     optimizer.zero_grad()
# ```
#
# The samples of a step may come in several parts, micro-batches, each with a `backward` of its own.
# Their gradients add up in `.grad`, and only the last `backward` may send.
#
# The price, on each rank: 1 call for each bucket and step, with the gradients of that bucket only, in
# the order of the plan. As soon as a bucket can leave, its all-reduce starts: before the next gradient
# is ready. Inside `backward`, no hook waits for an all-reduce or asks whether it is finished.
#
# `__init__` is written: it hangs a hook on each parameter, which calls `gradient_ready` when that
# parameter's `.grad` is complete, in every `backward`. A rank may reach layers in another order than
# the other ranks, or leave some layers out, and which layers it uses may change from step to step.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist
from functools import partial


class OverlappedReplica:
    """
    Average gradients over ranks, bucket by bucket, while backward is at work.
    """

    def __init__(self, model, buckets):
        named = dict(model.named_parameters())
        self.buckets = [[named[name] for name in bucket] for bucket in buckets]
        self.will_sync = True
        self.start_step()
        for number, bucket in enumerate(self.buckets):
            for parameter in bucket:
                hook = partial(self.gradient_ready, number)
                parameter.register_post_accumulate_grad_hook(hook)

    def start_step(self):
        self.num_ready = [0] * len(self.buckets)  # gradients, for each bucket
        self.sent = []  # for each bucket sent so far: its handle and its flat tensor

    def gradient_ready(self, number, parameter):
        """
        Hear that a gradient in bucket `number` is complete. Send what can be sent.
        """
        # solution
        if not self.will_sync:
            return
        self.num_ready[number] += 1
        while len(self.sent) < len(self.buckets):
            first = len(self.sent)
            if self.num_ready[first] < len(self.buckets[first]):
                break
            self.send_next()
        # end of solution

    def send_next(self):
        """
        Start to average the first bucket that was not sent yet, and do not wait for it.
        """
        # flatten the gradients of the bucket into one tensor, zeros where there is none
        # start the all-reduce, and keep the handle and the flat tensor in self.sent
        # solution
        bucket = self.buckets[len(self.sent)]
        gradients = [
            torch.zeros_like(p) if p.grad is None else p.grad for p in bucket
        ]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        flat /= dist.get_world_size()
        self.sent.append((dist.all_reduce(flat, async_op=True), flat))
        # end of solution

    def wait_for_gradients(self):
        """
        Send what is left, wait, put the means into .grad, and prepare the next step.
        """
        # solution
        while len(self.sent) < len(self.buckets):
            self.send_next()
        for bucket, (handle, flat) in zip(self.buckets, self.sent, strict=True):
            handle.wait()
            parts = flat.split([parameter.numel() for parameter in bucket])
            for parameter, part in zip(bucket, parts, strict=True):
                parameter.grad = part.view_as(parameter)
        self.start_step()
        # end of solution


# %% tags=["check"]
check.OverlappedReplica()

# %% [markdown] tags=["task"]
# One step of yours: two micro-batches, and the all-reduces of four buckets under the second `backward`.

# %% tags=["picture"]
check.OverlappedReplica.picture()

# %% tags=["teardown"]
ranks.stop()
