# %% [markdown] tags=["title"]
# # Who keeps the optimizer's state?
#
# 30 minutes, 4 ranks. It builds on [03_ring](03_ring.ipynb), whose two halves come back here, on
# [06_ddp](06_ddp.ipynb) and on [08_checkpoint](08_checkpoint.ipynb).

# %% [markdown] tags=["goal"]
# When you are through, you can
#
# - **count** what a rank holds for each number of a model;
# - **share** the optimizer's state and the gradients out, without sending more than DDP does;
# - **save** what is shared out, and load it on another number of ranks.

# %% tags=["setup", "nbval-ignore-output"]
import os, tempfile
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.pictures import memory_picture, shards_picture, slices_from_rows

saves = globals().get("saves") or tempfile.TemporaryDirectory()
os.environ["LESSON_FOLDER"] = saves.name  # ranks inherit it
ranks = start_ranks(4)

# %% [markdown] tags=["question"]
# ## What fills a rank's memory besides the model?

# %% [markdown] tags=["predict"]
# Numbers are float32, of 4 bytes. Adam keeps two of them for each number of the model: a mean of
# its gradients and a mean of their squares. With model, gradients and that, how many bytes does a
# rank hold under DDP for each number of the model?

# %% tags=["predict"]
predict("bytes_under_ddp", ...)

# %% tags=["run"]
# %%px
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from ddp_lessons.process_group import rank_device
from ddp_lessons.sharded_optimizer.example import train_sharded
from ddp_lessons.workloads import digits_batch, digits_model, load_digits

rank, world_size, device = dist.get_rank(), dist.get_world_size(), rank_device()
digits = load_digits().to(device)
batches = [digits_batch(digits, 32, rank=rank, step=step) for step in range(3)]

# %% tags=["run"]
# %%px
plain = DDP(digits_model(seed=0, size="large").to(device))
adam = torch.optim.Adam(plain.parameters())
held = {"DDP": train_sharded(plain, adam, batches)}  # three steps
num = sum(p.numel() for p in plain.parameters())
print(f"{num:,} numbers, {sum(held['DDP'].values()) / num:.0f} bytes for each")

# %% tags=["picture"]
memory_picture([one["DDP"] for one in ranks.view["held"]])

# %% [markdown] tags=["read"]
# 16 bytes, and 8 of them are the optimizer's **state**. All ranks hold the same: averaged gradients
# are equal, so each rank computes what the three others compute, and keeps what they keep. (Adam
# also counts its steps, 4 bytes a parameter. They are left out here.)

# %% tags=["check"]
for one in ranks.view["held"]:
    assert one["DDP"]["optimizer"] == 2 * one["DDP"]["parameters"]
    assert one["DDP"]["gradients"] == one["DDP"]["parameters"] == 4 * 1126410
ok("half of it is Adam's, on each rank the same", bytes_under_ddp=16)

# %% [markdown] tags=["question"]
# ## Can every parameter have one owner?

# %% [markdown] tags=["predict"]
# The model's six parameters have 65,536, 1,024, 1,048,576, 1,024, 10,240 and 10 numbers. Each gets
# an owner, a rank which alone keeps its state, makes its step, and sends the new parameter to the
# others. As evenly as it goes: how many percent of the state does the fullest rank keep?

# %% tags=["predict"]
predict("percent_of_the_fullest", ...)

# %% tags=["break", "raises-exception"]
# %%px --targets 0
guides = torch.nn.parallel.DistributedOptimizer  # a guide shares the state out by it

# %% tags=["run"]
# %%px
import inspect
import torch.distributed.optim as theirs

if rank == 0:
    names = [name for name in dir(theirs) if name.endswith("Optimizer")]
    print(*(name for name in names if not name.startswith("_")), sep=", ")
    print(*inspect.signature(theirs.DistributedOptimizer).parameters, sep=", ")

