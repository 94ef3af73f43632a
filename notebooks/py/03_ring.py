# %% [markdown] tags=["title"]
# # Why does all-reduce need no centre?
#
# 25 minutes, 4 ranks. It builds on [02_collectives](02_collectives.ipynb): messages, their bytes,
# reduce-scatter and all-gather.

# %% [markdown] tags=["goal"]
# When you are through, you can
#
# - **count** what each rank sends in an all-reduce, round a hub and round a ring;
# - **follow** a ring step by step, and tell a good one from one that only adds up;
# - **foretell** how long a message takes, and when a tree beats a ring.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.costs import critical_path, crossover_bytes, fit
from ddp_lessons.pictures import steps_picture, times_plot

ranks = start_ranks(4)
world_size = len(ranks)

# %% [markdown] tags=["question"]
# ## A hub's busiest rank sends more with each rank that joins; a ring's hardly does.

# %% [markdown] tags=["predict"]
# Four ranks add up 1,200 bytes each. First over a hub: rank 0 collects all, adds, and sends the
# sum to all. Then over a **ring**: each rank sends to the next one only. How many bytes does rank 0
# send in the one, and in the other?
#
# *Your number:*

# %% tags=["run"]
# %%px
import time
import torch
import torch.distributed as dist
from ddp_lessons.collectives import Peers, log_rounds, naive
from ddp_lessons.process_group import rank_device
from ddp_lessons.ring import pipelined, steps, textbook
from ddp_lessons.trace import trace

rank, world_size = dist.get_rank(), dist.get_world_size()
# Gloo sends from the CPU's memory, NCCL from the GPU's.
device = rank_device() if dist.get_backend() == "nccl" else "cpu"

# %% tags=["run"]
# %%px
groups = {n: dist.new_group(range(n)) for n in range(2, world_size + 1)}
gradients, sent = torch.ones(300, device=device), {}  # 1,200 bytes
for name, calls in [("hub", naive), ("ring", textbook)]:
    for n, group in groups.items():
        with trace() as events:
            if rank < n:
                calls.all_reduce(gradients, group=group)
        sent[name, n] = sum(event.input_bytes for event in events if event.is_send)

# %% tags=["run"]
totals, busiest = {}, {}
for way in ranks.view["sent"][0]:
    bytes_of = [own[way] for own in ranks.view["sent"]][: way[1]]
    totals[way], busiest[way] = sum(bytes_of), max(bytes_of)
    print(f"{way[0]:4} of {way[1]}: {bytes_of}, together {totals[way]}")

# %% [markdown] tags=["read"]
# Rank 0 sends 3600 bytes as the hub of four, and 1800 in their ring. Together they send 7200
# either way: each of three ranks must give its numbers away once and get the sum once.
#
# What differs is the busiest rank. A hub of n sends n - 1 tensors, one after the other. In a ring
# of n a rank sends 2 (n - 1) / n tensors: less than two, however many join. None can do with less.

# %% tags=["check"]
for n in range(2, world_size + 1):
    assert totals["hub", n] == totals["ring", n] == 2 * (n - 1) * 1200
    assert busiest["hub", n] == (n - 1) * 1200
    assert busiest["ring", n] == 2 * (n - 1) * 1200 // n < 2 * 1200
print("ok: the same bytes together, 3600 or 1800 for the busiest of 4 ranks")

# %% [markdown] tags=["question"]
# ## PyTorch's all-reduce has no centre.

# %% [markdown] tags=["predict"]
# A guide says: a central node gathers all gradients, then sends them out. A trace cannot see into
# torch's own all-reduce, but the system counts what each connection has received. If there
# is a centre among four ranks, how many tensors does it receive, and how many do the others?
#
# *Your number:*

# %% tags=["run"]
# %%px
import os, socket, struct


def num_received():  # bytes, over all TCP connections of this process
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket"):
                with socket.socket(fileno=os.dup(int(name))) as link:
                    facts = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
                total += struct.unpack_from("Q", facts, 128)[0]  # tcpi_bytes_received
        except (OSError, struct.error):
            pass  # another kind of socket
    return total


