# %% [markdown] tags=["title"]
# # Where does a step's time go?
#
# 25 minutes, 4 ranks; works with any number of ranks from 2. It builds on
# [03_ring](03_ring.ipynb), what a message costs, and on [06_ddp](06_ddp.ipynb), buckets that are
# sent while `backward` goes on.

# %% [markdown] tags=["goal"]
# When you are through, you can
#
# - **split** a step into computing, talking and waiting, on every rank;
# - **name** the rank that holds the others back;
# - **foretell** a step, and report a speed-up that others can believe.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import ok, predict, speed, start_ranks
from ddp_lessons.costs import Link, amdahl_speedup
from ddp_lessons.pictures import timeline_plot

ranks = start_ranks(4)

# %% [markdown] tags=["question"]
# ## What does a profiler see of a step?

# %% [markdown] tags=["predict"]
# The model has 4 layers of 1&nbsp;MiB of weights, and nothing else. DDP's buckets hold 1&nbsp;MiB.
# `torch.profiler` notes what a process does, and when. We let it watch 3 steps on each rank. How many
# all-reduces does it see on rank 0?

# %% tags=["predict"]
predict("all_reduces_in_a_profile", ...)

# %% tags=["run"]
# %%px
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from ddp_lessons import speed
from ddp_lessons.costs import Link
from ddp_lessons.process_group import rank_device

rank, world_size, device = dist.get_rank(), dist.get_world_size(), rank_device()
layers = [torch.nn.Linear(512, 512, bias=False) for _ in range(4)]
model = DDP(torch.nn.Sequential(*layers).to(device), bucket_cap_mb=1)
images = torch.randn(64, 512, device=device)

# %% tags=["run"]
# %%px
profile = speed.profile_steps(lambda: model(images).sum().backward(), num_steps=3)
track = speed.profile_track(profile)  # (kind, start, end), in seconds
num_calls = [kind for kind, *_ in track].count("communication")
everyone = speed.gather_profiles(profile)  # on rank 0
print(f"{num_calls} all-reduces")

# %% tags=["run"]
tracks = speed.on_one_clock(ranks.view["track"])
splits = speed.split_steps(tracks)
for number, split in enumerate(splits):
    durations_s = sum(speed.summed_s(tracks[number]).values())
    parts_s = split.compute_s + split.communication_s + split.waiting_s
    more, hides = durations_s > parts_s, split.hidden_s > 0
    print(f"rank {number}: durations exceed the time: {more}, some is hidden: {hides}")

# %% tags=["picture"]
drawn = speed.in_ms(speed.with_waiting(tracks))
timeline_plot(drawn, "time in ms: 3 steps of DDP, all ranks on one clock")

# %% [markdown] tags=["read"]
# 12: four buckets, three times. An all-reduce is listed from its call to its end, so all three are
# in it: **communication**, that messages move; **waiting**, that some rank has not called yet; and
# what is **hidden**, as this rank computes meanwhile. So durations add up to more than the time.
#
# `split_steps` gives each moment to one part. For that it needs all ranks: only together do they
# tell when the last one called.

# %% tags=["run"]
# %%px --targets 0
from ddp_lessons.trace import merge_profiles  # save_profiles writes it for Perfetto

merged = merge_profiles(everyone)["traceEvents"]
print(f"one trace with {len({event['pid'] for event in merged})} processes")

# %% tags=["check"]
assert ranks.view["num_calls"] == [12] * len(ranks)
for split, track in zip(splits, tracks, strict=True):
    parts = (split.compute_s, split.communication_s, split.waiting_s)
    assert sum(speed.summed_s(track).values()) > sum(parts)
    assert split.hidden_s > 0
ok("a duration is no cost: part of it is hidden", all_reduces_in_a_profile=12)

# %% [markdown] tags=["question"]
# ## Who holds the others back?

# %% [markdown] tags=["predict"]
# From here on compute is *played*: a rank sleeps, so it needs no core of its own. The link is slow,
# and real messages go over it. Forward and backward take 40&nbsp;ms each, then an all-reduce
# 60&nbsp;ms. Rank 1 writes a log in each step: 100&nbsp;ms more. By how many percent are rank 1's steps
# longer than rank 0's?

# %% tags=["predict"]
predict("percent_longer_on_the_slow_rank", ...)

# %% tags=["break"]
# %%px
link = Link(latency_s=0.0005, bandwidth_bytes_per_s=10_000_000)
num_bytes = speed.bytes_in_s(0.06, world_size, link)  # 380,000 on 4 ranks
played = speed.PlayedStep(0.04, [0.04], [num_bytes], link)
late_s = 0.1 if rank == 1 else 0.0
spans = []
times_s = speed.step_times_s(lambda: spans.append(played.run(late_s)), num_steps=5)

