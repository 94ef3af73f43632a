# %% [markdown] tags=["title"]
# # What moves when ranks talk?
#
# 25 minutes, 4 ranks; works with any number of ranks from 2. It builds on
# [01_process_group](01_process_group.ipynb): ranks that have joined a group.

# %% [markdown] tags=["goal"]
# When you are through, you can
#
# - **choose** a collective by what ranks hold before and after it, and say its bytes;
# - **start** a call now and wait for it later, and know what an object costs;
# - **read** who waits for whom when ranks wait for ever, and mend it.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.pictures import collective_picture, collectives_picture

ranks = start_ranks(4)
world_size = len(ranks)

# %% [markdown] tags=["question"]
# ## A message moves from one rank to one other.

# %% [markdown] tags=["predict"]
# Rank 0 sends four numbers of 8 bytes to rank 1. How many bytes does each of the four ranks
# send? And how many ranks hold something new afterwards?
#
# *Your number:*

# %% tags=["run"]
# %%px
import torch
import torch.distributed as dist
from ddp_lessons.process_group import rank_device
from ddp_lessons.trace import trace

rank, world_size = dist.get_rank(), dist.get_world_size()
# Gloo sends from the CPU's memory, NCCL from the GPU's.
device = rank_device() if dist.get_backend() == "nccl" else "cpu"


def held(tensors):  # the numbers of a tensor, of a list of tensors, or of nothing
    return [] if tensors is None else [int(n) for t in tensors for n in t.flatten()]


# %% tags=["run"]
# %%px
box = torch.tensor([10, 20, 30, 40] if rank == 0 else [0, 0, 0, 0], device=device)
before = held(box)
with trace() as events:
    if rank == 0:
        dist.send(box, dst=1)
    elif rank == 1:
        dist.recv(box, src=0)
after, num_sent = held(box), sum(event.input_bytes for event in events)
print(f"calls: {len(events)}, bytes sent: {num_sent}")

# %% tags=["picture"]
collective_picture("send, recv", ranks.view["before"], ranks.view["after"])

# %% [markdown] tags=["read"]
# Rank 0 sent 32 bytes, and 1 rank holds something new. A **message** needs two calls: a `send`
# here, and a `recv` there that names the sender and brings a tensor to write into. What travels
# is the numbers. Their shape and dtype do not, so both sides must know them before.
#
# `trace` notes each communication of a rank, with its bytes.

# %% tags=["check"]
assert ranks.view["num_sent"] == [32] + [0] * (world_size - 1)
assert ranks.view["after"][1] == [10, 20, 30, 40]
assert not any(sum(row) for row in ranks.view["after"][2:])
print("ok: 32 bytes from rank 0 to rank 1, and nothing for the others")

# %% [markdown] tags=["question"]
# ## A root gives to all, or takes from all.

# %% [markdown] tags=["predict"]
# A **collective** is a call that all ranks of a group make. Four of them have a **root**, the
# one rank that gives or takes. `scatter` hands out a list of the root, one part to each of the
# four ranks. Each part has 8 bytes. How many bytes go into the call on rank 0, and how many come
# out?
#
# *Your number:*

# %% tags=["run"]
# %%px
news = torch.tensor([7 if rank == 0 else 0], device=device)
numbers = torch.arange(10, 10 + world_size, device=device)
parts = list(numbers.split(1)) if rank == 0 else None  # only the root gives
part, before = torch.zeros_like(news), held(news)
with trace() as giving:
    dist.broadcast(news, src=0)
    dist.scatter(part, parts, src=0)
seen = [("broadcast", before, held(news)), ("scatter", held(parts), held(part))]

# %% tags=["run"]
# %%px
mine = torch.tensor([10**rank], device=device)
places = [torch.zeros_like(mine) for _ in range(world_size)] if rank == 0 else None
before = held(mine)
with trace() as taking:
    dist.gather(mine, places, dst=0)
    dist.reduce(mine, dst=0)
