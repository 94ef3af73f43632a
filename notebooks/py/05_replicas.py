# %% [markdown] tags=["title"]
# # How do replicas stay equal?
#
# 30 minutes, 4 ranks; works with any number of ranks from 2. It builds on
# [02_collectives](02_collectives.ipynb): all-reduce, handles, and the bytes of a call.

# %% [markdown] tags=["goal"]
# When you are through, you can
#
# - **write** data-parallel training yourself, in a few lines;
# - **count** its messages, and make fewer of them;
# - **send** gradients while `backward` still computes others.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.pictures import buckets_picture, timeline_picture, timeline_tracks
from ddp_lessons.trace import merge

ranks = start_ranks(4)

# %% [markdown] tags=["question"]
# ## Do equal gradients make replicas equal?

# %% [markdown] tags=["predict"]
# Each rank's copy of the model is called a **replica**. Each rank has drawn first weights of its own,
# as happens without a common seed, and has 16 digits of its own. We average the gradients over the
# ranks in every step, so all have the same. After 20 steps, what percentage of the
# distance between the replicas' weights is left?

# %% tags=["predict"]
predict("percent_of_distance_left", ...)

# %% tags=["run"]
# %%px
import torch, torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector as flat
from torch.nn.parallel import DistributedDataParallel as DDP
from ddp_lessons.process_group import rank_device
from ddp_lessons.replicas import num_different, replica_distance
from ddp_lessons.workloads import digits_model, load_digits

rank, world_size, device = dist.get_rank(), dist.get_world_size(), rank_device()
digits = load_digits().to(device)
all_images = digits.train_images[: 16 * world_size]
all_labels = digits.train_labels[: 16 * world_size]
images, labels = all_images[rank::world_size], all_labels[rank::world_size]


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
before = replica_distance(model)
train(model)
percent_left = 100 * replica_distance(model) / before
print(f"{percent_left:.1f} % of the distance is left")

# %% tags=["mend"]
# %%px
model = digits_model(seed=rank).to(device)
for parameter in model.parameters():
    # detached, since autograd lets nobody write into a parameter
    dist.broadcast(parameter.detach(), src=0)
train(model)
left = replica_distance(model)
print(f"distance: {left:.1f}")

# %% [markdown] tags=["read"]
# Equal gradients moved all replicas by the same step, so 100.0&nbsp;% of the distance is left. They
# are four models that never meet, and no error says so.
#
# The mend is one broadcast a parameter, before the first step. Afterwards the distance is 0.0, to the
# last bit. That is the whole recipe: **equal start, equal gradients, equal steps**.

# %% tags=["run"]
# %%px
counts = []
for is_wrapped in (False, True):
    model = digits_model(seed=0).to(device)
    model = DDP(model) if is_wrapped else model
    cross_entropy(model(images), labels).backward()
    counts.append(num_different(flat(p.grad for p in model.parameters())))
print(f"different gradients: {counts[0]}, wrapped in DDP: {counts[1]}")

# %% [markdown] tags=["read"]
# And if nobody calls `all_reduce`? A guide says that `backward()` averages over devices by itself,
# [claim C10](claims.md). That is **half true**: a plain one left 4 different gradients, and DDP's 1.
# DDP hangs a **hook** on each parameter, a function that autograd calls when that parameter's
# gradient is ready. The hooks do the sending. This lesson builds such a wrapper.

# %% tags=["check"]
percents = [round(percent, 1) for percent in ranks.view["percent_left"]]
assert percents == [100] * len(ranks)
assert ranks.view["left"] == [0.0] * len(ranks)
assert ranks.view["counts"][0] == [len(ranks), 1]
ok("equal start, too; C10 is half true", percent_of_distance_left=percents[0])

# %% [markdown] tags=["question"]
# ## Is the sum of gradients the right one?

# %% [markdown] tags=["predict"]
# A guide writes `all_reduce(gradients, SUM)` and then `step()`. The loss of a rank is the mean over
# its own 16 digits. How many times as large as the gradient of one process, which has all 64 digits,
# is the sum over four ranks?

