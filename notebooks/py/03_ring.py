# %% [markdown] tags=["title"] minutes=[50, 40]
# # Does all-reduce need a centre?
#
# 45 minutes, 4 ranks. This lesson builds on [02_collectives](02_collectives.ipynb): `send` and `recv`,
# `batch_isend_irecv`, and the collectives.

# %% [markdown] tags=["why"]
# In every training step, DDP adds up the gradients of all ranks: 4 GB on each rank, if the model has
# a billion weights in float32. If one rank did this for all ranks, its network connection would set the
# pace: with 8 GPUs, 28 GB would come in and 28 GB go out there in every step. This lesson shows how ranks
# add up without a centre, and how to say in advance how long it takes.

# %% [markdown] tags=["goal"]
# After this lesson you can
#
# - **count** the bytes that each rank sends in an all-reduce, through a hub and around a ring;
# - **write** a ring all-reduce, and say why all ranks get the same bits;
# - **predict** how long a message and an all-reduce take, from two numbers.

# %% tags=["setup", "nbval-ignore-output"]
import numpy as np
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.pictures import steps_from_digits, steps_picture

ranks = start_ranks(4)

# %% [markdown] tags=["question"]
# ## How many bytes must a centre send?

# %% [markdown] tags=["explain"]
# An **all-reduce** adds up one tensor of each rank, and gives the sum to every rank. The obvious way
# is a **hub**: one rank in the centre, here rank 0, does all the work.
#
# ```text
#    1. all others send their tensors      2. rank 0 sends the sum
#
#    rank 1 --+                                         +--> rank 1
#    rank 2 --+--> rank 0 adds                 rank 0 --+--> rank 2
#    rank 3 --+                                         +--> rank 3
# ```
#
# The next two cells set up the ranks, and define the hub for n ranks.

# %% tags=["run"]
# %%px
import torch
import torch.distributed as dist
from ddp_lessons.process_group import rank_device
from ddp_lessons.trace import trace

rank, n = dist.get_rank(), dist.get_world_size()
# Gloo sends from the memory of the CPU, NCCL from the memory of the GPU.
device = rank_device() if dist.get_backend() == "nccl" else "cpu"


# %% tags=["run"]
# %%px
def hub_all_reduce(tensor):
    if rank == 0:
        incoming = torch.empty_like(tensor)
        for other in range(1, n):
            dist.recv(incoming, src=other)
            tensor += incoming
        for other in range(1, n):
            dist.send(tensor, dst=other)
    else:
        dist.send(tensor, dst=0)
        dist.recv(tensor, src=0)


# %% [markdown] tags=["predict"]
# Four ranks add up tensors through the hub. How many times as many bytes does rank 0 send as rank 1?

# %% tags=["predict"]
predict("times_the_bytes", ...)

# %% [markdown] tags=["explain"]
# `trace()` records every call by which this rank communicates inside of the `with` block, and the
# bytes that the call sent.


# %% tags=["run"]
# %%px
def count_sent_bytes(all_reduce):
    tensor = torch.ones(300, device=device)  # 1,200 bytes
    with trace() as events:
        all_reduce(tensor)
    return sum(event.input_bytes for event in events if event.is_send)


hub_bytes = count_sent_bytes(hub_all_reduce)
print(f"{hub_bytes} bytes sent")

# %% tags=["run"]
hub_bytes = ranks.view["hub_bytes"]  # a list: the bytes of each rank
bytes_ratio = hub_bytes[0] // hub_bytes[1]
print(f"rank 0 sends {bytes_ratio} times as many bytes as rank 1")

# %% [markdown] tags=["read"]
# Rank 0 sends 3 times as many bytes: 3,600, where every other rank sends its tensor once, 1,200. With
# 1,000 ranks, 999 tensors come in through the connection of rank 0, and 999 go out. Therefore look at
# the busiest rank: it sets the pace, and all other ranks wait for it.

# %% tags=["check"]
assert hub_bytes == [3600, 1200, 1200, 1200]
ok("the hub sends a tensor to each other rank", times_the_bytes=bytes_ratio)

# %% [markdown] tags=["question"]
# ## Can ranks add up without a centre?

