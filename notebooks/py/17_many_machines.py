# %% [markdown] tags=["title"]
# # When do more machines help?
#
# 30 minutes, 4 ranks. It builds on [03_ring](03_ring.ipynb), what a message costs, on
# [11_speed](11_speed.ipynb), steps that are played, and on
# [14_asynchronous](14_asynchronous.ipynb), ranks that talk rarely.

# %% [markdown] tags=["goal"]
# When you are through, you can
#
# - **foretell** whether a second machine makes training faster;
# - **choose** a remedy for a slow link, by what it costs and what it gives back;
# - **say** what must be open between hosts, and what others see when one is gone.

# %% tags=["setup", "nbval-ignore-output"]
import time

from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.costs import Link
from ddp_lessons.many_machines import WAYS, Plan, foretold_points, foretold_s
from ddp_lessons.pictures import times_plot

ranks = start_ranks(4, device="cpu")  # what is slow here is the link, not the device

# %% [markdown] tags=["question"]
# ## What does a second machine gain?

# %% [markdown] tags=["predict"]
# A rank computes a batch in 40&nbsp;ms. Its gradient has 240,000 bytes. Within a host messages take
# no time here. Between hosts one takes 10&nbsp;ms, and 1&nbsp;ms more for each 6,000 bytes. Nothing
# overlaps. One host of 2 ranks sees 50 batches a second. How many do two such hosts see, if all 4
# ranks average round one ring? It has 6 steps, in each of which a quarter of the gradient leaves
# each host.

# %% tags=["predict"]
predict("batches_a_second", ...)

# %% tags=["run"]
# %%px
import torch, torch.distributed as dist
from ddp_lessons import many_machines as mm
from ddp_lessons.costs import Link

layout = mm.even_layout(2, 2)  # ranks 0 and 1 are host 0, ranks 2 and 3 host 1
hosts = mm.split_hosts(layout)
link = Link(latency_s=0.01, bandwidth_bytes_per_s=6_000_000)
road = mm.Road(hosts, link)  # messages are real; what crosses sleeps first
plan = mm.Plan(2, 2, num_bytes=240_000, compute_s=0.04, link=link)

# %% tags=["break"]
# %%px
two_s = mm.measured_s("flat", road, plan)  # until five agree

# %% tags=["run"]
link = Link(latency_s=0.01, bandwidth_bytes_per_s=6_000_000)
one, two = (Plan(n, 2, 240_000, 0.04, link) for n in (1, 2))
for plan in (one, two):
    batch_s = foretold_s("flat", plan)
    told = f"{1000 * batch_s:.0f} ms, {plan.num_ranks / batch_s:.0f} batches a second"
    print(f"hosts: {plan.num_hosts}; {told}")

# %% tags=["run"]
below = max(ranks.view["two_s"]) < foretold_s("flat", two)
print(f"hosts: 2; measured less than that: {below}")

# %% [markdown] tags=["read"]
# 25, half of what one host sees: a message of 60,000 bytes takes 20&nbsp;ms, and there are 6 of them
# after each batch. So [claim C28](claims.md), more machines always help, is **false**. A ring goes by
# its slowest link. Two hosts would gain if the messages took less than 40&nbsp;ms.

# %% tags=["check"]
rates = [plan.num_ranks / foretold_s("flat", plan) for plan in (one, two)]
assert not below  # ranks 1 and 3 send 6 messages across, so they need that long
assert rates[1] < rates[0]
ok("C28 is false, a slow link took more than two ranks gave",
   batches_a_second=round(rates[1]))  # fmt: skip

# %% [markdown] tags=["question"]
# ## How often must a gradient cross?

# %% [markdown] tags=["predict"]
# Add up within each host first. Then rank 0 and its **twin** on the other host, rank 2, add up one
# half of the gradient round a ring of two, and ranks 1 and 3 the other half. At last each host
# gathers the halves. Round the flat ring a host sent 360,000 bytes to the other one. How many does it
# send now?

# %% tags=["predict"]
predict("bytes_that_cross", ...)