# %% tags=["run"]
sums_s = [sum(times_s) for times_s in ranks.view["times_s"]]
percent = abs(round(100 * (sums_s[1] / sums_s[0] - 1), -1))  # to the nearest 10
print(f"rank 1's steps are {percent:.0f} % longer")
steps = list(zip(*ranks.view["spans"], strict=True))  # each has the tracks of all ranks
in_call_s = [speed.summed_s(track)["communication"] for track in steps[-1]]
long = [rank for rank, own_s in enumerate(in_call_s) if own_s > in_call_s[1] + 0.05]
print(f"50 ms longer in the all-reduce than rank 1: ranks {long}")

# %% tags=["run"]
of_ranks = list(zip(*map(speed.split_steps, steps), strict=True))
own_s = [[split.compute_s for split in own] for own in of_ranks]
waiting_s = [[split.waiting_s for split in own] for own in of_ranks]
print(f"computes longest, by far: rank {speed.find_straggler(own_s)}")
print(f"waits least: rank {speed.who_waits_least(waiting_s)}")

# %% tags=["picture"]
drawn = speed.on_one_clock(speed.with_waiting(steps[-1]))
timeline_plot(speed.in_ms(drawn), "time in ms: one step")

# %% [markdown] tags=["read"]
# By 0&nbsp;%: the others wait in the all-reduce until rank 1 comes, so all steps are equally long.
# By their durations the all-reduces of ranks 0, 2 and 3 are slow, and one would buy a faster network.
# It is the rank that *never* waits that one should look at: rank 1. Such a rank is a
# **straggler**. The mend is on its side: no log.

# %% tags=["mend"]
# %%px
mended_s = speed.step_times_s(played.run, num_steps=5)
print(f"faster than before: {min(mended_s) < min(times_s)}")

# %% tags=["check"]
assert (percent, long) == (0, [rank for rank in range(len(ranks)) if rank != 1])
assert speed.find_straggler(own_s) == speed.who_waits_least(waiting_s) == 1
assert min(ranks.view["times_s"][1]) >= 0.24  # others may begin later
both = zip(ranks.view["mended_s"], ranks.view["times_s"], strict=True)
assert all(min(new_s) < min(old_s) for new_s, old_s in both)
ok("who never waits is late", percent_longer_on_the_slow_rank=round(percent))

# %% [markdown] tags=["question"]
# ## What does a larger batch buy?

# %% [markdown] tags=["predict"]
# With 16 samples a rank, forward takes 20&nbsp;ms, and backward two parts of 20&nbsp;ms. After each
# part a bucket is ready, whose all-reduce takes 60&nbsp;ms. The link has one bucket at a time. So a step
# takes 160&nbsp;ms: the first bucket is sent at 40, the second at 100. With 64 samples a rank,
# compute takes four times as long. How many ms does a step take?

# %% tags=["predict"]
predict("ms_of_a_larger_batch", ...)

# %% tags=["run"]
# %%px
sizes = [48_000, 192_000, 768_000]
all_reduces_s = speed.all_reduce_times_s(sizes, all_reduce=speed.slow_all_reduce(link))
measured_s = {}
for batch in (16, 64):
    part_s = batch * 0.00125
    played = speed.PlayedStep(part_s, [part_s] * 2, [num_bytes] * 2, link)
    measured_s[batch] = speed.least_step_s(played.run)  # until five agree
print(f"timed: all-reduces of {len(sizes)} sizes, {len(measured_s)} kinds of steps")

# %% [markdown] tags=["read"]
# We have timed all-reduces of 3 sizes, none of which is ours, and 2 kinds of steps. Lesson 03 fits
# latency and bandwidth to the former. Then two clocks go through the buckets: one says when a bucket
# is ready, one when the link is free.

# %% tags=["run"]
slowest = {n: max(own[n] for own in ranks.view["measured_s"]) for n in (16, 64)}
w, num_bytes = len(ranks), ranks.view["num_bytes"][0]
fitted = speed.fit_all_reduce(ranks.view["all_reduces_s"][0].items(), w).link
link, plans, guesses_s = Link(0.0005, 10_000_000), {}, {}
for batch in (16, 64):
    part_s = batch * 0.00125
    step = (part_s, [part_s] * 2, [num_bytes] * 2)
    plans[batch] = 1000 * speed.predict_step_s(w, *step, link)
    guesses_s[batch] = speed.predict_step_s(w, *step, fitted)
    print(f"{batch} samples: {plans[batch]:.0f} ms")