# %% [markdown] tags=["explain"]
# In a **ring** every rank sends to the next rank only, its **right neighbour**, and receives from the
# rank before it, its **left neighbour**. After the last rank comes rank 0 again.
#
# ```text
#    rank 0 ---> rank 1
#      ^            |
#      |            v
#    rank 3 <--- rank 2
# ```
#
# Each rank cuts its tensor into as many **chunks** as there are ranks. In every **step**, each rank
# sends one chunk to the right, and receives another chunk from the left.
#
# Follow chunk 3. Rank 0 sends its numbers of chunk 3 to rank 1. Rank 1 adds its own numbers, and sends
# the sum to rank 2 in the next step. In each step, the sum collects one more rank, until it is
# complete. Then the complete sum travels on, and each rank that still lacks it stores a copy.
#
# Chunk c starts at rank c + 1: chunk 0 at rank 1, chunk 1 at rank 2, and chunk 3 at rank 0. So **rank
# r sends chunk r - 1 first** (rank 0: chunk 3). With this start, rank r completes the sum of chunk r,
# and all ranks are busy in every step.

# %% [markdown] tags=["predict"]
# After how many steps does each of the four ranks hold the complete sums of all four chunks?

# %% tags=["predict"]
predict("steps_of_a_ring", ...)

# %% [markdown] tags=["explain"]
# `exchange` starts both messages of a step before the rank waits for either. If every rank
# first waited for the end of its `send`, all ranks would block ([lesson 02](02_collectives.ipynb)).
#
# `ring_reduce_scatter` is the loop that adds. In the first step rank r sends chunk r - 1, and in each
# later step it sends the chunk to which it has just added. The chunk that arrives is the one that
# the left neighbour sends: put r - 1 in place of r, and `rank - 1 - step` becomes `rank - 2 - step`.
# (`%` keeps the number of a chunk between 0 and n - 1: `-1 % 4` is 3.)


# %% tags=["run"]
# %%px
right, left = (rank + 1) % n, (rank - 1) % n


def exchange(outgoing, incoming):
    sending = dist.P2POp(dist.isend, outgoing, right)
    receiving = dist.P2POp(dist.irecv, incoming, left)
    for work in dist.batch_isend_irecv([sending, receiving]):
        work.wait()


# %% tags=["run"]
# %%px
def ring_reduce_scatter(chunks):
    for step in range(n - 1):
        outgoing = chunks[(rank - 1 - step) % n]
        own = chunks[(rank - 2 - step) % n]
        incoming = torch.empty_like(own)
        exchange(outgoing, incoming)
        own += incoming


# %% [markdown] tags=["explain"]
# To see which ranks are in a sum, rank r puts 10<sup>r</sup> into each of its chunks: 1, 10, 100 or
# 1000. We print the digits from right to left, so that the first digit belongs to rank 0: 1011 is the sum
# of ranks 0, 2 and 3, and 1111 is complete. `chunks_at_each_step` calls our loop, and also stores the
# chunks at the start and after each step, for the picture.

# %% tags=["run"]
# %%px
from ddp_lessons.ring import chunks_at_each_step

tensor = torch.full((4,), 10**rank, device=device)
chunks = tensor.tensor_split(n)  # 4 views of one number each
first_half = chunks_at_each_step(ring_reduce_scatter, chunks)
print("after 3 steps:", *(f"{number:04}"[::-1] for number in tensor.tolist()))

# %% tags=["picture"]
steps_picture(*steps_from_digits(ranks.view["first_half"]))

# %% [markdown] tags=["read"]
# Follow chunk 3 from panel to panel. The small numbers in a chunk name the ranks that are in its sum.
#
# After 3 steps, rank r holds the complete sum of chunk r only. This half is a **reduce-scatter**. In
# the second half, an **all-gather**, the complete chunks travel on. Rank r sends chunk r first, and
# what arrives overwrites a chunk.


# %% tags=["run"]
# %%px
def ring_all_gather(chunks):
    for step in range(n - 1):
        outgoing = chunks[(rank - step) % n]
        overwritten = chunks[(rank - 1 - step) % n]
        exchange(outgoing, overwritten)


second_half = chunks_at_each_step(ring_all_gather, chunks)
num_steps = len(first_half) - 1 + len(second_half) - 1  # each begins with the start
digits = [f"{number:04}"[::-1] for number in tensor.tolist()]
print(f"after {num_steps} steps:", *digits)

# %% tags=["picture"]
steps_picture(*steps_from_digits(ranks.view["second_half"]))

