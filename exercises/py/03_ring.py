# %% [markdown] tags=["title"]
# # Exercise 03: make a ring, and say what it costs
#
# 60 minutes, after lesson `03_ring`.
# Stuck? `hint("03.1")` gives the next hint.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import hint
from ddp_lessons.checks import ring as check

ranks = start_ranks(4)

# %% [markdown] tags=["task"]
# ## 03.1 Ring reduce-scatter
#
# Each rank has its own numbers for w chunks, one chunk a rank. Return the sum over all ranks of
# chunk r on rank r: a new tensor of the chunks' dtype. The list and its chunks stay as they were.
# Chunk c is equally long on all ranks, but chunks may differ in length, and some may be empty. Each
# lies in memory in one piece. One rank alone returns a copy of its chunk.
#
# Make a ring from `send`, `recv`, `isend` and `irecv`: each rank sends to one neighbour only. The
# price: at most w - 1 messages a rank. Each carries one chunk, in its own length and dtype, and
# rank r never sends chunk r. All ranks send in every step: at the same time, or in 2 turns, as in
# 02.3 (3 turns if the number of ranks is odd).

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


def reduce_scatter(chunks):
    """
    Return the sum of this rank's chunk over all ranks.

    Shapes: chunks is a list of w tensors, chunk c of shape (n_c,). Returns (n_r,).
    """
    # passing = my numbers of the chunk that starts at this rank
    # w - 1 times:
    #     send passing on, and at the same time receive from the other neighbour
    #     passing = what arrived, and my numbers of that chunk
    # solution
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    passing = chunks[left].clone()
    for step in range(world_size - 1):
        own = chunks[(rank - 2 - step) % world_size]
        arrived = torch.empty_like(own)
        handle = dist.irecv(arrived, src=left)
        dist.send(passing, dst=right)
        handle.wait()
        passing = arrived + own
    return passing
    # end of solution


# %% tags=["check"]
check.reduce_scatter()

# %% tags=["picture"]
check.reduce_scatter.picture()

# %% [markdown] tags=["task"]
# ## 03.2 Ring all-gather
#
# Now rank r has chunk r only, and all ranks shall have all chunks. Return a list or a tuple of w
# tensors, chunk c at place c. `lengths` says how many numbers each chunk has, and is the same on all
# ranks. Return tensors of your own: none of them shares memory with the argument. `chunk` and
# `lengths` stay as they were.
#
# The price is the same: one neighbour to send to, and at most w - 1 messages a rank. Each carries
# one chunk, in its own length and dtype. All ranks send in every step, as in 03.1.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


def all_gather(chunk, lengths):
    """
    Return the chunks of all ranks, in rank order.

    Shapes: chunk is (n_r,) on rank r; lengths holds n_c for each of w chunks.
    Returns a list of w tensors, (n_c,).
    """
    # solution
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    parts = [chunk.new_empty(length) for length in lengths]
    parts[rank].copy_(chunk)
    for step in range(world_size - 1):
        handle = dist.irecv(parts[(rank - step - 1) % world_size], src=left)
        dist.send(parts[(rank - step) % world_size], dst=right)
        handle.wait()
    return parts
    # end of solution


# %% tags=["check"]
check.all_gather()

# %% tags=["picture"]
check.all_gather.picture()

# %% [markdown] tags=["task"]
# ## 03.3 Ring all-reduce for any length
#
# Put both halves together. Return the sum of all ranks' tensors, on every rank: a new tensor of the
# same shape and dtype. The argument stays as it was. It may have any shape, any dtype and any number
# of elements: fewer than there are ranks, or none. It need not lie in memory in one piece, as it may
# be transposed or expanded.
#
# The price for n numbers: one neighbour to send to, and at most 2(w - 1) messages a rank. Each
# carries n / w numbers at most, rounded up. All ranks send in every step, as in 03.1, and all get
# the same bits. If the tensor is large, nothing may wait for ever.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


