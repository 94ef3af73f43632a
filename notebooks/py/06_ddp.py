# %% [markdown] tags=["title"] minutes=[46, 40]
# # What does DistributedDataParallel do for you?
#
# 45 minutes, 4 ranks. This lesson builds on [05_replicas](05_replicas.ipynb), which does by hand what
# DDP does.

# %% [markdown] tags=["why"]
# `DistributedDataParallel` (DDP) needs two lines, `init_process_group(...)` and `model = DDP(net)`.
# With two ranks or more, a small mistake around these lines trains several models in place of one,
# logs a wrong loss, or hangs the job. Most of these mistakes raise no error.

# %% [markdown] tags=["goal"]
# After this lesson you can
#
# - **find** the line of a script that averages gradients, or see that there is none;
# - **say** what DDP sends at the start, in the first step and in later steps;
# - **repair** a script whose model has buffers, frozen layers, or a part that is not always used.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.pictures import buckets_picture

ranks = start_ranks(4)

# %% [markdown] tags=["question"]
# ## How many of four scripts train one model?

# %% [markdown] tags=["explain"]
# Four scripts train the network `net`. Its first weights are equal on all ranks, but each rank has its
# own 16 images, and so its own gradients. The ranks keep one model only if the gradients are averaged.
#
# 1. `model = DataParallel(net)`, an older wrapper that splits a batch over the GPUs of one process. The
#    loop calls `model(images)`.
# 2. No wrapper, but after `backward()`, `dist.reduce(loss, dst=0)` sums all losses on rank 0.
# 3. `model = DDP(net)`, and the loop calls `net(images)`.
# 4. `model = DDP(net)`, and the loop calls `model(images)`.
#
# `num_different(tensor)` counts the distinct versions of a tensor over all ranks: 1 if all are equal.

# %% [markdown] tags=["predict"]
# With how many of the four scripts do all ranks hold equal weights after five steps?

# %% tags=["predict"]
predict("scripts_that_keep_one_model", ...)

# %% tags=["run"]
# %%px
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DataParallel, DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector
from ddp_lessons.process_group import rank_device
from ddp_lessons.replicas import num_different
from ddp_lessons.workloads import digits_model, load_digits

rank, world_size, device = dist.get_rank(), dist.get_world_size(), rank_device()
digits = load_digits().to(device)
images = digits.train_images[:64][rank::world_size]
labels = digits.train_labels[:64][rank::world_size]
num_models = {}


def make_net():
    net = digits_model(seed=0).to(device)
    return net, torch.optim.SGD(net.parameters(), lr=0.1)


def count_models(script, net):
    num_models[script] = num_different(parameters_to_vector(net.parameters()))
    if rank == 0:
        print(f"script {script}: different models on 4 ranks: {num_models[script]}")


# %% tags=["break"]
# %%px
net, optimizer = make_net()
model = DataParallel(net, device_ids=[device.index])  # this rank's GPU, if it has one
for step in range(5):
    optimizer.zero_grad()
    cross_entropy(model(images), labels).backward()
    optimizer.step()
count_models(1, net)
is_same_output = torch.equal(model(images), net(images))
if rank == 0:
    print(f"the output of DataParallel is that of net: {is_same_output}")

# %% tags=["break"]
# %%px
net, optimizer = make_net()
for step in range(5):
    optimizer.zero_grad()
    loss = cross_entropy(net(images), labels)
    loss.backward()
    own_loss = loss.item()
    dist.reduce(loss, dst=0)
    optimizer.step()
count_models(2, net)
if rank == 0:
    print(f"loss: {own_loss:.1f} before the reduce, {loss.item():.1f} after it")

# %% tags=["break"]
# %%px
net, optimizer = make_net()
model = DDP(net)
for step in range(5):
    optimizer.zero_grad()
    cross_entropy(net(images), labels).backward()
    optimizer.step()
count_models(3, net)

# %% tags=["mend"]
# %%px
net, optimizer = make_net()
model = DDP(net)
for step in range(5):
    optimizer.zero_grad()
    cross_entropy(model(images), labels).backward()
    optimizer.step()