# %% tags=["run", "nbval-ignore-output"]
for batch, own_s in slowest.items():
    error = speed.error_share(guesses_s[batch], own_s)
    told = f"guessed {1000 * guesses_s[batch]:.0f} ms, measured {1000 * own_s:.0f} ms"
    print(f"{batch} samples: {told}: {100 * error:.0f} % off")

# %% [markdown] tags=["read"]
# 300&nbsp;ms: the first bucket goes out at 160 and is through before the second is ready, at 240. Four
# times the samples in less than twice the time, for the messages are the same, and the first of them
# is hidden. What shows are the last 60&nbsp;ms; with 16 samples it was 100.
#
# So a batch that is larger *per rank* hides messages. Lesson 07 does the same by accumulation, where
# memory is short.

# %% tags=["check"]
assert {batch: round(plan) for batch, plan in plans.items()} == {16: 160, 64: 300}
# Nobody sleeps less than asked, so no step is shorter than planned.
assert all(slowest[batch] >= plans[batch] / 1000 for batch in plans)
ok("foretold by a fit to other sizes", ms_of_a_larger_batch=round(plans[64]))

# %% [markdown] tags=["question"]
# ## Do several GPUs train ten times faster?

# %% [markdown] tags=["predict"]
# A guide says that several GPUs train 10 times faster. Here a step takes one rank 240&nbsp;ms: 200
# are divided among ranks, 40 are not, such as writing a log. The batch stays the same. How many times
# faster can it get, with any number of ranks?

# %% tags=["predict"]
predict("highest_speed_up", ...)


# %% tags=["run"]
# %%px
def work(num_ranks):
    time.sleep(0.04 + 0.2 / num_ranks)


def step(num_ranks):
    work(num_ranks)
    dist.all_reduce(torch.zeros(1, device=device))


# A first step takes memory and chooses kernels: 4 s more, played as well.
alone_s = speed.step_times_s(lambda: time.sleep(4.24), 1)
alone_s += speed.step_times_s(lambda: work(1), 4)
divided_s = speed.step_times_s(lambda: step(world_size), 5)  # one batch, divided
each_s = speed.step_times_s(lambda: step(1), 5)  # a batch for each rank

# %% tags=["run", "nbval-ignore-output"]
alone_s = ranks.view["alone_s"][0]  # it sends nothing
divided_s, each_s = (speed.of_slowest(ranks.view[n]) for n in ("divided_s", "each_s"))
divided = speed.report_speedup(alone_s, 64, divided_s, 64, len(ranks))
each = speed.report_speedup(alone_s, 64, each_s, 64 * len(ranks), len(ranks))
print(f"One batch, divided: {divided}.")
print(f"A batch for each: {each}.")

# %% tags=["run"]
told = speed.mean_speedup(alone_s[:3], [min(divided_s)])
print(f"3 steps with the first, over the fastest: more than 10 times: {told > 10}")
print(f"medians without the first: less than 4 times: {divided.speedup < 4}")
print(f"a batch for each rank: more than that: {each.speedup > divided.speedup}")
share = 40 / 240  # does not divide
for number in (4, 1000):
    gain = amdahl_speedup(share, number)
    print(f"one batch on {number} ranks: at most {gain:.2f} times")
print(f"on any number of ranks: at most {speed.highest_speedup(share):.0f} times")

# %% [markdown] tags=["read"]
# At most 6 times, for 40&nbsp;ms stay: **Amdahl's law**. Our 4 ranks get 2.67 at best.
#
# "10 times" came of the same steps: one side counts its first step, which warms up (here 4&nbsp;s,
# played), the other shows its luckiest. Medians without warm-up say less than 4.
#
# A batch for each rank gains more: up to 4 times the samples a second. So 10 times takes 10 ranks, and
# a batch ten times as large. [Claim C27](claims.md) is **half true**.

# %% tags=["check"]
assert 1 < divided.speedup < len(ranks) < 10 < told
assert each.speedup > divided.speedup
assert all(amdahl_speedup(share, number) < 6 for number in (4, 1000, 10**6))
ok("C27 is half true, ask what was divided, and how it was timed",
   highest_speed_up=round(speed.highest_speedup(share)))  # fmt: skip

# %% [markdown] tags=["question"]
# ## More: what if the data come late?

# %% [markdown] tags=["predict"]
# To load a batch takes a rank 60&nbsp;ms, and a step with it 100&nbsp;ms. One after the other that
# is 160&nbsp;ms. Now a thread loads the next batch while the rank works on this one. How many ms does
# each batch take, after the first?

