# %% [markdown] tags=["title"]
# # What if the model does not fit?
#
# 30 minutes, 4 ranks. It builds on [03_ring](03_ring.ipynb), [06_ddp](06_ddp.ipynb) and
# [13_sharded_optimizer](13_sharded_optimizer.ipynb).

# %% [markdown] tags=["goal"]
# When you are through, you can
#
# - **shard** a model's parameters, and have each layer whole only while it computes;
# - **cut** layers among ranks, and the model into stages, and count what is sent and who is idle;
# - **put** ranks into a mesh.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.pictures import memory_picture, mesh_picture, timetable_picture

ranks = start_ranks(4)

# %% [markdown] tags=["question"]
# ## What can still be cut?

# %% [markdown] tags=["predict"]
# Under DDP with Adam a rank holds 16 bytes for each number of a model: 4 are the number itself, 4
# its gradient, 8 Adam's. ZeRO stage 2 left 7 of them. Now parameters are cut, too. How many bytes
# for each number does one of 4 ranks hold between two steps?

# %% tags=["predict"]
predict("bytes_when_all_is_cut", ...)

# %% tags=["run"]
# %%px
import torch, torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from ddp_lessons.beyond_ddp.fsdp import FullySharded, example
from ddp_lessons.process_group import rank_device
from ddp_lessons.workloads import digits_batch, load_digits

rank, world_size, device = dist.get_rank(), dist.get_world_size(), rank_device()
digits = load_digits().to(device)
batches = [digits_batch(digits, 32, rank=rank, step=step) for step in range(3)]
images, labels = batches[0]
held = {way: example.train(*example.make(way), batches) for way in example.WAYS}
num = sum(p.numel() for p in example.deep_model().parameters())
*used, at_most = (num_bytes / num for num_bytes in held["FSDP"].values())
print(f"FSDP: {sum(used):.1f} bytes, and {at_most:.1f} gathered at most")

# %% tags=["picture"]
used = ranks.view["held"][0]
memory_picture({way: used[way] for way in ("DDP", "ZeRO-1", "ZeRO-2", "FSDP")})

# %% [markdown] tags=["read"]
# 4 bytes: a quarter of 16. This is **fully sharded data parallel**, FSDP, or ZeRO stage 3. But to
# compute, a layer needs all of its weights. So they are *gathered* before, and freed after. Two of
# our ten layers are there at most, 1.0 byte for each number of the model: one computes, the next is
# under way.
#
# [Claim C13](claims.md) has it that DDP splits the model. This does.

# %% tags=["check"]
from ddp_lessons.beyond_ddp.fsdp import foretold_held_bytes

sizes = [64 * 256 + 256, *[256 * 256 + 256] * 8, 256 * 10 + 10]
assert all(one["FSDP"] == foretold_held_bytes(sizes, 4) for one in ranks.view["held"])
assert all(one["DDP"]["parameters"] == 4 * sum(sizes) for one in ranks.view["held"])
ok("C13 is false of DDP, and true of FSDP", bytes_when_all_is_cut=4)

# %% [markdown] tags=["question"]
# ## When is a weight whole?

# %% [markdown] tags=["predict"]
# A layer's weights are gathered in forward, freed, and gathered again in backward. Its gradients
# leave in a reduce-scatter. DDP sends one all-reduce, which in a ring is a reduce-scatter and an
# all-gather. How many times as many bytes as DDP does FSDP send?

# %% tags=["predict"]
predict("times_the_bytes_of_ddp", ...)

# %% tags=["run"]
# %%px
from torch.distributed.fsdp import fully_shard
from ddp_lessons.trace import trace

model, theirs = FullySharded(example.small_model()), example.small_model()
for part in (theirs[0], theirs[2], theirs):
    fully_shard(part)  # in place
with trace() as events:
    loss = cross_entropy(model(images), labels)
    between = model.gathered_bytes
    loss.backward()
with trace() as of_torch:
    cross_entropy(theirs(images), labels).backward()
for call in events if rank == 0 else ():
    where = "forward " if call.backward is None else "backward"
    print(where, call.name, call.input_bytes, "to", call.output_bytes, "bytes")