count_models(4, net)

# %% [markdown] tags=["read"]
# Only 1 script keeps one model: script 4. Its `model(images)` is DDP's own forward, which switches the
# averaging of the next `backward` on.
#
# - **Script 3** never calls DDP's forward, because `net` is the plain model inside, `model.module`. DDP's
#   hooks still run in `backward`, but nothing has switched them on, so they send nothing.
# - **Script 2** reduces the loss, and no gradient. So [claim C11](claims.md), that this synchronises
#   gradients, is **false**. Rank 0's loss is now the sum over four ranks, and that of other ranks may be a
#   half-finished sum ([lesson 02](02_collectives.ipynb)). For a log, reduce a copy, and divide by the world size.
# - **Script 1** sends nothing to another process. So [claim C09](claims.md), to wrap in `DataParallel`
#   after `init_process_group`, is **false**.
#
# [Claim C10](claims.md), that `backward()` averages gradients over devices, is **half true**: a plain
# `backward` (script 2) averages nothing, and `backward` after DDP's own forward does.
#
# [Claim C29](claims.md) calls `DataParallel` the simplest way, and good enough on one machine. It is
# **half true**: it is one line, and its output is right. (Ours proves little, because on a CPU
# `DataParallel` only calls `net`.) But on GPUs one process copies the model to all of them in every
# forward, and its threads, one for each GPU, take turns in one Python interpreter. This is slow (not
# run here). Use DDP on one machine, too.

# %% tags=["check"]
assert ranks.view["num_models"] == [{1: 4, 2: 4, 3: 4, 4: 1}] * 4
assert all(ranks.view["is_same_output"])
num_good = sum(count == 1 for count in ranks.view["num_models"][0].values())
verdicts = "C09 is false, C10 is half true, C11 is false, C29 is half true"
ok(verdicts, scripts_that_keep_one_model=num_good)

# %% [markdown] tags=["question"]
# ## What does DDP send, and when?

# %% [markdown] tags=["explain"]
# DDP packs gradients into buckets by the rule of lesson 05: the gradient that brings a bucket to its cap
# closes it. By default the cap is 25 MiB, and 1 MiB for the first bucket, so that sending starts early.
#
# A new wrapper does not know yet in which order `backward` finishes the gradients. So by default one
# bucket holds all gradients in step 1, and DDP notes their order. When the second forward begins, DDP
# makes its final buckets, in that order and by the caps. Torch 2.13 does all this; other versions may
# differ.
#
# The gradients of the next model become ready in this order:
#
# | gradient | `4.bias` | `4.weight` | `2.bias` | `2.weight` | `0.bias` | `0.weight` |
# | --- | --- | --- | --- | --- | --- | --- |
# | bytes | 40 | 40,960 | 4,096 | 4,194,304 | 4,096 | 262,144 |

# %% [markdown] tags=["predict"]
# We wrap this model with the default caps. How many all-reduces of gradients are there in the first three
# steps together? (1 MiB is 1,048,576 bytes.)

# %% tags=["predict"]
predict("all_reduces_in_three_steps", ...)

# %% [markdown] tags=["explain"]
# `trace(net)` records each call by which a rank communicates, and when each gradient of `net` becomes
# ready. We print the calls in order, each with the bytes that rank 0 gave it.

# %% tags=["run"]
# %%px
from ddp_lessons.trace import trace

net = digits_model(seed=0, size="large").to(device)
recorded = {}
with trace() as recorded["wrapping"]:
    model = DDP(net)
for step in ("step 1", "step 2", "step 3"):
    with trace(net) as recorded[step]:
        cross_entropy(model(images), labels).backward()


# %% tags=["run"]
# %%px
def describe(event):
    is_call = event.is_communication
    return f"{event.name} {event.input_bytes:,}" if is_call else "gradient"


lines = {part: ", ".join(map(describe, events)) for part, events in recorded.items()}
num_all_reduces = str(lines).count("all_reduce")
weight_bytes = sum(parameter.nbytes for parameter in net.parameters())
if rank == 0:
    for part, line in lines.items():
        print(f"{part}: {line}")
    print(f"{num_all_reduces} all-reduces")
