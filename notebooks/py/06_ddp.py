# %% [markdown] tags=["title"]
# # What does DistributedDataParallel do for you?
#
# 30 minutes, 4 ranks; works with any number of ranks from 2. It builds on
# [05_replicas](05_replicas.ipynb): replicas, hooks, buckets and overlap.

# %% [markdown] tags=["goal"]
# When you are through, you can
#
# - **tell** what DDP does in each step, and what it leaves to you;
# - **mend** what guides get wrong: wrapper, loss, buffers, unused parameters;
# - **judge** a hook that sends less, by its bytes and its error.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.pictures import buckets_picture

ranks = start_ranks(4)

# %% [markdown] tags=["question"]
# ## `DataParallel` knows nothing of the other ranks.

# %% [markdown] tags=["predict"]
# A guide joins a process group and then wraps the model in `nn.DataParallel`. All ranks start
# with one model. After each of 5 steps, how many different models are there?
#
# *Your number:*

# %% tags=["run"]
# %%px
import torch, torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DataParallel, DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector as flat
from ddp_lessons.process_group import rank_device
from ddp_lessons.trace import collectives, trace
from ddp_lessons.workloads import digits_model, load_digits

rank, world_size, device = dist.get_rank(), dist.get_world_size(), rank_device()
digits = load_digits().to(device)
all_images = digits.train_images[: 16 * world_size]
all_labels = digits.train_labels[: 16 * world_size]
images, labels = all_images[rank::world_size], all_labels[rank::world_size]


# %% tags=["run"]
# %%px
def num_different(tensor):
    everyone = [torch.empty_like(tensor) for _ in range(world_size)]
    dist.all_gather(everyone, tensor.detach())
    return len(torch.stack(everyone).unique(dim=0))


def train(model, num_steps):
    optimizer, losses, counts = torch.optim.SGD(model.parameters(), lr=0.5), [], []
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        counts.append(num_different(flat(model.parameters()).detach()))
    return losses, counts


# %% tags=["break"]
# %%px
model = DataParallel(digits_model(seed=0).to(device), device_ids=[device.index])
with trace() as events:
    cross_entropy(model(images), labels).backward()
is_plain = torch.equal(model(images), model.module(images))
_, apart = train(model, num_steps=5)
_, together = train(DDP(digits_model(seed=0).to(device)), num_steps=5)
if rank == 0:
    print(f"DataParallel: {len(events)} messages in a backward, models: {apart}")
    print(f"DDP: models: {together}")

# %% tags=["run", "nbval-ignore-output"]
# %%px --targets 0
from torch.utils.benchmark import Timer

if device.type == "cpu" or torch.cuda.device_count() < 2:
    print("fewer than 2 GPUs: nothing to measure")
else:
    net = digits_model(seed=0, size="large").to(device)
    for name, model in {"one GPU": net, "DataParallel": DataParallel(net)}.items():
        names = {"model": model, "batch": images.repeat(256, 1)}
        timer = Timer("model(batch).sum().backward()", globals=names)
        print(f"{name}: {1000 * timer.timeit(20).mean:.1f} ms")

# %% [markdown] tags=["read"]
# C09 is **false**. `DataParallel` sent 0 messages, and from step 1 on there were 4 models. With DDP
# there is 1.
#
# C29 calls `DataParallel` simplest, and good enough on one machine: **half true**. It is one line,
# and its output is right. But it is one process: a thread for each GPU under one Python lock,
# weights copied out and outputs gathered every step. The cell above measures that; without GPUs,
# `DataParallel` just calls the module.

# %% tags=["check"]
assert ranks.view["apart"] == [[len(ranks)] * 5] * len(ranks)
assert ranks.view["together"] == [[1] * 5] * len(ranks)
assert [len(events) for events in ranks.view["events"]] == [0] * len(ranks)
assert all(ranks.view["is_plain"])
print("ok: C09 is false, C29 is half true")

# %% [markdown] tags=["question"]
# ## A reduced loss changes no gradient.

# %% [markdown] tags=["predict"]
# Another guide has no wrapper at all. It calls `dist.reduce(loss, dst=0)` after `backward()`, to
# "synchronise gradients". On how many ranks does a gradient change?
#
# *Your number:*