# %% [markdown] tags=["read"]
# Every rank holds all complete sums, 1111 in all four chunks, after 6 steps. With n ranks, each half
# takes n - 1 steps. The second picture starts where the first one ends. Follow chunk 3 again: rank 3
# sends the complete sum to rank 0, rank 0 sends it to rank 1, and rank 1 sends it to rank 2.
#
# Only rank r completes the sum of chunk r, and all other ranks copy it. So all ranks get the same sum,
# to the last bit. DDP depends on this: it keeps replicas equal only because every optimizer gets equal
# gradients ([lesson 00](00_ranks.ipynb)). The third "More" breaks it, with a ring in which each rank
# adds for itself. (Another number of ranks adds in another order, so it can give other last digits.)
#
# How many bytes do both halves send?


# %% tags=["run"]
# %%px
def ring_all_reduce(tensor):
    chunks = tensor.tensor_split(n)
    ring_reduce_scatter(chunks)
    ring_all_gather(chunks)


ring_bytes = count_sent_bytes(ring_all_reduce)

# %% tags=["run"]
ring_bytes = ranks.view["ring_bytes"]
for name, sent_bytes in {"hub": hub_bytes, "ring": ring_bytes}.items():
    total, busiest = sum(sent_bytes), max(sent_bytes)
    print(f"{name}: {total} bytes in all, {busiest} by the busiest rank")

# %% [markdown] tags=["read"]
# In all, the ring sends as many bytes as the hub, 7,200. But the busiest rank sends 1,800 bytes in
# place of 3,600: 6 steps, with a chunk of 300 bytes in each.
#
# How do these bytes grow with the number of ranks? We let ranks 0 and 1 add up, then ranks 0 to 2, then
# all four. Rank 0 prints what it sends: it is the busiest rank of the hub, and in the ring all ranks send
# equally many bytes.

# %% tags=["run"]
# %%px
bytes_of_n = {}
for n in (2, 3, 4):  # the functions above read n, right and left
    right, left = (rank + 1) % n, (rank - 1) % n
    if rank < n:
        in_hub = count_sent_bytes(hub_all_reduce)
        in_ring = count_sent_bytes(ring_all_reduce)
        bytes_of_n[n] = [in_hub, in_ring]
    if rank == 0:
        print(f"{n} ranks: {in_hub:,} bytes in the hub, {in_ring:,} bytes in the ring")

# %% [markdown] tags=["read"]
# With each further rank, the busiest rank of the hub sends one tensor more: 1,200, 2,400, 3,600 bytes. A
# rank of the ring sends 1,200, 1,600, 1,800 bytes: 2 (n - 1) chunks, each one n-th of the tensor. This
# stays below two tensors, 2,400 bytes, for every number of ranks.

# %% tags=["check"]
first_half, tensors = ranks.view["first_half"], ranks.view["tensor"]
for r in range(4):
    is_complete = [number == 1111 for number in first_half[r][-1]]
    assert is_complete == [chunk == r for chunk in range(4)]
    assert tensors[r].tolist() == [1111] * 4
assert sum(hub_bytes) == sum(ring_bytes) == 7200
assert ring_bytes == [1800] * 4
bytes_of_n = ranks.view["bytes_of_n"][0]
assert bytes_of_n == {2: [1200, 1200], 3: [2400, 1600], 4: [3600, 1800]}
num_steps = ranks.view["num_steps"][0]
ok("a ring adds up, and no rank sends two tensors", steps_of_a_ring=num_steps)

# %% [markdown] tags=["question"]
# ## Does PyTorch's all-reduce have a centre?

# %% [markdown] tags=["explain"]
# Some guides say: in data-parallel training, a central node gathers the gradients of all ranks, and
# sends the result back. `trace` does not see the messages inside of `dist.all_reduce`. But they travel
# over TCP connections, and the operating system counts the bytes that each connection receives.
# `tcp_bytes_received()` returns the sum of these counts for one rank. (In a ring, each rank receives
# as many bytes as it sends.)
#
# To see what a centre looks like in these counts, we first run a hub: `naive.all_reduce` has the lines
# of our `hub_all_reduce`. Then we run torch's own call. Both get a tensor of 4 MB: "1.0 tensors" are 4
# MB.

# %% [markdown] tags=["predict"]
# In the hub, rank 0 receives 3 tensors. How many tensors will rank 0 receive in torch's all-reduce on
# four ranks? A fraction is possible.

# %% tags=["predict"]
predict("tensors_received", ...)

# %% tags=["run"]
# %%px
from ddp_lessons.collectives import naive
from ddp_lessons.ring import tcp_bytes_received

