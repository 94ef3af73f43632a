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
from ddp_lessons import start_ranks
from ddp_lessons.pictures import collective_picture, holdings_picture

ranks = start_ranks(4)
folder = tempfile.TemporaryDirectory()

# %% [markdown] tags=["question"]
# ## A store is a dictionary that all ranks share.

# %% [markdown] tags=["predict"]
# Rank 0 opens a dictionary that others can reach. Each rank writes a letter into it, adds 1 to a
# counter, and asks for the letter of the next rank. What will the counter show at the end?
#
# *Your number:*

# %% tags=["run"]
# %%px
import os, time, warnings
from datetime import timedelta
import torch
import torch.distributed as dist

rank, world_size = dist.get_rank(), dist.get_world_size()
me, limit = {"rank": rank, "world_size": world_size}, timedelta(seconds=30)
if rank == 0:  # port 0: the system chooses one that is free
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = store.port

# %% tags=["run"]
ranks.view["port"] = ranks[0]["port"]  # somebody must tell the others where it is
ranks.view["folder"] = folder.name

# %% tags=["run"]
# %%px
if rank != 0:
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
letter = "abcd"[rank]
store.set(f"letter of {rank}", letter)
neighbour = store.get(f"letter of {(rank + 1) % world_size}").decode()
num_come = store.add("num_come", 1)
print(f"my neighbour wrote {neighbour}")

# %% tags=["picture"]
wrote_and_read = zip(ranks.view["letter"], ranks.view["neighbour"], strict=True)
rows = [{"wrote": wrote, "read": read} for wrote, read in wrote_and_read]
holdings_picture(["wrote", "read"], rows)

# %% [markdown] tags=["read"]
# Each rank read what another wrote. That is a **store**: a dictionary that all ranks share. `get`
# waits until the key is there: nobody has to come first.
#
# It is in rank 0's memory; the others reach it over the network. They had to be told its port,
# here by our kernel, in a cluster by what starts the ranks. They needed no password. So who
# else can? Rank 0 asks its system, also for a store of ours.

# %% tags=["run"]
# %%px
total_come = store.add("num_come", 0)
print(f"the counter shows {total_come}")
if rank == 0:
    import psutil
    from ddp_lessons.process_group import tcp_store

    ours = tcp_store("127.0.0.1", 0, rank, timeout_s=30)
    sockets = psutil.Process().net_connections()
    doors = {s.laddr.port: s.laddr.ip for s in sockets if s.status == "LISTEN"}
    everywhere = [doors[s.port] in ("::", "0.0.0.0") for s in (store, ours)]
    print(f"open to every network: torch's {everywhere[0]}, ours {everywhere[1]}")

# %% [markdown] tags=["read"]
# The counter shows 4 on every rank. And though we said `127.0.0.1`, this machine alone, torch's
# store listens on **every network** that the machine is in. So does the one that `torchrun` opens.
# Whoever reaches it can read it and write to it.
#
# Ours listens on this machine only, where all of its users still reach it. The group that
# `start_ranks` makes meets in a file that only you can open.

# %% tags=["check"]
assert ranks.view["neighbour"] == list("bcda")
assert sorted(ranks.view["num_come"]) == [1, 2, 3, 4]
assert ranks.view["total_come"] == [4] * 4
assert ranks[0]["everywhere"] == [True, False]
print("ok: 4 ranks wrote into one dictionary, and read from it")

# %% [markdown] tags=["question"]
# ## A rank, a world size and a store make a group.

# %% [markdown] tags=["predict"]
# `start_ranks` joined our ranks to a group. Now they leave it, and try again by hand. A guide
# says that `init_process_group(backend="nccl")` sets communication up. By default it asks the
# environment, one piece at a time. How many pieces will it miss?
#
# *Your number:*

# %% tags=["run"]
# %%px
dist.destroy_process_group()
del os.environ["RANK"], os.environ["WORLD_SIZE"]  # start_ranks had set these two
names = ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
values = [rank, world_size, "127.0.0.1", port]
wanted = []
for name, value in zip(names, values, strict=True):
    try:
        dist.init_process_group(backend="nccl", timeout=limit)
    except ValueError as error:
        wanted.append(str(error).partition("rendezvous: ")[2])
    os.environ[name] = str(value)
if rank == 0:
    print(f"{len(wanted)} pieces were missing:", *wanted, sep="\n")

# %% [markdown] tags=["read"]
# It missed 4 pieces. `RANK` and `WORLD_SIZE` say who this is, and of how many. `MASTER_ADDR` and
# `MASTER_PORT` say where the store is. All of them are set now, so the next cell can join. It does
# so in three ways, and takes Gloo in place of NCCL, because that works on every machine.

