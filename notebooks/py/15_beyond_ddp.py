# %% [markdown] tags=["title"]
# # What if the model does not fit?
#
# 20 minutes, 4 ranks. It builds on [02_collectives](02_collectives.ipynb), on
# [03_ring](03_ring.ipynb), and on [06_ddp](06_ddp.ipynb).

# %% [markdown] tags=["goal"]
# When you are through, you can
#
# - **cut** two layers, so that ranks send once for both;
# - **put** ranks into a mesh, and say which of them share what;
# - **choose** a mesh by what it holds and sends.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.pictures import mesh_picture

ranks = start_ranks(4)

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

# %% tags=["run"]
# %%px
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from ddp_lessons.process_group import rank_device
from ddp_lessons.trace import trace

rank, world_size, device = dist.get_rank(), dist.get_world_size(), rank_device()

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
    print(name, *calls)
held, whole = (held_numbers(64, 256, 64, num) for num in (len(ranks), 1))
print(f"foretold: {foretold} bytes; a rank has {held:,} of {whole:,} numbers")

# %% [markdown] tags=["read"]
# 2 all-reduces of 8192 bytes, and a rank has a quarter of both layers but for the second's bias, of
# which everybody has all. This is **tensor parallel**. Papers write weights the other way round:
# their *columns* are torch's rows.
#
# More ranks hold less. The bytes stay: they are those of 32 samples' inputs and outputs, in each
# pair of layers, and nobody can compute meanwhile. So it is for ranks with fast links.

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
from ddp_lessons.beyond_ddp.mesh import Mesh

mesh = Mesh(data=2, tensor=2)  # the last axis is that of neighbours
block = ParallelMLP(first, second, mesh.group("tensor"), torch.relu)
model = DDP(block, process_group=mesh.group("data"))
samples = x.detach().chunk(2)[mesh.place["data"]]
with trace() as events:
    model(samples).square().mean().backward()
lines = [f"{event.name} among {event.ranks}" for event in events]
second(first(x).relu()).square().mean().backward()
right_rows = first.weight.grad.chunk(2)[mesh.place["tensor"]]
off = ((block.widen.weight.grad - right_rows).norm() / right_rows.norm()).item()
print(*lines, f"off by {off:.0%}", sep="; ")

# %% tags=["picture"]
texts = ["hidden numbers\n0 to 127", "hidden numbers\n128 to 255"] * 2
mesh_picture(ranks.view["mesh.sizes"][0], texts)

# %% [markdown] tags=["read"]
# Rank 3: it has the same rows. A **mesh** puts ranks into rows and columns, with a group for each of
# them. Along `tensor` ranks have the same samples, and sum parts of the output. Along `data` they
# have the same part of the model, and DDP, which got that group, averages its gradients. Together
# they do what one process does.
#
# torch's `init_device_mesh` makes the same groups.

# %% tags=["check"]
assert ranks.view["lines"][1] == ["all_reduce among (0, 1)", "all_reduce among (1, 3)"]
assert max(ranks.view["off"]) < 1e-5  # float32, sums of 256
partner = [one for one in ranks.view['mesh.ranks("data")'][1] if one != 1]
ok("two ways at once are one process", averages_with=partner[0])

# %% [markdown] tags=["question"]
# ## Which mesh is the fastest?

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
possible = [mesh for mesh in meshes(16) if is_possible(job, *mesh)]
for mesh in possible:
    parts = step_parts(job, *mesh)
    told = ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts.items())
    print("{} x {} x {}:".format(*mesh), f"{told}; {sum(parts.values()):.1f} s")

# %% tags=["picture"]
data, tensor, pipeline = best_mesh(job)
hosts = [f"host {rank // 4}" for rank in range(16)]
mesh_picture({"data": data, "pipeline": pipeline, "tensor": tensor}, hosts)

# %% [markdown] tags=["read"]
# 4 copies. Among their meshes, stages cost compute, for a pipeline has a bubble; cut layers cost
# sums, dear between hosts; copies cost one large sum a step. The best one takes 35.8 s: it has a
# whole copy in each host, as the picture shows, so that only gradients leave it.

# %% tags=["check"]
assert best_mesh(job) == (4, 2, 2)
ok("the best has a copy in each host",
   copies_at_most=max(mesh[0] for mesh in possible))  # fmt: skip

# %% [markdown] tags=["recap"]
# You have cut two layers so that ranks send once each way, put four ranks into a mesh, and chosen
# one for sixteen.
#
# Rule of thumb: **cut layers among neighbours, copy the rest.**

# %% [markdown] tags=["next"]
# - **Exercise** [15](../exercises/15_beyond_ddp.ipynb): two layers with one all-reduce, and a mesh
#   that is chosen. After the exercise:
#   [layers.py](../ddp_lessons/beyond_ddp/tensor_parallel/layers.py).
# - **On your own cluster**: `parallelize_module(model, init_device_mesh("cuda", (2, 4),
#   mesh_dim_names=("data", "tensor"))["tensor"], plan)`, in a script that `torchrun --nnodes 2
#   --nproc-per-node 4 train.py` starts.
# - **Sources**: M. Shoeybi and others, [Megatron-LM](https://arxiv.org/abs/1909.08053), 2019, section
#   3; D. Narayanan and others, [on meshes of three axes](https://arxiv.org/abs/2104.04473), SC 2021,
#   section 3; PyTorch's page on [tensor
#   parallelism](https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html).

# %% tags=["teardown"]
ranks.stop()