# %% tags=["run"]
from ddp_lessons.beyond_ddp.fsdp import foretold_sent_bytes
from ddp_lessons.costs import sent_bytes

sent = sum(foretold_sent_bytes([2080, 330], world_size=4).values())
of_ddp = sent_bytes("all_reduce", "ring", 4, 2412, 4)[0]  # 2410 numbers, padded
print(f"{sent / of_ddp:g} times the bytes of DDP")
print("bytes gathered between forward and backward:", ranks.view["between"])

# %% [markdown] tags=["read"]
# 1.5 times: three messages where DDP's ring has two. In backward the second layer comes first, and
# the other one is asked for before the second's gradients leave. So it is under way while the
# second computes. In between nothing is gathered.
#
# torch's own, `fully_shard`, makes the same calls.

# %% tags=["check"]
gather, reduce = "all_gather_into_tensor", "reduce_scatter_tensor"
for calls in ranks.view["events"]:
    assert [call.name for call in calls] == [gather] * 4 + [reduce] * 2
    assert [call.output_bytes for call in calls][2:4] == [4 * 332, 4 * 2080]
for calls in ranks.view["of_torch"]:
    assert sorted(call.name for call in calls) == [gather] * 4 + [reduce] * 2
assert ranks.view["between"] == [0] * 4
ok("two gathers and a reduce-scatter a layer", times_the_bytes_of_ddp=sent / of_ddp)

# %% [markdown] tags=["question"]
# ## Can ranks share one multiplication?

# %% [markdown] tags=["predict"]
# Two linear layers with a ReLU between them have 256 hidden numbers a sample. Each of 4 ranks has
# all samples, and computes 64 of the hidden numbers: that takes 64 rows of the first weight. ReLU
# looks at each number alone. The second weight has a column for each hidden number, and the rank
# needs 64 of them. What it computes from there has the output's shape.
#
# All ranks are to have the whole output, and the whole gradient of the input. How many all-reduces
# do forward and backward make together?

# %% tags=["predict"]
predict("calls_both_ways", ...)

# %% tags=["break"]
# %%px
from torch.nn.functional import linear
from ddp_lessons.beyond_ddp.tensor_parallel import leave

torch.manual_seed(0)  # the same on every rank
first, second = nn.Linear(64, 256).to(device), nn.Linear(256, 64).to(device)
x = torch.randn(32, 64).to(device).requires_grad_()
rows, bias = first.weight.chunk(world_size)[rank], first.bias.chunk(world_size)[rank]
columns = second.weight.chunk(world_size, dim=1)[rank]
part = linear(linear(x, rows, bias).relu(), columns)  # (32, 64), as the output
y = leave(part) + second.bias  # leave: an all-reduce, of the parts
right = second(first(x).relu())
grad, right_grad = (torch.autograd.grad(one.square().sum(), x)[0] for one in (y, right))
off = [((a - b).norm() / b.norm()).item() for a, b in ((y, right), (grad, right_grad))]
print(f"output off by {off[0]:.0%}, the input's gradient by {off[1]:.0%}")

# %% [markdown] tags=["read"]
# The output is 0% off: what ranks compute are parts of a sum. Backward is its mirror. A rank has
# only some of the rows, so it finds a part of the input's gradient, and those must be summed, too.
# So the sum needs a twin before the first layer, `enter`: it does nothing in forward, and an
# all-reduce in backward. `ParallelMLP` has both. torch has a plan, which names layers.

# %% tags=["mend"]
# %%px
import copy
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import parallel as tp
from ddp_lessons.beyond_ddp.tensor_parallel import ParallelMLP

ours = ParallelMLP(first, second, activation=torch.relu)
theirs = copy.deepcopy(nn.Sequential(first, nn.ReLU(), second))
plan = {"0": tp.ColwiseParallel(), "2": tp.RowwiseParallel()}
tp.parallelize_module(theirs, init_device_mesh(device.type, (world_size,)), plan)
calls, off = [], []
for model in (ours, theirs):
    with trace() as events:
        (grad,) = torch.autograd.grad(model(x).square().sum(), x)
    calls.append([(event.name, event.input_bytes) for event in events])
    off.append(((grad - right_grad).norm() / right_grad.norm()).item())