# %% tags=["run"]
# %%px
os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # the store is open already
ways = {
    "env": {},
    "file": {"init_method": f"file://{folder}/store", **me},
    "tcp": {"store": dist.PrefixStore("by hand", store), **me},  # keys: "by hand/..."
}
totals = {}
for way, pieces in ways.items():
    dist.init_process_group("gloo", timeout=limit, **pieces)
    total = torch.tensor([10**rank])
    dist.all_reduce(total)  # every rank gets the sum over all ranks
    totals[way] = total.item()
    dist.destroy_process_group()
print(totals)

# %% tags=["picture"]
holdings_picture(["env", "file", "tcp"], ranks.view["totals"])

# %% [markdown] tags=["read"]
# Each digit of 1111 came from another rank, so all four met, three times. `env` read the four
# variables. `file` made a **file store**, one for ranks that see the same disk. `tcp` took the
# store that we had opened ourselves.
#
# So C02, the guide's claim, is **half true**. The call does set communication up, once it has a
# rank, a world size and a store. The backend's name alone sets up nothing.

# %% tags=["check"]
names = ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
expected = [f"environment variable {name} expected, but not set" for name in names]
assert ranks.view["wanted"] == [expected] * 4
assert ranks.view["totals"] == [dict.fromkeys(["env", "file", "tcp"], 1111)] * 4
print("ok: C02 is half true, 4 pieces were missing before the call could do its work")

# %% [markdown] tags=["question"]
# ## A backend is here only if torch was built with it.

# %% [markdown] tags=["predict"]
# A **backend** carries the messages of a group. A guide says: choose among NCCL, Gloo and MPI.
# How many of these three exist on this machine?
#
# *Your number:*

# %% tags=["run", "nbval-ignore-output"]
# %%px --targets 0
from ddp_lessons.process_group import backends_table

print(backends_table())

# %% tags=["run"]
# %%px
from ddp_lessons.process_group import backends

said, made = {b.name: b.exists for b in backends()}, {}
warnings.simplefilter("ignore")  # torch warns before it refuses
for name in ("nccl", "gloo", "mpi"):
    try:  # a group of this rank alone: a world of 1, and a store that nobody shares
        dist.init_process_group(name, store=dist.HashStore(), rank=0, world_size=1)
        dist.destroy_process_group()
        made[name] = True
    except (RuntimeError, ValueError):
        made[name] = False
num_right = sum(said[name] == made[name] for name in made)
print(f"the table was right about {num_right} of {len(made)} backends")

# %% [markdown] tags=["read"]
# The table was right about all 3: where it says no, torch refused. Gloo is in every torch. NCCL
# needs a torch for GPUs, and a GPU for each rank. MPI is in no torch that `pip` installs: for it
# you build torch from source.
#
# So C03 is **half true**. The three names exist, and you choose among those that your torch was
# built with. Print them; do not assume them.

# %% tags=["check"]
assert ranks.view["num_right"] == [3] * 4
assert all(made["gloo"] and not made["mpi"] for made in ranks.view["made"])
print("ok: C03 is half true, torch was asked for 3 backends, and has no MPI")

# %% [markdown] tags=["question"]
# ## Every rank must call `new_group`, also for groups it is not in.

# %% [markdown] tags=["predict"]
# First the ranks join again, with this package's `join_group`: a rank, a world size and a file.
# Then all of them make two **subgroups**, groups within the group. Each rank brings `10**rank`
# and adds it up in its own subgroup only. Which sum does rank 3 get?
#
# *Your number:*

# %% tags=["run"]
# %%px
from ddp_lessons.process_group import join_group, leave_group, split_by_name

join_group(f"{folder}/again", rank, world_size)
low = dist.new_group([0, 1])
high = dist.new_group([2, 3])
mine = torch.tensor([10**rank])
before = mine.tolist()
dist.all_reduce(mine, group=low if rank < 2 else high)
after = mine.tolist()
print(f"the sum of my subgroup is {after[0]}")

# %% tags=["picture"]
collective_picture("all_reduce in pairs", ranks.view["before"], ranks.view["after"])

# %% [markdown] tags=["read"]
# Rank 3 got 1100: its own 1000, and 100 from rank 2. Ranks 0 and 1 got 11. All four called
# `new_group` twice, though each is in only one of the two.
#
# Now ranks 2 and 3 skip the group that they are not in. Nothing seems to go wrong. But torch gives
# groups numbers. Then each rank makes a group of its own. Do all get the same number?

