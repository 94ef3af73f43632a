# %% [markdown] tags=["title"]
# # Exercise 02: move numbers between ranks
#
# 40 minutes, after lesson `02_collectives`.
# Stuck? `hint("02.1")` gives the next hint.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import collectives as check
from ddp_lessons.checks import hint

ranks = start_ranks(4)

# %% [markdown] tags=["task"]
# ## 02.1 All-reduce from reduce and broadcast
#
# Every rank gives a tensor of the same shape and dtype, which lies in memory in one piece and may
# have 0 numbers. Every rank gets the sum of all: a new tensor of that shape and dtype. The argument
# stays as it was.
#
# Use `dist.reduce` and `dist.broadcast`, and no other collective: 2 collectives for each rank.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


def all_reduce(tensor):
    """
    Return the sum of all ranks' tensors, on every rank: a tensor like the one given.
    """
    # solution
    total = tensor.clone()
    dist.reduce(total, dst=0)
    dist.broadcast(total, src=0)
    return total
    # end of solution


# %% tags=["check"]
check.all_reduce()

# %% tags=["picture"]
check.all_reduce.picture()

# %% [markdown] tags=["task"]
# ## 02.2 All-gather of unequal lengths
#
# Every rank gives a tensor with one dimension, which lies in memory in one piece. Dtypes are equal,
# lengths differ, and a length may be 0. Return new tensors, with the numbers of all ranks, as a list
# or a tuple in rank order, each in the dtype that it had. `dist.all_gather` takes tensors of one
# length only. You may use it, or `dist.all_gather_into_tensor`, and no other collective.
#
# The most it may cost each rank: 2 collectives. Into them go 8 bytes for a length, and as many
# bytes as the longest tensor has.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


def all_gather_unequal(tensor):
    """
    Return a list: for each rank its tensor, of shape (its length,), in rank order.
    """
    # solution
    world_size = dist.get_world_size()
    length = torch.tensor([len(tensor)], device=tensor.device)
    lengths = [torch.empty_like(length) for _ in range(world_size)]
    dist.all_gather(lengths, length)
    longest = max(int(n) for n in lengths)
    padded = tensor.new_zeros(longest)
    padded[: len(tensor)] = tensor
    parts = [torch.empty_like(padded) for _ in range(world_size)]
    dist.all_gather(parts, padded)
    return [part[: int(n)] for part, n in zip(parts, lengths, strict=True)]
    # end of solution


# %% tags=["check"]
check.all_gather_unequal()

# %% tags=["picture"]
check.all_gather_unequal.picture()

# %% [markdown] tags=["task"]
# ## 02.3 An exchange that cannot deadlock
#
# Ranks stand in a circle: to the right of rank r is rank r + 1, and to the right of the last one is
# rank 0. Every rank gives its tensor to its right neighbour, and returns the one that comes from
# its left neighbour: a new tensor. All have the same shape and dtype, from 0 numbers up to
# millions, and lie in memory in one piece. One rank alone returns a copy of its own.
#
# Use `dist.send`, `dist.recv`, `dist.isend`, `dist.irecv` and `dist.batch_isend_irecv` only.
# `handle = dist.isend(tensor, dst=right)` starts a message and returns at once; `handle.wait()`
# waits for it.
#
# The target: each rank sends 1 message at most, and nobody waits long. All ranks may send at the
# same time. Or they take 2 turns: even ranks send first, then odd ones. (If the number of ranks is
# odd, two even ones are neighbours, and it takes 3 turns.) That is for any number of ranks: the check
# also plays 6 and 9 of them on paper.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


def exchange(tensor):
    """
    Return the left neighbour's tensor: a new one, like the argument in shape and dtype.
    """
    # solution
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if world_size == 1:
        return tensor.clone()
    arrived = torch.empty_like(tensor)
    handle = dist.irecv(arrived, src=(rank - 1) % world_size)
    dist.send(tensor, dst=(rank + 1) % world_size)
    handle.wait()
    return arrived
    # end of solution


# %% tags=["check"]
check.exchange()

# %% tags=["picture"]
check.exchange.picture()

# %% [markdown] tags=["task"]
# ## 02.4 Broadcast in log2(w) rounds
#
# Every rank calls `broadcast(tensor, src)` with a tensor of the same shape and dtype, which lies in
# memory in one piece and may have 0 numbers. Return the tensor of rank `src` on every rank, as a
# new one. The argument stays as it was. Use `dist.send` and `dist.recv` (or `isend` and `irecv`).
#
# A round is the time in which a rank can send one message. If only `src` sends, w ranks take w - 1
# rounds. The target: w - 1 messages in all, in log2(w) rounds, rounded up. So 4 ranks take 2, and 7
# take 3. That is for any number of ranks: the check also plays 5 to 16 of them on paper.
#
#     round 1:  1 rank has it, and sends it to 1 that does not
#     round 2:  2 ranks have it, and send it to 2 that do not
#     ...       until all have it; in the last round some may have nobody to send to

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


def broadcast(tensor, src):
    """
    Return the tensor of rank src on every rank, of the shape and dtype of the argument.
    """
    # solution
    rank, world_size = dist.get_rank(), dist.get_world_size()
    got, place, distance = tensor.clone(), (rank - src) % world_size, 1
    while distance < world_size:
        if place < distance and place + distance < world_size:
            dist.send(got, dst=(rank + distance) % world_size)
        elif distance <= place < 2 * distance:
            dist.recv(got, src=(rank - distance) % world_size)
        distance *= 2
    return got
    # end of solution


# %% tags=["check"]
check.broadcast()

# %% tags=["picture"]
check.broadcast.picture()

# %% tags=["teardown"]
ranks.stop()
