# %% [markdown] tags=["title"]
# # Exercise 03: make a ring, and say what it costs
#
# 110 minutes, after lesson `03_ring`.
# Stuck? `hint("03.1")` gives the next hint.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import hint
from ddp_lessons.checks import ring as check

ranks = start_ranks(4)

# %% [markdown] tags=["task"]
# ## 03.1 Ring reduce-scatter, the other way round
#
# In the lesson's ring, every rank sends to its right neighbour. This ring turns the other way: **rank r sends to
# rank r - 1 only, and receives from rank r + 1 only** (modulo the world size w). Now each chunk starts at another rank
# than in the lesson.
#
# Each rank has its own numbers for w chunks, one chunk for each rank. Return, on rank r, the sum of chunk r over all
# ranks: a new tensor with the dtype of the chunks. The list and its chunks must stay as they were (so
# add out of place). Chunk c has the same length on all ranks, but chunks may differ in length, and some
# may be empty. Each chunk is contiguous. If there is one rank only, return a copy of its chunk.
#
# Use `send`, `recv`, `isend`, `irecv` or `batch_isend_irecv`. A rank may send at most w - 1 messages. Each
# message carries one chunk, in its own length and dtype, and rank r never sends chunk r. In every step all
# ranks send, as in the lesson's `exchange`, or they take turns in two rounds: no rank waits for a chain of
# other ranks.

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
    #     send passing to the left, and at the same time receive from the right
    #     passing = the chunk that arrived, plus my numbers of that chunk
    # solution
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    passing = chunks[right].clone()
    for step in range(world_size - 1):
        own = chunks[(rank + 2 + step) % world_size]
        arrived = torch.empty_like(own)
        handle = dist.irecv(arrived, src=right)
        dist.send(passing, dst=left)
        handle.wait()
        passing = arrived + own
    return passing
    # end of solution


# %% tags=["check"]
check.reduce_scatter()

# %% [markdown] tags=["task"]
# The picture shows the ranks as rows and the chunks as columns, at the start and after each step. The small numbers in
# a chunk name the ranks whose numbers are in it, and a thick border marks a chunk that has just come in. If your
# ring is not right yet, the picture shows the calls of the ranks in their order instead.

# %% tags=["picture"]
check.reduce_scatter.picture()

# %% [markdown] tags=["task"]
# ## 03.2 Ring all-gather, the other way round
#
# Now rank r has chunk r only, and every rank shall get all chunks. Return a list or a tuple of w
# tensors, with chunk c at place c. `lengths` says how many numbers each chunk has, and is the same on all
# ranks. Return new tensors, or parts of one new tensor: none of them may share memory with the argument
# `chunk`. `chunk` and `lengths` must stay as they were.
#
# The rules are those of 03.1: rank r sends to rank r - 1 only, at most w - 1 messages. Each message carries
# one chunk, in its own length and dtype. In every step all ranks send.

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
        handle = dist.irecv(parts[(rank + step + 1) % world_size], src=right)
        dist.send(parts[(rank + step) % world_size], dst=left)
        handle.wait()
    return parts
    # end of solution


# %% tags=["check"]
check.all_gather()

# %% tags=["picture"]
check.all_gather.picture()

# %% [markdown] tags=["task"]
# ## 03.3 Ring all-reduce for any tensor
#
# Put both halves together. Return the sum of the tensors of all ranks, on every rank: a new tensor of the
# same shape and dtype. The argument must stay as it was. It may have any shape, any dtype and any number
# of elements: fewer than there are ranks, or none. It may also be not contiguous, for example
# transposed or expanded.
#
# The rules for n numbers: each rank sends to one neighbour only (either one), at most 2 (w - 1) messages. Each
# message carries at most n / w numbers, rounded up. In every step all ranks send, and all ranks get
# the same bits. It must not deadlock, no matter how large the tensor is.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


def all_reduce(tensor):
    """
    Return the sum of all ranks' tensors, on every rank: a tensor like the one given.
    """
    # cut into chunks, reduce_scatter, all_gather, put together
    # solution
    chunks = tensor.flatten().tensor_split(dist.get_world_size())
    done = reduce_scatter(chunks)
    parts = all_gather(done, [len(chunk) for chunk in chunks])
    return torch.cat(parts).view(tensor.shape)
    # end of solution


# %% tags=["check"]
check.all_reduce()

# %% [markdown] tags=["task"]
# The picture follows the chunks through both halves of a ring that turns as yours does. It supposes that rank r
# completes chunk r.

# %% tags=["picture"]
check.all_reduce.picture()

# %% [markdown] tags=["task"]
# ## 03.4 Fit latency and bandwidth
#
# The lesson's first section "More" fitted one clean time for each size. Here some measurements were disturbed. `times` is a dictionary: for each size in
# bytes, it has the seconds of five tries to send a message of that size. A try that was not interrupted is off by 1 % at
# most. Some tries were interrupted, and took several times as long, but never most tries of a size. The
# sizes may stand in any order. Leave the dictionary and its lists as they are.
#
# Return the link's latency in seconds and its bandwidth in bytes a second. Then latency + bytes / bandwidth must
# predict the true time of every size in `times`, small and large, within 2 sqrt(m) %, for m sizes: 7 % for
# 13 sizes, 4 % for 5.

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
# Each rank had the times of another link. The table shows your latency and bandwidth, and for four sizes the
# time that they predict, beside the shortest time that the rank was given. "us" are microseconds.

# %% tags=["picture"]
check.fit_link.picture()

# %% [markdown] tags=["task"]
# ## 03.5 Predict bytes
#
# How many bytes does a rank send in an all-reduce? Compute it before it runs, to the byte. `way` is
# `"hub"` or `"ring"`. In the hub, rank 0 receives all tensors whole, adds, and sends the sum to
# each of the others. The ring is that of the lesson: ranks send to the right, chunk r is complete first
# on rank r, and the chunks are those of `tensor_split`. If w does not divide the length, the first
# chunks are one number longer than the others.
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
# The table shows what you predicted for 10 numbers of 4 bytes, and what was counted. In all, the hub and the ring
# send equally many bytes. Look at the busiest rank.

# %% tags=["picture"]
check.predict_bytes.picture()

# %% tags=["teardown"]
ranks.stop()