# %% tags=["mend"]
# %%px
from ddp_lessons.sharded_optimizer import OwnerOptimizer, held_bytes

model = digits_model(seed=0, size="large").to(device)
optimizer = OwnerOptimizer(model.parameters(), torch.optim.Adam)
held["owners"] = train_sharded(model, optimizer, batches)
replica = DDP(digits_model(seed=0, size="large").to(device))
zero = theirs.ZeroRedundancyOptimizer(replica.parameters(), torch.optim.Adam)
train_sharded(replica, zero, batches)
own, torchs = held["owners"]["optimizer"], held_bytes(replica, zero.optim)["optimizer"]
print(f"{own / (8 * num):.0%} of the state, and {torchs / (8 * num):.0%} by torch's")

# %% [markdown] tags=["read"]
# [Claim C25](claims.md), that `torch.nn.parallel.DistributedOptimizer` updates parameters across
# processes, is **false**: there is no such name. `torch.distributed.optim` has one, which takes
# references to parameters elsewhere, `params_rref`. `ZeroRedundancyOptimizer` does what was
# claimed. Both it and our `OwnerOptimizer` leave 93% on rank 0: the largest parameter is 93% of the
# model, and a whole parameter has one owner.

# %% tags=["check"]
assert not any(ranks.view["hasattr(torch.nn.parallel, 'DistributedOptimizer')"])
shares = [one["owners"]["optimizer"] for one in ranks.view["held"]]
assert shares == ranks.view["torchs"]
assert sum(shares) == 8 * 1126410
fullest = round(100 * max(shares) / sum(shares))
ok("C25 is false, and an owner may have nearly all", percent_of_the_fullest=fullest)

# %% [markdown] tags=["question"]
# ## Can one parameter have four owners?

# %% [markdown] tags=["predict"]
# Adam looks at each number alone, so a parameter may be cut into a **piece** for each rank. A
# reduce-scatter gives each rank the mean gradient of its pieces. After the step an all-gather gives
# everybody the new numbers. DDP sends an all-reduce of the gradients. How many times as many bytes
# do the two send, in rings as in lesson 03?

# %% tags=["predict"]
predict("times_an_all_reduce", ...)

# %% tags=["run"]
# %%px
from ddp_lessons.sharded_optimizer import all_gather, reduce_scatter

weight = torch.arange(12.0, device=device)  # alike on all ranks
gradient = torch.full((12,), float(rank), device=device)  # of this rank's samples
piece = weight.view(4, 3)[rank]  # a view: 3 of the 12 numbers
piece.grad = torch.empty_like(piece)
reduce_scatter(piece.grad, gradient)
piece.grad /= 4
torch.optim.SGD([piece], lr=2.0).step()
all_gather(weight, piece.clone())
print(weight.int().tolist())

# %% [markdown] tags=["read"]
# The mean gradient is 1.5, and all 12 numbers went down by twice that. Yet each rank had an
# optimizer of 3. This is stage 1 of **ZeRO**, the zero redundancy optimizer. `Zero1Optimizer` does
# it for all parameters of a model, over any class of optimizer that looks at each number alone.

# %% tags=["run"]
# %%px
from ddp_lessons.sharded_optimizer import Zero1Optimizer
from ddp_lessons.trace import trace

first_stage = digits_model(seed=0, size="large").to(device)
zero1 = Zero1Optimizer(first_stage.parameters(), torch.optim.Adam)
with trace() as events:
    train_sharded(first_stage, zero1, batches[:1])
held["ZeRO-1"] = train_sharded(first_stage, zero1, batches[1:])
both = zip(first_stage.parameters(), plain.parameters(), strict=True)
off = max((one - other).abs().max().item() for one, other in both)
print(f"{held['ZeRO-1']['optimizer'] / (8 * num):.2%} of the state")
print("the model is off by more than 1e-4:", off > 1e-4)

# %% tags=["run"]
from ddp_lessons.costs import sent_bytes

