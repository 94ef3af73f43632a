# %% [markdown] tags=["title"]
# # What if nobody waits?
#
# 30 minutes, 4 ranks. It builds on [04_samplers](04_samplers.ipynb), where a slow rank held all
# others back, and on [05_replicas](05_replicas.ipynb), where ranks averaged in every step.

# %% [markdown] tags=["goal"]
# When you are through, you can
#
# - **run** a server that takes gradients as they come, and bound how old they get;
# - **train** with a fourteenth of the messages, and say when that does harm;
# - **choose** a way by three numbers: bytes, waiting, and the loss that is left.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.asynchronous import worker_spans
from ddp_lessons.asynchronous.comparison import compare
from ddp_lessons.pictures import timeline_picture

ranks = start_ranks(4, device="cpu")  # NCCL cannot take whoever comes first

# %% [markdown] tags=["question"]
# ## How old is a gradient when it arrives?

# %% [markdown] tags=["predict"]
# A **parameter server** keeps the weights. Each of three workers gets them, computes a gradient,
# sends it, and gets new weights. The server makes one step by each gradient, as it comes. The
# **age** of a gradient is how many steps were made since its worker got the weights. All workers
# are equally fast. How old is a gradient, once all are under way?

# %% tags=["predict"]
predict("age_of_a_gradient", ...)

# %% tags=["run"]
# %%px
import torch, torch.distributed as dist
from ddp_lessons.asynchronous import Clock, Server, gradient_of, weights_of, work
from ddp_lessons.asynchronous.example import backward, draw
from ddp_lessons.workloads import digits_model, load_digits

rank, world_size = dist.get_rank(), dist.get_world_size()
digits, model = load_digits(), digits_model(seed=0)
sgd = torch.optim.SGD(model.parameters(), lr=0.1)


def gradient_at(step):
    model.zero_grad()
    backward(model, *draw(digits, rank - 1, world_size - 1, step))  # 32 of its own
    return gradient_of(model)


# %% tags=["run"]
# %%px
log, num_sent = [], 0
if rank == 0:
    log = Server(model, sgd).run(120)  # whoever comes first
else:
    num_sent = work(model, gradient_at)

# %% tags=["run"]
# %%px
num_weights, ticking = len(weights_of(model)), []
if rank == 0:
    ticking = Server(model, sgd, clock=Clock(lambda rank, step: 1)).run(120)
    print("ages:", *(arrival.age for arrival in ticking[:16]))
else:
    work(model, gradient_at)
    print(f"all {num_weights} weights are here")

# %% [markdown] tags=["read"]
# 2: while a worker computes, each of the two others sends one gradient. Only the first ones are
# younger.
#
# Who comes first is another on each run. So the second run counts **ticks**: here a step takes one,
# and the server takes the gradient whose step ends next.
#
# Every worker held all 4810 weights, and samples of its own: that is data parallel. Model parallel
# ranks hold different weights. So [claim C26](claims.md), asynchronous training means model
# parallelism, is **false**.

# %% tags=["check"]
assert [arrival.age for arrival in ranks.view["ticking"][0][2:]] == [2] * 118
free = ranks.view["log"][0]
assert len(free) == 120
# Each step makes the gradients of the two others one older, whoever comes first.
assert sum(arrival.age for arrival in free) <= 2 * 120
assert sum(ranks.view["num_sent"]) == 120 + 2  # two were under way when it was enough
assert set(ranks.view["num_weights"]) == {4810}
ok("C26 is false, each worker has all weights", age_of_a_gradient=2)

# %% [markdown] tags=["question"]
# ## Where do old gradients lead?

# %% [markdown] tags=["predict"]
# One weight x, whose loss is half its square: so its gradient is x itself. It begins at 8, and the
# learning rate is 1. A gradient of age 0 leads to 0 in one step. But the three workers all begin at
# 8. How far from 0 is x when their first three gradients have come?

# %% tags=["predict"]
predict("distance_after_three", ...)

# %% tags=["break"]
# %%px
def serve_x(lr, num_updates):
    one = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(one.weight, 8.0)
    if rank:
        return work(one, lambda step: weights_of(one))
    clock = Clock(lambda rank, step: 1)
    Server(one, torch.optim.SGD(one.parameters(), lr), clock=clock).run(num_updates)
    return one.weight.item()


far = [serve_x(1.0, num_updates) for num_updates in (3, 9, 30)]
if rank == 0:
    print("rate 1:", *(f"x = {x:.0f}" for x in far))

