# %% [markdown] tags=["title"] minutes=[42, 40, 40]
# # How do processes become a process group?
#
# 40 minutes, 4 ranks. This lesson builds on [00_ranks](00_ranks.ipynb), where four ranks answered a
# cell.

# %% [markdown] tags=["why"]
# A training job on eight GPUs is eight processes, which can average a gradient only after they have
# joined a **process group**, by the call `init_process_group`. If one process is missing, or looks for
# the others at a wrong address, the others stand still in this call, for many minutes, and their errors
# say little. You meet this as soon as you use two processes.

# %% [markdown] tags=["goal"]
# After this lesson you can
#
# - **join** processes to a group in three ways, and say what each process must be told for it;
# - **create** smaller groups, and say which ranks must take part in that;
# - **find** the rank that never arrived.

# %% tags=["setup", "nbval-ignore-output"]
import tempfile
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.launch import free_port

ranks = start_ranks(4)

# %% [markdown] tags=["question"]
# ## What can processes share before they are connected?

# %% [markdown] tags=["explain"]
# Imagine four processes that have just started, perhaps on four machines. They share no memory, and
# none of them knows where the others are. To connect, they would have to exchange their addresses;
# but to exchange anything, they would have to be connected.
#
# A **store** solves this. It is a dictionary that all processes can read and write. Usually one process
# keeps it in its memory, and the others reach it by TCP, the protocol that carries bytes between two
# programs over a network. They only have to know where it is:
#
# - the **address** of the machine, where `127.0.0.1` always means "this machine";
# - a **port**, a number that tells the programs on one machine apart. A program that wants to be
#   reached waits at a port. No second program can wait at the same port of that machine.
#
# Below, rank 0 opens a `TCPStore`. It asks for port 0, which means "any port that is free", and then asks
# the store which one it got. The kernel, the notebook's own process, tells the other ranks. (Our ranks
# are connected already, because `start_ranks` has joined them to a group. In this section we use
# only their numbers.)

# %% tags=["run"]
# %%px
import torch
import torch.distributed as dist

rank, world_size = dist.get_rank(), dist.get_world_size()
if rank == 0:
    # is_master: this rank opens the store. It does not wait here for the others.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = store.port

# %% tags=["run"]
ranks.view["port"] = ranks[0]["port"]  # set `port` on every rank to the value of rank 0

# %% [markdown] tags=["explain"]
# In the next cell the ranks write one line together. Rank 0 begins it. Each other rank reads the line
# of the rank before it, adds its own number, and writes the result for the rank after it. All four
# start at about the same time, so some of them ask for a line that is not written yet.

# %% [markdown] tags=["predict"]
# A Python dictionary raises an error if you ask for a key that does not exist. What does a store do
# when a rank calls `get` too early: (a) raise an error, (b) wait until another process has set the
# key, (c) return an empty value? Put the letter in place of the dots, between the quotes.

# %% tags=["predict"]
predict("what_get_does", "...")

# %% tags=["run"]
# %%px
if rank != 0:
    store = dist.TCPStore("127.0.0.1", port, is_master=False)

line = ""
if rank > 0:
    line = store.get(f"line of rank {rank - 1}").decode()  # a store keeps bytes
line += str(rank)
store.set(f"line of rank {rank}", line)
print(line)

# %% [markdown] tags=["read"]
# (b): `get` waits until the key exists. It gives up after 5 minutes, unless you set another `timeout`.
# Rank 3 printed `0123`, so it has read a line that was complete only after ranks 0, 1 and 2 had each had
# their turn. This makes a store a good place to meet: it does not matter which process comes first.
#
# Joining a group is such a meeting. With Gloo, each rank sets a key with its own address, and gets the
# keys of the others. Then the ranks connect to each other. Tensors travel over these connections, and
# never through the store:
#
# ```text
#   1. meet at the store            2. connect to each other
#
#   rank 0 ---+                     rank 0 --------- rank 1
#   rank 1 ---+                       |   \       /   |
#             +--- store              |      \ /      |
#   rank 2 ---+                       |      / \      |
#   rank 3 ---+                       |   /       \   |
#                                   rank 2 --------- rank 3
# ```
#
# A store asks for no password. Every program that can reach its port can read and change it, so use it
# only in a network that you trust ([who can connect](../docs/security.md)).