# %% tags=["run"]
from ddp_lessons.beyond_ddp.tensor_parallel import held_numbers, pair_bytes

foretold = pair_bytes(32, 64, 64)
for name, calls in zip(("ours", "torch's plan"), ranks.view["calls"][0], strict=True):
    print(f"{name}: {len(calls)} calls,", *calls)
held, whole = (held_numbers(64, 256, 64, num) for num in (len(ranks), 1))
print(f"foretold: {foretold} bytes; a rank has {held:,} of {whole:,} numbers")

# %% [markdown] tags=["read"]
# 2 all-reduces of 8192 bytes, and a rank has a quarter of both layers, but all of the second's
# bias. This is **tensor parallel**. Papers write weights the other way round: their *columns* are
# torch's rows.
#
# More ranks hold less. The bytes stay: they are those of 32 samples' inputs and outputs, and nobody
# can compute meanwhile. So it is for ranks with fast links.

# %% tags=["check"]
assert ranks.view["calls"][0] == [[("all_reduce", one) for one in foretold]] * 2
assert all(max(off) < 1e-5 for off in ranks.view["off"])  # float32, sums of 256
assert set(ranks.view["sum(p.numel() for p in ours.parameters())"]) == {held}
ok("a quarter of each, one call each way", calls_both_ways=len(foretold))

# %% [markdown] tags=["question"]
# ## Which ranks share what?

# %% [markdown] tags=["predict"]
# Ranks 0 and 1 each have one half of every layer. Ranks 2 and 3 have the same two halves in the
# same order, for other samples. With which rank does rank 1 average gradients?

# %% tags=["predict"]
predict("averages_with", ...)

# %% tags=["run"]
# %%px
from torch.nn.parallel import DistributedDataParallel as DDP
from ddp_lessons.beyond_ddp.mesh import Mesh

mesh = Mesh(data=2, tensor=2)  # the last axis is that of neighbours
block = ParallelMLP(first, second, mesh.group("tensor"), torch.relu)
model = DDP(block, process_group=mesh.group("data"))
samples = x.detach().chunk(2)[mesh.place["data"]]
with trace() as events:
    model(samples).square().mean().backward()
lines = [f"{event.name} among {event.ranks}" for event in events]
loss = second(first(x).relu()).square().mean()
right_rows = torch.autograd.grad(loss, first.weight)[0].chunk(2)[mesh.place["tensor"]]
off = ((block.widen.weight.grad - right_rows).norm() / right_rows.norm()).item()
print(*lines, f"off by {off:.0%}", sep="; ")
del model  # it holds a group

# %% tags=["picture"]
texts = ["hidden numbers\n0 to 127", "hidden numbers\n128 to 255"] * 2
mesh_picture(ranks.view["mesh.sizes"][0], texts)

# %% [markdown] tags=["read"]
# Rank 3: it has the same rows. A **mesh** has a group for each row and column of ranks. Along
# `tensor` ranks have the same samples, and sum parts of the output. Along `data` they have the same
# part of the model, and DDP, which got that group, averages its gradients. Together they find what
# one process does.

# %% tags=["check"]
assert ranks.view["lines"][1] == ["all_reduce among (0, 1)", "all_reduce among (1, 3)"]
assert max(ranks.view["off"]) < 1e-5  # float32, sums of 256
partner = [one for one in ranks.view['mesh.ranks("data")'][1] if one != 1]
ok("two ways at once are one process", averages_with=partner[0])

# %% [markdown] tags=["question"]
# ## How long does a rank of a pipeline do nothing?

# %% [markdown] tags=["predict"]
# In a **pipeline** each rank has some of the layers, a **stage**, and hands on what comes out. The
# batch is cut into **microbatches**, so that several ranks work at a time. A stage needs 1 tick for
# its forward, 2 for its backward. In **GPipe** a stage does all forwards, then all backwards. With 4
# stages and 4 microbatches, how many ticks does a rank do nothing until all are done?

