# %% [markdown] tags=["title"]
# # What moves when ranks talk?
#
# 30 minutes, 4 ranks; works with any number of ranks from 2. It builds on
# [01_process_group](01_process_group.ipynb): ranks that have joined a group.

# %% [markdown] tags=["goal"]
# When you are through, you can
#
# - **choose** a collective by what ranks hold before and after it, and say its bytes;
# - **start** a call, compute while it is under way, and wait for it later;
# - **read** who waits for whom when ranks wait for ever, and mend it.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.pictures import collective_picture, collectives_picture

ranks = start_ranks(4)
world_size = len(ranks)

# %% [markdown] tags=["question"]
# ## What does one message take?

# %% [markdown] tags=["predict"]
# Rank 0 sends three whole numbers of 8 bytes each to rank 1. How many bytes does it send?

# %% tags=["predict"]
predict("bytes_of_a_message", ...)

# %% tags=["run"]
# %%px
import torch
import torch.distributed as dist
from ddp_lessons.pictures import numbers_in as held
from ddp_lessons.process_group import rank_device
from ddp_lessons.trace import argument_bytes, trace

rank, world_size = dist.get_rank(), dist.get_world_size()
# Gloo sends from the CPU's memory, NCCL from the GPU's.
device = rank_device() if dist.get_backend() == "nccl" else "cpu"

# %% tags=["run"]
# %%px
box = torch.tensor([10, 20, 30] if rank == 0 else [0, 0, 0], device=device)
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
# 24 bytes, and rank 1 holds something new. A **message** needs two calls: a `send` here, and a `recv`
# there that names the sender and brings a tensor to write into. The numbers
# travel, but not their shape and dtype, so both sides must know them before.
#
# `trace` notes each communication of a rank, with its bytes.

# %% tags=["check"]
num_sent, after = ranks.view["num_sent"], ranks.view["after"]
assert num_sent[1:] == [0] * (world_size - 1)
assert after[1:] == [[10, 20, 30]] + [[0, 0, 0]] * (world_size - 2)
ok("a message went from rank 0 to rank 1 only", bytes_of_a_message=num_sent[0])

# %% [markdown] tags=["question"]
# ## What if one rank has something for all?

# %% [markdown] tags=["predict"]
# A **collective** is a call that all ranks of a group make. Some have a **root**, the one rank that
# gives or takes. `scatter` hands out a list of the root, one part to each of the four ranks. Each part
# has 8 bytes. How many bytes does rank 0, the root, put into the call?

# %% tags=["predict"]
predict("bytes_into_scatter", ...)

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
seen[2:] = [("gather", before, held(places)), ("reduce", before, held(mine))]
sizes = argument_bytes([*giving, *taking])
print(f"bytes in and out: {sizes}")

# %% tags=["picture"]
collectives_picture(ranks.view["seen"])

# %% [markdown] tags=["read"]
# 32 bytes go into `scatter` on rank 0, and 8 come out on every rank. `gather` is the way back.
# `broadcast` gives all the same number, so nothing comes out on the root, which has it. `reduce`
# adds on the way: each digit of 1111 came from another rank.
#
# These are bytes of arguments; lesson 03 counts what travels. See what `reduce` left on ranks 1 and 2:
# half-done sums. Only the root's result is promised.

# %% tags=["check"]
after = [{name: now for name, _, now in rows} for rows in ranks.view["seen"]]
assert [own["broadcast"] for own in after] == [[7]] * world_size
assert [own["scatter"] for own in after] == [[10 + r] for r in range(world_size)]
assert after[0]["gather"] == [10**r for r in range(world_size)]
assert after[0]["reduce"] == [sum(after[0]["gather"])]
into, out = ranks.view["sizes"][0]["scatter"]
assert (into, out) == (8 * world_size, 8)
ok("2 collectives give from a root, and 2 take to it", bytes_into_scatter=into)

# %% [markdown] tags=["question"]
# ## What if all give and all get?

# %% [markdown] tags=["predict"]
# Now there is no root. Rank 0 holds 1 2 3 4, rank 1 holds 10 20 30 40, rank 2 holds 100 200 300 400,
# and rank 3 ten times that. A reduce-scatter adds up all first numbers for rank 0, all second ones for
# rank 1, and so on. Which number does rank 1 get?

