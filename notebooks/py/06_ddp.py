# %% [markdown] tags=["title"]
# # What does DistributedDataParallel do for you?
#
# 30 minutes, 4 ranks; works with any number of ranks from 2. It builds on
# [05_replicas](05_replicas.ipynb): replicas, hooks, buckets and overlap.

# %% [markdown] tags=["goal"]
# When you are through, you can
#
# - **tell** what DDP sends, and what it leaves to you;
# - **mend** what guides get wrong: wrapper, loss, buffers, unused parameters;
# - **judge** a hook that sends less, by its bytes, its error and the loss.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.pictures import timeline_picture, timeline_tracks
from ddp_lessons.trace import merge

ranks = start_ranks(4)

# %% [markdown] tags=["question"]
# ## Who averages the gradients?

# %% [markdown] tags=["predict"]
# Four scripts train one model on all ranks, each rank on 16 digits of its own:
#
# 1. one guide wraps the model in `nn.DataParallel`;
# 2. another wraps nothing, and calls `dist.reduce(loss, dst=0)` after `backward()`;
# 3. `model = DDP(net)`, and then the loop calls `net(images)`;
# 4. `model = DDP(net)`, and the loop calls `model(images)`.
#
# With how many of them do all ranks hold the same weights after five steps?

# %% tags=["predict"]
predict("scripts_that_average", ...)

# %% tags=["run"]
# %%px
import torch, torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DataParallel, DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector as flat
from ddp_lessons.process_group import rank_device
from ddp_lessons.replicas import num_different, of_all_ranks
from ddp_lessons.trace import collectives, early_communications, trace
from ddp_lessons.workloads import digits_batch, digits_model, load_digits, train

rank, world_size, device = dist.get_rank(), dist.get_world_size(), rank_device()
images, labels = digits_batch(load_digits().to(device), 16, rank=rank)

# %% tags=["break"]
# %%px
found, first_losses = [], []
for script in (1, 2, 3, 4):
    net = digits_model(seed=0).to(device)
    parallel = DataParallel(net, [device.index])
    ddp = DDP(net) if script > 2 else None
    model = {1: parallel, 2: net, 3: net, 4: ddp}[script]
    then = (lambda loss: dist.reduce(loss, dst=0)) if script == 2 else None
    with trace() as events:
        losses = train(model, images, labels, after_backward=then)
    found.append((num_different(flat(net.parameters())), len(events)))
    first_losses.append(losses[0])
is_right = torch.equal(parallel(images), net(images))

# %% tags=["run"]
found, losses = ranks.view["found"][0], ranks.view["first_losses"][0]
num_good = sum(num_models == 1 for num_models, _ in found)
print("models and messages:", found)
print(
    f"1 model in {num_good} of 4. Loss of script 2: {losses[1] / losses[3]:.0f} times"
)

# %% [markdown] tags=["read"]
# 1 of 4, the last. DDP sends in `backward`, if its own `forward` was called before.
# In script 3 its hooks ran, too, but no `forward` had told them to send.
#
# `DataParallel` sent 0 messages, so [claim C09](claims.md), to wrap in it after joining a group, is
# **false**: there are 4 models. [Claim C29](claims.md) calls it simplest, and good enough. That is
# **half true**: it is one line, and its output is right. But it knows no other process.

# %% [markdown] tags=["read"]
# Script 2 sent 5 messages, one a step, and there are 4 models: `backward()` was over, and a loss is
# no gradient. So [claim C11](claims.md), that this synchronises gradients, is **false**. What did
# change is the loss on rank 0: a sum over ranks, 4 times too large for a log.

# %% tags=["check"]
n = len(ranks)
assert ranks.view["found"][0][:3] == [(n, 0), (n, 5), (n, 0)]
assert all(ranks.view["is_right"])
ok("C09 is false, C11 is false, C29 is half true", scripts_that_average=num_good)

# %% [markdown] tags=["question"]
# ## What does DDP send, and when?

# %% [markdown] tags=["predict"]
# The next model has three layers, with 66,560, 263,168 and 10,280 bytes of weights and biases. A
# bucket closes when it holds 8&nbsp;KiB, as in lesson 05. How many messages with gradients does DDP
# send in step 3?

# %% tags=["predict"]
predict("gradient_messages_of_ddp", ...)

# %% tags=["run"]
# %%px
net, sent = digits_model(seed=0, size="medium").to(device), {}
with trace() as sent["wrapping"]:
    model = DDP(net, bucket_cap_mb=8 / 1024)