# %% tags=["predict"]
predict("idle_ticks", ...)

# %% tags=["run"]
# %%px
from ddp_lessons.beyond_ddp.pipeline import Pipeline, WaitingSends, bubble, cut
from ddp_lessons.beyond_ddp.pipeline import gpipe, most_alive, one_f_one_b, timetable
from ddp_lessons.beyond_ddp.pipeline.example import deep_model

x, y = digits_batch(load_digits(), 32)  # the same on all ranks
stages = cut(deep_model(seed=0), world_size, x)[rank::world_size]
pipeline = Pipeline(stages, cross_entropy)
with trace() as events:
    pipeline.step(gpipe(world_size, 4), 32, x, y)
num_kept = pipeline.most_alive
num_bytes = sum(event.input_bytes for event in events if event.is_send)
print(f"kept {num_kept} microbatches at a time, sent {num_bytes} bytes")
spans = timetable(gpipe(4, 4))  # by a clock: real ticks are not alike

# %% tags=["picture"]
rows = ranks.view["spans"][0]
idle = max(row[-1][-1] for row in rows) - 4 * (1 + 2)
print(f"a rank does nothing in {idle} ticks")
timetable_picture(rows)

# %% [markdown] tags=["read"]
# 9 of 21 ticks: w - 1 forwards and w - 1 backwards, however many microbatches there are. The share
# is the **bubble**: (w - 1) / (M + w - 1) for M microbatches, here 3/7. A larger M makes it
# smaller. But from forward to backward a microbatch's activations are kept: here all 4.
#
# In **1F1B**, one forward, one backward, a stage goes backward as soon as a gradient comes.
# `Pipeline` runs any table of who does what. First, with sends that wait.

# %% tags=["break", "raises-exception"]
# %%px
table = one_f_one_b(world_size, 4)
Pipeline(stages, cross_entropy, WaitingSends).step(table, 32, x, y)

# %% [markdown] tags=["read"]
# In GPipe all messages go one way, then the other. Here rank 3 sends a gradient back to rank 2,
# which sends an activation forward to rank 3. Both wait in `send`, as in lesson 02, and the others
# for them. The table is fine. What it needs are sends that are kept: `isend`, and a `wait` at the
# end.

# %% tags=["mend"]
# %%px
pipeline, stage = Pipeline(stages, cross_entropy), stages[0].module
stage.zero_grad()
pipeline.step(table, 32, x, y)
whole = deep_model(seed=0)  # one process with the whole batch
cross_entropy(whole(x), y).backward()
own = cut(whole, world_size, x)[rank].module
pairs = zip(stage.parameters(), own.parameters(), strict=True)
off = max(((p.grad - q.grad).norm() / q.grad.norm()).item() for p, q in pairs)
shares = [bubble(timetable(rows)) for rows in (gpipe(world_size, 4), table)]
print(f"kept {pipeline.most_alive}. Gradients of one process: {off < 1e-5}")
most = [max(map(most_alive, make(4, 64))) for make in (gpipe, one_f_one_b)]

# %% [markdown] tags=["read"]
# Rank 0 kept 4 microbatches, the last rank 1: as many as there are stages from it to the last. The
# check asks the tables for 64 microbatches: GPipe would keep 64, 1F1B still 4. The bubble is the same.

# %% tags=["check"]
kept = ranks.view["pipeline.most_alive"]
assert kept == [min(4, len(kept) - rank) for rank in range(len(kept))]
assert set(ranks.view["num_kept"]) == {4}
assert ranks.view["most"][0] == [64, 4]
assert max(ranks.view["off"]) < 1e-5  # sums of 32 samples in float32, in another order
assert all(gpipe == one_f_one_b for gpipe, one_f_one_b in ranks.view["shares"])
ok("1F1B keeps less, in the same time", idle_ticks=idle)

# %% [markdown] tags=["question"]
# ## More: which mesh is the fastest?

# %% [markdown] tags=["predict"]
# A model, its gradients and Adam's state have 120 GB, and a rank holds 40 GB. Cut layers and
# pipeline stages share them out evenly. Ranks along `data` are copies. There are 16 ranks, in hosts
# of 4: data x tensor x pipeline = 16. How many copies can there be at most?