# %% tags=["predict"]
predict("number_of_rank_one", ...)

# %% tags=["run"]
# %%px
parts = [torch.tensor([(t + 1) * 10**rank], device=device) for t in range(world_size)]
before = held(parts)
total, piece, swapped = torch.cat(parts), torch.zeros_like(parts[0]), torch.cat(parts)
gathered = [torch.zeros_like(p) for p in parts]
with trace() as events:
    dist.all_reduce(total)
    dist.all_to_all_single(swapped, torch.cat(parts))
    dist.reduce_scatter(piece, parts)
    dist.all_gather(gathered, piece)
    dist.barrier()
seen = [("all_reduce", before, held(total)), ("reduce_scatter", before, held(piece))]
seen += [("all_gather", held(piece), held(gathered))]
seen += [("all_to_all_single", before, held(swapped))]
print(f"bytes in and out: {argument_bytes(events)}")

# %% tags=["picture"]
collectives_picture(ranks.view["seen"])

# %% [markdown] tags=["read"]
# Rank 1 gets 2222, a sum with a digit from each rank. `reduce_scatter` turns 32 bytes into 8, and
# `all_gather` turns 8 into 32. After both, every rank holds what `all_reduce` gave it: an
# all-reduce can be built from these halves.
#
# `all_to_all_single` swaps rows and columns, and adds nothing. `barrier` moves none of your data, 0
# bytes: it returns when all ranks have called it.

# %% tags=["check"]
total = sum(10**r for r in range(world_size))
after = [{name: now for name, _, now in rows} for rows in ranks.view["seen"]]
for r, own in enumerate(after):
    assert own["reduce_scatter"] == [(r + 1) * total]
    assert own["all_gather"] == own["all_reduce"]
    assert own["all_to_all_single"] == [(r + 1) * 10**s for s in range(world_size)]
ok("two halves made an all-reduce", number_of_rank_one=after[1]["reduce_scatter"][0])

# %% [markdown] tags=["question"]
# ## Must a rank stand still while it waits?

# %% [markdown] tags=["predict"]
# With `async_op=True` a collective returns at once, and gives you a **handle** to wait on.
# Three ranks start an all-reduce, multiply matrices meanwhile, and look at their handles. Then they
# send rank 0 a word, and only then does it start. How many of the three handles are complete when
# the products are there?

# %% tags=["predict"]
predict("complete_handles", ...)

# %% tags=["run"]
# %%px
words = dist.new_group(backend="gloo")  # messages beside the all-reduce
total, word = torch.tensor([10**rank], device=device), torch.zeros(1)
early = False
if rank == 0:
    for other in range(1, world_size):
        dist.recv(word, other, group=words)
work = dist.all_reduce(total, async_op=True)
if rank != 0:
    square = torch.ones(100, 100) @ torch.ones(100, 100)
    early = work.is_completed()
    print(f"multiplied: {square[0, 0]:.0f}; complete: {int(early)}")
    dist.send(word, 0, group=words)
work.wait()
result = total.item()

# %% [markdown] tags=["read"]
# 0, though all three products were there. An all-reduce cannot
# be complete before the last rank has come.
# Messages have handles too: `isend` and `irecv` return them.
#
# Until `wait()` returns, the tensor belongs to the call: neither write it nor read it. A call
# without `async_op` waits for you. (By NCCL, says its documentation, only the
# GPU waits, and Python goes on.)

# %% tags=["check"]
num_early = sum(ranks.view["early"])
assert num_early == 0
assert ranks.view["result"] == [sum(10**r for r in range(world_size))] * world_size
ok("handles came back before their calls were done", complete_handles=num_early)

# %% [markdown] tags=["question"]
# ## What happens when calls do not meet?

# %% [markdown] tags=["predict"]
# Each rank sends to its right neighbour, then receives from its left one. Gloo's `send` waits until
# the receiver has called `recv`. Somebody told you that this hurts only when messages are large, so
# here they are of 1 byte. How many of the four messages arrive?

# %% tags=["predict"]
predict("messages_arrived", ...)