# %% tags=["run"]
# %%px
from ddp_lessons.trace import trace

crossed, means = {}, {}
for name in ("flat", "hierarchical"):
    average, _ = mm.make_way(name)
    gradient = torch.full((60_000,), 4.0 ** dist.get_rank())
    with trace() as events:
        average(gradient, road)
    means[name] = gradient.unique().tolist()
    crossed[name] = mm.crossing_bytes(events, layout)

# %% tags=["mend"]
# %%px
layered_s = mm.measured_s("hierarchical", road, plan)

# %% tags=["run"]
for name in ("flat", "hierarchical"):
    sent = [one[name] for one in ranks.view["crossed"]]
    mean = ranks.view["means"][0][name]
    print(f"{name}: {sent} bytes cross, {sum(sent[:2])} of host 0; mean {mean}")
print(f"{1000 * foretold_s('hierarchical', two):.0f} ms a batch")

# %% [markdown] tags=["read"]
# 240000, and by all ranks alike: the sum of a host crosses once, not the gradient of each rank. The
# mean is the same. There are 2 steps between hosts in place of 6. In each the two rings share the
# link, so 120,000 bytes take 30&nbsp;ms, and a batch takes 100&nbsp;ms. This is a **hierarchical**
# all-reduce. Within a host it sends more, so where the link between hosts is fast it gains nothing.

# %% tags=["check"]
layered = foretold_s("hierarchical", two)
assert max(ranks.view["layered_s"]) >= layered
sent = [one["hierarchical"] for one in ranks.view["crossed"]]
assert set(sent) == {120_000}
means = ranks.view["means"]
mean = (1 + 4 + 16 + 64) / 4
assert all(one["flat"] == one["hierarchical"] == [mean] for one in means)
ok("what is summed within a host crosses once", bytes_that_cross=sum(sent[:2]))

# %% [markdown] tags=["question"]
# ## Which remedy gives back most?

# %% [markdown] tags=["predict"]
# Four more. **half** sends half precision round the flat ring. **top-k** sends each rank's largest
# hundredth to all. **accumulate** averages after every 4th batch only, **local SGD** averages weights
# after every 8th step. The flat ring adds 120&nbsp;ms to a batch of 40. How many ms does a batch take
# with local SGD?

# %% tags=["predict"]
predict("ms_of_local_sgd", ...)

# %% tags=["run"]
# %%px
from ddp_lessons.many_machines.example import train
from ddp_lessons.workloads import load_digits

times_s = {name: mm.measured_s(name, road, plan) for name in mm.WAYS}
fast, digits = mm.Road(hosts), load_digits()
trained = {name: train(name, fast, digits) for name in mm.WAYS}

# %% tags=["run"]
times_s, trained = ranks.view["times_s"], ranks.view["trained"]
errors, losses = {}, {}
print("               ms  batches a s   loss")
for name in WAYS:
    ms, losses[name] = 1000 * foretold_s(name, two), trained[0][name][0]
    errors[name] = max(own[name] for own in times_s) * 1000 / ms - 1
    told = f"{4000 / ms:12.0f} {losses[name]:6.2f}"
    print(f"{name:12} {ms:4.0f} {told}")

# %% tags=["picture"]
names = ("flat", "hierarchical", "top-k", "local SGD")
points = {n: [(240_000, max(own[n] for own in times_s))] for n in names}
times_plot(points, {f"{n}, foretold": foretold_points(n, two) for n in names})

# %% [markdown] tags=["read"]
# 55&nbsp;ms: 40, and an eighth of 120. All were foretold and then measured. Losses are those of
# digits after 80 batches a rank, on this model's smaller gradient.
#
# *half* cuts bytes, and 6 waits stay. *accumulate* makes a quarter of the steps, so it has learned
# least at the same rate. *local SGD* loses little here, where all ranks draw from all digits; lesson
# 14 shows when not.

# %% [markdown] tags=["read"]
# One host saw 50 batches a second. hierarchical, with 40, is still below that. top-k, accumulate and
# local SGD are above: now the second machine helps.
#
# But the gradient is not what it was, except for hierarchical, which changes only the order of a sum.
# half rounds, top-k sends late, accumulate takes larger batches, local SGD lets replicas part for a
# while.

