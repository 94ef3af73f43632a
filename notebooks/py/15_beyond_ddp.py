# %% [markdown] tags=["title"]
# # What if the model does not fit?
#
# 15 minutes, 4 ranks. It builds on [03_ring](03_ring.ipynb), on [06_ddp](06_ddp.ipynb) and on
# [13_sharded_optimizer](13_sharded_optimizer.ipynb), which leaves one thing whole.

# %% [markdown] tags=["goal"]
# When you are through, you can
#
# - **cut** a model's parameters over the ranks, and have each layer whole only while it computes;
# - **split** matrices and layers themselves, and count what is sent and who is idle;
# - **choose** which ranks do which.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.pictures import memory_picture

ranks = start_ranks(4)

# %% [markdown] tags=["question"]
# ## What can still be cut?

# %% [markdown] tags=["predict"]
# Under DDP with Adam a rank holds 16 bytes for each number of a model: 4 are the number itself, 4
# its gradient, 8 Adam's. ZeRO stage 2 left 7 of them on 4 ranks. Now parameters are cut too. How
# many bytes for each number does a rank hold between two steps?

# %% tags=["predict"]
predict("bytes_when_all_is_cut", ...)

# %% tags=["run"]
# %%px
import torch, torch.distributed as dist
from ddp_lessons.beyond_ddp.fsdp import FullySharded, example
from ddp_lessons.process_group import rank_device
from ddp_lessons.workloads import digits_batch, load_digits

rank, world_size, device = dist.get_rank(), dist.get_world_size(), rank_device()
digits = load_digits().to(device)
batches = [digits_batch(digits, 32, rank=rank, step=step) for step in range(3)]
images, labels = batches[0]
held = {way: example.train(*example.make(way), batches) for way in example.WAYS}
num = sum(p.numel() for p in example.deep_model().parameters())
used = dict(held["FSDP"])
at_most = used.pop("gathered") / num
print(f"FSDP: {sum(used.values()) / num:.1f} bytes, and {at_most:.1f} gathered at most")

# %% tags=["picture"]
used = ranks.view["held"][0]
memory_picture({way: used[way] for way in ("DDP", "ZeRO-1", "ZeRO-2", "FSDP")})

# %% [markdown] tags=["read"]
# 4 bytes: a quarter of 16. This is **fully sharded data parallel**, FSDP, or ZeRO stage 3. A layer
# cannot compute with a quarter of its weights. So they are *gathered* before it computes, and freed
# after. Two of our ten layers are there at most, 1.0 byte for each number of the model: one
# computes, the next is under way.
#
# [Claim C13](claims.md) had it that DDP splits the model. It does not; this does.

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
from torch import nn
from torch.nn.functional import cross_entropy
from ddp_lessons.trace import trace

layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
model = FullySharded(layers)
with trace() as events:
    loss = cross_entropy(model(images), labels)
    between = model.gathered_bytes
    loss.backward()
if rank == 0:
    for call in events:
        where = "forward " if call.backward is None else "backward"
        print(where, call.name, call.input_bytes, "to", call.output_bytes)
    print(f"{between} bytes were gathered between forward and backward")

# %% tags=["run"]
from ddp_lessons.beyond_ddp.fsdp import foretold_sent_bytes
from ddp_lessons.costs import sent_bytes

sent = sum(foretold_sent_bytes([2080, 330], world_size=4).values())
of_ddp = sent_bytes("all_reduce", "ring", 4, 2412, 4)[0]  # 2410 numbers, padded
print(f"{sent / of_ddp:g} times the bytes of DDP")

# %% [markdown] tags=["read"]
# 1.5 times: three messages where DDP's ring has two. In backward the second layer comes back
# first. The first layer is asked for **before** the second one's gradients leave: so it
# is under way while the second computes.
#
# Between forward and backward 0 bytes are gathered. A rank has its pieces, and the activations.

# %% tags=["check"]
gather, reduce = "all_gather_into_tensor", "reduce_scatter_tensor"
right = [gather, gather, gather, gather, reduce, reduce]
for calls in ranks.view["events"]:
    assert [call.name for call in calls] == right
    inside = [call.output_bytes for call in calls if call.backward is not None]
    assert inside[:2] == [4 * 332, 4 * 2080]  # padded to a multiple of 4
assert ranks.view["between"] == [0] * 4
ok("two gathers and a reduce-scatter a layer", times_the_bytes_of_ddp=sent / of_ddp)

# %% [markdown] tags=["question"]
# ## Which parameters does an optimizer know?

# %% [markdown] tags=["predict"]
# torch's own is `fully_shard(layer)` for each layer, and then for the model. It changes the model
# in place: each parameter makes room for a new one, a DTensor, that holds a rank's rows. A script
# makes its optimizer as always, right after the model. Then it shards, and trains for three steps.
# How many of the 2,410 numbers move?

