# %% [markdown] tags=["title"]
# # Exercise 01: join a group, make subgroups, name the missing ranks
#
# 45 minutes, after lesson `01_process_group`.
# Stuck? `hint("01.1")` gives the next hint.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import hint
from ddp_lessons.checks import process_group as check

ranks = start_ranks(4)

# %% [markdown] tags=["task"]
# ## 01.1 Join a group
#
# The check takes the ranks out of their group. Then it calls your function on each rank, with the path
# of a file that does not exist yet, with the rank's number, and with the world size. The function joins
# the ranks to a group, and uses this file as the store. Take the backend `gloo`, which works on
# every machine. The function returns nothing.

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
# The ranks are in a group again, of any size from 2 on. Every rank calls your function. It creates one
# subgroup of all even ranks (0, 2, 4 and so on) and one of all odd ranks, and returns the subgroup that
# this rank is in. Each rank counts its calls of `new_group`, as the lesson says. After your function
# every rank must have made equally many calls, and the two subgroups must not share a number.

# %% tags=["answer"]
# %%px
import torch.distributed as dist


def even_and_odd():
    """
    Create the subgroups of even and odd ranks. Return the one with this rank.
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
# The ranks are in no group, and share a store, all of whose methods you may use. Each rank that arrives
# calls your function. Some ranks never call it, and some call it late. The function returns the ranks
# that have not arrived within `deadline_s` seconds after this rank's own call, as a list in rising
# order. As soon as all ranks have arrived, it returns an empty list, and does not wait for the deadline.
# With a deadline of 0 it looks once.
#
# The lesson looked once, and had made sure that all keys were set. Here you must look again and again:
#
#     set a key that says that this rank has arrived
#     repeat: find the ranks whose key does not exist
#     return them as soon as there are none, or the deadline is over

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
