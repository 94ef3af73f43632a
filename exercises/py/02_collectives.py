# %% [markdown] tags=["title"]
# # Exercise 02: move numbers between ranks
#
# 90 minutes, after lesson `02_collectives`. If you are stuck, run `hint("02.1")` in a new cell: it
# gives the next hint. If a deadlock is reported, the number behind a collective counts all collectives
# of the group, also those of earlier checks.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import collectives as check
from ddp_lessons.checks import hint

ranks = start_ranks(4)

# %% [markdown] tags=["task"]
# ## 02.1 All-reduce from reduce and broadcast
#
# Write `all_reduce(tensor)`. Every rank calls it with a tensor of the same shape and dtype, which is
# contiguous and may have 0 numbers. Every rank returns the sum of the tensors of all ranks: a new
# tensor of that shape and dtype. The argument stays as it was.
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
# Write `all_gather_unequal(tensor)`. Every rank calls it with a contiguous tensor of one dimension.
# All have the same dtype. Their lengths differ, and a length may be 0. Every rank returns a list, or
# a tuple, of new tensors: for each rank, in rank order, a tensor with its numbers and of its dtype.
#
# `dist.all_gather` takes only tensors of equal length. Use it, or `dist.all_gather_into_tensor`, and
# no other collective. The most that a rank may spend: 2 collectives, into which it gives 8 bytes for
# a length, and as many bytes as the longest tensor has.

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
# ## 02.3 An exchange at any distance that cannot deadlock
#
# The lesson sent numbers to the right neighbour. Now the receiver may be farther away. Write
# `exchange(tensor, distance)`. Every rank calls it with the same distance. With w ranks, rank r sends
# its tensor to rank (r + distance) % w, and returns the tensor that is sent to it: a new tensor. All
# tensors have the same shape and dtype, from 0 numbers up to millions, and are contiguous. The
# distance is 0 or more, and may be larger than w. A rank that would send to itself returns a copy of
# its own tensor, and sends nothing.
#
# Use only `dist.send`, `dist.recv`, `dist.isend`, `dist.irecv` and `dist.batch_isend_irecv`.
#
# The target: each rank sends at most 1 message, and no rank waits for a long chain of other ranks. Ranks
# r, r + distance, r + 2 distance and so on form a circle, which ends at r again. With 4 ranks and
# distance 2 there are two circles: ranks 0 and 2, and ranks 1 and 3. All ranks may send at the same
# time. Or they take turns: every second rank of a circle sends in round 1, and the others send in
# round 2. (A circle with an odd number of ranks needs a round 3.) The target holds for any number of
# ranks and any distance: the check also simulates 6 and 9 ranks.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


def exchange(tensor, distance):
    """
    Return the tensor of rank (r - distance) % w on rank r: a new one.
    """
    # solution
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if distance % world_size == 0:
        return tensor.clone()
    arrived = torch.empty_like(tensor)
    handle = dist.irecv(arrived, src=(rank - distance) % world_size)
    dist.send(tensor, dst=(rank + distance) % world_size)
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
# Write `broadcast(tensor, src)`. Every rank calls it with a tensor of the same shape and dtype, which
# is contiguous and may have 0 numbers. Every rank returns the tensor of rank `src`, as a new tensor.
# The argument stays as it was. Use `dist.send` and `dist.recv` (or `isend` and `irecv`).
#
# A round is the time in which a rank can send one message. If only `src` sends, w ranks take w - 1
# rounds. The target: w - 1 messages in all, in log2(w) rounds, rounded up. So 4 ranks take 2 rounds,
# and 7 ranks take 3. The target holds for any number of ranks: the check also simulates 5 to 16
# ranks.
#
#     round 1:  1 rank has the tensor, and sends it to 1 rank that does not
#     round 2:  2 ranks have it, and send it to 2 ranks that do not
#     ...       until all ranks have it; in the last round not every rank has a partner

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
