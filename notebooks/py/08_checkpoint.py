# %% [markdown] tags=["title"]
# # What must be saved so that nothing is lost?
#
# 30 minutes, 4 ranks. Near its end 2 ranks take over. It builds on [06_ddp](06_ddp.ipynb), for the
# buckets of DDP, and on the shuffles of [04_samplers](04_samplers.ipynb).

# %% [markdown] tags=["goal"]
# When you are through, you can
#
# - **save** so that neither another rank nor a kill spoils the file;
# - **resume** a run, and find out what a checkpoint must hold for that;
# - **load** with 2 ranks what 4 have saved, and refuse what is damaged or hostile.

# %% tags=["setup", "nbval-ignore-output"]
import os, tempfile
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.pictures import shards_picture, slices_from_rows

folder = globals().get("folder") or tempfile.TemporaryDirectory()
os.environ["LESSON_FOLDER"] = folder.name  # ranks inherit it, later ones too
ranks = start_ranks(4)

# %% [markdown] tags=["question"]
# ## May every rank save its state?

# %% [markdown] tags=["predict"]
# `torch.save`, says a guide. So each of four ranks saves the state of its random numbers as
# `run.pt`; they take turns. Then each loads it. How many get their own state back?

# %% tags=["predict"]
predict("ranks_with_their_own_state", ...)

# %% tags=["run"]
# %%px
import os, torch, torch.distributed as dist
from pathlib import Path

rank, world_size = dist.get_rank(), dist.get_world_size()
folder = Path(os.environ["LESSON_FOLDER"])
torch.manual_seed(rank)
mine = torch.get_rng_state()
for turn in range(world_size):
    if turn == rank:
        torch.save(mine, folder / "run.pt")
    dist.barrier()
found = [None] * world_size
dist.all_gather_object(found, torch.equal(torch.load(folder / "run.pt"), mine))
print(f"{sum(found)} of {world_size} have their own")

# %% tags=["mend"]
# %%px
everyone = [None] * world_size if rank == 0 else None
dist.gather_object(mine, everyone)
if rank == 0:
    torch.save(everyone, folder / "run.pt")
dist.barrier()  # nobody reads before it is written
back = torch.load(folder / "run.pt")[rank]
print("mine is back:", torch.equal(back, mine))

# %% [markdown] tags=["read"]
# Only 1, the last: each save wiped what was there.
#
# So gather what differs between ranks, let one rank write, and let the others wait in a barrier.
# What is equal on all needs no gathering. A file from which a run can go on
# is a **checkpoint**.

# %% tags=["check"]
assert all(found == [False, False, False, True] for found in ranks.view["found"])
for back, mine in zip(ranks.view["back"], ranks.view["mine"], strict=True):
    assert back.equal(mine)
ok("one rank writes, and all 4 states are in the file", ranks_with_their_own_state=1)

# %% [markdown] tags=["question"]
# ## What is left when a save is killed?

# %% [markdown] tags=["predict"]
# Rank 0 saves over `run.pt`, and is killed halfway. How many bytes of the old file are left? (Rank 1
# does the same to `atomic.pt`, with our `write_state`.)

# %% tags=["predict"]
predict("bytes_left_by_a_kill", ...)


# %% tags=["break", "raises-exception", "nbval-ignore-output"]
# %%px
from ddp_lessons.checkpoint.atomic import write_state
from ddp_lessons.checkpoint.example import KillsWhenSaved

if rank == 1:
    write_state(torch.get_rng_state(), folder / "atomic.pt")
dist.barrier()
if rank == 0:
    torch.save([1, 2, KillsWhenSaved()], folder / "run.pt")
if rank == 1:
    write_state([1, 2, KillsWhenSaved()], folder / "atomic.pt")
dist.barrier()

# %% tags=["mend"]
# %%px
import os, torch, torch.distributed as dist
from pathlib import Path
from ddp_lessons.checkpoint import CheckpointRefused, load, save

rank, folder = dist.get_rank(), Path(os.environ["LESSON_FOLDER"])
state = load(folder / "atomic.pt")
size = (folder / "run.pt").stat().st_size
print(f"run.pt: {size} bytes. atomic.pt: {state.numel():,} numbers")