# %% tags=["run"]
# %%px
gloo = dist.new_group(backend="gloo")  # NCCL's messages need not go through TCP
large, received = torch.zeros(1_000_000), {}
for name, all_reduce in [("hub", naive.all_reduce), ("torch", dist.all_reduce)]:
    dist.barrier(gloo)
    before = num_received()
    all_reduce(large, group=gloo)
    received[name] = round((num_received() - before) / large.nbytes, 1)
print(", ".join(f"{name} {share} tensors" for name, share in received.items()))

# %% [markdown] tags=["read"]
# Our hub shows what a centre looks like: rank 0 received 3.0 tensors, the others 1.0. In torch's
# all-reduce every rank received 1.5, which is the ring's number, and nobody stands out. So the
# claim, C04 in our list, is **false** here.
#
# This is Gloo on TCP. NCCL chooses among rings and trees, by size and by machine. Its tree has a
# root, but no rank that gathers everything.

# %% tags=["check"]
received = ranks.view["received"]
shares = {name: [own[name] for own in received] for name in ("hub", "torch")}
assert shares["hub"] == [3.0, 1.0, 1.0, 1.0]
assert shares["torch"] == [1.5] * 4
print("ok: C04 is false, all 4 ranks received as much: 1.5 tensors")

# %% [markdown] tags=["question"]
# ## Round the ring a chunk first grows, then goes round once more.

# %% [markdown] tags=["predict"]
# A ring cuts the tensor into **chunks**, as many as there are ranks. In each step a rank sends one
# chunk to the next rank, and receives another from the one before. After how many steps does each
# of four ranks hold the whole sum?
#
# *Your number:*


# %% tags=["run"]
# %%px
class Watched(Peers):  # looks at all chunks before each step
    def exchange(self, *messages):
        seen.append(flat.tolist())
        super().exchange(*messages)


flat = torch.full((world_size,), 10**rank, device=device)  # a number is a chunk
seen = []
with trace() as events:
    steps.all_reduce(flat, dist.ReduceOp.SUM, Watched())
seen.append(flat.tolist())
sources = [event.peer for event in events if event.is_receive]
print(f"{len(sources)} steps; half way: {seen[world_size - 1]}, at the end: {seen[-1]}")

# %% tags=["run"]
seen, sources = ranks.view["seen"], ranks.view["sources"]
everyone, moments = range(world_size), range(len(seen[0]))


