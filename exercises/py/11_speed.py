# %% [markdown] tags=["title"]
# # Exercise 11: find where the time goes
#
# 60 minutes, after lesson `11_speed`.
# Stuck? `hint("11.1")` gives the next hint.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import hint
from ddp_lessons.checks import speed as check

ranks = start_ranks(4)

# %% [markdown] tags=["task"]
# ## 11.1 Split a step
#
# `tracks` has for each rank, in rank order, its spans of one step: tuples
# `(kind, start_s, end_s)`, in no order, all on one clock. A kind is `"compute"` or
# `"communication"`. Spans of compute may lie inside of one another. A span of communication is an
# all-reduce, from its call to its end; sorted by start, the k-th of a rank meets the k-th of every
# other.
#
# Return a list with a row for each rank: seconds of compute, communication, waiting, hidden.
#
# - **compute**: it computes.
# - **communication**: it does not compute, and an all-reduce of its own is under way that all ranks
#   have called.
# - **waiting**: it does not compute, and all-reduces of its own are under way, none of which all have
#   called.
# - **hidden**: it computes while an all-reduce of its own is under way, called by all or not.
#
# A moment counts once in a part, to the microsecond; what is hidden counts as compute, too. The
# tracks come of a step that your ranks make in the check, and one of them is late. Write it without
# `split_steps`, which would pass.

# %% tags=["answer"]
# %%px
from itertools import pairwise


def split_step(tracks):
    """
    Return for each rank (compute, communication, waiting, hidden), in seconds.
    """
    # solution
    def starts(track):
        return sorted(span[1:] for span in track if span[0] == "communication")

    calls = [starts(track) for track in tracks]
    last = [max(call[0] for call in met) for met in zip(*calls, strict=True)]
    cuts = sorted({at for track in tracks for span in track for at in span[1:]})
    rows = []
    for track, own in zip(tracks, calls, strict=True):
        row = [0.0, 0.0, 0.0, 0.0]
        for a, b in pairwise(cuts):
            computes = any(k == "compute" and s <= a < e for k, s, e in track)
            under_way = [k for k, (s, e) in enumerate(own) if s <= a < e]
            if computes:
                row[0] += b - a
                row[3] += (b - a) * bool(under_way)
            elif any(last[k] <= a for k in under_way):
                row[1] += b - a
            elif under_way:
                row[2] += b - a
        rows.append(row)
    return rows
    # end of solution


# %% tags=["check"]
check.split_step()

# %% [markdown] tags=["task"]
# The step that was split. Hatched is an all-reduce, from its call on.

# %% tags=["picture"]
check.split_step.picture()

# %% [markdown] tags=["task"]
# ## 11.2 Find the straggler
#
# Each rank calls your function with its own `steps`: a tuple `(start_s, call_s, end_s)` for each.
# From start to call the rank computes, then it calls an all-reduce, and at the end the step is over.
# Every rank has a clock of its own.
#
# A rank's time is the median of what it computed, over all steps but the first; of an even number
# of steps, it is the mean of the two in the middle. Return the rank whose time is more than 1.25
# times that of every other, or None if there is no such rank. All ranks return the same. One rank
# alone is no straggler.
#
# The price: 1 collective, with at most 8 bytes for each rank.

# %% tags=["answer"]
# %%px
from statistics import median

import torch
import torch.distributed as dist
from ddp_lessons.process_group import rank_device


def find_straggler(steps):
    """
    Return the rank that holds the others back, or None, the same on every rank.
    """
    # solution
    own = median(call_s - start_s for start_s, call_s, _ in steps[1:])
    world_size, rank = dist.get_world_size(), dist.get_rank()
    times = torch.zeros(world_size, dtype=torch.float64, device=rank_device())
    times[rank] = own  # a place for each rank: the sum has them all
    dist.all_reduce(times)
    *others, longest = sorted(times.tolist())
    if others and longest > 1.25 * others[-1]:
        return times.tolist().index(longest)
    return None
    # end of solution