# %% tags=["break"]
# %%px
leave_group()
join_group(f"{folder}/skipping", rank, world_size)
if rank < 2:
    pair = dist.new_group([0, 1])
dist.barrier()  # all wait here until the pair is made
alone = dist.new_group([rank])
number = int(alone.group_name)
print(f"my own group is number {number}")

# %% [markdown] tags=["read"]
# Ranks 0 and 1 counted one group more: their next one is
# number 2, and the others' is number 1. Each rank counts its own calls of `new_group`, and ranks
# look for one another in the store under that number. A group of all four would now hang, or join
# the wrong ranks. So every rank calls it for every group, in the same order.

# %% tags=["mend"]
# %%px
leave_group()
join_group(f"{folder}/mended", rank, world_size)
part = split_by_name({"low": [0, 1], "high": [2, 3]})  # calls new_group twice
number_mended = int(dist.new_group([rank]).group_name)
print(f"I am in {part.group_desc}, my own group is number {number_mended}")

# %% tags=["check"]
assert ranks.view["after"] == [[11], [11], [1100], [1100]]
assert ranks.view["number"] == [2, 2, 1, 1]
assert len(set(ranks.view["number_mended"])) == 1
print("ok: who skips new_group counts 1 group less than the others")

# %% [markdown] tags=["question"]
# ## A rank that never comes can be named.

# %% [markdown] tags=["predict"]
# Rank 2 does not come. The other three try to join, and give torch one second. How many of the
# error's words will tell you which rank is missing?
#
# *Your number:*

# %% tags=["break", "raises-exception"]
# %%px
leave_group()
if rank != 2:
    where, second = f"file://{folder}/incomplete", timedelta(seconds=1)
    dist.init_process_group("gloo", init_method=where, timeout=second, **me)

# %% [markdown] tags=["read"]
# None. The line names ranks 0, 1 and 3, the ones that came. torch's time limit is 30 minutes for
# Gloo unless you say otherwise, and even then you only hear that it is over.
#
# But there is a store. Who comes can write so, and look for the others. Nobody needs an answer
# from the rank that is missing.

# %% tags=["run"]
# %%px
missing, give_up_at = [], time.monotonic() + 3
if rank != 2:
    roll = dist.FileStore(f"{folder}/roll", world_size)
    roll.set(f"here/{rank}", "yes")
    missing = list(range(world_size))
    while missing and time.monotonic() < give_up_at:
        missing = [r for r in missing if not roll.check([f"here/{r}"])]
        time.sleep(0.01)
print(f"missing after 3 s: {missing}" if rank != 2 else "I was away")

# %% [markdown] tags=["read"]
# After 3&nbsp;s ranks 0, 1 and 3 know, each by itself, that rank 2 is missing. `join_group` does
# the same before it joins, if you give it a deadline. Look into
# [missing.py](../ddp_lessons/process_group/missing.py): there the first rank to know writes the
# answer into the store, so that all give the same one.

# %% tags=["break", "raises-exception"]
# %%px
leave_group()
if rank != 2:
    join_group(f"{folder}/deadline", rank, world_size, deadline_s=3)

# %% tags=["mend"]
# %%px
leave_group()
join_group(f"{folder}/complete", rank, world_size, deadline_s=3)
present = dist.get_world_size()
print(f"{present} of {world_size} ranks came")

# %% tags=["check"]
assert ranks.view["missing"] == [[2], [2], [], [2]]
assert ranks.view["present"] == [4] * 4
print("ok: 3 ranks named the one that was missing, and 4 joined")

# %% [markdown] tags=["recap"]
# You have joined ranks by hand over the environment, a file and TCP, split them into subgroups,
# and named the one that never came.
#
# Rule of thumb: **a rank, a world size and a store make a group; what makes groups is called by
# every rank, in the same order.**

# %% [markdown] tags=["next"]
# - **Exercise** [01](../exercises/01_process_group.ipynb): join a group, make even and odd
#   subgroups, name the missing ranks.
# - **Next lesson** [02](02_collectives.ipynb): what moves when ranks talk?
# - **Sources**: PyTorch's documentation,
#   [torch.distributed](https://docs.pytorch.org/docs/stable/distributed.html), sections
#   "Initialization", "Distributed Key-Value Store" and "Groups"; S. Li and others,
#   [PyTorch Distributed](https://arxiv.org/abs/2006.15704), VLDB 2020, section 3.3, on process
#   groups and their backends.

# %% tags=["teardown"]
ranks.stop()
folder.cleanup()
