# %% [markdown] tags=["title"]
# # Does all-reduce need a centre?
#
# 25 minutes, 4 ranks. It builds on [02_collectives](02_collectives.ipynb): messages, their bytes,
# reduce-scatter and all-gather.

# %% [markdown] tags=["goal"]
# When you are through, you can
#
# - **count** what each rank sends in an all-reduce, round a hub and round a ring;
# - **follow** a ring step by step, and tell a good one from one that only adds up;
# - **foretell** how long a message takes, from two numbers.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.costs import collective_s, critical_path, crossover_bytes, fit
from ddp_lessons.pictures import steps_from_digits, steps_picture, times_plot

ranks = start_ranks(4)

# %% [markdown] tags=["question"]
# ## What does a centre have to send?

# %% [markdown] tags=["predict"]
# Four ranks add up tensors of 1,200 bytes, over a hub: rank 0 receives those of all others, adds,
# and sends the sum back to each of them. How many bytes does rank 0 send?

# %% tags=["predict"]
predict("bytes_of_a_hub", ...)

# %% tags=["run"]
# %%px
import torch
import torch.distributed as dist
from ddp_lessons.collectives import Peers, log_rounds, naive as hub
from ddp_lessons.process_group import rank_device
from ddp_lessons.ring import chunks_at_each_step, one_way_s, steps, textbook as ring
from ddp_lessons.ring import tcp_bytes_received
from ddp_lessons.trace import trace

rank, world_size = dist.get_rank(), dist.get_world_size()
# Gloo sends from the CPU's memory, NCCL from the GPU's.
device = rank_device() if dist.get_backend() == "nccl" else "cpu"

# %% tags=["run"]
# %%px
groups = {n: dist.new_group(range(n)) for n in (2, 3, 4)}
gradients = torch.ones(300, device=device)  # 1,200 bytes


def bytes_sent(all_reduce):  # by this rank, in groups of 2, 3 and 4
    sent = {}
    for n in groups:
        with trace() as events:
            if rank < n:
                all_reduce(gradients, group=groups[n])
        sent[n] = sum(event.input_bytes for event in events if event.is_send)
    return sent


by_hub = bytes_sent(hub.all_reduce)
print(f"bytes by size of the group: {by_hub}")

# %% [markdown] tags=["read"]
# Rank 0 sends 3600 bytes, the others 1200. Of two ranks it sent 1200, of three 2400: one tensor
# more for each rank that joins. With 1,000 ranks it would be 999 tensors, while each of the others
# sends one.

# %% tags=["check"]
by_hub = ranks.view["by_hub"]
assert [sent[4] for sent in by_hub] == [3600, 1200, 1200, 1200]
assert by_hub[0] == {2: 1200, 3: 2400, 4: 3600}
ok("a hub sends a tensor to each of the others", bytes_of_a_hub=by_hub[0][4])

# %% [markdown] tags=["question"]
# ## Can ranks add up without a centre?

# %% [markdown] tags=["predict"]
# In a **ring** each rank sends to the next one only. The tensor is cut into **chunks**, as many as
# there are ranks. In each step every rank sends one chunk, and receives another. First each chunk
# goes round to be added up. Then the finished chunk goes round to be copied. After how many steps
# does each of four ranks hold the whole sum?

# %% tags=["predict"]
predict("steps_of_a_ring", ...)

# %% tags=["run"]
# %%px
flat = torch.full((4,), 10**rank, device=device)  # 4 chunks of one number each
with trace() as events:
    seen = chunks_at_each_step(steps, flat)
sources = [event.peer for event in events if event.is_receive]
print(f"{len(sources)} steps; half way: {seen[3]}, at the end: {seen[-1]}")

# %% tags=["picture"]
# A sum of 1011 has the numbers of ranks 0, 1 and 3.
steps_picture(*steps_from_digits(ranks.view["seen"], ranks.view["sources"]))