def all_reduce(tensor):
    """
    Return the sum of all ranks' tensors, on every rank: a tensor like the one given.
    """
    # cut, reduce_scatter, all_gather, put together
    # solution
    chunks = tensor.flatten().tensor_split(dist.get_world_size())
    done = reduce_scatter(chunks)
    parts = all_gather(done, [len(chunk) for chunk in chunks])
    return torch.cat(parts).view(tensor.shape)
    # end of solution


# %% tags=["check"]
check.all_reduce()

# %% [markdown] tags=["task"]
# The picture follows the chunks through both halves of a ring that turns as yours does. Chunk 2 is
# the one that rank 2 finishes. The small numbers in a chunk say whose data are in its sum so far.

# %% tags=["picture"]
check.all_reduce.picture()

# %% [markdown] tags=["task"]
# ## 03.4 Fit latency and bandwidth
#
# `times` is a dictionary: for each size in bytes, the seconds of five tries to send a message of
# that size. Its sizes may stand in any order. Leave it and its lists as they are. Return the link's
# latency in seconds and its bandwidth in bytes a second. With them, latency + bytes / bandwidth must
# foretell the time of every size, of 1 byte as well as of 16 MiB.
#
# A try that was left alone is off by 1 % at most. Some tries were interrupted, and took several
# times as long, but never most tries of a size. `np.polyfit(x, y, 1, w=weights)` fits a line, and
# returns first its slope and then where it begins. It makes the squares of weight times error
# small: choose weights so that 1 % of a short time counts as much as 1 % of a long one.

# %% tags=["answer"]
# %%px
import numpy as np


def fit_link(times):
    """
    Return (latency in seconds, bandwidth in bytes a second).

    times is {bytes: [seconds of five tries]}.
    """
    # solution
    sizes = np.array(list(times), dtype=np.float64)
    least = np.array([min(tries) for tries in times.values()])
    slope, latency_s = np.polyfit(sizes, least, 1, w=1 / least)
    return latency_s, 1 / slope
    # end of solution


# %% tags=["check"]
check.fit_link()

# %% [markdown] tags=["task"]
# Each rank had the times of a link of its own. The table shows what your lines say of four sizes,
# beside the least time that rank was given. Times are in microseconds.

# %% tags=["picture"]
check.fit_link.picture()

# %% [markdown] tags=["task"]
# ## 03.5 Predict bytes
#
# How many bytes does a rank send in an all-reduce? Say it before it runs, to the byte. `way` is
# `"hub"` or `"ring"`. Round the hub, rank 0 receives all tensors whole, adds, and sends the sum to
# each of the others. The ring is that of 03.1 to 03.3: ranks send to the right, chunk r is finished
# on rank r, and chunks are as `tensor_split` cuts them. If w does not divide the length, the first
# chunks are one number longer.
#
# The check runs both, counts, and compares. Then it asks about each of 48 ranks, which do not run.

# %% tags=["answer"]
# %%px
def predict_bytes(way, rank, world_size, num_elements, element_bytes):
    """
    Return how many bytes a rank sends in one all-reduce. Sends nothing itself.
    """
    # solution
    if way == "hub":
        num_sent = (world_size - 1 if rank == 0 else 1) * num_elements
        return num_sent * element_bytes
    length, num_longer = divmod(num_elements, world_size)
    lengths = [length + (chunk < num_longer) for chunk in range(world_size)]
    stays_first, stays_then = lengths[rank], lengths[(rank + 1) % world_size]
    return (2 * num_elements - stays_first - stays_then) * element_bytes
    # end of solution


# %% tags=["check"]
check.predict_bytes()

# %% [markdown] tags=["task"]
# What you foretold for 10 numbers of 4 bytes, and what was counted. The hub and the ring send
# equally many bytes together. Look at the busiest rank.

# %% tags=["picture"]
check.predict_bytes.picture()

# %% tags=["teardown"]
ranks.stop()