# %% tags=["predict"]
predict("moved_by_three_steps", ...)

# %% tags=["break"]
# %%px
from torch.distributed.fsdp import fully_shard


def whole():
    return torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])


model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
adam = torch.optim.Adam(model.parameters())
for part in (model[0], model[2], model):
    fully_shard(part)
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
# more and which get no gradient. So: shard first, then make the optimizer. It is the same with ours.

# %% tags=["check"]
assert ranks.view["num_moved"] == [0] * 4
assert min(ranks.view["num_mended"]) > 1500  # some pixels are blank in every digit
ok("shard first, then make the optimizer", moved_by_three_steps=0)

# %% [markdown] tags=["question"]
# ## More: what if ranks begin apart?

# %% [markdown] tags=["predict"]
# DDP sends rank 0's parameters to all ranks when it is made. Here a layer's weight has four rows of
# one number: on rank 0 all are 0, on rank 1 all are 1, on rank 2 all are 2, on rank 3 all are 3.
# `fully_shard` keeps one row on each rank, and sends nothing. What is the sum of the four rows
# then?

# %% tags=["predict"]
predict("sum_of_a_patchwork", ...)

# %% tags=["break"]
# %%px
layer = nn.Linear(1, 4, bias=False).to(device)
nn.init.constant_(layer.weight, rank)
rows = fully_shard(layer).weight.full_tensor().flatten()
print(f"{rows.int().tolist()}, sum {rows.sum():.0f}")

# %% tags=["mend"]
# %%px
from ddp_lessons.beyond_ddp.fsdp import full_state_dict

layer = nn.Linear(1, 4, bias=False).to(device)
nn.init.constant_(layer.weight, rank)
mended = full_state_dict(FullySharded(layer))["weight"].flatten()
print(mended.int().tolist())

# %% [markdown] tags=["read"]
# 6: a patchwork, of which no rank had more than a row. Nothing is sent when torch shards, as a
# model that does not fit is on no rank whole. So give all ranks one seed, or load a checkpoint.
# Ours sends rank 0's, as DDP does.

# %% tags=["check"]
assert ranks.view["rows.int().tolist()"] == [[0, 1, 2, 3]] * 4
assert ranks.view["mended.int().tolist()"] == [[0, 0, 0, 0]] * 4
ok("equal seeds, or a checkpoint", sum_of_a_patchwork=6)

# %% [markdown] tags=["question"]
# ## More: in which precision is a step made?

# %% [markdown] tags=["predict"]
# Layers may compute in bfloat16, of 2 bytes, while the shards stay float32, of 4. Then gathers carry
# 2 bytes for each number. Gradients are to be added up in float32. In bytes: how many times as much
# as before does FSDP send?

# %% tags=["predict"]
predict("times_in_low_precision", ...)

# %% tags=["run"]
# %%px
low = {"compute_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
mixed = FullySharded(example.deep_model(), **low)
with trace() as in_low:
    cross_entropy(mixed(images).float(), labels).backward()
dtypes = {call.name: call.dtype for call in in_low}
print(dtypes, "shards", mixed.shards[0].dtype)

# %% tags=["run"]
low = sum(foretold_sent_bytes(sizes, 4, element_bytes=2, reduce_bytes=4).values())
times = low / sum(foretold_sent_bytes(sizes, 4).values())
print(f"{times:.3f} times as much")

# %% [markdown] tags=["read"]
# 0.667: two halves and a whole, of three. The optimizer's step is made in float32: in bfloat16,
# which has three digits, many a step would be too small to change a weight at all.

# %% tags=["check"]
right = {gather: "bfloat16", reduce: "float32"}
assert ranks.view["dtypes"] == [right] * 4
ok("low on the wire, float32 where it is kept", times_in_low_precision=round(times, 3))

# %% [markdown] tags=["recap"]
# You have cut all that a rank holds, and gathered it layer by layer.
#
# Rule of thumb: **shard when the state does not fit.**

# %% [markdown] tags=["next"]
# - **Exercise** [15](../exercises/15_beyond_ddp.ipynb). After the exercise:
#   [fully_sharded.py](../ddp_lessons/beyond_ddp/fsdp/fully_sharded.py).
# - **On your own cluster**: in a script that trains one model on one GPU, type `for block in
#   model.blocks: fully_shard(block)`, then `fully_shard(model)`, then make the optimizer, and
#   start it with `torchrun --nproc-per-node 8 train.py`.
# - **Sources**: Y. Zhao and others, [PyTorch FSDP](https://arxiv.org/abs/2304.11277), VLDB 2023,
#   section 3; PyTorch's page on
#   [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html).

# %% tags=["teardown"]
ranks.stop()