# %% [markdown] tags=["read"]
# `torch.save` opens the file for writing first, and that empties it: 0 bytes, old state and new one
# both gone. In `atomic.pt` all 5,056 numbers are there.
#
# An **atomic** act is done wholly or not at all. Renaming a file is. So write under another name,
# then rename. A power cut takes more than a kill: what the system has not yet put on the disk. So
# `write_state` calls `fsync`, which waits for the disk, before it renames.

# %% tags=["check"]
assert set(ranks.view["size"]) == {0}
assert all(state.equal(ranks.view["state"][0]) for state in ranks.view["state"])
ok("an atomic save leaves the old file or the new one", bytes_left_by_a_kill=0)

# %% [markdown] tags=["question"]
# ## Can you trust a file that loads?

# %% [markdown] tags=["predict"]
# A file holds 1,000 weights, all 1.0. One bit of it flips on the disk, and `torch.load` reads it. How
# many wrong weights does it hand out?

# %% tags=["predict"]
predict("wrong_weights_from_a_bit", ...)


# %% tags=["break"]
# %%px
from ddp_lessons.checkpoint.example import flip_bit
from pickle import UnpicklingError


class Stranger:
    def __reduce__(self):
        return print, ("this line came with the weights",)


weights = torch.ones(1000)
save(weights, folder / "damaged.pt")
if rank == 0:
    flip_bit(folder / "damaged.pt", weights)
    torch.save(Stranger(), folder / "stranger.pt")
dist.barrier()
damaged = torch.load(folder / "damaged.pt")["state"]
print("wrong weights:", (damaged != 1).sum().item(), "as in", damaged[:3].tolist())
torch.load(folder / "stranger.pt", weights_only=False)

# %% tags=["mend"]
# %%px
refusals = []
for read, name in ((load, "damaged"), (load, "stranger"), (torch.load, "stranger")):
    try:
        read(folder / f"{name}.pt")
    except (CheckpointRefused, UnpicklingError) as error:
        refusals.append(str(error).split(" This file")[0])  # torch's is long
if rank == 0:
    print(*refusals, sep="\n")

# %% [markdown] tags=["read"]
# It hands out 1, and no error: the weight came back infinite. The file has checksums, and
# `torch.load` does not look. Our `load` compares them.
#
# The second file came from a stranger. It is a **pickle**, a small program that builds objects, and
# with `weights_only=False` `torch.load` ran it. By default it refuses: see the last line. So
# [claim C20](claims.md), save with `torch.save` and load with `torch.load`, is **half true**: four
# ranks, a kill or one bit spoil it.

# %% tags=["check"]
for damaged in ranks.view["damaged"]:
    assert damaged[0] == float("inf")
    assert (damaged[1:] == 1).all()
for refusals in ranks.view["refusals"]:
    assert "damaged" in refusals[0]
    assert "code: builtins.print" in refusals[1]
ok("C20 is half true, one flipped bit is enough", wrong_weights_from_a_bit=1)

# %% [markdown] tags=["question"]
# ## What is a run made of?

# %% [markdown] tags=["predict"]
# A run makes 12 steps, with momentum, a falling rate, a shuffle, and noise on the images. It is saved
# after step 6, all of it. Rank 2 is killed after step 9, and four ranks go on from the checkpoint. How
# many of the 4,810 weights differ in the end from those of a run that nobody stopped?

# %% tags=["predict"]
predict("weights_off_after_a_kill", ...)

# %% tags=["run"]
# %%px
from ddp_lessons.checkpoint import capture, restore
from ddp_lessons.workloads.runs import digits_run, forget, train, weights_of

state = capture(digits_run()[0])
print(len(state), "parts:", *state, "- of each rank:", *state["ranks"][0])

# %% tags=["run"]
# %%px
run, data = digits_run()
train(run, *data, 6)
save(capture(run), folder / "halfway.pt")
train(run, *data, 6)
save(weights_of(run), folder / "right.pt")

# %% tags=["break"]
# %%px
right, num_off = load(folder / "right.pt"), {}
for part in ("optimizer", "scheduler", "sampler", "rng", "idle pass", "nothing"):
    run, data = digits_run(idle_pass=part != "idle pass")
    restore(run, forget(load(folder / "halfway.pt"), capture(run), part))
    train(run, *data, 6)
    num_off[part] = (weights_of(run) != right).sum().item()
    if rank == 0:
        print(f"{part} forgotten, weights differ: {num_off[part] > 0}")