for call in ranks.view["events"][0]:
    print(call.name, f"{call.input_bytes:,} to {call.output_bytes:,} bytes")
names = ("reduce_scatter", "all_gather", "all_reduce")
first, second, whole = (sent_bytes(name, "ring", 4, 1126412, 4)[0] for name in names)
print(f"{(first + second) / whole:g} times as many as an all-reduce")

# %% [markdown] tags=["read"]
# 1: a ring all-reduce **is** a reduce-scatter and an all-gather. ZeRO makes its step between the
# two halves. So each rank keeps 25.00% of the state, for no more bytes, and the model is that of
# DDP (float32 sums in another order differ in their last digits).
#
# The last layer's 10 biases are cut into 3, 3, 3 and 1. Pieces are padded in a message: 1,126,412
# numbers are sent for 1,126,410.

# %% tags=["check"]
assert ranks.view["weight.int().tolist()"] == [list(range(-3, 9))] * 4
assert max(ranks.view["off"]) < 1e-4  # Adam's three steps are of 1e-3 each
names = ["reduce_scatter_tensor", "all_gather_into_tensor"]
assert [call.name for call in ranks.view["events"][0]] == names
assert first + second == whole
ok("a quarter of the state, and no more bytes", times_an_all_reduce=1)

# %% [markdown] tags=["question"]
# ## What else need not be whole?

# %% [markdown] tags=["predict"]
# To make its step, a rank needs the mean gradient of its own pieces only. So stage 2 sends
# gradients off while backward goes on, and frees them: what is left are those of the pieces. Of
# model, gradients and Adam's state, how many bytes does one of 4 ranks then hold for each number of
# the model?

# %% tags=["predict"]
predict("bytes_at_stage_two", ...)

# %% tags=["run"]
# %%px
from ddp_lessons.sharded_optimizer import Zero2Optimizer

model = digits_model(seed=0, size="large").to(device)
optimizer = Zero2Optimizer(model.parameters(), torch.optim.Adam)
held["ZeRO-2"] = train_sharded(model, optimizer, batches)
print(f"{sum(held['ZeRO-2'].values()) / num:.0f} bytes for each number")

# %% tags=["picture"]
memory_picture([one["ZeRO-2"] for one in ranks.view["held"]])

# %% tags=["run"]
from ddp_lessons.sharded_optimizer import foretold_bytes

size = 7_500_000_000
for world_size in (1, 4, 64, 1024):
    foretold = foretold_bytes([size], world_size, stage=2)
    del foretold["received"]
    each = sum(foretold.values()) / size
    print(f"{world_size:4} ranks: {each:5.2f} bytes for each number")

# %% [markdown] tags=["read"]
# 7 bytes: 4 of the model, and a quarter of 12. With more ranks the rest melts away: on 1,024 ranks
# it is 0.01 of 4.01 bytes. What stays is the model, which forward needs whole on each rank. Lesson
# 15 cuts that, too, and pays for it in messages.
#
# But who accumulates gradients, as in lesson 07, takes stage 1. How often do two backwards send?

# %% tags=["run"]
# %%px
from torch.nn.functional import cross_entropy

num_sent = []
for network, sharded in ((first_stage, zero1), (model, optimizer)):
    with trace() as events:
        for images, labels in batches[:2]:
            cross_entropy(network(images), labels).backward()
    sharded.zero_grad()
    num_sent.append(len([event for event in events if event.is_communication]))
print(f"{num_sent[0]} messages at stage 1, {num_sent[1]} at stage 2")

# %% tags=["check"]
sizes = [65536, 1024, 1048576, 1024, 10240, 10]
right = foretold_bytes(sizes, 4, stage=2)
del right["received"]
assert ranks.view["held"][0]["ZeRO-2"] == right  # rank 0 has the most
assert ranks.view["num_sent"] == [[0, 2]] * 4
ok("only the model is whole", bytes_at_stage_two=round(sum(right.values()) / 1126410))