# %% tags=["break", "raises-exception"]
# %%px
words = None  # not needed again
right, left = (rank + 1) % world_size, (rank - 1) % world_size
outgoing = torch.tensor([rank + 1], dtype=torch.uint8, device=device)
incoming = torch.zeros_like(outgoing)
dist.send(outgoing, dst=right)
dist.recv(incoming, src=left)

# %% tags=["run"]
num_arrived = sum(box.item() > 0 for box in ranks.view["incoming"])
print(f"{num_arrived} messages of 1 byte arrived")

# %% [markdown] tags=["read"]
# 0. This is a **deadlock**: each waits for another, and none can go on. The table shows the circle:
# rank 0 is in `send` and waits for rank 1, and so on round. None comes to its `recv`.

# %% tags=["mend"]
# %%px
large = torch.full((2**22,), rank, dtype=torch.uint8, device=device)
room = torch.zeros_like(large)
both = [dist.P2POp(dist.isend, large, right), dist.P2POp(dist.irecv, room, left)]
for work in dist.batch_isend_irecv(both):
    work.wait()
arrived = bool((room == left).all())
print(f"{room.nbytes // 2**20} MiB from rank {left} arrived: {arrived}")

# %% [markdown] tags=["read"]
# Both calls are under way before a rank waits for either, so 4 MiB pass.
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
# and collective 1 was `reduce` on rank 0, `barrier` elsewhere. So all must make the same collectives in
# the same order. Only the printing may be rank 0's alone.

# %% tags=["mend"]
# %%px
loss = torch.tensor([float(10**rank)], device=device)
dist.reduce(loss, dst=0)
if rank == 0:
    print(f"sum of losses: {loss.item()}")

# %% tags=["check"]
assert ranks.view["arrived"] == [True] * world_size
assert ranks.view["loss"][0].item() == sum(10**r for r in range(world_size))
ok("both deadlocks are mended", messages_arrived=num_arrived)

# %% [markdown] tags=["question"]
# ## More: what does an object bring along?

# %% [markdown] tags=["predict"]
# `broadcast_object_list` sends any Python object, as a pickle: bytes that say how to build the object
# again, and which functions to call for it. Rank 0 sends one that names `print`. On how many of the
# other three ranks will that call run?

# %% tags=["predict"]
predict("ranks_that_ran_it", ...)


# %% tags=["run"]
# %%px
class Parcel:
    def __reduce__(self):  # says how to build it again: by a call of print
        return print, ("I was packed by rank 0, and run here",)


facts, box = [None] * world_size, [Parcel() if rank == 0 else None]
dist.broadcast_object_list(box, src=0)
came = type(box[0]).__name__  # print gives back None
with trace() as events:
    dist.all_gather_object(facts, {"loss": rank / 2})
sizes = [event.input_bytes for event in events]
print(f"bytes of the loss, in {len(sizes)} collectives: {sizes}")

# %% [markdown] tags=["read"]
# On all 3, as their lines say. So take objects only from ranks that you trust.
#
# And they cost more. One call became two collectives: first the length, 8 bytes, so that receivers
# can make room, then the pickle. A loss takes 4 bytes as a tensor, and took 31 in
# this dictionary. Use objects for settings, once. Use tensors in the training loop.

# %% tags=["check"]
assert all(len(own) == 2 and own[0] == 8 < own[1] for own in ranks.view["sizes"])
num_ran = ranks.view["came"].count("NoneType")
assert num_ran == world_size - 1
ok("receivers of an object ran its code", ranks_that_ran_it=num_ran)

# %% [markdown] tags=["recap"]
# You have chosen collectives by what ranks hold, computed while a call was under way, and mended two
# deadlocks.
#
# Rule of thumb: **all ranks make the same collectives in the same order, and whoever sends must
# also be able to receive.**

# %% [markdown] tags=["next"]
# - **Exercise** [02](../exercises/02_collectives.ipynb): all-reduce from reduce and broadcast;
#   tensors of unequal lengths; an exchange that cannot deadlock; a broadcast in log2(n) rounds.
#   After the exercise: every collective in rounds, in
#   [rounds.py](../ddp_lessons/collectives/rounds.py).
# - **Next lesson** [03](03_ring.ipynb): does all-reduce need a centre?
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