# %% tags=["mend"]
# %%px
near = [serve_x(0.25, num_updates) for num_updates in (3, 9, 30)]
if rank == 0:
    print("rate 0.25:", *(f"x = {x:.1f}" for x in near))

# %% [markdown] tags=["read"]
# 16, on the other side: each of the three took 8 off. It gets worse from there. A quarter of the
# rate brings x to 0: who trains without waiting has to make shorter steps.

# %% tags=["check"]
far, near = ranks.view["far"][0], ranks.view["near"][0]
assert far[0] == 8 - 3 * 8
assert abs(far[2]) > abs(far[1]) > 8
assert abs(near[2]) < 0.1
ok("old gradients want short steps", distance_after_three=abs(int(far[0])))

# %% [markdown] tags=["question"]
# ## How much does a slow worker count?

# %% [markdown] tags=["predict"]
# Worker 3 needs 8 ticks for a step, the others 1. With a **bound** of 2, nobody begins a step while
# it is more than 2 steps ahead of the slowest. How old can a gradient of worker 3 get?

# %% tags=["predict"]
predict("oldest_with_a_bound", ...)

# %% tags=["run"]
# %%px
from ddp_lessons.asynchronous.example import serve


def served_slowly(bound):
    fresh = digits_model(seed=0)
    options = {"bound": bound, "spread": False, "num_gradients": 240}
    loss, log, _ = serve(fresh, digits, lambda r, step: 8 if r == 3 else 1, **options)
    if rank == 0:
        oldest, num = max(a.age for a in log), sum(a.worker == 3 for a in log)
        told = f"oldest {oldest}, {num} of worker 3, {log[-1].tick} ticks"
        print(f"{told}, loss {loss:.1f}")
    return loss, log


# %% tags=["break"]
# %%px
free = served_slowly(bound=None)

# %% tags=["mend"]
# %%px
bounded = served_slowly(bound=2)

# %% tags=["picture"]
timeline_picture(worker_spans(ranks.view["bounded"][0][1][:24], 4), "ticks, bound of 2")

# %% [markdown] tags=["read"]
# 6: while worker 3 makes its first step, the two others make three each. Then they wait.
#
# Here each worker draws from classes of its own. Without a bound, 14 of 240 gradients come from
# worker 3, and the loss stays at 0.7. With the bound 78 do: all three count nearly alike, and the
# loss is 0.4. It takes 625 ticks in place of 113, for fast workers wait again.

# %% tags=["check"]
loss, log = ranks.view["free"][0]
bounded_loss, bounded_log = ranks.view["bounded"][0]
oldest = max(arrival.age for arrival in bounded_log)
assert max(arrival.age for arrival in log) == 16
assert bounded_log[-1].tick > 4 * log[-1].tick
assert loss > 1.3 * bounded_loss
ok("a bound makes all count, and wait", oldest_with_a_bound=oldest)

# %% [markdown] tags=["question"]
# ## How rarely can ranks talk?

# %% [markdown] tags=["predict"]
# In **local SGD** each rank steps by its own gradient. After every 14 steps ranks meet: all go on
# with the mean of their weights, by one all-reduce of 4,810 weights of 4 bytes. How many bytes does
# a rank hand over in 140 steps?

# %% tags=["predict"]
predict("bytes_of_local_sgd", ...)

# %% tags=["run"]
# %%px
from ddp_lessons.asynchronous import LocalSGD
from ddp_lessons.asynchronous.example import make_way, train


def run(name, spread=True):
    return train(make_way(name, digits_model(seed=0)), digits, spread)


for name in ("lockstep", "local SGD"):
    loss, num_bytes, _ = run(name)
    if rank == 0:
        print(f"{name}: {num_bytes} bytes, loss {loss:.2f}")

# %% [markdown] tags=["read"]
# 192400 bytes, a fourteenth of what an all-reduce of gradients in every step takes. The loss is
# about the same.
#
# All ranks drew from all digits. Now each draws from classes of its own: rank 0 has zeros, ones and
# twos, and so on.

# %% tags=["break"]
# %%px
apart_loss, _, _ = run("local SGD", spread=False)
apart_lockstep, _, _ = run("lockstep", spread=False)
if rank == 0:
    print(f"own classes: loss {apart_loss:.2f}, in lockstep {apart_lockstep:.2f}")