for step in ("step 1", "step 2", "step 3"):
    with trace(net) as sent[step]:
        cross_entropy(model(images), labels).backward()

# %% tags=["run"]
# %%px
num_bytes, early = {}, {}
for name, events in sent.items():
    calls = [(e.name, e.input_bytes) for e in events if e.is_communication]
    num_bytes[name], early[name] = calls, len(early_communications(events))
    if rank == 0:
        print(f"{name:8}", ", ".join(f"{call} {count:,}" for call, count in calls))
held = sum(p.nbytes for p in net.parameters())
print(
    f"this rank holds {held:,} bytes. Sent during backward: {list(early.values())[1:]}"
)

# %% [markdown] tags=["read"]
# **Wrapping** broadcasts 340,008 bytes, the whole model, after ranks have compared shapes. So
# [claim C13](claims.md), that DDP splits the model over the processes, is **false**: each rank
# holds all of it. The sampler splits the data.
#
# **Step 3** sends 3 messages, a bucket each, last layer first. Two of them leave during `backward`.

# %% tags=["picture"]
steps = [sent["step 2"] for sent in ranks.view["sent"]]
timeline_picture(timeline_tracks(merge(steps)), "step 2: events, in order")

# %% [markdown] tags=["read"]
# **Step 1** sends 340,008 bytes at once, after `backward`. DDP does not know yet in which order
# gradients become ready, so it puts all in one bucket, whatever the cap, and watches.
#
# **Step 2** is drawn. It begins with rank 0's plan for new buckets, two small broadcasts. So leave
# the first two steps out when you measure.

# %% tags=["check"]
assert ranks.view["held"] == [340_008] * len(ranks)
num_bytes = [n for _, n in ranks.view["num_bytes"][0]["step 3"]]
assert num_bytes == [10_280, 263_168, 66_560]
ok("C13 is false, all is on each rank", gradient_messages_of_ddp=len(num_bytes))

# %% [markdown] tags=["question"]
# ## What becomes of tensors that no gradient moves?

# %% [markdown] tags=["predict"]
# BatchNorm keeps a running mean of what it sees, in a **buffer**: a tensor of the model that no
# gradient moves. A guide averages it by `ddp_model.sync_buffers()`. DDP has a way of its own. The
# digits of how many ranks are in the mean that it keeps?

# %% tags=["predict"]
predict("ranks_in_the_running_mean", ...)

# %% tags=["run"]
# %%px
from ddp_lessons.workloads import batch_norm_model, branched_model

net = batch_norm_model(seed=0).to(device)
net[1].momentum = 1.0  # keep the mean of the last batch, nothing older
model = DDP(net)
model(images)
own = net[1].running_mean.clone()
with trace() as events:
    model.eval()(images)  # in eval mode, BatchNorm itself changes nothing
kept, names = net[1].running_mean.clone(), collectives(events)

# %% tags=["run"]
# %%px
num_kept = sum(torch.equal(kept, mean) for mean in of_all_ranks(own))
whole = net[0](of_all_ranks(images).flatten(0, 1)).mean(dim=0)
off = [
    (mean - whole).abs().max().item() for mean in (kept, of_all_ranks(own).mean(dim=0))
]
if rank == 0:
    print(f"sync_buffers: {hasattr(model, 'sync_buffers')}. In forward: {names}")
    print(f"kept: the mean of {num_kept} rank. Off: {off[0]:.2f}; pooled: {off[1]:.2f}")

# %% [markdown] tags=["read"]
# Of 1, rank 0. [Claim C14](claims.md) is **false**: there is no such method. The next `forward`
# begins with broadcasts from rank 0, one for each dtype.
#
# The mean that is kept is off that of all digits by 0.07. So **pool** such statistics, that is
# combine those of all ranks, before you evaluate or save. For means, average them. Variances take
# more: an exercise.

# %% tags=["break", "raises-exception"]
# %%px
ddp = None  # of the first section, and not needed again
if rank == 0:
    score = model(images)  # one rank is enough to evaluate?

# %% tags=["mend"]
# %%px
if rank == 0:
    with trace() as events:
        score = net(images)
    print(f"{len(events)} messages in the forward of the plain model")

# %% [markdown] tags=["read"]
# With buffers, `forward` of the wrapper is a collective, so rank 0 alone must not call it. The plain
# model sends 0 messages.