gloo_group = dist.new_group(backend="gloo")  # Gloo even if your ranks use NCCL
large = torch.zeros(1_000_000)  # 4 MB
tensors_received = {}
for name, all_reduce in {"hub": naive.all_reduce, "torch": dist.all_reduce}.items():
    dist.barrier(gloo_group)
    before = tcp_bytes_received()
    all_reduce(large, group=gloo_group)
    num_bytes = tcp_bytes_received() - before
    tensors_received[name] = round(num_bytes / large.nbytes, 1)
for name, num_tensors in tensors_received.items():
    print(f"{name}: {num_tensors} tensors received")

# %% [markdown] tags=["read"]
# In torch's all-reduce, every rank received 1.5 tensors. In the hub, rank 0 received 3.0 tensors, and the
# other ranks 1.0. So Gloo's all-reduce here has no centre. The number 1.5 fits a ring: 6 steps, a quarter
# of the tensor in each. (It does not prove a ring: other ways without a centre need as many bytes.)
#
# So the guides' sentence ([claim C04](claims.md) in our list of what popular guides say) is **false**
# for `dist.all_reduce` with Gloo, and DDP averages gradients by an all-reduce. (The sentence is true
# of `nn.DataParallel`, which collects on one GPU, and of a parameter server, [lesson
# 14](14_asynchronous.ipynb).) So give all ranks equal network links: a faster link for rank 0 does not
# help, and one slow link slows all ranks down. NCCL was not counted here.

# %% tags=["check"]
tensors_received = ranks.view["tensors_received"]
assert [received["hub"] for received in tensors_received] == [3.0, 1.0, 1.0, 1.0]
assert [received["torch"] for received in tensors_received] == [1.5] * 4
num_tensors = tensors_received[0]["torch"]
ok("C04 is false, all 4 ranks received equally much", tensors_received=num_tensors)

# %% [markdown] tags=["question"]
# ## How long does an all-reduce take?

# %% [markdown] tags=["explain"]
# Bytes are not yet time. Two numbers turn them into time:
#
# - the **latency** L is the time that every message costs, even an empty one;
# - the **bandwidth** B is how many bytes a connection carries in a second.
#
# **A message of S bytes takes L + S / B.** We assume that each rank has one link, which carries one
# message in each direction at a time. For the time of an all-reduce, add up the messages that must
# pass one after another:
#
# | all-reduce on n ranks | messages one after another | bytes of each | time |
# | --- | --- | --- | --- |
# | hub | n - 1 come in, then n - 1 go out | S | 2 (n - 1) (L + S / B) |
# | ring | 2 (n - 1) steps, all ranks at once | S / n | 2 (n - 1) (L + S / (n B)) |
#
# (The formulas leave out the additions. If the hub's messages travel at the same time, it pays fewer
# latencies, and may win for small tensors.)
#
# We compute with L = 20 microseconds and B = 5 GB/s, as of a network between machines. (NVLink, between
# the GPUs of one machine, carries hundreds of GB/s.)

# %% [markdown] tags=["predict"]
# Each rank has a tensor of 1 GB. A ring of 4 ranks takes 6 steps, and a ring of 1,024 ranks takes
# 2,046, which is 341 times as many. How many times as long does the ring of 1,024 ranks take: (a) less
# than 2 times, (b) about 18 times, or (c) about 341 times?

# %% tags=["predict"]
predict("ring_of_many_ranks", "...")


# %% tags=["run"]
def hub_s(n, num_bytes, latency_s, bandwidth):
    return 2 * (n - 1) * (latency_s + num_bytes / bandwidth)


def ring_s(n, num_bytes, latency_s, bandwidth):
    return 2 * (n - 1) * (latency_s + num_bytes / n / bandwidth)


link = 20e-6, 5e9  # L in seconds, and B in bytes per second
times_s = {}
for name, num_bytes in {"16 bytes": 16, "1 GB": 1e9}.items():
    for n in (4, 1024):
        times_s[name, n] = hub_s(n, num_bytes, *link), ring_s(n, num_bytes, *link)
        hub_ms, ring_ms = (1e3 * seconds for seconds in times_s[name, n])
        print(f"{name:>8}, {n:>4} ranks: hub {hub_ms:8.1f} ms, ring {ring_ms:5.1f} ms")
growth = times_s["1 GB", 1024][1] / times_s["1 GB", 4][1]
print(f"1 GB: the ring of 1,024 ranks takes {growth:.1f} times as long as that of 4")