# %% tags=["check"]
rates = {name: 4 / foretold_s(name, two) for name in WAYS}
helped = {name for name, rate in rates.items() if rate > 50}
assert helped == {"top-k", "accumulate", "local SGD"}
assert all(error >= 0 for error in errors.values())
assert abs(losses["flat"] - losses["hierarchical"]) < 1e-4
assert max(losses, key=losses.get) == "accumulate"
ms = round(1000 * foretold_s("local SGD", two))
ok("rarely, or little: both help", ms_of_local_sgd=ms)

# %% [markdown] tags=["question"]
# ## Who can knock at a rank's door?

# %% [markdown] tags=["predict"]
# A rank **listens**: others connect to it. A machine has several **interfaces**, such as one for each
# network cable. On which of them a rank listens decides who can reach it, and what a firewall must
# let through. Our ranks run on this machine alone. How many of their doors can be reached from
# another machine?

# %% tags=["predict"]
predict("doors_open_to_others", ...)

# %% tags=["run"]
# %%px
import os

usual = os.environ["GLOO_SOCKET_IFNAME"]  # the loopback, by start_ranks
doors = mm.listening()  # who can reach it, and the port
reached = sorted({who for who, _ in doors})
others = sum(who != "this machine" for who, _ in doors)
print(f"reached from: {', '.join(reached)}; open to others: {others}")

# %% tags=["break"]
# %%px
os.environ["GLOO_SOCKET_IFNAME"] = "cable0"  # no such interface here
try:
    dist.new_group()
except RuntimeError as error:
    said = str(error).rpartition("] ")[2]
    print(said)

# %% tags=["mend"]
# %%px
os.environ["GLOO_SOCKET_IFNAME"] = usual
ones = torch.ones(1)
dist.all_reduce(ones, group=dist.new_group())
total = ones.item()
print(f"sum {total:.0f}")

# %% [markdown] tags=["read"]
# 0: they listen behind the **loopback**, which no cable leads to. On a cluster they must listen on an
# interface that the others reach. Gloo takes the one that the host's name leads to, or the one in
# `GLOO_SOCKET_IFNAME`; NCCL has `NCCL_SOCKET_IFNAME`. A wrong one raises before any message.
#
# The system draws the ports of ranks. So between hosts of a job a firewall lets all ports through,
# and none to anybody else, as no rank asks who knocks.

# %% tags=["check"]
assert ranks.view["reached"] == [["this machine"]] * len(ranks)
assert all("Unable to find address for: cable0" in said for said in ranks.view["said"])
assert set(ranks.view["total"]) == {float(len(ranks))}
ok("an interface says who can knock", doors_open_to_others=sum(ranks.view["others"]))

# %% [markdown] tags=["question"]
# ## What do others see when a host is gone?

# %% [markdown] tags=["predict"]
# A process that ends closes its connections, and its peers hear of it at once. A host whose cable is
# pulled says nothing. Rank 0 makes an all-reduce with a timeout of 3 s; the others are silent for
# longer. After how many whole seconds does rank 0 know?

# %% tags=["predict"]
predict("seconds_until_known", ...)

# %% tags=["run"]
# %%px
import time
from datetime import timedelta

patient = dist.new_group(timeout=timedelta(seconds=3))
began_s, waited_s, told_s = time.monotonic(), 0, 0
if dist.get_rank() == 0:
    try:
        dist.all_reduce(torch.ones(1), group=patient)
    except RuntimeError as error:
        waited_s = time.monotonic() - began_s
        told = str(error).rpartition("] ")[2]  # Timed out waiting 3000ms ...
        told_s = int(told.split()[3].removesuffix("ms")) // 1000
        print(f"after {told_s} s:", *told.split()[:2])
dist.barrier()