print(f"this rank holds {weight_bytes:,} bytes of weights")

# %% [markdown] tags=["read"]
# There are 5 all-reduces: one in step 1, and two in each later step.
#
# - **Wrapping**: the ranks compare the number of their parameters (8 bytes), shapes and strides (144 bytes).
#   Then rank 0 broadcasts its weights, and each rank holds all 4,505,640 bytes. So
#   [claim C13](claims.md), that DDP splits the model over the processes, is **false**. If the model is
#   too large for a GPU, use FSDP ([lesson 15](15_beyond_ddp.ipynb)).
# - **Step 1**: the bucket leaves when its last gradient is ready. No computation is left to hide it.
# - **Step 2** begins with rank 0's plan of the final buckets: which gradients (28 bytes, with their number), and how many in
#   each bucket (8 bytes). The first all-reduce starts before the last two gradients are ready, so it can
#   overlap with their computation. (It has 4.04 MiB, because a gradient is never cut.)
# - **Step 3** is like all later steps. So leave the first two steps out when you measure.
#
# A model with less than 1 MiB of gradients keeps its one bucket. Our model gets two:

# %% tags=["run"]
# %%px
from ddp_lessons.ddp import rebuilt_buckets

final_buckets = [bucket.names for bucket in rebuilt_buckets(model)]  # asks DDP
gradient_bytes = [(name, p.nbytes) for name, p in net.named_parameters()]

# %% tags=["picture"]
buckets_picture(ranks.view["gradient_bytes"][0], ranks.view["final_buckets"][0])

# %% tags=["check"]
assert ranks.view["weight_bytes"] == [4_505_640] * 4
assert ranks.view["num_all_reduces"] == [5] * 4
assert [len(names) for names in ranks.view["final_buckets"][0]] == [4, 2]
num_all_reduces = ranks.view["num_all_reduces"][0]
ok("C13 is false, each rank holds all", all_reduces_in_three_steps=num_all_reduces)

# %% [markdown] tags=["question"]
# ## Which images are in BatchNorm's running mean?

# %% [markdown] tags=["explain"]
# In train mode, each batch changes BatchNorm's running mean and variance, which eval mode uses. They are
# **buffers**: tensors of the model that get no gradient. So the average of gradients does not make them
# equal. DDP treats buffers separately, at the beginning of each forward.

# %% [markdown] tags=["predict"]
# Each rank's first forward sees its 16 of 64 images. With a momentum of 1, the running mean is that of
# the last batch. In the second forward, in eval mode, BatchNorm itself changes nothing. Which images
# are in rank 3's running mean then? (a) Its own 16. (b) The 16 of rank 0. (c) All 64.

# %% tags=["predict"]
predict("images_in_the_running_mean", "...")

# %% tags=["run"]
# %%px
from ddp_lessons.workloads import batch_norm_model

net = batch_norm_model(seed=0).to(device)
net[1].momentum = 1.0
model = DDP(net)
model(images)
own_mean = net[1].running_mean.clone()
model.eval()
model(images)
final_mean = net[1].running_mean.clone()

# %% tags=["run"]
# %%px
mean_of_rank = [torch.empty_like(own_mean) for _ in range(world_size)]
dist.all_gather(mean_of_rank, own_mean)
sources = [r for r in range(world_size) if torch.equal(final_mean, mean_of_rank[r])]
mean_of_all = torch.stack(mean_of_rank).mean(dim=0)
percent_off = 100 * ((final_mean - mean_of_all).norm() / mean_of_all.norm()).item()
print(f"my running mean is that of ranks {sources}")
has_method = hasattr(model, "sync_buffers")
if rank == 0:
    print(f"the running mean of all 64 images is {percent_off:.0f} % away")
    print(f"DDP has a method sync_buffers: {has_method}")