# %% [markdown] tags=["read"]
# The answer is (a): the ring of 1,024 ranks takes 1.5 times as long, 440.5 ms in place of 300.1 ms. It
# takes 341 times as many steps, but its chunks are 256 times smaller. So the bytes of a rank grow
# only from 1.5 to nearly 2 tensors, and the latencies of the 2,046 steps cost 41 ms. The hub takes 341
# times as long, 409 seconds.
#
# On 4 ranks, the hub takes 4 times as long as the ring for 1 GB. One factor of 2 comes from the bytes: 3
# tensors go out at the hub, and 1.5 tensors at a rank of the ring. The other factor of 2 comes from the
# order: the hub first receives and then sends, and a rank of the ring does both at the same time. With
# n ranks, the factor is n, as long as the latency hardly counts. (For 1,024 ranks it is 929, because
# latencies are 41 of the ring's 440.5 ms.) For 16 bytes hub and ring take the same time, because both
# have 2 (n - 1) messages one after another.
#
# These times are computed, not measured: our four ranks share one machine. For the 4 GB and 8 GPUs of the
# introduction, the formulas give 11.2 s for the hub and 1.4 s for the ring, in every step.
#
# The formula also says that one large message is cheaper than many small ones. Therefore DDP sends
# gradients in buckets of 25 MiB by default, and not one by one. (One bucket for all would have to wait
# for the last gradient: [lesson 05](05_replicas.ipynb).)

# %% tags=["check"]
ratios = {key: round(hub / ring) for key, (hub, ring) in times_s.items()}
assert [ratios["16 bytes", 4], ratios["16 bytes", 1024], ratios["1 GB", 4]] == [1, 1, 4]
assert [round(way(8, 4e9, *link), 1) for way in (hub_s, ring_s)] == [11.2, 1.4]
assert round(growth, 1) == 1.5
letter = "a" if growth < 2 else "b" if growth < 100 else "c"
ok("1,024 ranks in a ring take 1.5 times as long as 4", ring_of_many_ranks=letter)

# %% [markdown] tags=["question"]
# ## More: do two numbers describe measured messages?

# %% [markdown] tags=["explain"]
# We measure messages on this machine. `one_way_s` sends a message from rank 0 to rank 1 and
# back, 40 times, and returns half of the shortest time, because other programs can only make a
# message slower. We measure nine sizes from 1 kB to 4 MB one after another, three times over, so that a
# busy moment of the machine meets all sizes alike.

# %% tags=["run"]
# %%px
from ddp_lessons.ring import one_way_s

new_sizes = [3_000, 3_000_000]  # the fit will not see them
sizes = [1_000 * 4**k for k in range(7)] + new_sizes
passes = [{size: one_way_s(size, device) for size in sizes} for _ in range(3)]
shortest_s = {size: min(times_s[size] for times_s in passes) for size in sizes}

# %% [markdown] tags=["explain"]
# Now we **fit** the two numbers to seven of the sizes: we choose L and B so that L + S / B comes as
# close to the seven measured times as possible. This is a straight line, time over bytes: it begins at
# L, and its slope is 1 / B. `np.polyfit` returns the slope first. Each error is weighted by 1 / time, so
# that an error of 10 % counts alike for every size.
#
# We predict the other two sizes, 3 kB and 3 MB, in three ways: by the latency alone (L), by the bytes
# alone (S / B), and by both together (L + S / B). With Gloo on one machine, L is some tens of
# microseconds, and B some GB/s (some thousand bytes in a microsecond).

# %% [markdown] tags=["predict"]
# Two sizes and three ways make six predictions. How many of them will be wrong by more than a factor
# of 5, too long or too short?

# %% tags=["predict"]
predict("wrong_by_five", ...)

# %% tags=["run", "nbval-ignore-output"]
sizes, measured_s = np.array(sorted(ranks.view["shortest_s"][0].items())).T
is_new = np.isin(sizes, ranks.view["new_sizes"][0])  # 3 kB and 3 MB
fitted_s = measured_s[~is_new]
slope, latency_s = np.polyfit(sizes[~is_new], fitted_s, 1, w=1 / fitted_s)
bandwidth = 1 / slope
print(f"L = {latency_s * 1e6:.1f} microseconds, B = {bandwidth / 1e9:.2f} GB/s")

new_sizes, new_s = sizes[is_new], measured_s[is_new]
guesses_s = {
    "latency alone": np.array([latency_s, latency_s]),
    "bytes alone": new_sizes / bandwidth,
    "both together": latency_s + new_sizes / bandwidth,
}
print("microseconds      3 kB      3 MB")
for way, seconds in {"measured": new_s, **guesses_s}.items():
    print("{:13} {:8.1f} {:9.1f}".format(way, *(1e6 * seconds)))