# %% tags=["run"]
# %%px
model = digits_model(seed=0).to(device)
loss = cross_entropy(model(images), labels)
loss.backward()
before = flat(p.grad for p in model.parameters())
total = loss.detach().clone()
dist.all_reduce(total)  # what the sum of all losses is
dist.reduce(loss, dst=0)
after = flat(p.grad for p in model.parameters())
has_changed, num_gradients = not torch.equal(before, after), num_different(after)
is_sum = torch.allclose(loss, total)
print(
    f"gradient changed: {has_changed}. {num_gradients} gradients. Loss a sum: {is_sum}"
)

# %% [markdown] tags=["read"]
# On 0 ranks. There are still 4 different gradients, so C11 is **false**. `backward()` was over, and
# adding up losses touches no gradient.
#
# What did change is rank 0's loss: it is now the sum over all ranks. Printed as it is, it grows
# with the world size. For a log, divide it. For gradients, wrap the model in DDP.

# %% tags=["check"]
assert not any(ranks.view["has_changed"])
assert ranks.view["num_gradients"] == [len(ranks)] * len(ranks)
assert ranks.view["is_sum"][0]
print("ok: C11 is false, the loss was added up and no gradient changed")

# %% [markdown] tags=["question"]
# ## Every rank holds the whole model, and sends its gradients in buckets.

# %% [markdown] tags=["predict"]
# C13 says that DDP splits the model over the processes. The model has 340,008 bytes. How many
# does a rank hold if there is one rank, and how many if there are four?
#
# *Your number:*

# %% tags=["run"]
# %%px
from ddp_lessons.ddp import BucketRecorder, parameter_bytes

held = []
for num_ranks in (1, world_size):
    group = dist.new_group(list(range(num_ranks)))
    if rank < num_ranks:
        model = DDP(digits_model(seed=0, size="medium").to(device), process_group=group)
        held.append(parameter_bytes(model))
print("bytes of the model on this rank:", ", ".join(f"{n:,}" for n in held))

# %% tags=["run"]
# %%px
pieces, net = [], digits_model(seed=0, size="medium").to(device)
for is_view in (False, True):
    net.zero_grad()
    model = DDP(net, bucket_cap_mb=0.008, gradient_as_bucket_view=is_view)
    recorder = BucketRecorder(model)
    for _ in range(3):
        cross_entropy(model(images), labels).backward()
    storages = {p.grad.untyped_storage().data_ptr() for p in net.parameters()}
    pieces.append(len(storages))
plans = [[list(bucket.names) for bucket in step] for step in recorder.steps]
sizes = [(name, 4 * p.numel()) for name, p in net.named_parameters()]
if rank == 0:
    print("buckets in steps 1, 2, 3:", [len(plan) for plan in plans])
    print("pieces of memory that hold gradients:", pieces)

# %% tags=["picture"]
buckets_picture(ranks.view["sizes"][0], ranks.view["plans"][0][0])

# %% tags=["picture"]
buckets_picture(ranks.view["sizes"][0], ranks.view["plans"][0][1])

# %% [markdown] tags=["read"]
# A rank holds 340,008 bytes, alone in a group or with others. So C13 is **false** for DDP: it
# replicates the model, and splits the data.
#
# The pictures are steps 1 and 2. Step 1 has 1 bucket, in the model's order. DDP watches in which
# order gradients become ready, and then makes 3 buckets, last layer first. So the first step
# overlaps nothing: leave it out when you measure.

# %% [markdown] tags=["read"]
# Gradients lie in 6 tensors of their own, and are copied to the buckets and back. With
# `gradient_as_bucket_view=True` they are **views**, that is windows onto the memory of the 3
# buckets. That saves the copies, and as much memory as the gradients take.

# %% tags=["check"]
order = [["4.bias", "4.weight"], ["2.bias", "2.weight"], ["0.bias", "0.weight"]]
assert ranks.view["held"] == [[340_008] * 2] + [[340_008]] * (len(ranks) - 1)
assert all(len(p[0]) == 1 and p[1] == p[2] == order for p in ranks.view["plans"])
assert ranks.view["pieces"] == [[6, 3]] * len(ranks)
print("ok: C13 is false for DDP, and buckets are rebuilt after step 1")

# %% [markdown] tags=["question"]
# ## Buffers follow rank 0, in `forward`.