# %% tags=["check"]
has_waited = ranks.view["line"] == ["0", "01", "012", "0123"]
assert has_waited
letter = "b" if has_waited else "a or c"
ok("get waits for a key, so no rank has to come first", what_get_does=letter)

# %% [markdown] tags=["question"]
# ## What must a process be told before it can join?

# %% [markdown] tags=["explain"]
# Now the ranks leave the group that `start_ranks` has made for them, and join one by hand. (They can
# still run cells. The notebook reaches them in another way.)
#
# The call is `dist.init_process_group`. Its first argument is the **backend**, the library that will
# move the tensors: `"gloo"` for tensors in a CPU's memory, `"nccl"` for tensors on NVIDIA GPUs. With
# Gloo, the process then takes four steps:
#
# 1. It connects to the store.
# 2. It writes its own address there, under its own rank.
# 3. It reads the addresses of all other ranks, and waits for those that are not there yet.
# 4. It connects to these ranks.
#
# (With NCCL the ranks find each other at the store and connect later, at the first call that moves a
# tensor, or here if you pass `device_id=`. So some mistakes of this lesson may show only at that call.)

# %% [markdown] tags=["predict"]
# What must a process be told from outside, so that it can take these steps: (a) where the store is;
# (b) where the store is, and its own rank; (c) where the store is, its own rank, and the number of
# processes; (d) where the store is, its own rank, and the addresses of all other processes? (The cell
# that shows it unfolds when you have run your prediction.)

# %% tags=["predict"]
predict("what_to_tell", "...")

# %% [markdown] tags=["explain"]
# We tell it nothing, and see what it asks for. `init_process_group` looks for these facts in
# **environment variables**: texts with a name that a process gets from the program that starts it.
# Python shows them in `os.environ`. The function below calls `init_process_group`, and keeps the
# error. Each error asks for one variable. The cell sets it, and calls the function again.

# %% tags=["run", "answer"]
# %%px
import os

if dist.is_initialized():  # it is not, if you run this cell again
    dist.destroy_process_group()  # leave the group
for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
    os.environ.pop(name, None)  # as if nothing had set it

errors = []


def try_to_join():
    try:
        dist.init_process_group("gloo")
    except ValueError as error:
        errors.append(str(error))


try_to_join()
os.environ["RANK"] = str(rank)
try_to_join()
os.environ["WORLD_SIZE"] = str(world_size)
try_to_join()
os.environ["MASTER_ADDR"] = "127.0.0.1"
try_to_join()

# %% tags=["run"]
for error in ranks[0]["errors"]:  # those of rank 0
    print(error)

# %% [markdown] tags=["explain", "answer"]
# (c): a process must be told where the store is, its own rank, and how many processes there are. It
# asks for four variables, because "where" is two of them:
#
# | variable | meaning | for which step |
# | --- | --- | --- |
# | `MASTER_ADDR`, `MASTER_PORT` | where the store is | 1. Rank 0 opens it there, if no launcher has, and the others connect. |
# | `RANK` | this process's number | 2. It writes its address under this number. |
# | `WORLD_SIZE` | the number of processes | 3. It knows how many it has to wait for. |
#
# (In the errors, `env://` means "from environment variables", and *rendezvous* is torch's word for
# meeting at a store.) The addresses of the other ranks need not be told: they are in the store.
#
# Usually a **launcher** such as `torchrun` starts the processes, and sets the variables of each. If you
# see "environment variable RANK expected", the script was probably started by `python` and not by
# a launcher.

# %% [markdown] tags=["explain"]
# There are three ways to tell a process these facts. The ranks now join
# three times, once in each way. To see that all four have met, rank r brings the number 10^r: 1, 10, 100
# or 1000. `all_reduce` adds the numbers of all ranks, and writes the sum into the tensor of every rank.
# So each digit 1 of the sum stands for one rank.
#
# Ways 1 and 2 need a free port. The kernel looks for two, and tells all ranks. Way 3 needs a folder.

# %% tags=["run"]
ranks.view["free_ports"] = [free_port(), free_port()]
ranks.view["folder"] = tempfile.mkdtemp()

