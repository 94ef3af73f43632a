# %% [markdown] tags=["title"]
# # Exercise 10: find out why nothing happens
#
# 50 minutes, after lesson `10_hangs`.
# Stuck? `hint("10.1")` gives the next hint.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import hangs as check
from ddp_lessons.checks import hint

ranks = start_ranks(4)

# %% [markdown] tags=["task"]
# ## 10.1 From four stack dumps, name the culprit
#
# A job of 3 or 4 ranks hangs, and faulthandler has written a stack for each rank. `dumps[r]` is the
# text for rank r, innermost line first, as in
#
#     Stack (most recent call first):
#       File "/usr/lib/python3.12/threading.py", line 359 in wait
#       File "/home/me/job.py", line 14 in load
#       File "/home/me/job.py", line 40 in main
#
# `script` is the file's name, `"job.py"`; lines of other files are libraries'. All ranks but one are at
# the same lines of the script, though perhaps not of the libraries. The one is the culprit: it is stuck
# in its own code, or went another way. Return its rank, and the line at which it left the others' way:
# the innermost line of the script that is in no other rank's dump. The same line number in another
# file is another line.
#
# The stacks were recorded from real jobs. The check draws other jobs each time, with another culprit
# and another line.

# %% tags=["answer"]
# %%px
import re


def culprit(dumps, script):
    """
    Return (rank, line): who is not where the others are, and the line of the script.
    """
    # for each rank: the lines of the script in its dump, innermost first
    # the rank whose lines are unlike those of the others
    # the first of its lines that no other rank has
    # solution
    pattern = re.compile(rf'File "(?:.*/)?{re.escape(script)}", line (\d+)')
    ways = [[int(line) for line in pattern.findall(dump)] for dump in dumps]
    rank = next(rank for rank, way in enumerate(ways) if ways.count(way) == 1)
    others = {line for other, way in enumerate(ways) if other != rank for line in way}
    return rank, next(line for line in ways[rank] if line not in others)
    # end of solution


# %% tags=["check"]
check.culprit()

# %% [markdown] tags=["task"]
# Here is where each rank was in the first of these jobs, and what you named.

# %% tags=["picture"]
check.culprit.picture()

# %% [markdown] tags=["task"]
# ## 10.2 A timeout that names who is missing
#
# Add up `tensor` over all ranks, in place, by one all-reduce, but only if all ranks come. Ranks call
# your function at different moments, and some not at all. `store` is a store that all share, a
# `FileStore`: its `wait` may take a second longer than it is told. `number` is the number of the call,
# 1, 2 and so on, as keys stay in the store.
#
# Return an empty list if all have come: then `tensor` holds the sum. Otherwise, `limit_s` seconds after
# its own call, a rank returns the ranks that have not come, in rising order, and `tensor` stays as it
# is. No rank may wait for longer, and none without need. `limit_s` may be another on each rank.
#
# All ranks of one call must get the same list. Whose time is over first decides for all, and at once:
# a rank that comes later finds that it was given up, and is on the list itself. Do not touch the group
# before you know that all will.

# %% tags=["answer"]
# %%px
import json
import time
import torch.distributed as dist


def sum_or_missing(tensor, store, number, limit_s):
    """
    Add up over all ranks and return [], or return the ranks that did not come.
    """
    # note in the store that this rank has come to this call
    # again and again: who has not come, is the time over, has somebody decided
    # decide once: store.compare_set(key, "", text) sets a key that is not there yet,
    #     and returns what it holds, whoever was first
    # solution
    give_up_at = time.monotonic() + limit_s
    rank, world_size = dist.get_rank(), dist.get_world_size()
    store.set(f"{number}/{rank}", "here")
    absent, verdict = list(range(world_size)), f"{number}/verdict"
    while absent and time.monotonic() < give_up_at and not store.check([verdict]):
        absent = [r for r in absent if not store.check([f"{number}/{r}"])]
        time.sleep(0.005 if absent else 0)
    missing = json.loads(store.compare_set(verdict, "", json.dumps(absent)))
    if not missing:
        dist.all_reduce(tensor)
    return missing
    # end of solution


# %% tags=["check"]
check.sum_or_missing()

# %% [markdown] tags=["task"]
# This is what your ranks returned in the first case: rank 2 came when ranks 0 and 1 had given it up.

# %% tags=["picture"]
check.sum_or_missing.picture()