def digits_of(number):  # 1011 has numbers of ranks 0, 1 and 3
    return [r for r in range(world_size) if number // 10**r % 10]


holdings, moves = [], []
for k in moments:
    now = [[digits_of(number) for number in seen[r][k]] for r in everyone]
    holdings.append(now)
    if k > 0:
        came = [[c for c in everyone if now[r][c] != before[r][c]] for r in everyone]
        moves.append([(sources[r][k - 1], r, came[r]) for r in everyone])
    before = now

# %% tags=["picture"]
steps_picture(holdings, moves)

# %% [markdown] tags=["read"]
# After 6 steps. Rank r began with 10 to the power r in each chunk, so the digits tell whose numbers
# are in a sum. In the first 3 steps chunks grow. Half way each rank holds one that is done,
# 1111, at its own place: a reduce-scatter. In the last 3 steps the done ones go round: an
# all-gather. All ranks are busy in every step.
#
# It is ten lines in [steps.py](../ddp_lessons/ring/steps.py).

# %% tags=["break"]
# %%px
from ddp_lessons.workloads import rank_generator

mine = torch.randn(300, generator=rank_generator(0, rank)).to(device)
total, passing = mine.clone(), mine
right, left = (rank + 1) % world_size, (rank - 1) % world_size
with trace() as events:
    for _ in range(world_size - 1):
        incoming = torch.empty_like(mine)
        Peers().exchange(passing, right, incoming, left)
        total, passing = total + incoming, incoming
num_sent, first = sum(event.input_bytes for event in events), total.clone()
dist.broadcast(first, src=0)
is_equal, is_close = torch.equal(total, first), torch.allclose(total, first, atol=1e-5)
print(f"{num_sent} bytes sent; close to rank 0's sum: {is_close}, equal: {is_equal}")

# %% tags=["mend"]
# %%px
total = mine.clone()
with trace() as events:
    textbook.all_reduce(total)
num_sent, first = sum(event.input_bytes for event in events), total.clone()
dist.broadcast(first, src=0)
is_mended = torch.equal(total, first)
print(f"{num_sent} bytes sent; equal to rank 0's sum: {is_mended}")

# %% [markdown] tags=["read"]
# The break is a ring that many write first: pass the whole tensor on, and add. It sends 3600 bytes
# where 1800 do. And each rank adds in an order of its own, so the sums are close, not equal.
# Replicas that add such gradients drift apart.
#
# In the mend each chunk is finished by one rank, and copied to the others. Sums of every rank are
# equal to the last bit.

# %% tags=["check"]
assert all(row == [1111] * 4 for row in (seen[r][-1] for r in everyone))
assert all(seen[r][3][r] == 1111 and seen[r][3].count(1111) == 1 for r in everyone)
assert ranks.view["is_close"] == [True] * 4
assert ranks.view["is_equal"] == [True] + [False] * 3
assert ranks.view["num_sent"] == [1800] * 4
assert ranks.view["is_mended"] == [True] * 4
print("ok: 6 steps; the sums of 4 ranks are equal to the last bit, for half the bytes")

# %% [markdown] tags=["question"]
# ## Two numbers foretell how long a message takes.

# %% [markdown] tags=["predict"]
# A message takes a **latency**, the time of an empty one, and then its bytes over a **bandwidth**,
# bytes a second. A message of 3 MiB has 3,072 times the bytes of one of 1 KiB. How many times as
# long does it take?
#
# *Your number:*


# %% tags=["run"]
# %%px
def one_way_s(num_bytes, num_tries=40):
    box, times = torch.zeros(num_bytes, dtype=torch.uint8, device=device), []
    for _ in range(num_tries):
        start = time.perf_counter()
        if rank < 2:
            calls = (dist.send, dist.recv)
            first, second = calls if rank == 0 else reversed(calls)
            first(box, 1 - rank)
            second(box, 1 - rank)
            box[-1].item()  # a GPU is done when its numbers can be read
        times.append((time.perf_counter() - start) / 2)
    return min(times)  # the try that other programs left alone


times = {2**k: one_way_s(2**k) for k in range(10, 23, 2)}

# %% tags=["run", "nbval-ignore-output"]
times, new = ranks.view["times"][0], 3 * 2**20
model = fit(times.items(), confidence=0.999)
guess, link = model.predict(new), model.link
print(f"latency {link.latency_s * 1e6:.0f} us")
print(f"bandwidth {link.bandwidth_bytes_per_s / 2**30:.1f} GiB/s")
print(f"{new} bytes: {guess.value / times[2**10]:.0f} times as long as 1 KiB")

# %% tags=["run"]
# %%px
new = 3 * 2**20
measured = one_way_s(new)
if rank == 0:
    print(f"fitted: {len(times)} sizes; {new} bytes among them: {new in times}")

# %% tags=["picture"]
measured = ranks.view["measured"][0]
sizes = [2**k for k in range(10, 24)]
band = [(n, g.value, g.low, g.high) for n in sizes for g in [model.predict(n)]]
both = {"fitted": times.items(), "measured later": [(new, measured)]}
times_plot(both, {"model": band})

# %% [markdown] tags=["read"]
# The model was fitted to 7 sizes, and 3145728 bytes were not among them. The measurement lies
# in the band that the fit had given before, though neither number alone would do: small messages
# are all latency, large ones all bandwidth. So 3 MiB take far less than 3,072 times as long.
#
# The band comes from how far the 7 points lie from the line. A busy machine has a wider one.

# %% tags=["check"]
from math import log

assert guess.low <= measured <= guess.high
as_latency, as_bandwidth = times[1024], times[1024] * new / 1024
for simpler in (as_latency, as_bandwidth):
    assert abs(log(measured / guess.value)) < abs(log(measured / simpler))
print("ok: 3145728 bytes took what 2 numbers had foretold, and neither alone had")

# %% [markdown] tags=["question"]
# ## A tree takes fewer rounds than a ring, for more bytes.

# %% [markdown] tags=["predict"]
# In a **tree** ranks add in pairs, then pairs of pairs, until rank 0 has the sum; it comes down
# the same way. A ring of 1,024 ranks takes 2,046 rounds of messages, one after the other. How many
# does a tree take, up and down?
#
# *Your number:*

# %% tags=["run"]
for n in (4, 1024):
    for way in ("ring", "tree"):
        rounds, share = critical_path("all_reduce", way, n)
        print(f"{n:4} ranks, {way}: {rounds:4} rounds, {share:.1f} tensors in a row")


# %% tags=["run"]
# %%px
def tree_all_reduce(tensor):
    log_rounds.reduce(tensor, 0)
    log_rounds.broadcast(tensor, 0)


ways = {"tree": tree_all_reduce, "ring": textbook.all_reduce}
ways |= {"ring in segments": pipelined.all_reduce, "torch": dist.all_reduce}
took_s = {name: {2**k: [] for k in (10, 16, 22)} for name in ways}
for num_bytes in (2**10, 2**16, 2**22) * 9:
    for name, all_reduce in ways.items():
        tensor = torch.zeros(num_bytes // 4, device=device)
        dist.barrier()
        start = time.perf_counter()
        all_reduce(tensor)
        tensor[-1].item()
        took_s[name][num_bytes].append(time.perf_counter() - start)

# %% tags=["run"]
took_s, best_s = ranks.view["took_s"], {}
for name, sizes in took_s[0].items():
    tries = {n: zip(*(own[name][n] for own in took_s), strict=True) for n in sizes}
    best_s[name] = {n: min(map(max, slowest)) for n, slowest in tries.items()}

# %% tags=["picture"]
times_plot({name: sizes.items() for name, sizes in best_s.items()})

# %% [markdown] tags=["read"]
# A tree of 1,024 takes 20 rounds for 2046, but moves 20.0 tensors one after the other for 2.0.
# Rounds cost latency, bytes cost bandwidth. So a tree wins below some size, a ring above it, and
# libraries choose by size.
#
# Four ranks are few: 4 rounds or 6. Here they share one memory, so no link is the busiest, and the
# picture differs from run to run. Between machines the tree would fall behind.

# %% tags=["check"]
# The formula is right about the ring that ran above: 6 steps, 1800 bytes of 1200.
assert critical_path("all_reduce", "ring", 4) == (len(sources[0]), 1800 / 1200)
# On the link that was fitted, 1,024 ranks do better with a tree for 1 MiB and less.
assert crossover_bytes("all_reduce", "tree", "ring", 1024, model.link) > 2**20
# A hub's busiest rank has 4 times a ring's bytes in a row: as slow would be no better.
assert best_s["ring in segments"][2**22] < world_size * best_s["torch"][2**22]
print("ok: a tree wins at 1 MiB for 1,024 ranks; our ring keeps up with torch at 4 MiB")

# %% [markdown] tags=["recap"]
# You have counted what ranks send round a hub and round a ring, followed a ring step by step, and
# foretold how long a message takes.
#
# Rule of thumb: **look at the busiest rank, not at the total; small tensors cost rounds, large ones
# cost bytes.**

# %% [markdown] tags=["next"]
# - **Exercise** [03](../exercises/03_ring.ipynb): write the two halves of a ring, then a ring for
#   any length; fit latency and bandwidth; say a collective's bytes before it runs.
# - **Next lesson** [04](04_samplers.ipynb): who sees which sample?
# - **Sources**: P. Patarasuk and X. Yuan, [Bandwidth Optimal All-reduce Algorithms for Clusters of
#   Workstations](https://doi.org/10.1016/j.jpdc.2008.09.002), 2009, with the lower bound and the
#   ring; Gloo's [index of
#   algorithms](https://github.com/pytorch/gloo/blob/main/docs/algorithms.md), with steps and bytes
#   of each; NVIDIA's [Massively Scale Your Deep Learning Training with NCCL
#   2.4](https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/), on
#   rings and trees.

# %% tags=["teardown"]
ranks.stop()