# %% [markdown] tags=["read"]
# The answer is (b), because each forward of the wrapper begins with a broadcast of rank 0's buffers.
# (A forward sends none if the forward before it ran under `torch.no_grad()` or inside `no_sync`, which
# [lesson 07](07_accumulation.ipynb) explains.) Rank 0's mean is 18&nbsp;% away from that of all 64
# images. If each rank's batch is small, use `SyncBatchNorm` (see the second "More").
#
# [Claim C14](claims.md), to call `ddp_model.sync_buffers()` before `step()`, is **false**: there is no
# such method, and training needs none. But after the last training step, the buffers of each rank also
# contain its own last batch. So before all ranks evaluate with the plain model, broadcast rank 0's
# buffers: `for buffer in net.buffers(): dist.broadcast(buffer, src=0)`. Evaluation on rank 0 alone
# needs no broadcast, but it must not call the wrapper. The next script does:

# %% tags=["break", "raises-exception"]
# %%px
if rank == 0:
    outputs = model(images)

# %% [markdown] tags=["read"]
# Rank 0 waits in the broadcast with which DDP's forward begins, because this model has buffers. (43
# means the 43rd collective since the start.) In a script, ranks 1 to 3 go on, and their next broadcast
# pairs with that of rank 0. From then on rank 0's calls are shifted by one against the others', and
# the job hangs or fails later, at another line.
#
# The repair is to call the plain model, `model.module`. The plain model holds no process group, so we may
# ignore the report's last line:

# %% tags=["mend"]
# %%px
if rank == 0:
    with trace() as events:
        outputs = model.module(images)
    print(f"{len(outputs)} outputs, {len(events)} messages")

# %% tags=["check"]
assert ranks.view["sources"] == [[0]] * 4
assert not any(ranks.view["has_method"])
letters = {(3,): "a", (0,): "b", (): "c"}
letter = letters[tuple(ranks.view["sources"][3])]
ok("C14 is false, rank 0's buffers stay", images_in_the_running_mean=letter)

# %% [markdown] tags=["question"]
# ## What if the loss does not reach a parameter?

# %% [markdown] tags=["explain"]
# When DDP wraps a model, it puts a hook on each parameter that has `requires_grad`. The hook of a
# bucket's last gradient starts the all-reduce. A parameter that the loss does not reach gets no
# gradient, so its hook does not run. DDP checks only when a forward begins whether the backward
# before it has sent all buckets.
#
# The next model has a trunk, `Linear(64, 64)`, and a main head and a spare head, both `Linear(64,
# 10)`. We never pass `use_spare`:
#
# ```python
# def forward(self, images, use_spare=False):
#     hidden = self.trunk(images).relu()
#     logits = self.head(hidden)
#     return (logits + self.spare(hidden)) if use_spare else logits
# ```

# %% [markdown] tags=["predict"]
# All ranks train five steps with the usual loop. In which step does DDP raise an error?
# Answer 0 if no step does.

# %% tags=["predict"]
predict("step_of_the_error", ...)

# %% tags=["break"]
# %%px
from ddp_lessons.workloads import branched_model

dist.set_debug_level(dist.DebugLevel.INFO)  # errors then name parameters
net = branched_model(seed=0).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
model = DDP(net)
message, error_step = "", 0
for step in range(1, 6):
    try:
        loss = cross_entropy(model(images), labels)
    except RuntimeError as error:
        message, error_step = str(error), step
        break
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    num_versions = num_different(parameters_to_vector(net.parameters()))
    if rank == 0:
        print(f"step {step}: different models on 4 ranks: {num_versions}")

# %% tags=["run"]
# %%px
dist.set_debug_level(dist.DebugLevel.OFF)
if rank == 0:
    print(f"step {error_step}: {message.partition('. ')[0]}")
    print(message.splitlines()[-2])

# %% [markdown] tags=["read"]
# DDP raises an error in step 2. In step 1 the only bucket never gets two of its six gradients, so DDP
# sends nothing and raises nothing, and the ranks hold 4 models. The next forward notices that the
# bucket was not sent. We print two lines of a long error. The second line names the spare head's
# parameters because of `set_debug_level`; for a script, set `TORCH_DISTRIBUTED_DEBUG=INFO`.
#
# If only rank 3 uses the spare head (not run here), rank 3's bucket is full, and rank 3 waits in
# `backward` for an all-reduce that the other ranks do not start. They get the error in their next
# forward.
#
# The first repair is for layers that no step trains, and costs nothing. Freeze them before you wrap:


