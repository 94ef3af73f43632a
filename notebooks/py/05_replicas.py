# %% [markdown] tags=["title"]
# # How do replicas stay equal?
#
# 30 minutes, 4 ranks; works with any number of ranks from 2. It builds on
# [02_collectives](02_collectives.ipynb): all-reduce, handles, and the bytes of a call.

# %% [markdown] tags=["goal"]
# When you are through, you can
#
# - **write** data-parallel training yourself, in five lines;
# - **count** its messages, and make fewer of them;
# - **send** gradients while `backward` still computes others.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.pictures import buckets_picture, timeline_picture, timeline_tracks
from ddp_lessons.trace import merge

ranks = start_ranks(4)

# %% [markdown] tags=["question"]
# ## A plain `backward()` averages nothing.

# %% [markdown] tags=["predict"]
# Every rank makes the same model and takes 16 digits of its own. A guide says that `backward()`
# averages gradients over the devices. How many different gradients are there after it?
#
# *Your number:*

# %% tags=["run"]
# %%px
import torch, torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector as flat
from ddp_lessons.process_group import rank_device
from ddp_lessons.workloads import digits_model, load_digits

rank, world_size, device = dist.get_rank(), dist.get_world_size(), rank_device()
digits = load_digits().to(device)
all_images = digits.train_images[: 16 * world_size]
all_labels = digits.train_labels[: 16 * world_size]
images, labels = all_images[rank::world_size], all_labels[rank::world_size]


# %% tags=["run"]
# %%px
def of_all_ranks(tensor):
    everyone = [torch.empty_like(tensor) for _ in range(world_size)]
    dist.all_gather(everyone, tensor)
    return torch.stack(everyone)  # (n,) -> (world_size, n)


def distance(model):
    weights = of_all_ranks(flat(model.parameters()).detach())
    return (weights - weights[0]).norm().item()


model = digits_model(seed=0).to(device)
cross_entropy(model(images), labels).backward()
gradient = flat(p.grad for p in model.parameters())
num_plain = len(of_all_ranks(gradient).unique(dim=0))
print(f"different gradients: {num_plain}")

# %% tags=["run"]
# %%px
from torch.nn.parallel import DistributedDataParallel as DDP

wrapped = DDP(digits_model(seed=0).to(device))
cross_entropy(wrapped(images), labels).backward()
gradient = flat(p.grad for p in wrapped.parameters())
num_wrapped = len(of_all_ranks(gradient).unique(dim=0))
print(f"different gradients: {num_wrapped}")

# %% [markdown] tags=["read"]
# A plain `backward()` left 4 different gradients: each rank has its own, and nothing was sent.
# Wrapped in DDP there is only 1.
#
# So the guide's claim, C10, is **half true**. It is not `backward()` that averages. DDP hangs a
# **hook** on each parameter: a function that autograd calls when that parameter's gradient is
# ready. The hooks do the sending. This lesson builds such a wrapper. Each rank's copy of the model
# is called a **replica**.

# %% tags=["check"]
assert ranks.view["num_plain"] == [len(ranks)] * len(ranks)
assert ranks.view["num_wrapped"] == [1] * len(ranks)
print("ok: C10 is half true, hooks average and backward alone does not")

# %% [markdown] tags=["question"]
# ## Replicas that start apart stay apart.

# %% [markdown] tags=["predict"]
# So we average gradients ourselves. But each rank has drawn other first weights, as happens
# without a common seed. After 20 steps with equal gradients, how many percent of the distance
# between the replicas is left?
#
# *Your number:*


# %% tags=["break"]
# %%px
def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
        optimizer.step()


model = digits_model(seed=rank).to(device)
before = distance(model)
train(model)
share_left = distance(model) / before
print(f"{100 * share_left:.1f} % of the distance is left")

# %% tags=["mend"]
# %%px
model = digits_model(seed=rank).to(device)
for tensor in [*model.parameters(), *model.buffers()]:
    dist.broadcast(tensor.detach(), src=0)
train(model)
left = distance(model)
print(f"distance: {left:.1f}")

# %% [markdown] tags=["read"]
# Equal gradients moved all replicas by the same step, so 100.0&nbsp;% of the distance is left. They
# are four models that never meet, and no error says so.
#
# The mend is one broadcast a tensor, before the first step. Afterwards the distance is 0.0, to the
# last bit. Buffers, such as the statistics of BatchNorm, go along. That is the whole recipe:
# **equal start, equal gradients, equal steps**.

# %% tags=["check"]
assert all(abs(share - 1) < 1e-4 for share in ranks.view["share_left"])
assert ranks.view["left"] == [0.0] * len(ranks)
print("ok: averaging keeps a distance, and a broadcast at the start removes it")

# %% [markdown] tags=["question"]
# ## The mean over ranks is the gradient of the whole batch.

# %% [markdown] tags=["predict"]
# Another guide writes `all_reduce(gradients, SUM)` and then `step()`. On four ranks, by what factor
# does its gradient differ from that of one process which has the whole batch?
#
# *Your number:*