# %% tags=["predict"]
predict("sum_over_one_process", ...)

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
total = gradient_of(images, labels)
dist.all_reduce(total, op=dist.ReduceOp.SUM)
factor = round((total.norm() / whole.norm()).item(), 3)
error = (total / world_size - whole).abs().max().item()
limit = len(all_images) * torch.finfo(torch.float64).eps
if rank == 0:
    print(f"the sum is {factor} times as large")
    print(f"the mean is off by less than {len(all_images)} roundings: {error < limit}")

# %% [markdown] tags=["read"]
# It is 4.0 times as large: steps would be four times as long. And the guide's line is a `TypeError`,
# for `all_reduce` takes one tensor, and no list. So [claim C12](claims.md) is **false**, twice over.
#
# Divided by the world size, the sum is what one process finds. In float64 they differ by rounding
# alone, for numbers are added in another order.

# %% tags=["check"]
factor = ranks.view["factor"][0]
assert factor == len(ranks)
assert max(ranks.view["error"]) < min(ranks.view["limit"])
ok("C12 is false, the mean is right and not the sum", sum_over_one_process=factor)

# %% [markdown] tags=["question"]
# ## How many messages must there be?

# %% [markdown] tags=["predict"]
# The next model has three layers, each with a weight and a bias. Our loop calls `all_reduce` for each
# gradient. Such a call is a message, too. How many messages is that
# in a step?

# %% tags=["predict"]
predict("messages_of_our_loop", ...)

# %% tags=["run"]
# %%px
from ddp_lessons.replicas import BucketedReplica, NaiveReplica
from ddp_lessons.trace import trace

model = digits_model(seed=0, size="medium").to(device)
cross_entropy(model(images), labels).backward()
gradients = [p.grad for p in model.parameters()]
with trace() as in_one:
    message = torch.cat([g.flatten() for g in gradients]) / world_size
    dist.all_reduce(message)
    parts = message.split([g.numel() for g in gradients])
for gradient, part in zip(gradients, parts, strict=True):
    gradient.copy_(part.view_as(gradient))  # back, in its own shape


# %% tags=["run"]
# %%px
def step_of(replica):
    with trace(replica.module) as events:  # notes when gradients are ready, too
        cross_entropy(replica(images), labels).backward()
    return events


naive = NaiveReplica(digits_model(seed=0, size="medium").to(device))
caps = {"first_bucket_cap_bytes": 8 * 1024, "bucket_cap_bytes": 64 * 1024}
bucketed = BucketedReplica(digits_model(seed=0, size="medium").to(device), **caps)

# %% tags=["run"]
# %%px
sent = {"loop": step_of(naive), "one message": in_one, "buckets": step_of(bucketed)}
num_bytes = {
    name: [event.input_bytes for event in events if event.is_communication]
    for name, events in sent.items()
}
if rank == 0:
    for name, sizes in num_bytes.items():
        print(f"{name:11}  {len(sizes)} messages, {sum(sizes):,} bytes: {sizes}")
weights = [(name, p.nbytes) for name, p in bucketed.module.named_parameters()]
plan = [[bucketed.names[i] for i in bucket] for bucket in bucketed.buckets]

# %% tags=["picture"]
buckets_picture(ranks.view["weights"][0], ranks.view["plan"][0])

# %% [markdown] tags=["read"]
# The loop sends 6 messages, and all three ways send 340,008 bytes. One message will do: all gradients
# side by side in a flat tensor. By the costs of lesson 03, six pay for latency six times.
#
# But it cannot leave before the last gradient is ready. A **bucket** is the middle way: it
# takes gradients, last layers first, until it holds a given size or more. The
# first bucket closed at 8&nbsp;KiB, with 10,280 bytes.

# %% tags=["check"]
num_bytes = ranks.view["num_bytes"][0]
counts = [len(num_bytes[name]) for name in ("loop", "one message", "buckets")]
assert counts == [6, 1, 3]
assert {sum(sizes) for sizes in num_bytes.values()} == {340_008}
ok("6, 1 or 3 messages, the same bytes", messages_of_our_loop=len(num_bytes["loop"]))

# %% [markdown] tags=["question"]
# ## When can a message leave?

# %% [markdown] tags=["predict"]
# All three ways sent after `backward`. Now a hook sends each gradient as soon as it is ready,
# and does not wait. Of six messages, how many leave before the last gradient is ready?

