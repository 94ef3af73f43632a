# %% [markdown] tags=["title"]
# # Exercise 01: join, split, and name who is missing
#
# 30 minutes, after lesson `01_process_group`.
# Stuck? `hint("01.1")` gives the next hint.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import hint
from ddp_lessons.checks import process_group as check

ranks = start_ranks(4)

# %% [markdown] tags=["task"]
# ## 01.1 Join a group
#
# The check lets the ranks leave their group. Then it calls your function on each of them, with the
# path of a file that does not exist yet, the rank, and the number of all ranks. Join them to a
# group through that file; its backend may be `gloo`, which works on every machine. The function need
# not return anything.

# %% tags=["answer"]
# %%px
import torch.distributed as dist


def join(path, rank, world_size):
    """
    Join the default group through the file at `path`.
    """
    # solution
    store = dist.FileStore(path, world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    # end of solution


# %% tags=["check"]
check.join()

# %% tags=["picture"]
check.join.picture()

# %% [markdown] tags=["task"]
# ## 01.2 Even and odd subgroups
#
# The ranks are in a group again, of 2 or more. Make one subgroup of the even ranks (0, 2, 4 and so
# on) and one of the odd ranks, each once. Return the one that this rank is in. Every rank calls your
# function. torch numbers groups by counting calls of `new_group`: afterwards every rank must have
# counted the same, and the two groups must have two numbers.

# %% tags=["answer"]
# %%px
import torch.distributed as dist


def even_and_odd():
    """
    Return the group of even ranks on an even rank, that of odd ranks on an odd one.
    """
    # solution
    rank, world_size = dist.get_rank(), dist.get_world_size()
    even = dist.new_group(list(range(0, world_size, 2)))
    odd = dist.new_group(list(range(1, world_size, 2)))
    return odd if rank % 2 else even
    # end of solution


# %% tags=["check"]
check.even_and_odd()

# %% tags=["picture"]
check.even_and_odd.picture()

# %% [markdown] tags=["task"]
# ## 01.3 Name the missing ranks
#
# Ranks that are in no group share a store. Some never call your function, and some call it late.
# Return the ranks that have not come within `deadline_s` seconds of this rank's own call, as a list
# in rising order. As soon as all have come, return an empty list: do not wait until the deadline. A
# deadline of 0 leaves time for one look.
#
#     note in the store that this rank is here
#     again and again: look which ranks have left no note
#     return those without one, as soon as there are none or the deadline is over

# %% tags=["answer"]
# %%px
import time


def missing(store, rank, world_size, deadline_s):
    """
    Return the ranks below world_size that did not come within deadline_s seconds.
    """
    # solution
    give_up_at = time.monotonic() + deadline_s
    store.set(f"here/{rank}", "yes")
    while True:
        absent = [r for r in range(world_size) if not store.check([f"here/{r}"])]
        if not absent or time.monotonic() >= give_up_at:
            return absent
        time.sleep(0.01)
    # end of solution


# %% tags=["check"]
check.missing()

# %% tags=["picture"]
check.missing.picture()

# %% tags=["teardown"]
ranks.stop()