# %% [markdown] tags=["predict"]
# BatchNorm keeps a running mean of what it sees, in a **buffer**: a tensor of the model that no
# gradient moves. Each rank sees other digits. Of how many ranks' digits is the mean that DDP keeps?
#
# *Your number:*

# %% tags=["break", "raises-exception"]
# %%px
from ddp_lessons.workloads import batch_norm_model, branched_model

model = DDP(batch_norm_model(seed=0).to(device))
model.module[1].momentum = 1.0  # keep the last batch's statistics, nothing older
model(images)
model.sync_buffers()  # a guide says: before step()

# %% tags=["run"]
# %%px
from ddp_lessons.ddp import buffer_spread, pool_batch_norm

before = buffer_spread(model.module)["1.running_mean"]
model.eval()  # so that this forward changes no buffer itself
with trace() as events:
    model(images)
spread, names = buffer_spread(model.module)["1.running_mean"], collectives(events)
if rank == 0:
    print(f"means apart: {before > 0.01}; in forward: {names}; apart by {spread:.1f}")

# %% tags=["mend"]
# %%px
kept = model.module[1].running_mean.clone()  # rank 0's, on every rank
whole = model.module[0](all_images).mean(dim=0).detach()
model.train()
model.broadcast_buffers = False
model(images)
pool_batch_norm(model.module, num_values=len(images))
errors = [
    (mean - whole).abs().max().item() for mean in (kept, model.module[1].running_mean)
]
if rank == 0:
    print("off the mean of all digits: {:.2f} rank 0's, {:.2f} pooled".format(*errors))

# %% [markdown] tags=["read"]
# C14 is **false**: there is no `sync_buffers`, and no need of one. The next `forward` begins with
# broadcasts from rank 0, one for each dtype, and the ranks are apart by 0.0.
#
# But look what is kept: the mean of 1 rank's digits, rank 0's. It is off the mean of all by 0.10,
# and that error is in every evaluation. Switch `broadcast_buffers` off, and **pool** the
# statistics, that is combine those of all ranks, before you evaluate or save.

# %% tags=["check"]
assert min(ranks.view["before"]) > 0.01
assert ranks.view["spread"] == [0.0] * len(ranks)
assert all(set(names) == {"broadcast"} for names in ranks.view["names"])
assert all(alone > 0.01 and pooled < 1e-6 for alone, pooled in ranks.view["errors"])
print("ok: C14 is false, forward copies rank 0's buffers")

# %% [markdown] tags=["question"]
# ## A parameter that the loss does not reach stops DDP.

# %% [markdown] tags=["predict"]
# A model has a spare head, which `forward` does not use. DDP waits for all gradients of a bucket.
# In which step does it notice?
#
# *Your number:*

# %% tags=["break", "raises-exception"]
# %%px
model, num_done = DDP(branched_model(seed=0).to(device)), 0
for _ in range(3):
    cross_entropy(model(images), labels).backward()
    num_done += 1

# %% tags=["run"]
# %%px
from ddp_lessons.ddp import unused_by_rank

num_gradients = num_different(flat(p.grad for p in model.module.head.parameters()))
missing = list(unused_by_rank(model.module, model.module(images)))
print(f"{num_done} backward done, {num_gradients} gradients; unused: {missing}")


# %% tags=["mend"]
# %%px
def bytes_by_message(model):
    with trace() as events:
        cross_entropy(model(images), labels).backward()
    return [event.input_bytes for event in events if event.is_communication]


found = DDP(branched_model(seed=0).to(device), find_unused_parameters=True)
module = branched_model(seed=0).to(device)
module.spare.requires_grad_(False)
num_bytes = [bytes_by_message(found), bytes_by_message(DDP(module))]
if rank == 0:
    print(f"bytes of each message: found {num_bytes[0]}, frozen {num_bytes[1]}")

# %% [markdown] tags=["read"]
# The first `backward` ended without a word, and left 4 different gradients: the only bucket never
# filled, so nothing was sent. The error comes at the second `forward`. `unused_by_rank` names the
# culprits.
#
# Two cures. `find_unused_parameters=True` looks for them in every step, and sends 24 bytes more, a
# flag for each parameter, to agree on who used what. If the head is never used, freeze it before
# wrapping: cheaper.