# %% tags=["mend"]
# %%px
def bytes_of_messages(model):
    with trace() as events:
        cross_entropy(model(images), labels).backward()
    return [event.input_bytes for event in events]


net = branched_model(seed=0).to(device)
net.spare.requires_grad_(False)
bytes_if_frozen = bytes_of_messages(DDP(net))
if rank == 0:
    print(f"frozen first: messages of {bytes_if_frozen} bytes")

# %% [markdown] tags=["explain"]
# The second repair is for a part that only some ranks or some steps use:

# %% tags=["mend"]
# %%px
net = branched_model(seed=0).to(device)
bytes_if_found = bytes_of_messages(DDP(net, find_unused_parameters=True))
spare_gradient = net.spare.weight.grad
if rank == 0:
    print(f"gradient of the spare head: {spare_gradient}")
    print(f"find_unused_parameters: messages of {bytes_if_found} bytes")

# %% [markdown] tags=["read"]
# With the frozen spare head, DDP sends 19,240 bytes: trunk and main head. With
# `find_unused_parameters=True`, DDP walks through the graph of each forward, and sends zeros for
# parameters that it does not find: 21,840 bytes. The other 24 bytes are a flag for each of six
# parameters: did any rank use it? If no rank did, its `.grad` is left alone, here None.
#
# Set this option only if parameters are unused: the walk costs time in each step, and DDP then keeps
# its first buckets. If they are the same in every step, as here, `static_graph=True` is a third
# repair: DDP then counts in step 1 how often each hook runs.

# %% tags=["check"]
assert ranks.view["num_versions"] == [4] * 4
assert "spare.weight" in ranks.view["message"][0]
assert ranks.view["bytes_if_frozen"] == [[19_240]] * 4
assert ranks.view["bytes_if_found"] == [[21_840, 24]] * 4
assert ranks.view["spare_gradient"] == [None] * 4
error_step = ranks.view["error_step"][0]
ok("step 1 averages nothing, and no error says so", step_of_the_error=error_step)

# %% [markdown] tags=["question"]
# ## More: can a step send fewer bytes?

# %% [markdown] tags=["explain"]
# A **communication hook** is a function that DDP calls for each full bucket, in place of its own
# all-reduce. It gets a `state`, which can be any object, and the bucket; `bucket.buffer()` is the flat
# tensor of the bucket's gradients.
#
# A communication hook does not wait. It returns a **future**: an object that will hold the averaged
# tensor later. The handle of an all-reduce has a future, `get_future()`. `then(function)` makes a
# second future, which will hold the result of the function. The function gets the first future, which
# we do not need:

# %% tags=["run"]
# %%px
ones = torch.ones(3, device=device)
future = dist.all_reduce(ones, async_op=True).get_future()
mean_future = future.then(lambda _: ones / world_size)
mean = mean_future.wait().tolist()
if rank == 0:
    print(mean)

# %% [markdown] tags=["explain"]
# The first communication hook below does what DDP does without one. The second one rounds to bfloat16
# before it sends, so it sends half of the bytes.



# %% tags=["run"]
# %%px
def mean_hook(state, bucket):
    average = bucket.buffer().div_(world_size)
    handle = dist.all_reduce(average, async_op=True)
    return handle.get_future().then(lambda _: average)


def bfloat16_hook(state, bucket):
    message = bucket.buffer().div_(world_size).bfloat16()
    handle = dist.all_reduce(message, async_op=True)
    return handle.get_future().then(lambda _: bucket.buffer().copy_(message))


# %% [markdown] tags=["explain"]
# **Top-k** sends still less: the 1&nbsp;% of the numbers that are largest in absolute value, each
# with its position, an int32. These are 2&nbsp;% of the bytes of the float32 gradients. But ranks
# choose different positions, so their messages cannot be added on the way: every rank receives the
# messages of all n - 1 other ranks. In a ring all-reduce, a rank receives 2 (n - 1) / n times the
# bytes of its message ([lesson 03](03_ring.ipynb)).