errors = {way: np.maximum(s / new_s, new_s / s) for way, s in guesses_s.items()}
num_wrong = int(sum((factors > 5).sum() for factors in errors.values()))
print(f"wrong by more than a factor of 5: {num_wrong} of 6")

# %% [markdown] tags=["read"]
# With Gloo, 2 of the 6 predictions are wrong by more than a factor of 5, one at each end. The times
# differ from run to run, and between machines, but the pattern of each column stays:
#
# - **3 kB** is nearly all latency: the bytes alone give a time that is far too short.
# - **3 MB** is nearly all bytes: the latency alone gives a time that is far too short.
#
# Both numbers together serve at both ends. They can be off by a factor of two or three, because real
# times do not lie exactly on a line, and other programs disturb them. But they tell microseconds from
# milliseconds, in advance.

# %% tags=["check"]
worst = {way: max(factors) for way, factors in errors.items()}
assert worst["both together"] < worst["latency alone"]
assert worst["both together"] < worst["bytes alone"]
ok("two numbers serve at both ends, one does not", wrong_by_five=num_wrong)

# %% [markdown] tags=["question"]
# ## More: when is a tree faster than a ring?

# %% [markdown] tags=["explain"]
# A ring of 1,024 ranks takes 2 (1,024 - 1) = 2,046 steps, one after another, and each costs a latency. A
# **tree** has fewer. In each **round**, pairs of ranks add up their whole tensors, so half as many sums
# are left. After log2(n) rounds rank 0 has the complete sum. Then the rounds run in the
# reverse order, and copy the sum to all ranks:
#
# ```text
#     up: add                      down: copy
#     round 1       round 2        round 3       round 4
#     1 ---> 0      2 ---> 0       0 ---> 2      0 ---> 1
#     3 ---> 2                                   2 ---> 3
# ```
#
# | n ranks | messages that wait for each other | bytes of each | time |
# | --- | --- | --- | --- |
# | tree | 2 log2(n) rounds | S | 2 log2(n) (L + S / B) |
# | ring | 2 (n - 1) steps | S / n | 2 (n - 1) (L + S / (n B)) |
#
# For 1,024 ranks: the tree takes 20 L + 20 S / B, and the ring takes 2,046 L + 2 S / B (nearly).

# %% [markdown] tags=["predict"]
# Take L = 20 microseconds and B = 5 GB/s again (in 20 microseconds, 100 kB pass), and 1,024 ranks. For
# how many of these four sizes is the ring faster than the tree: 10 kB, 1 MB, 100 MB, 10 GB?

# %% tags=["predict"]
predict("sizes_for_a_ring", ...)


# %% tags=["run"]
def tree_s(n, num_bytes, latency_s, bandwidth):
    num_rounds = 2 * (n - 1).bit_length()  # 2 log2(n), rounded up
    return num_rounds * (latency_s + num_bytes / bandwidth)


sizes = {"10 kB": 1e4, "1 MB": 1e6, "100 MB": 1e8, "10 GB": 1e10}
is_ring_faster = []
for name, num_bytes in sizes.items():
    tree_ms, ring_ms = (1e3 * way(1024, num_bytes, *link) for way in (tree_s, ring_s))
    is_ring_faster.append(ring_ms < tree_ms)
    print(f"{name:>6}: tree {tree_ms:8.1f} ms, ring {ring_ms:7.1f} ms")
print(f"the ring is faster for {sum(is_ring_faster)} of {len(is_ring_faster)} sizes")

# %% [markdown] tags=["read"]
# The ring is faster for 2 of the 4 sizes: for 100 MB and for 10 GB. The tree saves 2,026 latencies,
# and carries 18 tensors more. The two take equally long if these 18 tensors take as long as the 2,026
# latencies. This is the case for 11 MB: 2,026 / 18 times 100 kB. (These are formulas: no cell here ran
# 1,024 ranks.)
#
# Our tree sends whole tensors, one round after another. NCCL's trees are better: they cut a tensor into
# pieces, and while one piece is in the second round, the next piece is in the first. NCCL also uses two
# trees at once, and these nearly reach the bandwidth of a ring. So do not conclude from our formulas that
# NCCL's trees are slow for large gradients.