# %% tags=["run"]
# %%px
def add_up(group=None):
    number = torch.tensor(10**rank)
    dist.all_reduce(number, group=group)  # None stands for the group of all ranks
    return number.item()

# %% [markdown] tags=["explain"]
# **Way 1, by environment variables.** Use it with a launcher, which sets them. `MASTER_PORT` was the
# last one that was missing.

# %% tags=["run"]
# %%px
os.environ["MASTER_PORT"] = str(free_ports[0])
dist.init_process_group("gloo")

sums = {"way 1": add_up()}
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: the sum is {sums['way 1']}")
dist.destroy_process_group()

# %% [markdown] tags=["explain"]
# **Way 2, by an address in the call.** Use it when your own program starts the processes, and knows
# their ranks. On several machines, put the name of the machine of rank 0 there, such as
# `tcp://node1:29500`.

# %% tags=["run"]
# %%px
address = f"tcp://127.0.0.1:{free_ports[1]}"
dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)

sums["way 2"] = add_up()
dist.destroy_process_group()

# %% [markdown] tags=["explain"]
# **Way 3, by a file.** A store can also be a file that all processes can open. Use it for tests on one
# machine, where you do not want to choose a port. Take a new file for every group: after a crash, the old
# one still holds the addresses of processes that have ended.

# %% tags=["run"]
# %%px
path = f"file://{folder}/store"
if not dist.is_initialized():  # it is, if you run this cell again
    dist.init_process_group("gloo", init_method=path, rank=rank, world_size=world_size)

sums["way 3"] = add_up()
print(f"the three sums are {list(sums.values())}")

# %% [markdown] tags=["read"]
# The sum was 1111 three times: all four ranks have met, in each of the three ways.
#
# A popular guide says that `init_process_group(backend="nccl")` sets communication up
# ([claim C02](claims.md)). This is **half true**. Under a launcher this line is indeed all that you
# write. Without one, the call raises an error until something has told it a rank, a world size and a
# store. So start your script by a launcher, or give these three in the call.

# %% tags=["check"]
num_variables = len(set(ranks[0]["errors"]))
assert num_variables == 4
assert ranks.view["sums"] == [{"way 1": 1111, "way 2": 1111, "way 3": 1111}] * 4
letter = {2: "a", 3: "b", 4: "c"}[num_variables]
ok("C02 is half true: it takes a rank, a world size, a store", what_to_tell=letter)

# %% [markdown] tags=["question"]
# ## Which ranks must call `new_group`?

# %% [markdown] tags=["explain"]
# Large jobs use smaller groups inside of the big one, for example the eight ranks of one machine.
# `dist.new_group([0, 2])` creates a **subgroup** of ranks 0 and 2. A call such as `all_reduce` takes
# it as `group=...`, and then only its members take part. Here are two subgroups, the even and the odd
# ranks:

# %% tags=["run"]
# %%px
even = dist.new_group([0, 2])
odd = dist.new_group([1, 3])

my_group = even if rank in (0, 2) else odd
print(f"the sum of my subgroup is {add_up(my_group)}")

# %% [markdown] tags=["read"]
# Ranks 0 and 2 got 101, which is 1 + 100. Ranks 1 and 3 got 1010, which is 10 + 1000. Each rank is in
# one of the two subgroups, and yet all four ranks ran both calls of `new_group`.

# %% [markdown] tags=["explain"]
# May a rank leave out the call for a subgroup that it is not in? We try it: only ranks 0 and 3 create
# `pair`, because ranks 1 and 2 are not in it.

# %% tags=["run"]
# %%px
if rank in (0, 3):
    pair = dist.new_group([0, 3])
    print(f"the sum of the pair is {add_up(pair)}")

# %% [markdown] tags=["explain"]
# No error, and the sum 1001 is right. Now all four ranks create one more group, `everyone`. Two rules
# decide what happens then. torch cannot recognise a group by the name of your variable. It goes by a
# number, and by places:
#
# - **Each rank counts its own calls of `new_group`**, and the count is the number of the group.
# - With Gloo, the members of a new group meet at the store, under this number. Each member sets one key there for
#   its place in the list of members, and waits until there is a key for every place.
#
# In the list `[0, 3]`, rank 0 has place 0, and rank 3 has place 1. Fill in the table with what the next
# cell adds. The first lines are those of the cells above:
#
# | number | ranks 0 and 3 create | ranks 1 and 2 create |
# | --- | --- | --- |
# | 1 | `even` | `even` |
# | 2 | `odd` | `odd` |
# | 3 | `pair`: places 0 and 1 | ? |
# | 4 | ? | ? |