# %% [markdown] tags=["read"]
# After 3 s: the timeout is all that one has against silence. Gloo's default is 30 minutes.
#
# Now real hosts, where this machine lets us make them: node1 and node2, with addresses and names of
# their own, and a link of 100&nbsp;Mbit/s. [hosts.sh](../scripts/hosts.sh) makes them and takes them
# away. On each, `torchrun` starts 2 ranks of
# [on_hosts.py](../ddp_lessons/many_machines/on_hosts.py); they meet at node1's port 29600.

# %% tags=["run", "nbval-ignore-output"]
from ddp_lessons.many_machines import TestBed, stored_output, why_no_hosts

reason = why_no_hosts()
command = """python -m torch.distributed.run --nnodes 2 --nproc-per-node 2
  --rdzv-backend c10d --rdzv-endpoint node1:29600
  -m ddp_lessons.many_machines.on_hosts"""
if reason:
    print(stored_output("cable", reason))
else:
    bed = TestBed(2, rate="100mbit")
    first, second = (bed.start(number, command) for number in (1, 2))
    first.wait_for("rounds begin", 120)
    said = first.stdout
    print(said)

# %% [markdown] tags=["read"]
# The ranks of node1 can be reached from its network now. A flat ring sends 1.5 times as much through
# the cable, counted by the interface itself. Two hosts are slower than one, and two of the remedies
# give something back.
#
# Next we pull node2's cable out for 1.5&nbsp;s, and put it in again. Then we pull it out and switch
# node2 off.

# %% tags=["run", "nbval-ignore-output"]
if reason:
    print(stored_output("faults", reason))
else:
    bed.cut(2)
    time.sleep(1.5)
    bed.mend(2)
    first.wait_for("came out", 30)
    bed.cut(2)
    bed.off(2)
    first.wait_for("failed", 30)
    print(first.stdout.removeprefix(said))
    for words in ("1.5 times", "than one: True", "sum 4", "failed after"):
        assert words in first.stdout, words
    bed.down()
    reason = "node2 is off; run the cell above again"

# %% [markdown] tags=["read"]
# A cable that was out for 1.5&nbsp;s is no failure: the system sends again what was not
# acknowledged, and all 4 ranks got their sum, later. Of a host that is gone, the others know after
# their timeout, here 6 s. None of them can tell one from the other before that. So a timeout is
# longer than any pause that you want to survive.

# %% tags=["check"]
told_s = ranks.view["told_s"]
assert told_s == [3, 0, 0, 0]
assert ranks.view["waited_s"][0] >= 3
ok("silence lasts as long as the timeout", seconds_until_known=told_s[0])

# %% [markdown] tags=["recap"]
# You have foretold when a second machine helps, chosen among five remedies, seen where ranks listen,
# and pulled a cable.
#
# Rule of thumb: **a ring goes by its slowest link: sum up before it, send less over it, or cross it
# rarely.**

# %% [markdown] tags=["next"]
# - **Exercise** [17](../exercises/17_many_machines.ipynb): a hierarchical all-reduce for any hosts,
#   and the remedy that fits a link. After the exercise:
#   [leaders.py](../ddp_lessons/many_machines/leaders.py),
#   [foretelling.py](../ddp_lessons/many_machines/foretelling.py).
# - **On your own cluster**: on each of 2 hosts of 4 ranks, type
#   `GLOO_SOCKET_IFNAME=eth0 torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d
#   --rdzv-endpoint first-host:29600 train.py`. `ip addr` names the interfaces. In the script:
#
#   ```python
#   road = Road(split_hosts(even_layout(2, 4)))  # of ddp_lessons.many_machines
#   model.register_comm_hook(road, hierarchical_hook)
#   ```
# - **Sources**: Y. Ueno and R. Yokota, [Exhaustive Study of Hierarchical AllReduce
#   Patterns](https://doi.org/10.1109/CCGRID.2019.00057), CCGrid 2019; Y. Lin and others, [Deep
#   Gradient Compression](https://arxiv.org/abs/1712.01887), 2018; PyTorch's documentation on
#   [network interfaces](https://docs.pytorch.org/docs/stable/distributed.html#common-environment-variables).

# %% tags=["teardown"]
ranks.stop()