# %% [markdown] tags=["question"]
# ## Whose state is in a checkpoint?

# %% [markdown] tags=["predict"]
# `ZeroRedundancyOptimizer`, too, has a part of the state on each rank.
# `consolidate_state_dict(to=0)` sends all parts to rank 0, for its `state_dict()`. Adam has made 3
# steps, and counts them for each parameter. Rank 0 collects, all make a fourth step, and rank 0
# calls `state_dict()`. How many different counts are in that state?

# %% tags=["predict"]
predict("counts_in_one_state", ...)

# %% tags=["break"]
# %%px
zero.consolidate_state_dict(to=0)  # all ranks must call it
train_sharded(replica, zero, batches[:1])
if rank == 0:
    counts = [int(one["step"]) for one in zero.state_dict()["state"].values()]
    print(f"counts of steps: {counts}, {len(set(counts))} different ones")

# %% [markdown] tags=["read"]
# 2, and no error: rank 0's own part is new, and what it had collected is old. A run that resumes
# from it goes on from a state that never was.
#
# Ours needs no collecting. Each rank writes its pieces, with their place in the whole, and
# `Checkpoints` of lesson 08 does the rest. Four ranks save, then two load.

# %% tags=["mend"]
# %%px
import os
from ddp_lessons.checkpoint import Checkpoints, Run
from ddp_lessons.sharded_optimizer import whole_state

folder = os.environ["LESSON_FOLDER"]
Checkpoints(folder).save_sharded(Run(model, optimizer, step=3))
was = whole_state(optimizer)["state"][4]["exp_avg"].cpu()  # Adam's mean, last weight
piece = len(optimizer.pieces()[model[4].weight])
print(f"{piece} of its {was.numel()} numbers are mine")

# %% tags=["run"]
# %%capture
if len(ranks) == 4:
    was, saved = ranks.view["was"][0], ranks.view["piece"]
ranks = start_ranks(2)

# %% tags=["mend"]
# %%px
import os, torch
from ddp_lessons.checkpoint import Checkpoints, Run
from ddp_lessons.process_group import rank_device
from ddp_lessons.sharded_optimizer import Zero2Optimizer, whole_state
from ddp_lessons.workloads import digits_model

model = digits_model(seed=1, size="large").to(rank_device())
optimizer = Zero2Optimizer(model.parameters(), torch.optim.Adam)
Checkpoints(os.environ["LESSON_FOLDER"]).load(Run(model, optimizer), exact=False)
state = whole_state(optimizer)["state"]
now, counts = state[4]["exp_avg"].cpu(), [int(one["step"]) for one in state.values()]
piece = len(optimizer.pieces()[model[4].weight])
print(f"counts of steps: {counts}; {piece} numbers are mine")

# %% tags=["picture"]
name = "mean of the last weight"
both = [[{name: num} for num in nums] for nums in (saved, ranks.view["piece"])]
shards_picture({name: was.numel()}, *map(slices_from_rows, both))

# %% tags=["check"]
assert saved == [2560] * 4
assert ranks.view["piece"] == [5120] * 2
assert all(now.equal(was) for now in ranks.view["now"])
assert ranks.view["counts"] == [[3] * 6] * 2
ok("saved by 4 ranks, loaded by 2, each number the same", counts_in_one_state=2)

# %% [markdown] tags=["question"]
# ## More: can the gather hide behind the next forward?

# %% [markdown] tags=["predict"]
# The first layer needs its parameters first, and the last layer much later. So
# `OverlappedOptimizer` starts to gather bucket by bucket, the first layer's first, and leaves the
# waiting to the layers. Here each of the model's 6 parameters is a bucket. For how many of the 6
# has nobody waited yet when `step` returns?

# %% tags=["predict"]
predict("under_way_after_step", ...)

# %% tags=["run"]
# %%px
from ddp_lessons.sharded_optimizer import OverlappedOptimizer

