# %% [markdown] tags=["title"]
# # How do strangers become a group?
#
# 25 minutes, 4 ranks. It builds on [00_ranks](00_ranks.ipynb): ranks that answer a cell.

# %% [markdown] tags=["goal"]
# When you are through, you can
#
# - **join** ranks to a group by hand, and tell which piece is missing when it fails;
# - **split** a group into subgroups without putting its ranks out of step;
# - **name** the rank that never came.

# %% tags=["setup", "nbval-ignore-output"]
import tempfile
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.pictures import holdings_picture

ranks = start_ranks(4)
folder = tempfile.TemporaryDirectory()

# %% [markdown] tags=["question"]
# ## What can strangers share before they are a group?

# %% [markdown] tags=["predict"]
# Ranks share no memory. Rank 0 opens a dictionary. Then every rank runs one cell: it
# writes a letter, adds 1 to a counter, and asks for the letter of the next rank. What
# will the counter show at the end?

# %% tags=["predict"]
predict("counter_of_the_store", ...)

# %% tags=["run"]
# %%px
import os
from datetime import timedelta
import torch
import torch.distributed as dist
from ddp_lessons.process_group import join_group, leave_group, split_by_name

rank, world_size = dist.get_rank(), dist.get_world_size()
limit, turns = timedelta(seconds=30), []
if rank == 0:  # port 0: the system chooses one that is free
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = store.port

# %% tags=["run"]
ranks.view["port"] = ranks[0]["port"]  # somebody must tell the others where it is
ranks.view["folder"] = folder.name  # for later

# %% tags=["run"]
# %%px
if rank != 0:
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
letter = "abcd"[rank]
if not store.check([f"letter of {rank}"]):  # so that no rank counts twice
    num_come = store.add("num_come", 1)
store.set(f"letter of {rank}", letter)
neighbour = store.get(f"letter of {(rank + 1) % world_size}").decode()
letters = {"wrote": letter, "read": neighbour}

# %% tags=["picture"]
num_come = max(ranks.view["num_come"])
print(f"the counter shows {num_come}")
holdings_picture(["wrote", "read"], ranks.view["letters"])

# %% [markdown] tags=["read"]
# It shows 4, and each rank read what another wrote. That is a **store**: a dictionary that all ranks
# share. `get` waits until the key is there, so nobody has to come first.
#
# It is in rank 0's memory; the others reach it over the network. Somebody must tell them its port,
# here our kernel. They needed no password, and
# [security.md](../docs/security.md) says who else needs none.

# %% tags=["check"]
assert ranks.view["neighbour"] == list("bcda")
assert num_come == 4
ok("4 ranks wrote into one dictionary, and read from it", counter_of_the_store=num_come)

# %% [markdown] tags=["question"]
# ## What does a rank need to join a group?

# %% [markdown] tags=["predict"]
# Our ranks are in a group. Now they leave it, and join one by hand. A guide says that
# `init_process_group(backend="nccl")` sets communication up. By default that call asks environment
# variables for all that a rank needs to find the others. Each holds one piece. If none
# is set, how many pieces are missing?

# %% tags=["predict"]
predict("pieces_missing", ...)

# %% tags=["run"]
# %%px
leave_group()
os.environ.pop("RANK", None)  # start_ranks had set it
try:
    dist.init_process_group(backend="nccl", timeout=limit)
except ValueError as error:
    print(str(error).partition("rendezvous: ")[2])

# %% tags=["run"]
# %%px
# It stops at the first. So we take all away, and give it one more after each error.
pieces = {"RANK": rank, "WORLD_SIZE": world_size}
pieces |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
for name in pieces:
    os.environ.pop(name, None)
wanted = []
for name, value in pieces.items():
    try:
        dist.init_process_group(backend="nccl", timeout=limit)
    except ValueError as error:
        wanted += [piece for piece in pieces if piece in str(error)]
    os.environ[name] = str(value)
if rank == 0:
    print(f"{len(wanted)} pieces were missing: {', '.join(wanted)}")

# %% [markdown] tags=["read"]
# 4: who a rank is, of how many, and the store's address and port. All are set now. So the ranks can
# join, by Gloo, which works on every machine, and in three ways. `env` reads the variables. `file`
# makes a **file store**, for ranks that see the same disk. `tcp` takes the store that we have
# opened.