# %% tags=["check"]
assert ranks.view["num_done"] == [1] * len(ranks)
assert ranks.view["num_gradients"] == [len(ranks)] * len(ranks)
assert ranks.view["missing"] == [["spare.weight", "spare.bias"]] * len(ranks)
assert ranks.view["num_bytes"] == [[[21_840, 24], [19_240]]] * len(ranks)
print("ok: unnoticed in step 1, an error in step 2, and two cures")

# %% [markdown] tags=["question"]
# ## A hook may send less, and what it left out later.

# %% [markdown] tags=["predict"]
# A **communication hook** gets each bucket and sends it in DDP's place, as `mean_hook` below. Of
# the package's hooks, one sends halves in place of float32. Another sends the largest 1&nbsp;% of a
# bucket, each with its place. How many percent of the bytes is that?
#
# *Your number:*

# %% tags=["run"]
# %%px
from ddp_lessons.ddp import ExactState, HalfPrecisionState, HookMeter, TopKState
from ddp_lessons.ddp import half_precision_hook, top_k_hook


def mean_hook(state, bucket):  # what DDP does without a hook
    state.bytes_sent += bucket.buffer().nbytes
    work = dist.all_reduce(bucket.buffer().div_(world_size), async_op=True)
    return work.get_future().then(lambda _: bucket.buffer())


def share_error_loss(hook, state):
    model = DDP(digits_model(seed=0).to(device))
    meter = HookMeter(model, hook, state)  # averages exactly too, and compares
    losses, _ = train(model, num_steps=100)
    share = meter.bytes_sent / meter.exact_bytes
    return share, meter.relative_error, losses[-1] / losses[0]


# %% tags=["run"]
# %%px
results = {
    "mean": share_error_loss(mean_hook, ExactState()),
    "half": share_error_loss(half_precision_hook, HalfPrecisionState()),
    "top": share_error_loss(top_k_hook, TopKState(share=0.01)),
    "top, forgetful": share_error_loss(top_k_hook, TopKState(error_feedback=False)),
}
if rank == 0:
    for name, (share, error, left) in results.items():
        print(f"{name:14} {share:4.0%} of bytes, error {error:.1g}, loss {left:.0%}")

# %% [markdown] tags=["read"]
# Half the bytes cost an error of 0.004 of the gradient. The largest 1&nbsp;% are 2% of the bytes,
# since each travels with its place.
#
# Forgetful, 11% of the loss is left after 100 steps. With **error feedback** it is 1%, as by the
# mean: a rank keeps what it did not send, and adds it to its next gradient. Its error a step is
# larger, 4 against 0.9: it sends old debts too. Judge a hook by the training.

# %% tags=["check"]
for results in ranks.view["results"]:
    shares = [round(results[name][0], 2) for name in ("mean", "half", "top")]
    assert shares == [1.0, 0.5, 0.02]
    assert results["mean"][1] < 1e-6 < results["half"][1] < 2**-7
    assert results["top"][2] < results["top, forgetful"][2] / 2
print("ok: half or 2 % of the bytes, and feedback pays the rest later")

# %% [markdown] tags=["recap"]
# You have run five ways in which guides get DDP wrong, and seen what it does in a step: buffers in
# `forward`, buckets in `backward`, and nothing else. You have mended what it does not reach, and
# measured what a hook saves and costs.
#
# Rule of thumb: **wrap once, call the wrapper, and let every rank reach every parameter.**

# %% [markdown] tags=["next"]
# - **Exercise** [06](../exercises/06_ddp.ipynb): write a half-precision hook with error feedback,
#   find an unused branch, keep BatchNorm honest, and mend four broken scripts.
# - **Next lesson** [07](07_accumulation.ipynb): when should ranks talk?
# - **Sources**: S. Li and others, [PyTorch Distributed](https://arxiv.org/abs/2006.15704), VLDB
#   2020, section 4, on how DDP is built; PyTorch's pages on
#   [DDP](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html),
#   [its notes](https://docs.pytorch.org/docs/stable/notes/ddp.html) and [communication
#   hooks](https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html); on error feedback, S. P.
#   Karimireddy and others, [Error Feedback Fixes SignSGD](https://arxiv.org/abs/1901.09847), ICML
#   2019. The hooks of this lesson are in [ddp_lessons/ddp](../ddp_lessons/ddp/feedback.py).

# %% tags=["teardown"]
ranks.stop()