# %% tags=["check"]
check.find_straggler()

# %% [markdown] tags=["task"]
# What your ranks noted in the first case: compute, and then the rest of the step.

# %% tags=["picture"]
check.find_straggler.picture()

# %% [markdown] tags=["task"]
# ## 11.3 Predict a step
#
# A rank computes its forward pass for `forward_s` seconds, then backward in parts, `backward_s[k]`
# seconds each, then the optimizer, `optimizer_s`. When part k is through, a bucket of
# `bucket_bytes[k]` bytes is ready. It goes round a ring of all ranks while backward goes on, one
# bucket at a time, in order. The optimizer begins when backward and all buckets are through. A
# message takes a latency, and its bytes over the bandwidth.
#
# Return the seconds of a step on `world_size` ranks, as a float. The times are those of every rank,
# whatever the world size. The check lets your ranks make two such steps, and takes the
# faster one: be within 15&nbsp;% of it. What a busy machine adds is not held against you.
#
# `ddp_lessons.costs` would pass; write the ring's cost and the queue of buckets by hand.

# %% tags=["answer"]
# %%px
def predict_step(
    world_size,
    forward_s,
    backward_s,
    bucket_bytes,
    optimizer_s,
    latency_s,
    bandwidth_bytes_per_s,
):
    """
    Return the seconds of a step.
    """
    # solution
    ready_s = free_s = forward_s
    for part_s, num_bytes in zip(backward_s, bucket_bytes, strict=True):
        ready_s += part_s
        message_s = latency_s + num_bytes / world_size / bandwidth_bytes_per_s
        free_s = max(ready_s, free_s) + 2 * (world_size - 1) * message_s
    return max(ready_s, free_s) + optimizer_s
    # end of solution


# %% tags=["check"]
check.predict_step()

# %% [markdown] tags=["task"]
# A step of the first case, as it was measured.

# %% tags=["picture"]
check.predict_step.picture()

# %% [markdown] tags=["task"]
# ## 11.4 Report a speed-up
#
# `before_s` are the seconds of steps on one rank alone, of `before_samples` samples each; all ranks
# have this list. `own_s` are the seconds of steps that all ranks made together, as *this* rank timed
# them; its share of each step was `own_samples`. Other ranks have other times and shares. A step is
# over when the slowest rank is through. The first `num_warm_up` steps of either run do not count.
#
# Return a dictionary, the same on every rank:
#
# - `"speedup"`: samples a second of all ranks over samples a second of one, by the median of the
#   steps' seconds, as in 11.2;
# - `"efficiency"`: the speed-up over the number of ranks;
# - `"fastest_s"`, `"slowest_s"`: seconds of the fastest and of the slowest step of all ranks.
#
# The price: 2 collectives.

# %% tags=["answer"]
# %%px
from statistics import median

import torch
import torch.distributed as dist
from ddp_lessons.process_group import rank_device


def report_speedup(before_s, before_samples, own_s, own_samples, num_warm_up):
    """
    Return speedup, efficiency, fastest_s and slowest_s, of all ranks together.
    """
    # solution
    device = rank_device()
    times = torch.tensor(own_s, dtype=torch.float64, device=device)
    samples = torch.tensor(own_samples, device=device)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    dist.all_reduce(samples)
    steps_s = times.tolist()[num_warm_up:]
    before = before_samples / median(before_s[num_warm_up:])
    speedup = samples.item() / median(steps_s) / before
    return {
        "speedup": speedup,
        "efficiency": speedup / dist.get_world_size(),
        "fastest_s": min(steps_s),
        "slowest_s": max(steps_s),
    }
    # end of solution


# %% tags=["check"]
check.report_speedup()

# %% [markdown] tags=["task"]
# The steps of your ranks, each until the slowest was through.

# %% tags=["picture"]
check.report_speedup.picture()

# %% tags=["teardown"]
ranks.stop()