# %% tags=["break", "raises-exception"]
# %%px
gradients = [p.grad for p in model.parameters()]
dist.all_reduce(gradients, op=dist.ReduceOp.SUM)

# %% tags=["run"]
# %%px
model = digits_model(seed=0).to(device, torch.float64)
parameters = list(model.parameters())


def gradient_of(x, y):
    loss = cross_entropy(model(x.double()), y)
    return flat(torch.autograd.grad(loss, parameters))


whole = gradient_of(all_images, all_labels)  # as one process would have it
summed = gradient_of(images, labels)
dist.all_reduce(summed, op=dist.ReduceOp.SUM)
factor = (summed.norm() / whole.norm()).item()
print(f"the sum is {factor:.3f} times the gradient of one process")
mean = summed / world_size
error = (mean - whole).abs().max().item()
limit = len(all_images) * torch.finfo(torch.float64).eps
print(f"the mean is off by less than {len(all_images)} roundings: {error < limit}")

# %% [markdown] tags=["read"]
# C12 is **false**, twice over. `all_reduce` takes one tensor, so a list of them is a `TypeError`.
# And the sum is 4.000 times the right gradient: steps four times as long.
#
# Divided by the world size, it is what one process on the whole batch finds. In float64 they differ
# by rounding alone, for numbers are added in another order. This needs shards of equal size: only
# then is the mean of means the mean of all.

# %% tags=["check"]
assert all(abs(factor - len(ranks)) < 1e-9 for factor in ranks.view["factor"])
assert max(ranks.view["error"]) < min(ranks.view["limit"])
print("ok: C12 is false, a sum is the world size times the mean")

# %% [markdown] tags=["question"]
# ## Few large messages carry what many small ones do.

# %% [markdown] tags=["predict"]
# The next model has three layers, each with a weight and a bias. Our loop sends a message for each
# parameter. So does the package's `NaiveReplica`; two others, used alike, send fewer. How many
# messages is that in a step, and how many do the same work at the least?
#
# *Your number:*

# %% tags=["run"]
# %%px
from ddp_lessons.replicas import BucketedReplica, FlatReplica, NaiveReplica
from ddp_lessons.trace import trace


def step_of(replica):
    with trace(replica.module) as events:
        cross_entropy(replica(images), labels).backward()
    return events


caps = {"first_bucket_cap_bytes": 8 * 1024, "bucket_cap_bytes": 64 * 1024}
replicas = {
    "naive": NaiveReplica(digits_model(seed=0, size="medium").to(device)),
    "flat": FlatReplica(digits_model(seed=0, size="medium").to(device)),
    "bucketed": BucketedReplica(digits_model(seed=0, size="medium").to(device), **caps),
}

# %% tags=["run"]
# %%px
num_bytes, gradients = {}, []
for name, replica in replicas.items():
    events = step_of(replica)
    num_bytes[name] = [e.input_bytes for e in events if e.is_communication]
    gradients.append(flat(p.grad for p in replica.parameters()))
    if rank == 0:
        sent = num_bytes[name]
        print(f"{name:8}  {len(sent)} messages, {sum(sent):,} bytes in all")
apart = max((g - gradients[0]).abs().max().item() for g in gradients)
bucketed = replicas["bucketed"]
sizes = [(name, p.numel() * 4) for name, p in bucketed.module.named_parameters()]
plan = [[bucketed.names[i] for i in bucket] for bucket in bucketed.buckets]

# %% tags=["picture"]
buckets_picture(ranks.view["sizes"][0], ranks.view["plan"][0])

# %% [markdown] tags=["read"]
# All send 340,008 bytes, in 6 messages or in 1, and arrive at the same gradient but for rounding.
# Each message costs its latency once, so fewer are faster.
#
# One flat message needs all gradients in one tensor, and so cannot leave before the last is
# ready. A **bucket** is the middle way: some parameters share a flat tensor, up to a size. The last
# layers are on top, since `backward` reaches them first.

# %% tags=["check"]
for sent in ranks.view["num_bytes"]:
    assert [len(sent[name]) for name in ("naive", "flat", "bucketed")] == [6, 1, 3]
    assert {sum(of_one) for of_one in sent.values()} == {340_008}
eps = 2**-23  # of float32; each of the additions over ranks may round once
assert all(apart <= len(ranks) * eps for apart in ranks.view["apart"])
print("ok: 6, 1 or 3 messages, the same bytes and, but for rounding, the same gradient")

# %% [markdown] tags=["question"]
# ## A hook can send while `backward` is still at work.

# %% [markdown] tags=["predict"]
# All three replicas sent after `backward`. Now a hook sends each gradient as soon as it is ready,
# and does not wait. Of six messages, how many leave before the last gradient is ready?
#
# *Your number:*

# %% tags=["run"]
# %%px
model, handles = digits_model(seed=0, size="medium").to(device), []