# %% [markdown] tags=["predict"]
# In the next cell all four ranks call `new_group` for `everyone`. How many of them get past this call:
# (a) none, (b) two, (c) all four?

# %% tags=["predict"]
predict("ranks_past_new_group", "...")

# %% tags=["break", "raises-exception"]
# %%px
is_past = False
everyone = dist.new_group([0, 1, 2, 3])
is_past = True

# %% tags=["run"]
num_past = sum(ranks.view["is_past"])
print(f"{num_past} ranks got past the call")

# %% [markdown] tags=["read"]
# (a): 0 of them. These are the last two lines of the table:
#
# | number | ranks 0 and 3 create | ranks 1 and 2 create |
# | --- | --- | --- |
# | 3 | `pair`: places 0 and 1 | `everyone`: places 1 and 2 |
# | 4 | `everyone`: places 0 and 3 | nothing |
#
# Under number 3, ranks 1 and 2 wait for a key of place 3, which nobody sets. Under number 4, ranks 0
# and 3 wait for the keys of places 1 and 2, which nobody sets either. This is a **deadlock**: every
# rank waits for something that can no longer happen.
#
# A script would now stand still until its timeout. The cells of this course recognise a deadlock. The
# report's first sentence says what the table says: number 3 stands for two groups. Below it is a line
# for each rank: the line of the cell at which the rank stands, the call that it is in, and the ranks
# that it waits for. Rank 1 waits for ranks 0 and 3, because they have not created `everyone` under
# number 3, and rank 0 waits for ranks 1 and 2 under number 4. Then the ranks were released, and
# joined a new group. The subgroups ended with the old one, so the report says which variables to make
# again. But do not run the cell that made `pair` again, because only two ranks call `new_group` in
# it.
#
# So the rule is: **every rank calls `new_group` for every group, in the same order, also for groups
# that it is not in.** A rank that is not a member only raises its count. (With the option
# `use_local_synchronization=True` only the members call it.) This is the right way:

# %% tags=["mend"]
# %%px
pair = dist.new_group([0, 3])  # all four ranks call it
everyone = dist.new_group([0, 1, 2, 3])
sum_of_everyone = add_up(everyone)
print(f"the sum of everyone is {sum_of_everyone}")

# %% tags=["check"]
letter = {0: "a", 2: "b", 4: "c"}[num_past]
assert ranks.view["sum_of_everyone"] == [1111] * 4
ok("ranks that count their groups differently never meet", ranks_past_new_group=letter)

# %% [markdown] tags=["question"]
# ## Which rank never arrived?

# %% [markdown] tags=["explain"]
# Suppose that one of four processes never arrives: it hangs while it loads its data, or nobody has
# started it. The other three wait in `init_process_group` until its `timeout` is over. By default that
# is 30 minutes with Gloo, and 10 minutes with NCCL. We set it to 3 seconds, and rank 2 stays away. The
# others join by way 3:

# %% tags=["run"]
ranks.view["folder"] = tempfile.mkdtemp()  # a new folder for new files

# %% tags=["break"]
# %%px
from datetime import timedelta

if dist.is_initialized():
    dist.destroy_process_group()
error_text = ""
if rank != 2:
    path, limit = f"file://{folder}/store", timedelta(seconds=3)
    try:
        dist.init_process_group(
            "gloo", init_method=path, rank=rank, world_size=world_size, timeout=limit
        )
    except RuntimeError as error:
        error_text = str(error)
        print(error_text)

# %% [markdown] tags=["explain"]
# The three errors say that the time is over. None says that rank 2 is missing. (By ways 1 and 2, rank 0
# also counts the processes that connect to its store, and says "3/4 clients joined".) With 64 ranks
# you would now look for the one log that is missing or ends early.
#
# The ranks can find out more if they use a store themselves *before* they join. A store has two more
# methods. `store.add(key, 1)` adds 1 to a number in the store, and returns the sum. `store.check([key])`
# returns at once whether the key exists.