seen += [("gather", before, held(places)), ("reduce", before, held(mine))]
sizes = {e.name: (e.input_bytes, e.output_bytes) for e in [*giving, *taking]}
print("bytes in>out:", *[f"{name} {i}>{o}" for name, (i, o) in sizes.items()], sep="  ")

# %% tags=["picture"]
collectives_picture(ranks.view["seen"])

# %% [markdown] tags=["read"]
# On rank 0 32 bytes go into `scatter`, and 8 come out, as on every rank. `gather` is the way
# back. `broadcast` gives all the same number. `reduce` takes a number from each and adds them on
# the way: each digit of 1111 came from another rank.
#
# See what `reduce` left on ranks 1 and 2: half-done sums, for which it used their tensors. Only
# the root's result is promised; another backend leaves other numbers there.

# %% tags=["run"]
# %%px
import inspect
from ddp_lessons.collectives import hub, log_rounds, naive

if rank == 0:
    print(inspect.getsource(hub.broadcast))
messages = []
for calls in naive, log_rounds:
    with trace() as events:
        calls.broadcast(news, src=0)
    messages.append(sum(event.is_send for event in events))
print(f"messages sent: {messages[0]} from a hub, {messages[1]} in rounds")

# %% [markdown] tags=["read"]
# A collective is made of messages, and whoever writes it chooses which. The function above sends
# 3 from the root, one after the other. Its neighbour in
# [rounds.py](../ddp_lessons/collectives/rounds.py) lets rank 1 pass the number on while rank 0
# sends its second: 3 messages again, in 2 rounds. What ranks hold afterwards is the same, so
# a backend is free to choose. Which way is the cheapest is the next lesson's question.

# %% tags=["check"]
after = [{name: now for name, _, now in rows} for rows in ranks.view["seen"]]
assert [own["broadcast"] for own in after] == [[7]] * world_size
assert [own["scatter"] for own in after] == [[10 + r] for r in range(world_size)]
assert after[0]["gather"] == [10**r for r in range(world_size)]
assert after[0]["reduce"] == [sum(after[0]["gather"])]
assert ranks.view["sizes"][0]["scatter"] == (8 * world_size, 8)
for way in (0, 1):
    assert sum(sent[way] for sent in ranks.view["messages"]) == world_size - 1
print("ok: 2 collectives give from a root, and 2 take to it")

# %% [markdown] tags=["question"]
# ## A reduce-scatter and an all-gather make an all-reduce.

# %% [markdown] tags=["predict"]
# Now there is no root: all give, and all get. Rank 0 holds 1 2 3 4, rank 1 holds 10 20 30 40,
# and so on. A reduce-scatter adds up all first numbers for rank 0, all second ones for rank 1,
# and so on. Which number does rank 2 get?
#
# *Your number:*

# %% tags=["run"]
# %%px
parts = [torch.tensor([(t + 1) * 10**rank], device=device) for t in range(world_size)]
before = held(parts)
total, piece = torch.cat(parts), torch.zeros_like(parts[0])
gathered, swapped = ([torch.zeros_like(p) for p in parts] for _ in range(2))
with trace() as events:
    dist.all_reduce(total)
    dist.all_to_all(swapped, parts)
    dist.reduce_scatter(piece, parts)
    dist.all_gather(gathered, piece)
    dist.barrier()

# %% tags=["run"]
# %%px
seen = [
    ("all_reduce", before, held(total)),
    ("reduce_scatter", before, held(piece)),
    ("all_gather", held(piece), held(gathered)),
    ("all_to_all", before, held(swapped)),
]
sizes = {e.name: (e.input_bytes, e.output_bytes) for e in events}
print("bytes in>out:", *[f"{name} {i}>{o}" for name, (i, o) in sizes.items()], sep="  ")

# %% tags=["picture"]
collectives_picture(ranks.view["seen"])

# %% [markdown] tags=["read"]
# Rank 2 gets 3333, a sum with a digit from each rank. `reduce_scatter` turns 32 bytes into 8,
# `all_gather` turns 8 into 32, and after both every rank holds what `all_reduce` gave it. Fast
# all-reduces are built from these halves.
#
# `all_to_all` swaps rows and columns, and adds nothing. `barrier` moves none of your data, 0
# bytes: it returns when all ranks have called it.