# %% [markdown] tags=["predict"]
# On 64 ranks, with which of these does a rank receive the fewest bytes: (a) a ring all-reduce of float32,
# (b) a ring all-reduce of bfloat16, or (c) top-k?

# %% tags=["predict"]
predict("fewest_bytes_received", "...")

# %% tags=["run"]
print("received, in % of the bytes of the float32 gradients:")
received = {}
for n in (4, 16, 64, 256):
    ring = 200 * (n - 1) / n
    received[n] = {"float32": ring, "bfloat16": ring / 2, "top-k": 2 * (n - 1)}
    print(f"{n} ranks:", ", ".join(f"{k} {v:.0f} %" for k, v in received[n].items()))

# %% tags=["run"]
# %%px
from ddp_lessons.ddp import TopKState, top_k_hook
from ddp_lessons.workloads import train

hooks = {
    "mean": (None, mean_hook),
    "bfloat16": (None, bfloat16_hook),
    "top-k": (TopKState(share=0.01, error_feedback=False), top_k_hook),
    "top-k with error feedback": (TopKState(share=0.01), top_k_hook),
}
percent_left, num_bytes = {}, {}
for name, (state, hook) in hooks.items():
    model = DDP(digits_model(seed=0).to(device))
    model.register_comm_hook(state, hook)
    losses = train(model, images, labels, num_steps=100)
    percent_left[name] = 100 * losses[-1] / losses[0]
    num_bytes[name] = sum(bytes_of_messages(model))  # of one more backward
    if rank == 0:
        left = f"{percent_left[name]:.0f} % of the loss is left"
        print(f"{name}: message of {num_bytes[name]:,} bytes, {left}")

# %% [markdown] tags=["read"]
# The answer is (b): with bfloat16 a rank receives 98&nbsp;%, with top-k 126&nbsp;%. (The first cell
# computes this, and sends nothing.) bfloat16 halves the bytes for any number of ranks, because an
# all-reduce adds its messages. The bytes of top-k grow with the ranks, and from 50 ranks on it has no
# advantage over bfloat16. So top-k pays only for few ranks on a slow network, and is rarely used. Take
# bfloat16 first. With NCCL, torch has this communication hook ready:
# `model.register_comm_hook(None, bf16_compress_hook)`, from
# `torch.distributed.algorithms.ddp_comm_hooks.default_hooks`.
#
# The second cell trains 100 steps with each communication hook. (The one for top-k is the package's.)
# Their messages have 19,240 bytes in float32, 9,620 in bfloat16, and 392 with top-k. But with top-k,
# 11&nbsp;% of the loss is left, because each step drops all numbers outside of the largest 1&nbsp;%. With
# **error feedback**, a rank keeps these numbers, and adds them to its next gradient. Then 1&nbsp;% is
# left, as with the exact mean. To judge a communication hook, compare the losses after equally many
# steps, and the seconds of a step.

# %% tags=["check"]
percent_left, num_bytes = ranks.view["percent_left"][0], ranks.view["num_bytes"][0]
assert num_bytes["mean"] == 2 * num_bytes["bfloat16"]
assert abs(percent_left["bfloat16"] - percent_left["mean"]) < 1
assert percent_left["top-k with error feedback"] < percent_left["top-k"] / 2
letter_of = dict(zip(received[64], "abc", strict=True))
letter = letter_of[min(received[64], key=received[64].get)]
ok("bfloat16 halves the bytes", fewest_bytes_received=letter)

# %% [markdown] tags=["question"]
# ## More: which options of DDP are worth a line?