# %% tags=["predict"]
predict("messages_hidden_by_hooks", ...)

# %% tags=["run"]
# %%px
model, handles = digits_model(seed=0, size="medium").to(device), []


def send(parameter):  # autograd calls it once a backward
    handles.append(dist.all_reduce(parameter.grad, async_op=True))


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(send)
with trace(model) as eager:
    cross_entropy(model(images), labels).backward()
for handle in handles:
    handle.wait()
for parameter in model.parameters():
    parameter.grad /= world_size

# %% tags=["run"]
# %%px
from ddp_lessons.replicas import OverlappedReplica
from ddp_lessons.trace import early_communications

overlapped = OverlappedReplica(digits_model(seed=0, size="medium").to(device), **caps)
in_buckets = step_of(overlapped)
steps = {"after": sent["buckets"], "by hooks": eager, "in buckets": in_buckets}
early = {name: len(early_communications(events)) for name, events in steps.items()}
if rank == 0:
    print(early)

# %% tags=["picture"]
tracks = timeline_tracks(merge(ranks.view["in_buckets"]))
timeline_picture(tracks, "in buckets, during backward: events, in order")

# %% [markdown] tags=["read"]
# By hooks, 5 of the six messages leave while gradients are still to come. With buckets it is 2 of
# three. The picture's bars start under `backward`: that is **overlap**, sending while computing. A
# gradient may be used only after its handle was waited for.
#
# The first bucket is the smallest, so that sending starts early. `OverlappedReplica` is our hook plus
# buckets, sent in a fixed order: one that is full early waits for those before it.

# %% tags=["check"]
early = ranks.view["early"][0]
assert early == {"after": 0, "by hooks": 5, "in buckets": 2}
ok("hooks send during backward", messages_hidden_by_hooks=early["by hooks"])

# %% [markdown] tags=["question"]
# ## Which gradients must be sent?

# %% [markdown] tags=["predict"]
# A model has six tensors in its `state_dict`. One weight is **tied**, used by two layers under
# two names. One bias is frozen, so it gets no gradient. How many gradients must be sent?

# %% tags=["predict"]
predict("gradients_of_tied_and_frozen", ...)

# %% tags=["run"]
# %%px
from ddp_lessons.workloads import branched_model, tied_model

model = tied_model(seed=0).to(device)
model.first.bias.requires_grad = False
num_sent = sum(event.is_communication for event in step_of(NaiveReplica(model)))
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
num_mended = num_different(gradient)
print(f"different gradients: {num_mended}")

# %% [markdown] tags=["read"]
# Four are sent: `parameters()` names a tied weight once, and the frozen bias is left out, on every
# rank alike.
#
# `if parameter.grad is not None` is another matter. Only the last rank used the spare head. It
# had 2 messages more to send, and waited in the first. The mend: who has no gradient
# sends zeros. Now all hold the same gradient. What is sent may
# depend on the model, never on a rank's data.

# %% tags=["check"]
num_sent = ranks.view["num_sent"][0]
assert num_sent == 4
assert ranks.view["num_mended"] == [1] * len(ranks)
ok("tied once, frozen never, unused as zeros", gradients_of_tied_and_frozen=num_sent)

# %% [markdown] tags=["question"]
# ## More: what if shards are unequal?

# %% [markdown] tags=["predict"]
# Of 64 digits rank 0 has 52, and each other rank has 4. Each takes the mean over its own digits. By
# what must rank 0 multiply its gradient, so that the sum over ranks is the mean over all digits?
# Two decimals will do.

# %% tags=["predict"]
predict("weight_of_a_large_shard", ...)

# %% tags=["run"]
# %%px
num_others = 4 * (world_size - 1)
sizes = [len(all_images) - num_others] + [4] * (world_size - 1)
model = digits_model(seed=0).to(device, torch.float64)
parameters = list(model.parameters())
own = gradient_of(all_images.split(sizes)[rank], all_labels.split(sizes)[rank])
whole, off = gradient_of(all_images, all_labels), []
for weight in (1 / world_size, sizes[rank] / sum(sizes)):
    mean = own * weight
    dist.all_reduce(mean)
    off.append(((mean - whole).norm() / whole.norm()).item())