# %% [markdown] tags=["task"]
# ## 10.3 Compare what ranks have called before they wait
#
# Each rank is about to make a collective call, and first tells the others which. `name` is the call's
# name, `tensor` its tensor or None, `root` its root or None. Two calls are alike if they have the same
# name, number of elements, dtype and root. A shape (6,) and a shape (2, 3) are alike.
#
# Return the ranks whose call is not the one that most ranks are about to make, in rising order, the same
# list on every rank. In a draw, the call of the lowest rank among those that are equally frequent
# counts. `store` and `number` are as in 10.2, and ranks come at different moments, but all come: wait
# for them, without a limit of your own.
#
# Make no collective call: it might be the one that hangs. The price: a rank writes at most 200 bytes
# into the store for each call, however large its tensor.

# %% tags=["answer"]
# %%px
import torch.distributed as dist


def odd_calls(name, tensor, root, store, number):
    """
    Return the ranks whose call is not that of most.
    """
    # a fingerprint of this rank's call, as text
    # leave it in the store, and get those of all ranks
    # the one that most have; in a draw that of the lowest rank
    # solution
    parts = (tensor.numel(), tensor.dtype) if tensor is not None else None
    store.set(f"{number}/{dist.get_rank()}", repr((name, parts, root)))
    keys = [f"{number}/{rank}" for rank in range(dist.get_world_size())]
    calls = [store.get(key) for key in keys]
    usual = max(calls, key=calls.count)  # of equals, max takes the first
    return [rank for rank, call in enumerate(calls) if call != usual]
    # end of solution


# %% tags=["check"]
check.odd_calls()

# %% [markdown] tags=["task"]
# This is what each rank was about to call in the first case, and what you returned.

# %% tags=["picture"]
check.odd_calls.picture()

# %% [markdown] tags=["task"]
# ## 10.4 Mend four scripts that hang
#
# Each of these four was seen to hang on a cluster. What they are meant to do stands above each. Tensors
# hold whole numbers. World sizes are 1 to 4; arguments may be changed.
#
# In each script, delete the line that raises and mend what follows. One check tries all four, and tells
# which of them still hangs, or no longer does what it was meant to.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist
from ddp_lessons.process_group import rank_device


# Returns on rank 0 the sums of each loss over all ranks, as a list of numbers. `losses`
# is a list of tensors (1,), equally many on each rank. Others may return anything.
def script_1(losses):
    # solution
    # | logged = []
    # | for loss in losses:
    # |     if dist.get_rank() == 0:
    # |         dist.reduce(loss, dst=0)
    # |         logged.append(loss.item())
    # | return logged
    logged = []
    for loss in losses:
        dist.reduce(loss, dst=0)
        logged.append(loss.item())
    return logged
    # end of solution


# Returns on every rank the sum of all batches of all ranks, (3,). `batches` is a list
# of tensors (3,): a rank may have more of them than another, or none.
def script_2(batches):
    # solution
    # | total = torch.zeros(3, device=rank_device())
    # | for batch in batches:
    # |     dist.all_reduce(batch)
    # |     total += batch
    # | return total
    total = torch.zeros(3, device=rank_device())
    for batch in batches:
        total += batch
    dist.all_reduce(total)
    return total
    # end of solution


# Trains until the sum of all ranks' losses is at most `limit`. Returns on every rank
# the number of steps made. `losses[i]` (1,) is this rank's loss after step i + 1; the
# last sum is small enough. Each step adds `weights` (4,) up over all ranks, once.
def script_3(weights, losses, limit):
    # solution
    # | num_steps = 0
    # | for loss in losses:
    # |     dist.all_reduce(weights)
    # |     num_steps += 1
    # |     if loss.item() <= limit / dist.get_world_size():
    # |         break
    # | return num_steps
    num_steps = 0
    for loss in losses:
        dist.all_reduce(weights)
        num_steps += 1
        dist.all_reduce(loss)
        if loss.item() <= limit:
            break
    return num_steps
    # end of solution


# Returns on every rank a list of all ranks' parts, in rank order. `part` (2,) is this
# rank's own.
def script_4(part):
    # solution
    # | rank, world_size = dist.get_rank(), dist.get_world_size()
    # | parts = [torch.zeros_like(part) for _ in range(world_size)]
    # | parts[rank] = part
    # | for turn in range(world_size):
    # |     owner = (rank + turn) % world_size  # begin with my own
    # |     dist.broadcast(parts[owner], src=owner)
    # | return parts
    parts = [torch.zeros_like(part) for _ in range(dist.get_world_size())]
    parts[dist.get_rank()] = part
    for owner, tensor in enumerate(parts):
        dist.broadcast(tensor, src=owner)
    return parts
    # end of solution


def hanging_scripts():
    """
    Return the four, for the check.
    """
    return script_1, script_2, script_3, script_4


# %% tags=["check"]
check.hanging_scripts()

# %% [markdown] tags=["task"]
# This is what script 1 does since you mended it.

# %% tags=["picture"]
check.hanging_scripts.picture()

# %% tags=["teardown"]
ranks.stop()