# %% [markdown] tags=["explain"]
# | option | default | set it if |
# | --- | --- | --- |
# | `device_ids=[local_rank]` | none | the rank has a GPU: inputs are then moved to it |
# | `bucket_cap_mb` | 25, first bucket 1 | another cap makes your measured step faster; it then holds for the first bucket, too |
# | `gradient_as_bucket_view=True` | False | memory is short |
# | `find_unused_parameters=True` | False | parts of the model are used in some steps or on some ranks only |
# | `static_graph=True` | False | the same parameters are unused in every step |
# | `forward_sync_buffers=False` (before torch 2.13 `broadcast_buffers=False`) | True | you pool BatchNorm's statistics yourself ([task 06.3](../exercises/06_ddp.ipynb)) |
#
# One more line belongs before the wrapping, if each rank's batch is small:
# `net = SyncBatchNorm.convert_sync_batchnorm(net)`. Each step then uses the statistics of all ranks. This
# needs GPUs, and messages in each such layer ([lesson 12](12_metrics.ipynb) builds it).
#
# A gradient is copied into its bucket, and the average is copied back. With
# `gradient_as_bucket_view=True`, each `parameter.grad` is a **view** of its bucket: a tensor that uses
# the bucket's memory. Then nothing is copied back, and the gradients need no memory of their own.

# %% [markdown] tags=["predict"]
# A script makes four steps with the model of the second section, with other images in each. A step
# begins with `zero_grad()`, which sets each `.grad` to None, and ends with
# `kept.append(net[4].bias.grad)`. So step 3 makes `kept[2]`. If gradients are views, which step's
# gradient is in `kept[2]` after step 4?

# %% tags=["predict"]
predict("step_of_the_kept_gradient", ...)

# %% tags=["run"]
# %%px
def make_four_steps(**options):
    """Return the step whose gradient is in kept[2], and the number of blocks."""
    net = digits_model(seed=0, size="large").to(device)
    model = DDP(net, **options)
    kept, copies = [], []
    for x, y in zip(images.split(4), labels.split(4), strict=True):
        model.zero_grad()
        cross_entropy(model(x), y).backward()
        kept.append(net[4].bias.grad)
        copies.append(net[4].bias.grad.clone())
    is_equal = [torch.equal(kept[2], copy) for copy in copies]
    blocks = {p.grad.untyped_storage().data_ptr() for p in net.parameters()}
    return 1 + is_equal.index(True), len(blocks)


step_by_default, num_blocks_by_default = make_four_steps()
step_with_views, num_blocks_with_views = make_four_steps(gradient_as_bucket_view=True)
if rank == 0:
    print(f"by default: step {step_by_default}, {num_blocks_by_default} blocks")
    print(f"with views: step {step_with_views}, {num_blocks_with_views} blocks")

# %% [markdown] tags=["read"]
# With views, `kept[2]` holds the gradient of step 4, because it is a view of the bucket, into which
# step 4 wrote its own gradient. By default it still holds that of step 3, because step 4 made a new
# tensor. So if you keep gradients, keep copies: `grad.clone()`.
#
# By default, each of the 6 gradients has a block of memory of its own, in addition to the buckets. As
# views they lie in 2 blocks, the final buckets. So gradients and buckets together need half of the
# memory.

# %% tags=["check"]
assert ranks.view["step_by_default"] == [3] * 4
assert ranks.view["num_blocks_by_default"] == [6] * 4
assert ranks.view["num_blocks_with_views"] == [2] * 4
step = ranks.view["step_with_views"][0]
ok("gradients lie in their buckets", step_of_the_kept_gradient=step)