def send(parameter):
    parameter.grad /= world_size
    handles.append(dist.all_reduce(parameter.grad, async_op=True))


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(send)
with trace(model) as eager:
    cross_entropy(model(images), labels).backward()
    for handle in handles:
        handle.wait()

# %% tags=["run"]
# %%px
from ddp_lessons.replicas import OverlappedReplica
from ddp_lessons.trace import early_communications

overlapped = OverlappedReplica(digits_model(seed=0, size="medium").to(device), **caps)
steps = {
    "after": step_of(bucketed),
    "by hooks": eager,
    "in buckets": step_of(overlapped),
}
early = {name: len(early_communications(events)) for name, events in steps.items()}
if rank == 0:
    print(early)

# %% tags=["picture"]
timeline_picture(
    timeline_tracks(merge([s["after"] for s in ranks.view["steps"]])),
    "averaged after backward: events, in order",
)

# %% tags=["picture"]
timeline_picture(
    timeline_tracks(merge([s["in buckets"] for s in ranks.view["steps"]])),
    "averaged in buckets, during backward: events, in order",
)

# %% [markdown] tags=["read"]
# By hooks, 5 of the six messages leave while gradients are still to come; only the last gradient
# has nothing left to hide behind. With buckets it is 2 of three. The bars in the second picture
# start under `backward`: that is **overlap**, sending while computing. After `backward` it is 0.
#
# `OverlappedReplica` is our hook plus buckets. It sends them in a fixed order, since ranks must
# call their collectives in the same order. DDP works the same way.

# %% tags=["check"]
assert ranks.view["early"] == [{"after": 0, "by hooks": 5, "in buckets": 2}] * len(
    ranks
)
print("ok: messages leave during backward only if hooks send them")

# %% [markdown] tags=["question"]
# ## Every rank must send the same messages, used or not.

# %% [markdown] tags=["predict"]
# A model has six tensors in its `state_dict`. One weight is **tied**, used by two layers under
# two names. One bias is frozen, so it gets no gradient. How many gradients must be sent?
#
# *Your number:*

# %% tags=["run"]
# %%px
from ddp_lessons.workloads import branched_model, tied_model

model = tied_model(seed=0).to(device)
model.first.bias.requires_grad = False
events = step_of(NaiveReplica(model))
num_sent = sum(event.is_communication for event in events)
print(f"{len(model.state_dict())} in the state_dict, {num_sent} messages")

# %% tags=["break", "raises-exception"]
# %%px
model = branched_model(seed=0).to(device)
cross_entropy(model(images, use_spare=rank == world_size - 1), labels).backward()
for parameter in model.parameters():
    if parameter.grad is not None:
        dist.all_reduce(parameter.grad)

# %% tags=["mend"]
# %%px
replica = NaiveReplica(branched_model(seed=0).to(device))
cross_entropy(replica(images, use_spare=rank == world_size - 1), labels).backward()
gradient = flat(p.grad for p in replica.parameters())
num_mended = len(of_all_ranks(gradient).unique(dim=0))
print(f"different gradients: {num_mended}")

# %% [markdown] tags=["read"]
# Four are sent: `parameters()` names a tied weight once, and the frozen bias is left out, on every
# rank alike.
#
# `if parameter.grad is not None` is another matter. Only the last rank used the spare head, so it
# sent 2 messages more, and waited for ranks that had finished. The mend: who has no gradient sends
# zeros. Now all hold 1 and the same gradient. What is sent may depend on the model, never on a
# rank's data.

# %% tags=["check"]
assert ranks.view["num_sent"] == [4] * len(ranks)
assert ranks.view["num_mended"] == [1] * len(ranks)
print("ok: tied once, frozen never, unused as zeros")

# %% [markdown] tags=["recap"]
# You have written data-parallel training from a broadcast, an all-reduce and a division. You have
# counted its messages as naive loop, flat tensor and buckets. And you have sent gradients from
# hooks while `backward` was still computing.
#
# Rule of thumb: **equal start, equal gradients, equal steps; and every rank sends the same.**

# %% [markdown] tags=["next"]
# - **Exercise** [05](../exercises/05_replicas.ipynb): start replicas equal, average their
#   gradients, plan buckets, and write a replica that overlaps.
# - **Next lesson** [06](06_ddp.ipynb): what does DistributedDataParallel do for you?
# - **Sources**: S. Li and others, [PyTorch Distributed](https://arxiv.org/abs/2006.15704), VLDB
#   2020, section 3.2, on the naive way, bucketing and overlap; [DDP
#   notes](https://docs.pytorch.org/docs/stable/notes/ddp.html) of PyTorch's documentation, section
#   "Internal Design"; Hugging Face, [The Ultra-Scale
#   Playbook](https://huggingface.co/spaces/nanotron/ultrascale-playbook), the chapter on data
#   parallelism. The replicas of this lesson are in
#   [ddp_lessons/replicas](../ddp_lessons/replicas/base.py); `overlapped.py` is the one to read.

# %% tags=["teardown"]
ranks.stop()