# %% tags=["predict"]
predict("ms_with_loading_ahead", ...)


# %% tags=["run"]
# %%px
def batches():
    for number in range(6):
        time.sleep(0.06)  # loading
        yield number


def epoch(batches):
    for _ in batches:
        time.sleep(0.1)  # a step


in_turn_s = speed.step_times_s(lambda: epoch(batches()), 1)[0]
ahead_s = speed.step_times_s(lambda: epoch(speed.fetched_ahead(batches())), 1)[0]
print(f"in turn 60 + 100 = {60 + 100} ms, ahead max(60, 100) = {max(60, 100)} ms")
print(f"6 batches ahead of 6 in turn: {ahead_s < in_turn_s}")

# %% [markdown] tags=["read"]
# 100&nbsp;ms: the longer of the two. Only the first batch makes the rank wait. If loading took
# longer than a step, it alone would set the pace, and a faster model would gain nothing.

# %% tags=["check"]
in_turn_s, ahead_s = ranks.view["in_turn_s"], ranks.view["ahead_s"]
assert min(in_turn_s) >= 6 * 0.16
assert min(ahead_s) >= 0.06 + 6 * 0.1
assert all(a < b for a, b in zip(ahead_s, in_turn_s, strict=True))
ok("loading hides behind the step, as messages do", ms_with_loading_ahead=max(60, 100))

# %% [markdown] tags=["question"]
# ## More: what does a compiler do to the buckets?

# %% [markdown] tags=["predict"]
# `torch.compile` turns a model into a **graph** of operations, and hands it to a compiler, whole if it
# can. A backward in one piece would give all gradients at its end: nothing left to hide messages
# behind. The model of the first section has 4 layers, and DDP a bucket for each. How many graphs
# does the compiler get of it?

# %% tags=["predict"]
predict("graphs_of_four_buckets", ...)

# %% tags=["run"]
# %%px
def num_graphs(wrap):
    graphs = []
    torch.compiler.reset()

    def count(graph, _):  # a compiler that gives back what it gets
        graphs.append(graph)
        return graph

    wrap(torch.compile(torch.nn.Sequential(*layers), backend=count))(images)
    return len(graphs)


alone = num_graphs(lambda compiled: compiled)
under_ddp = num_graphs(lambda compiled: DDP(compiled, bucket_cap_mb=1))
print(f"graphs: {alone} alone, {under_ddp} under DDP")

# %% [markdown] tags=["read"]
# 1 graph alone, 4 under DDP: it is cut where buckets end, so that each all-reduce can start when its
# piece of the backward is through. Inside of a piece the compiler is free. If it makes compute
# faster, messages stay what they are, and less of them can hide.

# %% tags=["check"]
assert ranks.view["alone"] == [1] * len(ranks)
assert ranks.view["under_ddp"] == [4] * len(ranks)
ok("one graph a bucket", graphs_of_four_buckets=4)

# %% [markdown] tags=["recap"]
# You have split steps of all ranks on one clock, found a straggler, foretold steps within
# 15&nbsp;%, and taken "10 times faster" apart.
#
# Rule of thumb: **look at who never waits; hide messages behind compute; report medians without
# warm-up, and say what was divided.**

# %% [markdown] tags=["next"]
# - **On your own cluster**: add these lines to your script, with a `step` of your own, start it with
#   `torchrun --nproc-per-node 8 train.py`, and open `run.json` at
#   [ui.perfetto.dev](https://ui.perfetto.dev).
#
#   ```python
#   everyone = gather_profiles(profile_steps(step))  # of ddp_lessons.speed
#   if dist.get_rank() == 0:
#       save_profiles("run.json", everyone)  # of ddp_lessons.trace
#   ```
# - **Exercise** [11](../exercises/11_speed.ipynb): split a step, find a straggler, predict a step,
#   report a speed-up. After the exercise: [splitting.py](../ddp_lessons/speed/splitting.py).
# - **Next lesson** [12](12_metrics.ipynb): what does one number for all ranks mean?
# - **Sources**: S. Li and others, [PyTorch Distributed: Experiences on Accelerating Data Parallel
#   Training](https://arxiv.org/abs/2006.15704), 2020, on what overlap hides; T. Hoefler and R. Belli,
#   [Scientific Benchmarking of Parallel Computing Systems](https://doi.org/10.1145/2807591.2807644),
#   2015, twelve rules for honest numbers; PyTorch's documentation of
#   [torch.profiler](https://docs.pytorch.org/docs/stable/profiler.html).

# %% tags=["teardown"]
ranks.stop()
