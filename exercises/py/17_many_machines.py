# %% [markdown] tags=["title"]
# # Exercise 17: train on several hosts
#
# 45 minutes, after lesson `17_many_machines`.
# Stuck? `hint("17.1")` gives the next hint.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import hint
from ddp_lessons.checks import many_machines as check

ranks = start_ranks(4)

# %% [markdown] tags=["task"]
# ## 17.1 A hierarchical all-reduce for any hosts
#
# Return the mean of all ranks' tensors: a new tensor, with the same bits on every rank. The lesson's
# way needs hosts with equally many ranks. Yours must do with any: three ranks on one host and one on
# another, ranks in any order, a host with one rank alone, or all on one host.
#
# The groups were made before, and you make none. `local` is the group of the ranks on this rank's
# host. Its lowest rank is the **leader** of the host. `leaders` is the group of all leaders, on a
# leader; on other ranks it is None.
#
# Between hosts a ring of leaders is the measure: with h hosts, all messages that cross from host to
# host together have at most 2 (h - 1) times the bytes of the tensor, and a few more, such as for how
# many ranks a host has. A collective whose group is on several hosts counts as a ring through its
# ranks in order, one with a root as a tree. Within hosts you may send what you like. The tensor, of
# float32 or float64, stays as it is.

# %% tags=["answer"]
# %%px
import torch.distributed as dist


def hierarchical_mean(tensor, local, leaders):
    """
    Return the mean over all ranks; the sum of each host crosses once.
    """
    # solution
    leader = dist.get_process_group_ranks(local)[0]
    mean = tensor.clone()
    dist.reduce(mean, leader, group=local)
    if leaders is not None:
        dist.all_reduce(mean, group=leaders)
        mean /= dist.get_world_size()
    dist.broadcast(mean, leader, group=local)
    return mean
    # end of solution


# %% tags=["check"]
check.hierarchical_mean()

# %% [markdown] tags=["task"]
# What each rank gave, and what it got.

# %% tags=["picture"]
check.hierarchical_mean.picture()

# %% [markdown] tags=["task"]
# ## 17.2 Which remedy for which link
#
# Return the way by which a batch takes fewest seconds, of those in the list `allowed`. Ways are
# "flat", "hierarchical", "half", "top-k", "accumulate" and "local SGD", as in the lesson: top-k sends
# a hundredth of the numbers, each of 4 bytes with a position of 4 bytes, accumulate talks after every
# 4th batch, local SGD after every 8th. Nothing overlaps.
#
# `figures` is a dictionary:
#
# - "num_hosts" and "ranks_per_host", each 2 or more;
# - "num_bytes" of the gradient, and "compute_s" of a batch, in seconds;
# - "pack_s": what half and top-k need besides for each batch, to pack and to unpack;
# - "latency_s" and "bytes_per_s" of the link between hosts, which all ranks of a host share;
# - "local_latency_s" and "local_bytes_per_s" of messages within a host.
#
# A ring through all ranks goes by its slowest link, which is the one between hosts. The hierarchical
# way has a reduce-scatter and an all-gather within each host, and rings of twins between hosts, all
# at the same time. top-k is an all-gather round the flat ring.
#
# A choice counts by what it costs: at most a tenth more than the best. The lesson's functions would
# pass, but leave you nothing to do.

# %% tags=["answer"]
# %%px


def choose_remedy(figures, allowed):
    """
    Return the name of the fastest way that is allowed.
    """
    # solution
    h, g = figures["num_hosts"], figures["ranks_per_host"]
    w, size = h * g, figures["num_bytes"]
    link = figures["latency_s"], figures["bytes_per_s"]
    local = figures["local_latency_s"], figures["local_bytes_per_s"]

    def ring(n, num_bytes, latency_s, bytes_per_s):
        return 2 * (n - 1) * (latency_s + num_bytes / n / bytes_per_s)

    flat = ring(w, size, *link)
    gather = (w - 1) * (link[0] + 0.02 * size / link[1])
    talk_s = {
        "flat": flat,
        "hierarchical": ring(g, size, *local) + ring(h, size, *link),
        "half": figures["pack_s"] + ring(w, size / 2, *link),
        "top-k": figures["pack_s"] + gather,
        "accumulate": flat / 4,
        "local SGD": flat / 8,
    }
    return min(allowed, key=talk_s.get)
    # end of solution


# %% tags=["check"]
check.choose_remedy()

# %% [markdown] tags=["task"]
# What a batch takes by each way that was allowed in the first case, and the one that you chose.

# %% tags=["picture"]
check.choose_remedy.picture()

# %% tags=["teardown"]
ranks.stop()