# %% tags=["predict"]
predict("copies_at_most", ...)

# %% tags=["run"]
from ddp_lessons.beyond_ddp.mesh import Job, best_mesh, is_possible, meshes, step_parts
from ddp_lessons.costs import Link

job = Job(
    num_ranks=16, ranks_per_host=4, memory_bytes=40e9, state_bytes=120e9,
    gradient_bytes=15e9, num_layers=24, num_heads=12, num_micro_batches=10,
    activation_bytes=18e9, alone_s=480.0,
    inside=Link(1e-5, 100e9), between=Link(2e-4, 10e9),
)  # fmt: skip
possible = [mesh for mesh in meshes(16) if is_possible(job, *mesh)]  # fits, and divides
for mesh in possible:
    parts = step_parts(job, *mesh)
    told = ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts.items())
    print("{} x {} x {}:".format(*mesh), f"{told}; {sum(parts.values()):.1f} s")

# %% tags=["picture"]
data, tensor, pipeline = best_mesh(job)
hosts = [f"host {rank // 4}" for rank in range(16)]
mesh_picture({"data": data, "pipeline": pipeline, "tensor": tensor}, hosts)

# %% [markdown] tags=["read"]
# 4 copies: each host has a whole one, as the picture shows, and only gradients leave it. Among the
# three meshes with 4 copies, stages cost compute, for a pipeline has a bubble, and cut layers cost
# sums. The best one, 35.8 s, has some of both.

# %% tags=["check"]
assert best_mesh(job) == (4, 2, 2)
ok("the best has a copy in each host",
   copies_at_most=max(mesh[0] for mesh in possible))  # fmt: skip

# %% [markdown] tags=["question"]
# ## More: what does one have to know of torch's own?

# %% [markdown] tags=["predict"]
# torch's `fully_shard` puts a new parameter, a DTensor, in place of each. A script makes its
# optimizer as always, right after the model. Then it shards, and trains for three steps. How many
# of the 2,410 numbers move?

# %% tags=["predict"]
predict("moved_by_three_steps", ...)

# %% tags=["break"]
# %%px
def whole():
    for unit in units:
        unit.unshard()  # gathers all its rows on every rank, until unit.reshard()
    numbers = torch.cat([p.detach().flatten() for p in model.parameters()])
    for unit in units:
        unit.reshard()
    return numbers


model = example.small_model()
adam = torch.optim.Adam(model.parameters())
units = [fully_shard(part) for part in (model[0], model[2], model)]
start = whole()
example.train(model, adam, batches)
num_moved = (whole() != start).sum().item()
print(f"{num_moved} numbers have moved")

# %% tags=["mend"]
# %%px
example.train(model, torch.optim.Adam(model.parameters()), batches)
num_mended = (whole() != start).sum().item()
print("more than 1,500 have moved:", num_mended > 1500)

# %% [markdown] tags=["read"]
# 0, and no error. The optimizer holds the parameters that were there before, which nobody uses any
# more and which get no gradient. So: shard first, then make the optimizer. It is the same with
# ours.
#
# DDP sends rank 0's parameters to all ranks. `fully_shard` sends nothing. In the next cell a weight
# has four rows, and they are all 0 on rank 0, 1 on rank 1, and so on.

# %% tags=["break"]
# %%px
layer = nn.Linear(1, 4, bias=False).to(device)
nn.init.constant_(layer.weight, rank)
fully_shard(layer).unshard()
rows = layer.weight.detach().flatten()
print(rows.int().tolist())

# %% tags=["mend"]
# %%px
from ddp_lessons.beyond_ddp.fsdp import full_state_dict

layer = nn.Linear(1, 4, bias=False).to(device)
nn.init.constant_(layer.weight, rank)
mended = full_state_dict(FullySharded(layer))["weight"].flatten()
print(mended.int().tolist())