# %% tags=["check"]
assert is_ring_faster == [False, False, True, True]
assert tree_s(1024, 0, 1, 1) == 20  # latencies
assert ring_s(1024, 0, 1, 1) == 2046
num_faster = sum(is_ring_faster)
ok("by the formulas, a tree is faster for small tensors", sizes_for_a_ring=num_faster)

# %% [markdown] tags=["question"]
# ## More: what if each rank adds for itself?

# %% [markdown] tags=["explain"]
# A simpler ring comes to mind: do not cut the tensor. Each rank passes whole tensors on, and adds
# each tensor that arrives to its own sum. (Gloo's documentation lists this ring as `allreduce_ring`.) The
# ranks add in different orders. If rank r has the tensor x<sub>r</sub>:
#
# | rank | its sum |
# | --- | --- |
# | 0 | ((x<sub>0</sub> + x<sub>3</sub>) + x<sub>2</sub>) + x<sub>1</sub> |
# | 1 | ((x<sub>1</sub> + x<sub>0</sub>) + x<sub>3</sub>) + x<sub>2</sub> |
# | 2 | ((x<sub>2</sub> + x<sub>1</sub>) + x<sub>0</sub>) + x<sub>3</sub> |
# | 3 | ((x<sub>3</sub> + x<sub>2</sub>) + x<sub>1</sub>) + x<sub>0</sub> |
#
# In exact arithmetic the order does not matter. But a computer **rounds** after each addition. In Python
# `(0.1 + 0.2) + 0.3` gives 0.6000000000000001, and `0.1 + (0.2 + 0.3)` gives 0.6. Swapping is
# harmless: a + b and b + a give the same bits. Regrouping is not.

# %% [markdown] tags=["predict"]
# Each rank has 300 random numbers. Two sums count as different if one bit differs. How many
# different sums will the four ranks hold after this ring?

# %% tags=["predict"]
predict("different_sums", ...)

# %% tags=["break"]
# %%px
from ddp_lessons.workloads import rank_generator

# other numbers on each rank, and the same ones on each run
own = 100 * torch.rand(300, generator=rank_generator(0, rank)).to(device)

sum_of_whole, outgoing = own.clone(), own
for step in range(n - 1):
    incoming = torch.empty_like(own)
    exchange(outgoing, incoming)
    sum_of_whole += incoming
    outgoing = incoming

# %% tags=["run"]
sums_of_whole = {tuple(numbers.tolist()) for numbers in ranks.view["sum_of_whole"]}
num_different = len(sums_of_whole)
print(f"{num_different} different sums on four ranks")

# %% [markdown] tags=["read"]
# The four ranks hold 4 different sums, because each rank added in its own order. The sums are close to
# each other, and no error says that they differ. With such gradients, replicas would no longer be
# equal after one step.
#
# The repair: only one rank completes a chunk, and the other ranks copy its sum. Our `ring_all_reduce`
# does this. (So does the hub: all ranks copy the sum of rank 0.)

# %% tags=["mend"]
# %%px
sum_of_chunks = own.clone()
ring_all_reduce(sum_of_chunks)

# %% tags=["run"]
sums_of_chunks = {tuple(numbers.tolist()) for numbers in ranks.view["sum_of_chunks"]}
print(f"{len(sums_of_chunks)} sum on four ranks")

# %% [markdown] tags=["read"]
# Now there is 1 sum, equal on all ranks to the last bit. Each rank also sends less: 1.5 tensors in
# place of three.

# %% tags=["check"]
assert len(sums_of_chunks) == 1
for numbers in sums_of_whole:
    np.testing.assert_allclose(numbers, next(iter(sums_of_chunks)), rtol=1e-5)
ok("with one rank for each chunk there is one sum", different_sums=num_different)