print(f"weight {weight:.2f}")
if rank == 0:
    print(f"ranks weighed alike: off by {off[0]:.0%}; by their samples: {off[1]:.0%}")

# %% [markdown] tags=["read"]
# 52 of 64 is 0.81. Weighed alike, the mean of means is far off. Weighed by samples, it is the
# gradient of the whole batch.

# %% tags=["check"]
assert all(alike > 0.1 and weighed < 1e-12 for alike, weighed in ranks.view["off"])
ok(
    "weigh a mean by its samples",
    weight_of_a_large_shard=round(ranks.view["weight"][0], 2),
)

# %% [markdown] tags=["question"]
# ## More: what if gradients are ready in another order?

# %% [markdown] tags=["predict"]
# A model adds what two layers make of the digits. Their weights have the same shape. The last rank
# calls the layers in the other order, so its gradients are ready in the other order, too. Our hook
# sends each at once. How many of the two weights end up with a wrong gradient on rank 0?

# %% tags=["predict"]
predict("weights_with_a_wrong_gradient", ...)

# %% tags=["run"]
# %%px
class Sum(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other = (torch.nn.Linear(64, 10, bias=False) for _ in range(2))

    def forward(self, x):
        first, second = self.one, self.other
        if rank == world_size - 1:
            first, second = second, first
        return first(x.flatten(1)) + second(2 * x.flatten(1))


# %% tags=["break"]
# %%px
model, handles = Sum().to(device), []
for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(send)
cross_entropy(model(images), labels).backward()
for handle in handles:
    handle.wait()
wrong = [p.grad / world_size for p in model.parameters()]

# %% tags=["mend"]
# %%px
replica = OverlappedReplica(Sum().to(device), **caps)
cross_entropy(replica(images), labels).backward()
right = [p.grad for p in replica.parameters()]
num_wrong = sum(not torch.allclose(a, b) for a, b in zip(wrong, right, strict=True))
num_alike = [num_different(torch.stack(gradients)) for gradients in (wrong, right)]
print(f"{num_wrong} wrong; different gradients: {num_alike[0]}, mended: {num_alike[1]}")

# %% [markdown] tags=["read"]
# 2, so both are, and there is no error: the shapes fit, so the first message added the gradient of one layer to
# that of the other. Collectives meet by their order alone. A fixed order, the same on every rank, is
# what keeps `OverlappedReplica` right, whatever is ready first.

# %% tags=["check"]
assert ranks.view["num_wrong"] == [2] * len(ranks)
assert ranks.view["num_alike"] == [[2, 1]] * len(ranks)
ok("send in an order that all ranks share", weights_with_a_wrong_gradient=2)

# %% [markdown] tags=["recap"]
# You have written data-parallel training from a broadcast, an all-reduce and a division. You have
# counted its messages as naive loop, flat tensor and buckets. And you have sent gradients from
# hooks while `backward` was still computing.
#
# Rule of thumb: **equal start, equal gradients, equal steps; and every rank sends the same.**

# %% [markdown] tags=["next"]
# - **Exercise** [05](../exercises/05_replicas.ipynb): start replicas equal, average their
#   gradients, plan buckets, and write a replica that overlaps. After the exercise, read how the
#   package does it: [overlapped.py](../ddp_lessons/replicas/overlapped.py). Ranks of one machine
#   need not send a gradient at all: in [shared.py](../ddp_lessons/replicas/shared.py) they read each
#   other's, and a step takes a quarter less than DDP's.
# - **Next lesson** [06](06_ddp.ipynb): what does DistributedDataParallel do for you?
# - **Sources**: S. Li and others, [PyTorch Distributed](https://arxiv.org/abs/2006.15704), VLDB
#   2020, section 3.2, on the naive way, bucketing and overlap; [DDP
#   notes](https://docs.pytorch.org/docs/stable/notes/ddp.html) of PyTorch's documentation, section
#   "Internal Design"; Hugging Face, [The Ultra-Scale
#   Playbook](https://huggingface.co/spaces/nanotron/ultrascale-playbook), the chapter on data
#   parallelism.

# %% tags=["teardown"]
ranks.stop()
