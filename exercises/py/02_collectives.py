# %% [markdown] tags=["title"]
# # Exercise 02: move numbers between ranks
#
# 40 minutes, after lesson [02_collectives](../notebooks/02_collectives.ipynb).
# Stuck? `hint("02.1")` gives the next hint.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import collectives as check
from ddp_lessons.checks import hint

ranks = start_ranks(4)

# %% [markdown] tags=["task"]
# ## 02.1 All-reduce from reduce and broadcast
#
# Every rank gives a tensor of the same shape and dtype, and gets the sum of all: a new tensor, and
# the argument stays as it was. Use `dist.reduce` and `dist.broadcast`, and no other collective: 2
# collectives for each rank.

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

# %% tags=["teardown"]
ranks.stop()