# %% [markdown] tags=["read"]
# `capture` returns 7 parts. `ranks` has what is each rank's own: its random numbers (`rng`) and its
# place in the shuffle (`sampler`). Whoever forgets one of the four
# tried here gets other weights, and no error.
#
# The idle pass is no part. DDP orders its buckets anew after the first backward, so the ranks'
# numbers are added in another order. A pass before the run gets that over with.

# %% tags=["break", "raises-exception", "nbval-ignore-output"]
# %%px
restore(run, load(folder / "halfway.pt"))
train(run, *data, 3 if rank == 2 else 6)
if rank == 2:
    os.kill(os.getpid(), 9)

# %% tags=["mend"]
# %%px
import os, torch, torch.distributed as dist
from pathlib import Path
from ddp_lessons.checkpoint import load, restore
from ddp_lessons.workloads.runs import digits_run, train, weights_of

rank, folder = dist.get_rank(), Path(os.environ["LESSON_FOLDER"])
run, data = digits_run()
restore(run, load(folder / "halfway.pt"))
train(run, *data, 6)
num_wrong = (weights_of(run) != load(folder / "right.pt")).sum().item()
print(f"step {run.step}: {num_wrong} weights differ")

# %% [markdown] tags=["read"]
# 0 weights differ, to the last bit, though a rank was killed and a newborn took its place. Every
# rank went back to step 6: what came after it is lost, and made again. So [claim C21](claims.md),
# checkpoints let training resume, is **half true**: all that moves the run must be in it.

# %% tags=["check"]
assert set(ranks.view["num_wrong"]) == {0}
assert ranks.view["run.step"] == [12] * 4
for num_off in ranks.view.pull("num_off", targets=[0, 1, 3], block=True):
    same = {part for part, num in num_off.items() if num == 0}
    assert same - {"idle pass"} == {"nothing"}  # on GPUs that pass may do nothing
ok("C21 is half true, with everything saved no bit differs", weights_off_after_a_kill=0)

# %% [markdown] tags=["question"]
# ## Can two ranks load what four have saved?

# %% [markdown] tags=["predict"]
# `fully_shard` is for models too large for one rank. It splits the rows of each parameter over w
# ranks: each gets rows / w, rounded up, as far as they last. Its part is a **shard**. The last
# layer has 10 rows. How many does rank 3 of four save?

# %% tags=["predict"]
predict("rows_of_rank_three", ...)

# %% tags=["run"]
# %%px
from torch.distributed.fsdp import fully_shard
from ddp_lessons.checkpoint import Checkpoints, Run
from ddp_lessons.process_group import rank_device
from ddp_lessons.workloads import digits_model

model = fully_shard(digits_model(seed=0).to(rank_device()))
optimizer = torch.optim.AdamW(model.parameters())
torch.nn.functional.cross_entropy(model(data[0]), data[1]).backward()
optimizer.step()
Checkpoints(folder / "sharded").save_sharded(Run(model, optimizer, step=1))
rows = {name: len(p.to_local()) for name, p in model.named_parameters()}
model.unshard()  # gathers all rows on every rank
whole = {name: p.detach().cpu() for name, p in model.named_parameters()}
files = sorted(path.name for path in (folder / "sharded").glob("*/*.distcp"))
print(f"{rows['2.weight']} rows of the last layer are mine, in {files[rank]}")

# %% tags=["run"]
# %%capture
if len(ranks) == 4:
    saved, was = ranks.view["rows"], ranks.view["whole"][0]
ranks = start_ranks(2)

# %% tags=["run"]
# %%px
import os, torch
from pathlib import Path
from torch.distributed.fsdp import fully_shard
from ddp_lessons.checkpoint import Checkpoints, Run
from ddp_lessons.process_group import rank_device
from ddp_lessons.workloads import digits_model

model = fully_shard(digits_model(seed=1).to(rank_device()))
run = Run(model, torch.optim.AdamW(model.parameters()))
folder = Path(os.environ["LESSON_FOLDER"])
choice = Checkpoints(folder / "sharded").load(run, exact=False)
rows = {name: len(p.to_local()) for name, p in model.named_parameters()}
model.unshard()  # gathers all rows on every rank
whole = {name: p.detach().cpu() for name, p in model.named_parameters()}
print(f"step {choice.step}: {rows['2.weight']} rows of the last layer are mine")