# %% tags=["mend"]
# %%px
model = digits_model(seed=0)
sgd = torch.optim.SGD(model.parameters(), lr=0.3)
way = LocalSGD(model, sgd, every=4)
mended_loss, mended_bytes, _ = train(way, digits, spread=False)
if rank == 0:
    print(f"meeting every 4 steps: loss {mended_loss:.2f}, {mended_bytes} bytes")

# %% [markdown] tags=["read"]
# Now rare meetings do harm: the loss is 0.74 where lockstep has 0.21. Ranks that meet every 4 steps
# come to 0.44, for 673400 bytes, more than three times as many.

# %% tags=["check"]
assert set(ranks.view["num_bytes"]) == {192400}
apart, lockstep, mended, spread = (
    ranks.view[name][0]
    for name in ("apart_loss", "apart_lockstep", "mended_loss", "loss")
)
assert apart > 2 * max(lockstep, spread)
assert mended < apart
ok("rare meetings want alike samples", bytes_of_local_sgd=192400)

# %% [markdown] tags=["question"]
# ## Which way waits least, and which one sends least?

# %% [markdown] tags=["predict"]
# Two more ways join the table. In **DiLoCo** ranks train alone by AdamW between two meetings. How far
# they have moved, on average, is the gradient of an outer SGD with Nesterov's momentum, alike on all
# ranks. In **gossip** a rank averages weights after each step with one neighbour, left and right in
# turns.
#
# Every rank is slow in its turn: in step 0 rank 0 takes 3 ticks and the others 1, in step 1 rank 1
# does, and so on. How many ticks do 140 steps in lockstep take?

# %% tags=["predict"]
predict("ticks_of_slow_turns", ...)

# %% tags=["run"]
# %%px
from ddp_lessons.asynchronous.comparison import one_slow, slow_turns
from ddp_lessons.asynchronous.example import WAYS

trained = {name: (run(name), run(name, spread=False)[0]) for name in WAYS}

# %% tags=["run"]
# %%px
served = [
    serve(digits_model(seed=0), digits, ticks_of, spread=spread)
    for ticks_of, spread in ((one_slow, True), (slow_turns, True), (one_slow, False))
]

# %% tags=["run"]
rows = compare(ranks.view["trained"], ranks.view["served"])
print("               bytes  one slow  in turns   loss  own classes")
for row in rows:
    print("{:10} {:9} {:9} {:9} {:6.2f} {:12.2f}".format(*row))

# %% tags=["run", "nbval-ignore-output"]
# %%px
from ddp_lessons.asynchronous.comparison import seconds_of

seconds = {name: round(seconds_of(name, digits), 2) for name in (*WAYS, "server")}
if rank == 0:
    print("one slow rank, in seconds:", seconds)

# %% [markdown] tags=["read"]
# 420 ticks: somebody is slow in every step, and all wait. Ranks that meet every 14 steps take 220:
# by then each has had its turns. One slow rank has 140 slow steps in any case. There the server,
# which gives work to whoever is ready, ends first, after 240. But its bytes go through one rank, as
# round the hub of lesson 03.

# %% [markdown] tags=["read"]
# DiLoCo has a loss of 0.14 where local SGD has 0.22, for the same bytes. How much of that is AdamW's,
# the table does not tell.
#
# Gossip sends as much as lockstep, and at the end all ranks meet once: 2712840 bytes. With own
# classes its loss, 0.26, is near lockstep's.
#
# Seconds were measured with a fifth of the gradients and 10 ms of sleep a tick. Ranks share cores,
# so they vary from run to run.

# %% tags=["check"]
by_name = {name: numbers for name, *numbers in rows}
for name, (num_bytes, one, turns, loss, apart) in by_name.items():
    assert loss < 0.5  # it was 2.3 before
    assert (one < 420) == (name == "server")
assert by_name["local SGD"][0] == by_name["DiLoCo"][0] == by_name["lockstep"][0] / 14
assert by_name["server"][0] > 2 * by_name["lockstep"][0]
assert by_name["local SGD"][2] == by_name["DiLoCo"][2] < 0.6 * by_name["lockstep"][2]
ok("fewest bytes, or least waiting", ticks_of_slow_turns=by_name["lockstep"][2])

# %% [markdown] tags=["question"]
# ## More: who takes the work that a slow rank has left?

# %% [markdown] tags=["predict"]
# Each of 4 ranks has 15 batches for one step. A batch takes rank 3 three ticks, and the others one.
# Who has none left **steals** one of another rank's. When all are done, how many has rank 3 done?

# %% tags=["predict"]
predict("batches_of_the_slow_rank", ...)