model = digits_model(seed=0, size="large").to(rank_device())
optimizer = OverlappedOptimizer(model, torch.optim.Adam, bucket_cap_bytes=1)
images = torch.ones(8, 64, device=rank_device())
model(images).square().mean().backward()
optimizer.step()
under_way, hidden = [optimizer.num_under_way], images
for layer in model:
    hidden = layer(hidden)
    under_way.append(optimizer.num_under_way)
print("after step, and after each layer:", under_way)

# %% [markdown] tags=["read"]
# 6: all are under way when `step` returns. Each layer with parameters, one in two here, waits for
# its two. What is still under way comes in while the layers before compute.

# %% tags=["check"]
assert ranks.view["under_way"] == [[6, 4, 4, 2, 2, 0]] * 2
ok("each layer waits for its own", under_way_after_step=6)

# %% [markdown] tags=["question"]
# ## More: may every optimizer be cut?

# %% [markdown] tags=["predict"]
# Adafactor saves memory: for a matrix it keeps a number for each row and one for each column, and
# steps by these. How many numbers does it keep for the largest weight, of 1,024 rows and 1,024
# columns?

# %% tags=["predict"]
predict("numbers_of_adafactor", ...)

# %% tags=["break", "raises-exception"]
# %%px
from ddp_lessons.sharded_optimizer import Zero1Optimizer

model = digits_model(seed=0, size="large").to(rank_device())
optimizer = Zero1Optimizer(model.parameters(), torch.optim.Adafactor)

# %% tags=["mend"]
# %%px
from ddp_lessons.sharded_optimizer import OwnerOptimizer

optimizer = OwnerOptimizer(model.parameters(), torch.optim.Adafactor)
model(images).square().mean().backward()
optimizer.step()
weight = model[2].weight
noted = optimizer.state[weight].values() if weight in optimizer.state else ()
num_kept = sum(one.numel() for one in noted if one.dim())
print(f"{num_kept} numbers are kept here for {weight.numel()}")

# %% [markdown] tags=["read"]
# 2048: the rows and the columns. A piece is a vector, and has neither: on pieces Adafactor would make
# other steps, so `Zero1Optimizer` refuses it. Owners have whole parameters.

# %% tags=["check"]
assert ranks.view["num_kept"] == [2048, 0]  # rank 0 owns it
ok("what looks at whole matrices gets them", numbers_of_adafactor=2048)

# %% [markdown] tags=["recap"]
# You have counted what a rank holds, shared out the optimizer's state and the gradients for the
# bytes of an all-reduce, and saved on four ranks what two have loaded.
#
# Rule of thumb: **what all ranks would keep alike, each keeps a part of; what all compute alike,
# each computes a part of.**

# %% [markdown] tags=["next"]
# - **Exercise** [13](../exercises/13_sharded_optimizer.ipynb): an even partition, a sharded
#   optimizer for any class, its state on other ranks, bytes foretold. After the exercise:
#   [zero1.py](../ddp_lessons/sharded_optimizer/zero1.py).
# - **On your own cluster**: in a script under DDP, replace the optimizer by `optimizer =
#   ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)` from
#   `torch.distributed.optim`. Or leave DDP away, and take our `Zero1Optimizer` with the same
#   arguments. Then type `torchrun --nproc-per-node 8 train.py` as before. On GPUs, NCCL sends in
#   rings as counted here. Gloo makes its reduce-scatter of an all-reduce, and sends more.
# - **Next lesson** [14](14_asynchronous.ipynb): what if nobody waits?
# - **Sources**: S. Rajbhandari et al., [ZeRO](https://arxiv.org/abs/1910.02054), SC 2020, section 5
#   and figure 1; PyTorch's page on
#   [distributed optimizers](https://docs.pytorch.org/docs/stable/distributed.optim.html).

# %% tags=["teardown"]
ranks.stop()