# %% [markdown] tags=["cluster"]
# ## On your own cluster
#
# This file, `train.py`, is complete. It trains a model with a frozen layer and a BatchNorm on random
# data, and evaluates it on rank 0.
#
# ```python
# import os
#
# import torch
# import torch.distributed as dist
# from torch.nn.functional import cross_entropy
# from torch.nn.parallel import DistributedDataParallel as DDP
#
# local_rank = int(os.environ["LOCAL_RANK"])  # the rank's number on its own node
# torch.cuda.set_device(local_rank)
# dist.init_process_group("nccl")
# rank, world_size = dist.get_rank(), dist.get_world_size()
# torch.manual_seed(rank)  # other samples on each rank
#
# net = torch.nn.Sequential(
#     torch.nn.Linear(256, 512),
#     torch.nn.BatchNorm1d(512),
#     torch.nn.ReLU(),
#     torch.nn.Linear(512, 2),
# ).cuda()
# net[0].requires_grad_(False)  # freeze first, then wrap
# model = DDP(net, device_ids=[local_rank])
# trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
# optimizer = torch.optim.SGD(trained, lr=0.1)
#
# for step in range(100):
#     inputs = torch.randn(64, 256, device="cuda")
#     labels = (inputs.sum(dim=1) > 0).long()
#     optimizer.zero_grad()
#     loss = cross_entropy(model(inputs), labels)
#     loss.backward()
#     optimizer.step()
#
# mean_loss = loss.detach().clone()
# dist.all_reduce(mean_loss)
# mean_loss /= world_size
# if rank == 0:
#     net.eval()
#     inputs = torch.randn(1000, 256, device="cuda")
#     with torch.no_grad():
#         is_right = net(inputs).argmax(dim=1) == (inputs.sum(dim=1) > 0)
#     print(f"mean loss {mean_loss.item():.3f}, accuracy {is_right.float().mean().item():.3f}")
# dist.destroy_process_group()
# ```
#
# **One node with 8 GPUs:**
#
# ```console
# $ torchrun --standalone --nproc-per-node=8 train.py
# ```
#
# **Two such nodes**, `node1` and `node2`. Run the same command on both:
#
# ```console
# $ torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=node1:29500 --rdzv-id=42 train.py
# ```
#
# | line or option | what it does |
# | --- | --- |
# | `net[0].requires_grad_(False)` before `DDP(...)` | DDP puts no hook on the layer. After `DDP(...)`, this line would stop all averaging in step 1. |
# | `DDP(net, device_ids=[local_rank])` | It broadcasts all weights and buffers of rank 0. The caps are 25 MiB and 1 MiB. |
# | `model(inputs)` in the loop | DDP's forward: it copies rank 0's buffers, and switches the averaging on. |
# | `loss.backward()` | Each bucket leaves when its last gradient is ready. |
# | `mean_loss = loss.detach().clone()` | A copy is summed, and divided by the world size, for the log only. |
# | `net(inputs)` on rank 0 | The plain model, because the wrapper's forward would wait for all ranks. |
# | `--nproc-per-node=8`, `--nnodes=2` | DDP divides by the world size: 8, or 16. |
# | `--standalone`, the three `--rdzv` options | How the processes find each other: [lesson 01](01_process_group.ipynb). |
#
# We ran both commands with two processes a node and both nodes on the CPUs of one machine, with
# `"gloo"` and `"cpu"` in place of `"nccl"` and `"cuda"`, and without `set_device`, `.cuda()` and
# `device_ids`. On GPUs the file was not run.

# %% [markdown] tags=["recap"]
# You have found which of four scripts averages gradients, and predicted what DDP sends in its first and
# later steps. You have also repaired an evaluation on one rank, and a model with an unused head. To save
# your model, take `model.module.state_dict()` ([lesson 08](08_checkpoint.ipynb)).
#
# Rule of thumb: **freeze first, wrap once, call the wrapper in training, and `model.module` to
# evaluate.**

# %% [markdown] tags=["next"]
# - **Exercise** [06](../exercises/06_ddp.ipynb): write a bfloat16 hook with error feedback, find an
#   unused branch, pool BatchNorm's statistics, and repair four broken scripts. After the exercise, read
#   the package's hooks: [feedback.py](../ddp_lessons/ddp/feedback.py).
# - **Next lesson** [07](07_accumulation.ipynb): when should ranks talk?
# - **Sources**: S. Li and others, [PyTorch Distributed](https://arxiv.org/abs/2006.15704), VLDB
#   2020, section 4; PyTorch's pages on
#   [DDP](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html),
#   [DataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html),
#   [communication hooks](https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html) and
#   [SyncBatchNorm](https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html);
#   S. P. Karimireddy and others, [Error Feedback Fixes
#   SignSGD](https://arxiv.org/abs/1901.09847), ICML 2019.

# %% tags=["teardown"]
ranks.stop()