# %% tags=["run"]
# %%px
from ddp_lessons.asynchronous import Queues, new_counters
from ddp_lessons.asynchronous.example import own_items, step_of_items

item_ticks = 3 if rank == 3 else 1


def step(take, lr):
    fresh = digits_model(seed=0)
    num_done, ticks = step_of_items(fresh, digits, take, item_ticks, lr)
    return num_done, ticks, weights_of(fresh)


# %% tags=["break"]
# %%px
num_own, ticks, weights = step(own_items(rank, 15), lr=0.3)
num_own_lr, ticks_lr, weights_lr = step(own_items(rank, 15), lr=0.1)
print(f"{num_own} batches, {ticks} ticks; with another rate {num_own_lr}, {ticks_lr}")

# %% tags=["mend"]
# %%px
queues = Queues(new_counters(), [15] * 4, rank)
num_done, ticks_stolen, weights_stolen = step(queues.take, lr=0.3)
print(f"{num_done} batches, {queues.num_stolen} of others, {ticks_stolen} ticks")

# %% [markdown] tags=["read"]
# 6: in 18 ticks the fast ranks do 18 each. A counter for each queue, in the store that all ranks
# share, says what is taken. `add` counts and answers in one go, so no batch is done twice. Nobody
# needs to know who is slow.
#
# A guide balances load by the learning rate. Another rate led to other weights, and rank 3 had 15
# batches and 45 ticks as before. So [claim C08](claims.md) is **false**.

# %% tags=["check"]
assert ranks.view["num_own"] == ranks.view["num_own_lr"] == [15] * 4
assert set(ranks.view["ticks"]) == set(ranks.view["ticks_lr"]) == {45}
assert not ranks.view["weights"][0].equal(ranks.view["weights_lr"][0])
assert sum(ranks.view["num_done"]) == 60
assert set(ranks.view["ticks_stolen"]) == {18}
# the same 60 gradients, added in another order: about 7 digits agree
off = ranks.view["weights_stolen"][0] - ranks.view["weights"][0]
assert off.norm() < 1e-5 * ranks.view["weights"][0].norm()
slow_did = ranks.view["num_done"][3]
ok("C08 is false, stealing moves load", batches_of_the_slow_rank=slow_did)

# %% [markdown] tags=["recap"]
# You have run a server and bounded the age of its gradients, trained with a fourteenth of the
# bytes, compared five ways in one table, and let fast ranks steal.
#
# Rule of thumb: **in lockstep as long as links and ranks allow it; local steps for a slow link,
# whoever is ready for slow ranks, and short steps for old gradients.**

# %% [markdown] tags=["next"]
# - **Exercise** [14](../exercises/14_asynchronous.ipynb): a server that bounds staleness, local SGD,
#   DiLoCo's outer step, and balance by stealing work. After the exercise:
#   [server.py](../ddp_lessons/asynchronous/server.py) and
#   [local.py](../ddp_lessons/asynchronous/local.py).
# - **On your own cluster**: local SGD and DiLoCo need no server: `DiLoCo(model, optimizer,
#   every=100).step()` in place of `optimizer.step()`, in a script that `torchrun --nnodes 2
#   --nproc-per-node 4 train.py` starts. For a server under NCCL, pass it
#   `group=dist.new_group(backend="gloo")`. `torch.distributed.rpc` can carry one, too; its
#   documentation calls it stable and in maintenance mode.
# - **Next lesson** [15](15_beyond_ddp.ipynb): what if the model does not fit?
# - **Sources**: M. Li and others, [Scaling Distributed Machine Learning with the Parameter
#   Server](https://www.usenix.org/conference/osdi14/technical-sessions/presentation/li_mu), OSDI
#   2014; Q. Ho and others, [Stale Synchronous
#   Parallel](https://papers.nips.cc/paper/4894-more-effective-distributed-ml-via-a-stale-synchronous-parallel-parameter-server),
#   NeurIPS 2013, on the bound; S. Stich, [Local SGD](https://arxiv.org/abs/1805.09767), ICLR 2019; A.
#   Douillard and others, [DiLoCo](https://arxiv.org/abs/2311.08105), 2023, algorithm 1; X. Lian and
#   others, [on gossip](https://arxiv.org/abs/1705.09056), NeurIPS 2017; PyTorch's page on
#   [RPC](https://docs.pytorch.org/docs/stable/rpc.html).

# %% tags=["teardown"]
ranks.stop()