# %% [markdown] tags=["predict"]
# Three ranks have arrived. Which of these tells each of them, within a second, which rank is missing?
# (a) Each calls `store.add("num_arrived", 1)`, and looks how large the sum gets. (b) Each sets a key
# with its own number, such as `arrived/3`; when all three have done so, each calls `check` for the
# keys of ranks 0 to 3. (c) The same as (b), with `get` in place of `check`. (The cells that try one
# of these ways unfold when you have run your prediction.)

# %% tags=["predict"]
predict("way_to_find_the_missing", "...")

# %% tags=["mend", "answer"]
# %%px
if rank != 2:  # rank 2 stays away again
    roll = dist.FileStore(f"{folder}/roll", world_size)  # a store in a file
    roll.set(f"arrived/{rank}", "yes")

# %% tags=["mend", "answer"]
# %%px
missing = []
if rank != 2:
    missing = [r for r in range(world_size) if not roll.check([f"arrived/{r}"])]
    print(f"missing: {missing}")

# %% [markdown] tags=["read"]
# (b): all three ranks that have arrived know that rank 2 is missing. `check` does not wait, and it
# needs no answer from the missing rank: the absent key is the answer. This is **calling the roll**.
# The sum of (a) would say how many have arrived, but not which. In (c), `get` would wait at the key
# `arrived/2`.
#
# One look was enough here, because a notebook starts a cell when the cell before has ended on all ranks.
# A script must look again and again, until all keys exist or a deadline is over. You write this loop in
# the exercise. The course's `join_group` has such a loop, and then joins by way 3. `deadline_s` limits
# the time of the roll call. Rank 2 still stays away:

# %% tags=["break"]
# %%px
from ddp_lessons.errors import RanksMissing
from ddp_lessons.process_group import join_group

if rank != 2:
    try:
        join_group(f"{folder}/three", rank, world_size, deadline_s=1)
    except RanksMissing as error:
        print(error)

# %% [markdown] tags=["read"]
# Each of the 3 ranks names rank 2. Now rank 2 comes, too:

# %% tags=["mend"]
# %%px
if not dist.is_initialized():  # it is, if you run this cell again
    join_group(f"{folder}/four", rank, world_size, deadline_s=3)
print(f"{dist.get_world_size()} ranks have joined")

# %% tags=["check"]
is_named = any("rank 2" in text for text in ranks.view["error_text"])
assert not is_named
has_worked = ranks.view["missing"] == [[2], [2], [], [2]]
assert has_worked
letter = "b" if has_worked else "none"
ok("keys in a store tell which rank is missing", way_to_find_the_missing=letter)

# %% [markdown] tags=["question"]
# ## More: which backends can you choose?

# %% [markdown] tags=["explain"]
# A popular guide says: choose among NCCL, Gloo and MPI. MPI is the oldest of the three, and most
# clusters have an MPI library installed. torch can use a backend only if it was built with it, and
# the torch that pip installs was built where no MPI library was. Below, each rank tries to make a
# group of itself alone with each of the three. (A `HashStore` is a store for one process.)

# %% [markdown] tags=["predict"]
# On how many of our four ranks can a group with MPI be made?

# %% tags=["predict"]
predict("ranks_with_mpi", ...)

# %% tags=["run"]
# %%px
import warnings

if dist.is_initialized():
    dist.destroy_process_group()
warnings.simplefilter("ignore")  # torch warns before it refuses
is_possible = {}
for name in ("nccl", "gloo", "mpi"):
    try:
        dist.init_process_group(name, store=dist.HashStore(), rank=0, world_size=1)
        dist.destroy_process_group()
        is_possible[name] = True
    except (RuntimeError, ValueError):
        is_possible[name] = False
print(f"gloo makes a group: {is_possible['gloo']}, mpi: {is_possible['mpi']}")

# %% tags=["run"]
num_mpi = sum(backends["mpi"] for backends in ranks.view["is_possible"])
print(f"MPI makes a group on {num_mpi} of 4 ranks")

# %% tags=["run", "nbval-ignore-output"]
# %%px --targets 0
from ddp_lessons.process_group import backends_table

print(backends_table())