# %% [markdown] tags=["cluster"]
# ## On your own cluster
#
# You do not write a ring yourself: on GPUs, `dist.all_reduce` and DDP use NCCL. NCCL can use a ring
# through all GPUs, or a tree between the machines (see the second "More"). It chooses for each call,
# by the size of the tensor and by the links that it has found: rings suit large tensors and the 8 GPUs
# of one machine, and trees suit many machines, where a ring would add up many latencies. Switches of
# newer machines can add, too (NVLS).
#
# Measure it with this file, `all_reduce_time.py`:
#
# ```python
# import os
# import time
#
# import torch
# import torch.distributed as dist
#
# torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
# dist.init_process_group("nccl")
# n = dist.get_world_size()
#
# for num_bytes in [10**3, 10**6, 10**9]:  # 1 kB to 1 GB
#     tensor = torch.zeros(num_bytes // 4, device="cuda")
#     for _ in range(5):  # the first calls also set up connections
#         dist.all_reduce(tensor)
#     torch.cuda.synchronize()
#     start_s = time.perf_counter()
#     for _ in range(20):
#         dist.all_reduce(tensor)
#     torch.cuda.synchronize()
#     seconds = (time.perf_counter() - start_s) / 20
#     sent_gb = 2 * (n - 1) / n * num_bytes / 1e9
#     if dist.get_rank() == 0:
#         print(f"{num_bytes:>13,} B {seconds * 1e6:10.1f} us {sent_gb / seconds:8.2f} GB/s")
#
# dist.destroy_process_group()
# ```
#
# **One machine with 8 GPUs**:
#
# ```console
# $ NCCL_DEBUG=INFO torchrun --standalone --nproc-per-node=8 all_reduce_time.py
# ```
#
# **Two machines under Slurm**: save this as `all_reduce_time.sbatch`, and type
# `sbatch all_reduce_time.sbatch`.
#
# ```bash
# ##!/bin/bash
# #SBATCH --nodes=2
# #SBATCH --ntasks-per-node=1
# #SBATCH --gpus-per-node=8
# #SBATCH --cpus-per-task=32
# #SBATCH --time=00:10:00
#
# export NCCL_DEBUG=INFO
# first_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# srun --cpus-per-task=32 torchrun --nnodes=2 --nproc-per-node=8 \
#     --rdzv-backend=c10d --rdzv-endpoint="$first_node:29500" --rdzv-id="$SLURM_JOB_ID" \
#     all_reduce_time.py
# ```
#
# | line or option | what it has to do with this lesson |
# | --- | --- |
# | the time of 1 kB | nearly all latency: about 2 (n - 1) L, if it is a ring |
# | the GB/s of 1 GB | about B: the script divides the bytes that each rank of a ring sends by the time (`busbw` in NVIDIA's nccl-tests) |
# | `NCCL_DEBUG=INFO` | NCCL prints the ranks of each ring in their order, in lines with `Channel`, and its trees, in lines with `Trees` |
# | `--nnodes=2`, and the `--rdzv` options | n is 16: the ring crosses the network between the machines, and its slowest link sets the pace |
# | `--ntasks-per-node=1`, `--cpus-per-task=32` | `srun` starts one `torchrun` on each machine, and each `torchrun` starts 8 ranks, which share 32 CPU cores |
#
# If two machines give far fewer GB/s than one, the network is the slowest link of the ring. [Lesson
# 17](17_many_machines.ipynb) says what helps. (Both commands were run without GPUs, with two processes a
# node and both nodes of Slurm on one machine: with `"gloo"` and `"cpu"` in place of `"nccl"` and
# `"cuda"`, with 2 cores in place of 32, and without the lines with `torch.cuda`, the size of 1 GB and
# `--gpus-per-node`. The sentences about NCCL follow its documentation.)

# %% [markdown] tags=["recap"]
# You have counted what each rank sends through a hub and around a ring, written a ring whose ranks all
# get the same bits, and predicted times from two numbers.
#
# Rule of thumb: **look at the busiest rank, not at the total; count messages if they are small,
# and bytes if they are large.**

# %% [markdown] tags=["next"]
# - **Exercise** [03](../exercises/03_ring.ipynb): a ring that turns the other way, for chunks of any
#   length; a fit to times that were disturbed (after the first "More"); the bytes of a collective, before
#   it runs.
#   After the exercise: our ring, in [steps.py](../ddp_lessons/ring/steps.py), and one as fast as Gloo's, in
#   [segments.py](../ddp_lessons/ring/segments.py).
# - **Next lesson** [04](04_samplers.ipynb): who sees which sample?
# - **Sources**: P. Patarasuk and X. Yuan, [Bandwidth Optimal All-reduce Algorithms for Clusters of
#   Workstations](https://doi.org/10.1016/j.jpdc.2008.09.002), 2009, with a proof that no all-reduce sends
#   less than the ring, as long as only the ranks add (some NVIDIA switches add, too); Gloo's [index of
#   algorithms](https://github.com/pytorch/gloo/blob/main/docs/algorithms.md); NVIDIA's [Massively Scale
#   Your Deep Learning Training with NCCL
#   2.4](https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/), on trees.

# %% tags=["teardown"]
ranks.stop()