# %% tags=["run"]
# %%px
me = {"rank": rank, "world_size": world_size}
totals = globals().get("totals", {})
ways = {"env": {}, "file": {"init_method": f"file://{folder}/store", **me}}
# With keys of its own, "by hand/...", as those of "env" are in there too.
ways["tcp"] = {"store": dist.PrefixStore("by hand", store), **me}
# The store is open. torch must be told, or rank 0 opens it again for "env".
os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
for way in [way for way in ways if way not in totals]:  # a used store holds old notes
    dist.init_process_group("gloo", **ways[way])
    total = torch.tensor([10**rank])
    dist.all_reduce(total)  # every rank gets the sum over all ranks
    totals[way] = total.item()
    leave_group()
del os.environ["TORCHELASTIC_USE_AGENT_STORE"]

# %% tags=["picture"]
holdings_picture(["env", "file", "tcp"], ranks.view["totals"])

# %% [markdown] tags=["read"]
# Each digit of 1111 came from another rank, so all four met, three times. So the guide's sentence,
# [claim C02](claims.md), is **half true**. The call does set communication up, once it has a rank, a
# world size and a store.

# %% tags=["check"]
wanted = ranks.view["wanted"]
assert wanted == [["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]] * 4
assert ranks.view["totals"] == [dict.fromkeys(["env", "file", "tcp"], 1111)] * 4
ok("C02 is half true, the call needs more than a name", pieces_missing=len(wanted[0]))

# %% [markdown] tags=["question"]
# ## Who must know of a subgroup?

# %% [markdown] tags=["predict"]
# The ranks join again, with this package's `join_group`: a rank, a world size and a file. Then they
# make two **subgroups**, groups within the group: ranks 0 and 1, and ranks 2 and 3. Each rank
# brings `10**rank`, and adds up in its own subgroup. Which sum does rank 3 get?

# %% tags=["predict"]
predict("sum_of_rank_three", ...)


# %% tags=["run"]
# %%px
def join_anew(**how):  # a file of its own each time: a used one holds old notes
    leave_group()
    turns.append(len(turns))
    join_group(f"{folder}/{port}-{len(turns)}", rank, world_size, **how)


join_anew()
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]  # all ranks call it twice
mine = torch.tensor([10**rank])
dist.all_reduce(mine, group=pairs[rank // 2])
after = mine.item()
print(f"the sum of my subgroup is {after}")

# %% [markdown] tags=["read"]
# Rank 3 got 1100: its own 1000, and 100 from rank 2. All four called `new_group` twice, though each
# is in only one of the two.
#
# Now ranks 2 and 3 skip the group that they are not in. torch numbers groups. Do all count alike?

# %% tags=["break"]
# %%px
pairs = None  # they go with the group
join_anew()
if rank < 2:
    dist.new_group([0, 1])
dist.barrier()  # all wait here until the pair is made
number = int(dist.new_group([rank]).group_name)
print(f"my own group is number {number}")

# %% [markdown] tags=["read"]
# Ranks 0 and 1 counted one group more: theirs is number 2, the others' is number 1. Ranks look for one
# another in the store under that number. So they must count alike.
#
# Every rank calls `new_group` for every group, in the same order. (With
# `use_local_synchronization=True` only members call it, but still in one order.)

# %% tags=["mend"]
# %%px
join_anew()
part = split_by_name(
    {"low": [0, 1], "high": [2, 3]}
).group_desc  # calls new_group twice
number_mended = int(dist.new_group([rank]).group_name)
print(f"I am in {part}, my own group is number {number_mended}")

# %% tags=["check"]
after = ranks.view["after"]
assert after == [11, 11, 1100, 1100]
assert ranks.view["number"] == [2, 2, 1, 1]
assert len(set(ranks.view["number_mended"])) == 1
ok("all ranks must count the same groups", sum_of_rank_three=after[3])

# %% [markdown] tags=["question"]
# ## Who is it that never came?

# %% [markdown] tags=["predict"]
# Rank 2 does not come. The other three leave a note in a store, and try to join. They give torch one
# second in place of its 30 minutes. How many of their three errors will name rank 2?

# %% tags=["predict"]
predict("errors_that_name_it", ...)

# %% tags=["break", "raises-exception"]
# %%px
leave_group()
num_named, meeting = 0, f"file://{folder}/incomplete"
if rank != 2:
    roll = dist.FileStore(f"{folder}/roll", world_size)
    roll.set(f"here/{rank}", "yes")  # the note
    try:
        dist.init_process_group("gloo", meeting, timedelta(seconds=1), world_size, rank)
    except RuntimeError as error:
        num_named = str(error).count("rank 2")
        print(f"how often my error names rank 2: {num_named}")
        raise

# %% [markdown] tags=["read"]
# 0. The line names ranks 0, 1 and 3, the ones that came, and all they know is that time is over.
#
# But each left a note. So the others can look whose note is not there. Nobody needs an answer from the
# rank that is missing.

# %% tags=["run"]
# %%px
missing = []
if rank != 2:  # one look; in the exercise, you look until a deadline
    missing = [r for r in range(world_size) if not roll.check([f"here/{r}"])]
print(f"missing: {missing}" if rank != 2 else "I was away")

# %% [markdown] tags=["read"]
# Ranks 0, 1 and 3 know, each by itself, that rank 2 is missing. `join_group` looks so before it joins,
# if you give it a deadline.

# %% tags=["break", "raises-exception"]
# %%px
leave_group()
if rank != 2:
    join_group(f"{folder}/deadline", rank, world_size, deadline_s=3)

# %% tags=["mend"]
# %%px
join_anew(deadline_s=3)
present = dist.get_world_size()
print(f"{present} of {world_size} ranks came")

# %% tags=["check"]
assert ranks.view["missing"] == [[2], [2], [], [2]]
assert ranks.view["present"] == [4] * 4
num_named = sum(map(bool, ranks.view["num_named"]))
assert num_named == 0
ok("a note in a store tells who is missing", errors_that_name_it=num_named)

# %% [markdown] tags=["question"]
# ## More: which backends can you choose?

# %% [markdown] tags=["predict"]
# A **backend** carries the messages of a group. A guide says: choose among NCCL, Gloo and MPI. But a
# backend is there only if torch was built with it. On how many of our four ranks does a
# group by MPI come about?

# %% tags=["predict"]
predict("ranks_with_mpi", ...)

# %% tags=["run"]
# %%px
import warnings

leave_group()
warnings.simplefilter("ignore")  # torch warns before it refuses
made = {}
for name in ("nccl", "gloo", "mpi"):
    try:  # a group of this rank alone: a world of 1, and a store that nobody shares
        dist.init_process_group(name, store=dist.HashStore(), rank=0, world_size=1)
        leave_group()
        made[name] = True
    except (RuntimeError, ValueError):
        made[name] = False
print(f"groups by gloo: {int(made['gloo'])}, by mpi: {int(made['mpi'])}")

# %% tags=["run", "nbval-ignore-output"]
# %%px --targets 0
from ddp_lessons.process_group import backends_table

print(backends_table())

# %% [markdown] tags=["read"]
# By MPI on 0 ranks, by Gloo on all 4. The table says why, and what each of the others
# needs. The torch that pip installs is built without MPI, says its documentation.
#
# So [claim C03](claims.md) is **half true**. The three names exist, and you choose among those
# that your torch was built with. Print them; do not assume them.

# %% tags=["check"]
made = ranks.view["made"]
with_mpi = sum(own["mpi"] for own in made)
assert with_mpi == 0
assert all(own["gloo"] for own in made)
ok("C03 is half true, you choose among what is there", ranks_with_mpi=with_mpi)

# %% [markdown] tags=["recap"]
# You have joined ranks by hand over the environment, a file and TCP, split them into subgroups,
# and named the one that never came.
#
# Rule of thumb: **a rank, a world size and a store make a group; what makes groups is called by
# every rank, in the same order.**

# %% [markdown] tags=["next"]
# - **Exercise** [01](../exercises/01_process_group.ipynb): join a group, make subgroups, name the
#   missing ranks. After the exercise: how `join_group` does it, in
#   [missing.py](../ddp_lessons/process_group/missing.py).
# - **Next lesson** [02](02_collectives.ipynb): what moves when ranks talk?
# - **Sources**: PyTorch's documentation,
#   [torch.distributed](https://docs.pytorch.org/docs/stable/distributed.html), sections
#   "Initialization", "Distributed Key-Value Store" and "Groups"; S. Li and others,
#   [PyTorch Distributed](https://arxiv.org/abs/2006.15704), VLDB 2020, section 3.3, on process
#   groups and their backends.

# %% tags=["teardown"]
ranks.stop()
folder.cleanup()