# %% [markdown] tags=["read"]
# A patchwork: a row of each rank. So give all ranks one seed, or load a checkpoint. Ours sends rank
# 0's parameters, as DDP does.
#
# For pipelines there is `torch.distributed.pipelining`. Its **interleaved** 1F1B cuts the model
# into twice as many stages, half as long: rank r of 4 has stages r and r + 4. Its table of rank 0
# has 30 slots, and 14 hold None. Is that the bubble?

# %% tags=["run"]
# %%px
from torch.distributed.pipelining import ScheduleInterleaved1F1B
from ddp_lessons.beyond_ddp.pipeline import interleaved
from ddp_lessons.beyond_ddp.pipeline.example import TorchsOwn, slots_of

both = cut(deep_model(seed=0), 2 * world_size, x)[rank::world_size]
torchs = TorchsOwn(both, ScheduleInterleaved1F1B, world_size)
some = 8 * world_size  # it wants microbatches of one size
torchs.step(x[:some], y[:some])  # first with questions about shapes
with trace() as events:
    torchs.step(x[:some], y[:some])
num_bytes = sum(event.input_bytes for event in events if event.is_send)
num_slots, num_empty = slots_of(torchs.schedule)[rank]
print(f"{num_empty} of {num_slots} slots are None, sent {num_bytes} bytes")
is_ours = torchs.done == interleaved(world_size, world_size, 2)[rank]  # by hooks
spans = timetable(interleaved(4, 4, 2))

# %% tags=["picture"]
percent = round(100 * ranks.view["bubble(spans)"][0])
print(f"bubble: {percent} percent")
timetable_picture(ranks.view["spans"][0])

# %% [markdown] tags=["read"]
# The bubble is 27 percent, and not 14 of 30: a slot is a place in a list, and takes no particular
# time. With v stages a rank the bubble is (w - 1) / (v M + w - 1). In the picture, b is a rank's
# second stage. The price: stages hand on more often, and rank 0 sends 24576 bytes in place of 8192.

# %% tags=["check"]
assert ranks.view["num_moved"] == [0] * 4
assert min(ranks.view["num_mended"]) > 1500  # some pixels are blank in every digit
assert ranks.view["rows.int().tolist()"] == [[0, 1, 2, 3]] * 4
assert ranks.view["mended.int().tolist()"] == [[0, 0, 0, 0]] * 4
assert all(ranks.view["is_ours"])
ok("shard first, then make the optimizer", moved_by_three_steps=0)

# %% [markdown] tags=["recap"]
# You have gathered a model layer by layer, cut layers, put ranks into a mesh, and drawn a bubble.
#
# Rule of thumb: **shard first; cut layers among neighbours; make stages where links are slow.**

# %% [markdown] tags=["next"]
# - **Exercise** [15](../exercises/15_beyond_ddp.ipynb). After the exercise:
#   [fully_sharded.py](../ddp_lessons/beyond_ddp/fsdp/fully_sharded.py),
#   [layers.py](../ddp_lessons/beyond_ddp/tensor_parallel/layers.py),
#   [tables.py](../ddp_lessons/beyond_ddp/pipeline/tables.py).
# - **On your own cluster**: type `for block in model.blocks: fully_shard(block)`, then
#   `fully_shard(model)`, then make the optimizer, in a script that `torchrun --nnodes 2
#   --nproc-per-node 4 train.py` starts. To cut layers in each host: `parallelize_module(model,
#   init_device_mesh("cuda", (2, 4), mesh_dim_names=("data", "tensor"))["tensor"], plan)`.
# - **Next lesson** [16](16_frameworks.ipynb): what do frameworks add?
# - **Sources**: Y. Zhao and others, [PyTorch FSDP](https://arxiv.org/abs/2304.11277), VLDB 2023,
#   section 3; M. Shoeybi and others, [Megatron-LM](https://arxiv.org/abs/1909.08053), 2019, section
#   3; Y. Huang and others, [GPipe](https://arxiv.org/abs/1811.06965), NeurIPS 2019, section 2.3; D.
#   Narayanan and others, [on all of them](https://arxiv.org/abs/2104.04473), SC 2021, sections 2
#   and 3; PyTorch's page on
#   [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html).

# %% tags=["teardown"]
ranks.stop()