# %% [markdown] tags=["read"]
# After 6 steps. In the first 3 a chunk meets all ranks, and grows. Half way each rank holds one that
# is done, 1111, at its own place: a reduce-scatter. In the last 3 the done ones go round: an
# all-gather. All ranks are busy in every step. How many bytes is that?

# %% tags=["run"]
# %%px
by_ring = bytes_sent(ring.all_reduce)
print(f"bytes by size of the group: {by_ring}")

# %% [markdown] tags=["read"]
# 6 steps of a quarter: each rank sends 1800 bytes. Four ranks together send 7200, as they did round
# the hub. What differs is the busiest rank: 3600 bytes there, 1800 here.
#
# Of n ranks each sends 2 (n - 1) chunks, and a chunk is the n-th part of a tensor. That is less
# than two tensors, however many join.

# %% tags=["check"]
seen, by_ring = ranks.view["seen"], ranks.view["by_ring"]
assert all(seen[r][-1] == [1111] * 4 for r in range(4))
assert all(seen[r][3][r] == 1111 and seen[r][3].count(1111) == 1 for r in range(4))
assert sum(sent[4] for sent in by_ring) == sum(sent[4] for sent in by_hub) == 7200
for n in (2, 3, 4):
    assert {sent[n] for sent in by_ring[:n]} == {2 * (n - 1) * 1200 // n}
ok("the busiest of 4 ranks sends half as much", steps_of_a_ring=len(seen[0]) - 1)

# %% [markdown] tags=["question"]
# ## Is a ring right if it adds up?

# %% [markdown] tags=["predict"]
# Here is a ring that many write first. It cuts nothing: each rank passes whole tensors on, and adds
# what comes. So rank 0 adds those of ranks 3, 2 and 1, in this order, and rank 1 adds those of 0, 3
# and 2. The tensors have 300 numbers, and every addition rounds. How many different
# tensors will the four ranks hold as the sum?

# %% tags=["predict"]
predict("sums_of_a_ring_uncut", ...)

# %% tags=["break"]
# %%px
from ddp_lessons.workloads import rank_generator

mine = torch.randn(300, generator=rank_generator(0, rank)).to(device)
right, left = (rank + 1) % world_size, (rank - 1) % world_size
uncut, passing = mine.clone(), mine
with trace() as events:
    for _ in range(world_size - 1):
        incoming = torch.empty_like(mine)
        Peers().exchange(passing, right, incoming, left)  # send and receive at once
        uncut, passing = uncut + incoming, incoming
num_sent = sum(event.input_bytes for event in events)
print(f"{num_sent} bytes sent")

# %% tags=["mend"]
# %%px
in_chunks = mine.clone()
ring.all_reduce(in_chunks)
is_close = torch.allclose(uncut, in_chunks, atol=1e-5)
print(f"close to the sum of whole tensors: {is_close}")

# %% tags=["run"]
different = {}
for way in ("uncut", "in_chunks"):
    different[way] = len({tuple(one.tolist()) for one in ranks.view[way]})
    print(f"{way}: {different[way]} different sums on four ranks")

# %% [markdown] tags=["read"]
# Uncut: 4 different sums, and 3600 bytes from each rank where 1800 do. Each rank adds in an order
# of its own, and rounds in its own places. The sums are close, but models that step by them drift
# apart.
#
# In chunks: 1 sum, equal on all ranks to the last bit. One rank finishes each chunk, and the
# others get copies.

# %% tags=["check"]
assert different == {"uncut": 4, "in_chunks": 1}
assert ranks.view["num_sent"] == [3600] * 4
assert ranks.view["is_close"] == [True] * 4
ok(
    "in chunks there is one sum, for half the bytes",
    sums_of_a_ring_uncut=different["uncut"],
)

# %% [markdown] tags=["question"]
# ## Has PyTorch's all-reduce a centre?

# %% [markdown] tags=["predict"]
# A guide says: a central node gathers all gradients, then sends them out. A trace cannot look into
# torch's own all-reduce. But the system counts what each process receives. In our hub, rank 0
# receives 3 tensors. How many does rank 0 receive in torch's all-reduce on four ranks?

# %% tags=["predict"]
predict("tensors_received", ...)

# %% tags=["run"]
# %%px
gloo = dist.new_group(backend="gloo")  # its messages come over TCP
large, received = torch.zeros(1_000_000), {}
for name, all_reduce in [("hub", hub.all_reduce), ("torch", dist.all_reduce)]:
    dist.barrier(gloo)
    before = tcp_bytes_received()
    all_reduce(large, group=gloo)
    received[name] = round((tcp_bytes_received() - before) / large.nbytes, 1)
print(", ".join(f"{name}: {share} tensors" for name, share in received.items()))

# %% [markdown] tags=["read"]
# Our hub shows what a centre looks like: rank 0 received 3.0 tensors, the others 1.0. In torch's
# all-reduce every rank received 1.5. That is the ring's number, 6 quarters, and nobody stands out. So
# the guide's sentence, [claim C04](claims.md), is **false** here.
#
# This is Gloo. NCCL, says its documentation, chooses among rings and trees.

# %% tags=["check"]
received = ranks.view["received"]
assert [own["hub"] for own in received] == [3.0, 1.0, 1.0, 1.0]
assert [own["torch"] for own in received] == [1.5] * 4
ok("C04 is false, all 4 ranks received as much", tensors_received=received[0]["torch"])

# %% [markdown] tags=["question"]
# ## How long does a message take?

# %% [markdown] tags=["predict"]
# A message takes a **latency**, the time of an empty one, and then its bytes over a **bandwidth**,
# bytes a second. Say, 20 microseconds, and 5,000 bytes a microsecond. How many times as long as an
# empty message does one of 1,000,000 bytes take?

# %% tags=["predict"]
predict("times_as_long", ...)

# %% tags=["run"]
for num_bytes in (1_000, 1_000_000):
    times_as_long = (20 + num_bytes / 5_000) / 20
    print(f"{num_bytes:7} bytes: {times_as_long:g} times as long as an empty one")

# %% [markdown] tags=["read"]
# 11 times, and 1000 bytes take hardly longer than none. Is that so here? Ranks 0 and 1 play
# ping-pong: a message there and back, halved. They measure 8 sizes in turn, three times over, so that
# a busy moment of the machine meets all sizes alike. We fit the two numbers to 7 of the sizes, and let
# them predict the eighth.

# %% tags=["run"]
# %%px
sizes = [*(2**k for k in range(10, 23, 2)), 3 * 2**20]
passes = [{n: one_way_s(n, device) for n in sizes} for _ in range(3)]
times = {n: min(times_s[n] for times_s in passes) for n in sizes}

# %% tags=["run", "nbval-ignore-output"]
times, new = ranks.view["times"][0], 3 * 2**20
measured = times.pop(new)  # kept apart from the fit
model = fit(times.items(), confidence=0.999)
guess = model.predict(new)  # a time, and a band in which it should lie
print(f"latency {model.link.latency_s * 1e6:.0f} microseconds")
print(f"bandwidth {model.link.bandwidth_bytes_per_s / 1e6:.0f} bytes a microsecond")

# %% tags=["picture"]
band = [(n, g.value, g.low, g.high) for n in times for g in [model.predict(n)]]
both = {"fitted": times.items(), "predicted": [(new, measured)]}
times_plot(both, {"model": band})

# %% [markdown] tags=["read"]
# Small messages are all latency: left, the line is flat. Large ones are all bandwidth: right, it
# climbs. Either number alone foretells one end only. Both together were nearer to the new time than
# either.
#
# The band is wide, as 7 points are few, and it must hold 999 times in 1,000.

# %% tags=["check"]
from math import log

assert guess.low <= measured <= guess.high
as_latency, as_bandwidth = times[1024], times[1024] * new / 1024
for alone in (as_latency, as_bandwidth):
    assert abs(log(measured / guess.value)) < abs(log(measured / alone))
ok(
    "two numbers foretold the time of an eighth size",
    times_as_long=round(times_as_long),
)

# %% [markdown] tags=["question"]
# ## More: when are fewer rounds worth more bytes?

# %% [markdown] tags=["predict"]
# In a **tree** ranks add in pairs, then pairs of pairs, until rank 0 has the sum. It comes down
# the same way. Its steps are called rounds. A ring of 1,024 ranks takes 2,046 rounds,
# one after the other. How many does a tree take, up and down?

# %% tags=["predict"]
predict("rounds_of_a_tree", ...)


# %% tags=["run"]
# %%px
def tree_all_reduce(tensor):
    log_rounds.reduce(tensor, 0)
    log_rounds.broadcast(tensor, 0)


with trace() as events:
    tree_all_reduce(gradients)
in_a_row = len(events), sum(e.input_bytes + e.output_bytes for e in events)
print(f"{in_a_row[0]} messages one after the other, {in_a_row[1]} bytes")

# %% [markdown] tags=["read"]
# Rank 0 has 4 messages one after the other, two up and two down, each of 1200 bytes. The ring had 6
# steps, each of 300. So the tree takes fewer rounds, but more bytes one after the other. (In all,
# both send as many.) A formula says the same for 4 ranks, and goes on to 1,024, which nobody has
# here.

# %% tags=["run"]
for n in (4, 1024):
    for way in ("ring", "tree"):
        rounds, share = critical_path("all_reduce", way, n)
        print(
            f"{n:4} ranks, {way}: {rounds:4} rounds, {share:.1f} tensors in all of them"
        )

# %% tags=["picture"]
sizes, link = [2**k for k in range(10, 31, 2)], model.link
times_plot(
    {
        way: [(n, collective_s("all_reduce", way, 1024, n, link)) for n in sizes]
        for way in ("ring", "tree")
    }
)

# %% [markdown] tags=["read"]
# By the formula a tree takes 20 rounds where a ring takes 2046, but 20.0 tensors go one
# after the other where a ring has 2.0. A round costs a latency, a byte costs bandwidth.
# With the two numbers of our link, 1,024 ranks do better with a tree for
# 1&nbsp;MiB, and with a ring past the size at which the two cross. So libraries choose by size.

# %% tags=["check"]
assert critical_path("all_reduce", "tree", 4) == (4, 4800 / 1200)
assert critical_path("all_reduce", "ring", 4) == (6, 1800 / 1200)
assert ranks.view["in_a_row"][0] == (4, 4800)
assert crossover_bytes("all_reduce", "tree", "ring", 1024, link) > 2**20
ok("a tree wins where latency counts, by the formula", rounds_of_a_tree=rounds)

# %% [markdown] tags=["recap"]
# You have counted what ranks send round a hub and round a ring, followed a ring step by step, and
# foretold how long a message takes.
#
# Rule of thumb: **look at the busiest rank, not at the total; a small message costs its latency, a
# large one its bytes.**

# %% [markdown] tags=["next"]
# - **Exercise** [03](../exercises/03_ring.ipynb): write the two halves of a ring, then a ring for
#   any length; fit latency and bandwidth; say a collective's bytes before it runs. After the exercise:
#   our ring, in [steps.py](../ddp_lessons/ring/steps.py).
# - **Next lesson** [04](04_samplers.ipynb): who sees which sample?
# - **Sources**: P. Patarasuk and X. Yuan, [Bandwidth Optimal All-reduce Algorithms for Clusters of
#   Workstations](https://doi.org/10.1016/j.jpdc.2008.09.002), 2009, with the ring, and a proof that no
#   all-reduce sends less; Gloo's [index of
#   algorithms](https://github.com/pytorch/gloo/blob/main/docs/algorithms.md), with steps and bytes
#   of each; NVIDIA's [Massively Scale Your Deep Learning Training with NCCL
#   2.4](https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/), on
#   rings and trees.

# %% tags=["teardown"]
ranks.stop()