# %% tags=["check"]
assert all(kept > 0.01 and pooled < 1e-6 for kept, pooled in ranks.view["off"])
num_kept = ranks.view["num_kept"][0]
ok("C14 is false, forward copies rank 0's buffers", ranks_in_the_running_mean=num_kept)

# %% [markdown] tags=["question"]
# ## What if the loss does not reach a parameter?

# %% [markdown] tags=["predict"]
# A model has a spare head, which `forward` does not use. Somebody wraps the model in DDP, and then
# freezes the head with `requires_grad_(False)`. DDP waits for all gradients of a bucket before it
# sends it. The loop makes three steps. In which of them does DDP complain?

# %% tags=["predict"]
predict("step_in_which_ddp_complains", ...)

# %% tags=["break", "raises-exception"]
# %%px
net, num_done = branched_model(seed=0).to(device), 0
model = DDP(net)  # not needed again
net.spare.requires_grad_(False)
for _ in range(3):
    cross_entropy(model(images), labels).backward()
    num_done += 1

# %% tags=["run"]
# %%px
num_gradients = num_different(flat(p.grad for p in net.head.parameters()))
fresh = branched_model(seed=0).to(device)
loss = cross_entropy(fresh(images), labels)
gradients = torch.autograd.grad(loss, list(fresh.parameters()), allow_unused=True)
named = zip(dict(fresh.named_parameters()), gradients, strict=True)
unreached = [name for name, gradient in named if gradient is None]
if rank == 0:
    print(f"stopped in step {num_done + 1}; {num_gradients} gradients after step 1")
    print(f"not reached: {unreached}")

# %% [markdown] tags=["read"]
# In step 2. DDP noted what to wait for when it wrapped the model. Step 1 ended without a word, and
# left 4 different gradients: the only bucket never filled, so nothing was sent.
#
# In full, the error names parameters by number. With `allow_unused=True`, `autograd.grad` gives
# None for those that the loss does not reach, so one finds their names.


# %% tags=["mend"]
# %%px
def bytes_of_step(model):
    with trace() as events:
        cross_entropy(model(images), labels).backward()
    return [event.input_bytes for event in events if event.is_communication]


found = DDP(fresh, find_unused_parameters=True)
frozen = branched_model(seed=0).to(device)
frozen.spare.requires_grad_(False)
num_bytes = [bytes_of_step(model) for model in (found, DDP(frozen))]
if rank == 0:
    print(f"bytes of each message: found {num_bytes[0]}, frozen before {num_bytes[1]}")

# %% [markdown] tags=["read"]
# If no rank ever reaches the head, freeze it **before** you wrap.
#
# If some ranks do, it must be trained. Then `find_unused_parameters=True` looks in every step. It
# sends 24 bytes more, a flag for each parameter: ranks agree on who used it.

# %% tags=["check"]
assert ranks.view["num_gradients"] == [len(ranks)] * len(ranks)
assert ranks.view["unreached"] == [["spare.weight", "spare.bias"]] * len(ranks)
assert ranks.view["num_bytes"] == [[[21_840, 24], [19_240]]] * len(ranks)
step = ranks.view["num_done"][0] + 1
ok("unnoticed in step 1, and two cures", step_in_which_ddp_complains=step)

# %% [markdown] tags=["question"]
# ## Can a step send less than all gradients?

# %% [markdown] tags=["predict"]
# A **communication hook** gets each bucket, and sends it in DDP's place. One hook of the package
# sends only the largest 1&nbsp;% of a bucket's float32 numbers, each with its place, an int32. How
# many percent of the bucket's bytes is that?

# %% tags=["predict"]
predict("percent_of_bytes_by_top_k", ...)


# %% tags=["run"]
# %%px
def mean_hook(state, bucket):  # what DDP does without a hook
    average = bucket.buffer()
    average /= world_size
    work = dist.all_reduce(average, async_op=True)
    return work.get_future().then(lambda _: average)


model = DDP(digits_model(seed=0).to(device))
model.register_comm_hook(None, mean_hook)  # None: it keeps nothing between calls
train(model, images, labels)
print(f"models: {num_different(flat(model.parameters()))}")

# %% [markdown] tags=["read"]
# 1 model, as without a hook. A hook does not wait. It returns a **future**: a handle that will hold
# a value. `then` says what to do when the message is through. What that returns, here the averaged
# bucket, DDP puts into the gradients.