# %% tags=["picture"]
sizes = {name: len(tensor) for name, tensor in was.items()}
loaded = slices_from_rows(ranks.view["rows"])
shards_picture(sizes, slices_from_rows(saved), loaded)

# %% [markdown] tags=["read"]
# Ranks 0 to 2 saved 3 rows each, rank 3 one; now two ranks have 5 each. Each rank wrote its own
# file. A table says which rows are where, so each rank reads only what it needs. That is torch's
# **DCP**, distributed checkpoint.
#
# `exact=False`: the random numbers of four ranks do not fit two, so this run does not go on bit for
# bit.

# %% tags=["check"]
for whole in ranks.view["whole"]:
    assert all(whole[name].equal(was[name]) for name in was)
assert [rows["2.weight"] for rows in saved] == [3, 3, 3, 1]
assert ranks.view["rows['2.weight']"] == [5, 5]
ok("saved by 4 ranks, loaded by 2, every weight the same", rows_of_rank_three=1)

# %% [markdown] tags=["question"]
# ## More: must training wait for a save?

# %% [markdown] tags=["predict"]
# `save_async` returns early, and the file is written while training goes on. A weight
# is 4 at the call, and 5 when the file is done. Which of the two is in the file?

# %% tags=["predict"]
predict("weight_in_the_file", ...)

# %% tags=["run"]
# %%px
import time

big = torch.nn.Linear(2048, 2048).to(rank_device())
torch.nn.init.zeros_(big.weight)
run = Run(big, torch.optim.SGD(big.parameters(), lr=0.1))
saves, shares = Checkpoints(folder / "async"), []
for run.step in range(1, 6):  # each turn sets `run.step`
    start = time.perf_counter()
    saves.save_async(run)
    stall = time.perf_counter() - start
    big.weight.data += 1  # training goes on
    saves.wait()
    shares.append(stall / (time.perf_counter() - start))
print(f"step {saves.load(run).step}: weight {big.weight.mean().item():.0f}")
saves.close()  # it had a group of its own

# %% tags=["run"]
best = max(min(shares) for shares in ranks.view["shares"])
print("training waited for less than 3/4 of a save:", best < 3 / 4)

# %% [markdown] tags=["read"]
# The file has 4, the weight of the call: what is written is the copy. Training waited for that copy,
# and for the ranks to agree on the folder. Writing, the wait for the disk and the checksums went on
# beside it. `shares` holds what part it was here.
#
# The price is memory for a copy, and `wait`, which returns when the file is there.

# %% tags=["check"]
assert best < 3 / 4
assert all((weight == 4).all() for weight in ranks.view["big.weight.detach()[0].cpu()"])
ok("the file is that of the call, and training waited for a part", weight_in_the_file=4)

# %% [markdown] tags=["recap"]
# You have saved so that a kill spoils nothing, resumed a run after losing a rank without losing a
# bit, and loaded with 2 ranks what 4 had saved.
#
# Rule of thumb: **a checkpoint is good when you have resumed from it, and compared.**

# %% [markdown] tags=["next"]
# - **Exercise** [08](../exercises/08_checkpoint.ipynb): an atomic save, capture and restore, a
#   resume within an epoch, shards for other ranks, and the capstone of part 1. After the exercise:
#   [atomic.py](../ddp_lessons/checkpoint/atomic.py), and the run of this lesson,
#   [example.py](../ddp_lessons/checkpoint/example.py).
# - **Next lesson** [09](09_launch.ipynb): how does a cell become a job?
# - **Sources**: T. Pillai and others, [All File Systems Are Not Created
#   Equal](https://www.usenix.org/conference/osdi14/technical-sessions/presentation/pillai), OSDI
#   2014, on what a crash leaves of a file; PyTorch's documentation of
#   [`torch.distributed.checkpoint`](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html);
#   PyTorch's recipe [Asynchronous Saving with
#   DCP](https://docs.pytorch.org/tutorials/recipes/distributed_async_checkpoint_recipe.html).

# %% tags=["teardown"]
ranks.stop()  # the folder goes with the kernel