# %% [markdown] tags=["read"]
# MPI makes a group on 0 ranks, Gloo on all 4. A backend is compiled into torch, or it is not, and the
# torch that pip installs is built without MPI. An MPI library on the machine does not change that.
# The table says for each backend whether your torch has it, and why not. (NCCL also needs a GPU. You
# will hardly need the last two, UCC and XCCL.)
#
# So [claim C03](claims.md) is **half true**: the three names exist, but you choose among those that
# your torch was built with. In practice, take NCCL for tensors on NVIDIA GPUs and Gloo for tensors on
# CPUs.

# %% tags=["check"]
num_gloo = sum(backends["gloo"] for backends in ranks.view["is_possible"])
assert (num_gloo, num_mpi) == (4, 0)
ok("C03 is half true: torch must be built with it", ranks_with_mpi=num_mpi)

# %% [markdown] tags=["cluster"]
# ## On your own cluster
#
# **One node with 8 GPUs.** (A *node* is one machine of a cluster.) Save this as `train.py`:
#
# ```python
# # train.py
# import os
# import torch
# import torch.distributed as dist
#
# local_rank = int(os.environ["LOCAL_RANK"])
# torch.cuda.set_device(local_rank)
# dist.init_process_group("nccl")
#
# number = torch.tensor(10.0, device="cuda")
# dist.all_reduce(number)
# print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {number.item()}")
# dist.destroy_process_group()
# ```
#
# and start it by
#
# ```console
# $ torchrun --standalone --nproc-per-node=8 train.py
# ```
#
# Each of the 8 processes brings 10, so each prints 80.0. `torchrun` starts the processes, and sets
# the four variables of way 1 for each of them. It also sets `LOCAL_RANK`, the number of the process
# on its own node, by which each process chooses its GPU. Without `set_device` all 8 processes would
# use GPU 0.
#
# **Two nodes**, `node1` and `node2`. Run the same command on both:
#
# ```console
# $ torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=node1:29500 --rdzv-id=42 train.py
# ```
#
# | option | meaning |
# | --- | --- |
# | `--nnodes=2 --nproc-per-node=8` | the world size: 2 times 8 processes |
# | `--rdzv-endpoint=node1:29500` | address and port of the store at which the two `torchrun` processes meet (`rdzv` is short for rendezvous); the port must be free on `node1` |
# | `--rdzv-backend=c10d` | the kind of store: a `TCPStore`, as in section 1 |
# | `--rdzv-id=42` | a name of this job, the same on both nodes |
# | `--standalone` | in place of the three `--rdzv` options, on one node: `torchrun` finds a free port itself |
#
# The two `torchrun` processes meet at this store first, and agree on the ranks 0 to 15. Only then do
# they start your script. The nodes must be able to reach each other at all ports, because tensors
# travel at others. If `node2` is down, `torchrun` on `node1` waits for some minutes, and no process
# of your script exists yet. If a process dies, the `torchrun` of its node ends the other processes of
# that node. Those of the other node end when their own calls fail or time out. So with a launcher you
# need the roll call only for a process that hangs before it joins. (These commands were run with two
# processes a node and both nodes on one machine, without GPUs: with `"gloo"` in place of `"nccl"`,
# and without the lines that choose a GPU.)

# %% [markdown] tags=["recap"]
# You have joined ranks to a group in three ways, created smaller groups, and found the rank that
# never arrived.
#
# Rule of thumb: **give every process a rank, a world size and a store, and let every rank create every
# group, in the same order.**

# %% [markdown] tags=["next"]
# - **Exercise** [01](../exercises/01_process_group.ipynb): join a group, make subgroups, name the
#   missing ranks. After the exercise: how `join_group` calls the roll, in
#   [missing.py](../ddp_lessons/process_group/missing.py).
# - **Next lesson** [02](02_collectives.ipynb): what do `all_reduce` and its relatives move?
# - **Sources**: PyTorch's documentation,
#   [torch.distributed](https://docs.pytorch.org/docs/stable/distributed.html), sections
#   "Initialization", "Distributed Key-Value Store" and "Groups"; S. Li and others,
#   [PyTorch Distributed](https://arxiv.org/abs/2006.15704), VLDB 2020, section 3.3, on process
#   groups and their backends.

# %% tags=["teardown"]
ranks.stop()