# %% tags=["run"]
# %%px
from ddp_lessons.ddp import HookMeter, ExactState, HalfPrecisionState, TopKState
from ddp_lessons.ddp import exact_hook, half_precision_hook, top_k_hook

results = {}
for name, hook, state in (
    ("mean", exact_hook, ExactState()),
    ("half", half_precision_hook, HalfPrecisionState()),
    ("top", top_k_hook, TopKState(share=0.01)),
    ("top, forgetful", top_k_hook, TopKState(share=0.01, error_feedback=False)),
):
    model = DDP(digits_model(seed=0).to(device))
    meter = HookMeter(model, hook, state)  # registers it, and compares it with the mean
    losses = train(model, images, labels, num_steps=100)
    share, left = meter.bytes_sent / meter.exact_bytes, losses[-1] / losses[0]
    results[name] = share, meter.relative_error, left

# %% tags=["run"]
for name, (share, error, left) in ranks.view["results"][0].items():
    print(f"{name:14} {share:4.0%} of bytes, error {error:.1g}, loss {left:.0%}")

# %% [markdown] tags=["read"]
# 2%: a place is as large as a number. The error is the distance from the exact mean, in lengths of
# that mean: 0.004 for halves.
#
# Forgetful, 22% of the loss is left. With **error feedback** it is 3%, as by the mean: a rank keeps
# what it did not send, and adds it to its next gradient. A step's error is larger, 3 against 0.8,
# for it sends old debts too. So judge a hook by the loss.

# %% tags=["check"]
results = ranks.view["results"][0]
assert results["mean"][1] < 1e-6 < results["half"][1] < 2**-7
assert results["top"][2] < results["top, forgetful"][2] / 2
percent = round(100 * results["top"][0])
ok("feedback pays later what was not sent", percent_of_bytes_by_top_k=percent)

# %% [markdown] tags=["question"]
# ## More: where do gradients lie?

# %% [markdown] tags=["predict"]
# A gradient is copied into its bucket and, averaged, back. With `gradient_as_bucket_view=True` it is
# a **view** of the bucket, that is a window onto the bucket's memory. The model of the second
# section has six parameters and, again, three buckets. In how many pieces of memory do its
# gradients then lie?

# %% tags=["predict"]
predict("pieces_of_memory_with_views", ...)

# %% tags=["run"]
# %%px
pieces = []
for is_view in (False, True):
    net = digits_model(seed=0, size="medium").to(device)
    model = DDP(net, bucket_cap_mb=0.008, gradient_as_bucket_view=is_view)
    for _ in range(3):
        cross_entropy(model(images), labels).backward()
    storages = {p.grad.untyped_storage().data_ptr() for p in net.parameters()}
    pieces.append(len(storages))
print(f"pieces of memory: {pieces[0]} without, {pieces[1]} as views")

# %% [markdown] tags=["read"]
# In 3, one for each bucket, in place of 6. Nothing is copied any more, and gradients take half the
# memory that they and their buckets took before.

# %% tags=["check"]
assert ranks.view["pieces"] == [[6, 3]] * len(ranks)
ok("views lie in the buckets", pieces_of_memory_with_views=ranks.view["pieces"][0][1])

# %% [markdown] tags=["recap"]
# You have run five things that guides get wrong, and seen what DDP sends: the model when it is
# wrapped, buffers in `forward`, buckets in `backward`. You have judged hooks.
#
# Rule of thumb: **wrap once, call the wrapper, and let every rank reach every parameter.**

# %% [markdown] tags=["next"]
# - **Exercise** [06](../exercises/06_ddp.ipynb): write a half-precision hook with error feedback,
#   find an unused branch, keep BatchNorm honest, and mend four broken scripts. After the exercise,
#   read the package's hooks in [ddp_lessons/ddp](../ddp_lessons/ddp/feedback.py).
# - **Next lesson** [07](07_accumulation.ipynb): when should ranks talk?
# - **Sources**: S. Li and others, [PyTorch Distributed](https://arxiv.org/abs/2006.15704), VLDB
#   2020, section 4; PyTorch's pages on
#   [DDP](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html),
#   [communication hooks](https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html) and
#   [SyncBatchNorm](https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html);
#   S. P. Karimireddy and others, [Error Feedback Fixes
#   SignSGD](https://arxiv.org/abs/1901.09847), ICML 2019.

# %% tags=["teardown"]
ranks.stop()