# %% tags=["check"]
total = sum(10**r for r in range(world_size))
for r, rows in enumerate(ranks.view["seen"]):
    after = {name: now for name, _, now in rows}
    assert after["reduce_scatter"] == [(r + 1) * total]
    assert after["all_gather"] == after["all_reduce"]
    assert after["all_to_all"] == [(r + 1) * 10**s for s in range(world_size)]
print("ok: reduce-scatter and all-gather gave the numbers of the all-reduce")

# %% [markdown] tags=["question"]
# ## A handle comes back before the call is done.

# %% [markdown] tags=["predict"]
# With `async_op=True` a collective returns at once, and gives you a **handle** to wait on.
# Three ranks start an all-reduce and a barrier; rank 0 does not come yet. How many of their six
# handles are complete?
#
# *Your number:*

# %% tags=["run"]
# %%px
total, works = torch.tensor([10**rank], device=device), []
if rank != 0:
    works = [dist.all_reduce(total, async_op=True), dist.barrier(async_op=True)]
early = [work.is_completed() for work in works]
print(f"complete: {sum(early)} of {len(works)}")

# %% tags=["run"]
# %%px
if rank == 0:
    works = [dist.all_reduce(total, async_op=True), dist.barrier(async_op=True)]
for work in works:
    work.wait()
result = total.item()
late = [work.is_completed() for work in works]
print(f"complete: {sum(late)} of {len(works)}, total: {result}")

# %% [markdown] tags=["read"]
# 0 of 2 on each of the three: a barrier, too, is complete only when the last rank has come.
# Between the cells their Python was free, so a rank may compute while it communicates.
#
# Until `wait()` returns, the tensor belongs to the call: neither write it nor read it. A call
# without `async_op` waits for you. With NCCL, `wait()` makes the GPU wait, not Python; the rule
# is the same.

# %% tags=["check"]
assert ranks.view["early"] == [[]] + [[False, False]] * (world_size - 1)
assert ranks.view["late"] == [[True, True]] * world_size
assert ranks.view["result"] == [sum(10**r for r in range(world_size))] * world_size
print("ok: handles came back at once, and were complete when rank 0 had come")

# %% [markdown] tags=["question"]
# ## Objects travel as pickles, and a pickle may run code.

# %% [markdown] tags=["predict"]
# Rank 0 broadcasts a Python object of a class that it wrote itself. On how many ranks will code
# run that rank 0 chose?
#
# *Your number:*


# %% tags=["run"]
# %%px
class Parcel:
    def __reduce__(self):  # says how to build it again: by a call of print
        return print, ("I was packed by rank 0, and run here",)


facts, box = [None] * world_size, [Parcel() if rank == 0 else None]
with trace() as events:
    dist.all_gather_object(facts, {"loss": rank / 2})
    dist.broadcast_object_list(box, src=0)
came = type(box[0]).__name__
sizes = [(event.name, event.input_bytes) for event in events]
print(", ".join(f"{name} {given}" for name, given in sizes))

# %% [markdown] tags=["read"]
# On the 3 others. Unpacking a pickle calls what it names. So take objects only from ranks that
# you trust.
#
# Each call became two collectives: first the length, 8 bytes, so that receivers can make room,
# then the pickle. A loss takes 4 bytes as a tensor, and took 31 as an object. Use objects for
# settings, once; use tensors in the training loop.

# %% tags=["check"]
names = [[name for name, _ in sizes] for sizes in ranks.view["sizes"]]
assert names == [["all_gather", "all_gather", "broadcast", "broadcast"]] * world_size
assert all(sizes[0][1] == 8 < sizes[1][1] for sizes in ranks.view["sizes"])
assert ranks.view["came"] == ["Parcel"] + ["NoneType"] * (world_size - 1)
print("ok: two collectives for an object, and its receivers ran its code")

# %% [markdown] tags=["question"]
# ## Ranks that make calls which do not meet wait for ever.

# %% [markdown] tags=["predict"]
# Each rank sends to its right neighbour, then receives from its left one. Somebody told you that
# this hangs only when messages are large. From how many bytes on does it hang here?
#
# *Your number:*

# %% tags=["break", "raises-exception"]
# %%px
right, left = (rank + 1) % world_size, (rank - 1) % world_size
outgoing = torch.tensor([rank], dtype=torch.uint8, device=device)
incoming = torch.zeros_like(outgoing)
dist.send(outgoing, dst=right)
dist.recv(incoming, src=left)

# %% [markdown] tags=["read"]
# From 1 byte on. This is a **deadlock**: each waits for another, and none can go on. The table
# shows the circle: rank 0 is in `send` and waits for rank 1, and so on round. Gloo's `send` waits
# until the receiver has called `recv`. MPI may keep a small message in a buffer, so there the
# same mistake sleeps until a message grows. With NCCL a call only queues work, and a rank stops
# where it needs the result.

# %% tags=["mend"]
# %%px
outgoing = torch.full((2**22,), rank, dtype=torch.uint8, device=device)
incoming = torch.zeros_like(outgoing)
both = [dist.P2POp(dist.isend, outgoing, right), dist.P2POp(dist.irecv, incoming, left)]
for work in dist.batch_isend_irecv(both):
    work.wait()
arrived = bool((incoming == left).all())
print(f"{incoming.nbytes // 2**20} MiB from rank {left} arrived: {arrived}")

# %% [markdown] tags=["read"]
# Both calls are under way before a rank waits for either, so 4 MiB pass as well as 1 byte would.
#
# Now a collective. Rank 0 wants to print the sum of all losses, and nobody else needs it. So only
# rank 0 asks for it.

# %% tags=["break", "raises-exception"]
# %%px
loss = torch.tensor([float(10**rank)], device=device)
if rank == 0:
    dist.reduce(loss, dst=0)
    print(f"sum of losses: {loss.item()}")
dist.barrier()

# %% [markdown] tags=["read"]
# Calls have no names on the way. The first collective of one rank meets the first of the others,
# and collective 1 was `reduce` on rank 0, `barrier` elsewhere. It waits for ranks that wait for
# it. All must make the same collectives in the same order. Only the printing may be rank 0's
# alone.

# %% tags=["mend"]
# %%px
dist.reduce(loss, dst=0)
if rank == 0:
    print(f"sum of losses: {loss.item()}")
dist.barrier()

# %% tags=["check"]
assert ranks.view["arrived"] == [True] * world_size
assert ranks.view["loss"][0].item() == sum(10**r for r in range(world_size))
print("ok: both deadlocks are mended: messages of 4 MiB arrive, and the sum is right")

# %% [markdown] tags=["recap"]
# You have seen eight collectives and the barrier by what ranks hold and by their bytes, you have
# started calls and waited later, and you have read and mended two deadlocks.
#
# Rule of thumb: **all ranks make the same collectives in the same order, and whoever sends must
# also be able to receive.**

# %% [markdown] tags=["next"]
# - **Exercise** [02](../exercises/02_collectives.ipynb): build an all-reduce from a reduce and a
#   broadcast; gather tensors of unequal lengths; exchange with a neighbour without a deadlock at
#   any size; broadcast in log2(n) rounds.
# - **Next lesson** [03](03_ring.ipynb): why does all-reduce need no centre?
# - **Sources**: PyTorch's documentation of
#   [torch.distributed](https://docs.pytorch.org/docs/stable/distributed.html), "Point-to-point
#   communication", "Synchronous and asynchronous collective operations" and "Collective functions";
#   S. Arnold, [Writing Distributed Applications with
#   PyTorch](https://docs.pytorch.org/tutorials/intermediate/dist_tuto.html), with pictures of six
#   collectives; NVIDIA's [Point-to-point
#   communication](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/p2p.html), on
#   calls that must be started together.

# %% tags=["teardown"]
ranks.stop()
