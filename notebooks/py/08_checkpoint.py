# %% [markdown] tags=["title"] minutes=[39, 43]
# # What must be saved so that nothing is lost?
#
# 45 minutes, 4 ranks. In a part headed "More", 2 ranks load what 4 have saved. This lesson builds on
# [00_ranks](00_ranks.ipynb), where a rank was killed, on the shuffle of [04_samplers](04_samplers.ipynb),
# and on [06_ddp](06_ddp.ipynb).

# %% [markdown] tags=["why"]
# A job of many days loses a GPU, a node or its time limit before it is finished. On 16,384 GPUs,
# Meta's training of Llama 3 was interrupted about every three hours. A job continues from a
# **checkpoint**: a file, or a folder, from which a run can go on.
#
# A killed save can destroy the only copy. With several ranks, a file can also lack some ranks' state.
# A run that resumes from an incomplete checkpoint trains on, differently, without an error.

# %% [markdown] tags=["goal"]
# After this lesson you can
#
# - **save** a run of several ranks in plain torch, and load it with or without DDP;
# - **write** a file so that a kill at any moment leaves the old version or the new one;
# - **resume** a run bit for bit, and find out what a checkpoint has forgotten.

# %% tags=["setup", "nbval-ignore-output"]
import os, tempfile
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.pictures import shards_picture, slices_from_rows

temporary = globals().get("temporary") or tempfile.TemporaryDirectory()
os.environ["LESSON_FOLDER"] = temporary.name  # all ranks get this variable
ranks = start_ranks(4)

# %% [markdown] tags=["question"]
# ## Which parts of a run differ between ranks?

# %% [markdown] tags=["explain"]
# A checkpoint must hold all that the next step depends on. The method `state_dict()` of an object
# returns its state as a dictionary of tensors and numbers, and `load_state_dict` puts such a
# dictionary back.
#
# | entry | what is in it |
# | --- | --- |
# | `model.state_dict()` | weights and buffers |
# | `optimizer.state_dict()` | momentum or Adam's averages, and the learning rate |
# | `scheduler.state_dict()` | the schedule's own count of steps |
# | `sampler.state_dict()` | the place in the shuffle (our sampler of lesson 04; torch's has no such method) |
# | `epoch`, `step` | the numbers that the loop counts |
# | `torch.get_rng_state()` | the state of torch's random number generator |
#
# Other runs have more: a `GradScaler`, the generators of Python, NumPy and the GPU, or a loader whose
# workers have read batches that are not trained on yet.
#
# Below each rank makes three steps with DDP, and adds random noise to its images.

# %% tags=["run"]
# %%px
import io
import os
from itertools import islice
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler
from ddp_lessons.process_group import rank_device
from ddp_lessons.samplers import ResumableSampler
from ddp_lessons.workloads import digits_model, load_digits

rank, world_size, device = dist.get_rank(), dist.get_world_size(), rank_device()
folder = Path(os.environ["LESSON_FOLDER"])  # a disk that all ranks share
digits = load_digits().to(device)
images, labels = digits.train_images, digits.train_labels


# %% tags=["run"]
# %%px
def new_objects():
    """Return objects as they are before the first step."""
    model = DDP(digits_model(seed=0).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.5)
    sampler = ResumableSampler(range(len(images)), rank=rank, world_size=world_size)
    return model, optimizer, scheduler, sampler


torch.manual_seed(rank)
model, optimizer, scheduler, sampler = new_objects()
epoch, step = 0, 0

# %% tags=["run"]
# %%px
sampler.set_epoch(epoch)
for batch in islice(BatchSampler(sampler, 16, drop_last=True), 3):
    noise = 0.1 * torch.randn(16, 64)  # drawn on the CPU
    loss = cross_entropy(model(images[batch] + noise.to(device)), labels[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    step += 1

# %% tags=["run"]
# %%px
state = {
    "model": model.module.state_dict(),  # of the model inside of DDP
    "optimizer": optimizer.state_dict(),
    "scheduler": scheduler.state_dict(),
    "sampler": sampler.state_dict(),
    "epoch": epoch,
    "step": step,
    "rng": torch.get_rng_state(),
}

# %% [markdown] tags=["predict"]
# Each rank has made this dictionary from its own objects. For each entry: what changed it in the three
# steps, and did all ranks get the same change? How many of the seven entries differ between the four
# ranks?

# %% tags=["predict"]
predict("entries_that_differ", ...)

# %% [markdown] tags=["explain"]
# To compare, each rank saves its dictionary into its own file, and loads all four.
# `map_location="cpu"` puts all tensors into main memory. `weights_only=True`, the default since torch
# 2.6, refuses all but tensors and plain values. Two entries are equal if `torch.save` makes the same
# bytes of them. (Different bytes would need a closer look: equal values can be stored in different
# ways.)


# %% tags=["run"]
# %%px
def bytes_of(entry):
    buffer = io.BytesIO()
    torch.save(entry, buffer)
    return buffer.getvalue()


torch.save(state, folder / f"rank-{rank}.pt")
dist.barrier()  # all four files are complete
files = [folder / f"rank-{r}.pt" for r in range(world_size)]
states = [torch.load(file, map_location="cpu", weights_only=True) for file in files]
num_versions = {name: len({bytes_of(s[name]) for s in states}) for name in state}
if rank == 0:
    print(f"different versions on {world_size} ranks:")
    for name, number in num_versions.items():
        print(f"  {name}: {number}")

# %% [markdown] tags=["read"]
# Only 1 of the seven entries differs: the random number generator. DDP gave all ranks the same
# gradients, so weights and momentum are equal. The ranks saw different samples, but our sampler's
# state is the epoch and the number of samples that it handed out, and this number is equal. (With
# BatchNorm, `model` would have 4 versions, because each rank's running statistics follow its own
# samples. Then save rank 0's, which DDP copies to all ranks before the next forward.)
#
# So the checkpoint needs all four generators. The ranks exchange what differs, and rank 0 writes one file
# for all. The other ranks wait in a barrier, because a file that is not yet complete cannot be read. (The
# last section headed "More" shows what becomes of a file that all ranks write.)

# %% tags=["run"]
# %%px
rng_of_rank = [None] * world_size
dist.all_gather_object(rng_of_rank, torch.get_rng_state())
state = {**state, "rng": rng_of_rank}
if rank == 0:
    torch.save(state, folder / "run.pt")
dist.barrier()  # no rank reads before the file is complete

# %% [markdown] tags=["read"]
# A resumed run is a new process with new objects. Every rank reads the file, and takes its own
# generator's state:

# %% tags=["run"]
# %%px
model, optimizer, scheduler, sampler = new_objects()
epoch, step = 0, 0
loaded = torch.load(folder / "run.pt", map_location="cpu", weights_only=True)


def report(when):
    is_saved = torch.equal(model.module[0].bias.cpu(), loaded["model"]["0.bias"])
    if rank == 0:
        print(f"{when}: step {step}, the first bias is the saved one: {is_saved}")


report("before")
model.module.load_state_dict(loaded["model"])
optimizer.load_state_dict(loaded["optimizer"])
scheduler.load_state_dict(loaded["scheduler"])
sampler.load_state_dict(loaded["sampler"])
epoch, step = loaded["epoch"], loaded["step"]
torch.set_rng_state(loaded["rng"][rank])
report("after")

# %% [markdown] tags=["read"]
# `load_state_dict` copies the numbers to where the model and the optimizer are. DDP copies rank 0's
# weights only when it wraps a model, and never copies the optimizer's state. So every rank reads the
# file.
#
# On GPUs `map_location` matters: without it, each of a node's 8 processes loads tensors that were
# saved from `cuda:0` onto GPU 0. Noise that is drawn on a GPU also needs `torch.cuda.get_rng_state()`.
# (Neither GPU case was run here.)
#
# Why `model.module`? The wrapper is a model, too, and holds yours under the name `module`:

# %% tags=["break"]
# %%px
net = digits_model(seed=1).to(device)  # a plain model, as for inference
try:
    net.load_state_dict(model.state_dict())
except RuntimeError as error:
    message = str(error)
if rank == 0:
    print(message)

# %% [markdown] tags=["read"]
# Each name of the wrapper begins with `module.`, so the plain model lacks its own 4 names, and rejects
# the 4 with `module.`. (`strict=False` would silence the error and load nothing.) The repair is to
# save the model inside of DDP:

# %% tags=["mend"]
# %%px
net.load_state_dict(model.module.state_dict())
is_equal = torch.equal(net(images), model.module(images))
print(f"the plain model computes the same: {is_equal}")

# %% tags=["check"]
num_versions = ranks.view["num_versions"][0]
assert num_versions == {**dict.fromkeys(num_versions, 1), "rng": 4}
assert all("Missing key(s)" in message for message in ranks.view["message"])
assert all(ranks.view["is_equal"])
num_differing = sum(number > 1 for number in num_versions.values())
ok("gather what differs, one rank writes", entries_that_differ=num_differing)

# %% [markdown] tags=["question"]
# ## What is left when a save is killed?

# %% [markdown] tags=["explain"]
# At its time limit, Slurm sends a job SIGTERM, and SIGKILL 30 s later (its default). When a machine's
# memory runs out, SIGKILL comes without a warning. So a kill can come at any moment, also inside a
# save.
#
# To choose the moment, we put an object into `state` that kills its own process when `torch.save`
# comes to it. The notebook's kernel starts this program as a new process, in the ranks' folder:

# %% tags=["run"]
import subprocess
import sys
from pathlib import Path

START = """
import os, signal, torch

class Killer:
    def __reduce__(self):  # torch.save calls this when it comes to the object
        os.kill(os.getpid(), signal.SIGKILL)

state = {"weights": torch.ones(1000), "killer": Killer()}
"""


def run_program(text):
    command = [sys.executable, "-c", START + text]
    return subprocess.run(command, cwd=temporary.name, check=False).returncode


# %% [markdown] tags=["predict"]
# `run.pt` is the good checkpoint of the last section. The program calls `torch.save(state, "run.pt")`,
# and is killed inside this call. How many bytes does `run.pt` have then?

# %% tags=["predict"]
predict("bytes_after_the_kill", ...)

# %% tags=["break"]
exit_code = run_program('torch.save(state, "run.pt")')
size = (Path(temporary.name) / "run.pt").stat().st_size
print(f"exit code {exit_code}, which is SIGKILL; run.pt has {size} bytes")

# %% [markdown] tags=["read"]
# It has 0 bytes. `torch.save` first opens the file for writing, which empties it. Then it pickles the
# structure of `state` in memory before it writes a byte. So even the weights, which come before the
# killer, were not written. The old checkpoint and the new one are lost. (A kill that comes later leaves a
# part of the file, which is lost, too.)
#
# The repair is to leave the old file alone until the new one is complete. An act is **atomic** if it
# is done wholly or not at all. `os.replace`, which renames a file, is atomic within one file system.
# So write under another name in the same folder, and rename at the end:

# %% tags=["mend"]
ATOMIC_SAVE = """
with open("run.pt.new", "wb") as file:
    torch.save(state, file)
    file.flush()  # from the program's memory to the operating system
    os.fsync(file.fileno())  # from the operating system to the disk
os.replace("run.pt.new", "run.pt")
"""
exit_code_good = run_program('del state["killer"]' + ATOMIC_SAVE)
exit_code_killed = run_program(ATOMIC_SAVE)
print(f"exit codes: good save {exit_code_good}, killed save {exit_code_killed}")

# %% tags=["run"]
# %%px
weights = torch.load(folder / "run.pt", map_location="cpu")["weights"]
print(f"run.pt has {len(weights)} weights")

# %% [markdown] tags=["read"]
# The first program saved 1000 weights. The second was killed in its save, and the 1000 weights are still
# there: until `os.replace`, the name `run.pt` means the old file, and after it the new one. A killed save
# leaves its `run.pt.new`, which the next save overwrites. If the disk is full, the save raises, and the
# old file stays. (So the disk needs room for both files.)
#
# `flush` and `fsync` are for a power cut. Without them, the new name can be on the disk before the
# file's content, and `run.pt` can be empty after the power cut. (The rename itself is on the disk
# after an `os.fsync` of the folder.)
#
# [Claim C20](claims.md), to save the model with `torch.save` and load it with `torch.load`, is **half
# true**: let one rank write, under another name, and rename.

# %% tags=["check"]
assert exit_code == exit_code_killed == -9
assert exit_code_good == 0
assert [len(weights) for weights in ranks.view["weights"]] == [1000] * 4
ok("C20 is half true, write beside and rename", bytes_after_the_kill=size)

# %% [markdown] tags=["question"]
# ## Which forgotten part changes the run?

# %% [markdown] tags=["explain"]
# A resumed run is right if it ends with the weights of a run that was never stopped, **bit for bit**. We
# train 12 steps without a stop, and save after step 6. Then other runs load, and train steps 7 to 12.
#
# At the end of this section a rank is killed, and its replacement has none of our cells' variables. So
# from here on, all ranks import functions of the package, which do what the lines above do:
#
# | function | the lines it stands for |
# | --- | --- |
# | `digits_run()` | It makes the objects of the first section. It returns two things: a `run` with `run.model`, `run.optimizer` and so on, and the images and labels. (`idle_pass=False` is explained below.) |
# | `train(run, *data, 3)` | The loop of the first section, 3 steps. Its noise is dropout on the images. The learning rate halves after step 10. |
# | `capture(run)` | The dictionary. `state["ranks"]` has each rank's `"rng"` and, since other samplers can differ between ranks, its `"sampler"`. |
# | `restore(run, state)` | The lines that put the dictionary back. |
# | `save(state, path)` | The atomic save on rank 0. All ranks wait, and all raise if it fails. |
# | `load(path)` | `torch.load` on all ranks. It raises if the file was damaged since it was saved. |
# | `weights_of(run)` | All weights in one tensor. |

# %% tags=["run"]
# %%px
from ddp_lessons.checkpoint import capture, load, restore, restore_rng, save
from ddp_lessons.workloads.runs import digits_run, train, weights_of

run, data = digits_run(idle_pass=False)
train(run, *data, 6)
save(capture(run), folder / "step-6.pt")
for last_step in (9, 12):
    train(run, *data, 3)
    save(weights_of(run), folder / f"weights-{last_step}.pt")

# %% [markdown] tags=["explain"]
# `restore_without` is `restore` with one line left out: that of the forgotten entry. `restore_rng` sets
# the generators of torch, Python, NumPy and the GPU. Before a run restores, it makes an **idle pass**: a
# forward and a backward whose gradients are thrown away. The first section headed "More" shows what
# happens without it.


# %% tags=["run"]
# %%px
def restore_without(forgotten, run, state):
    own = state["ranks"][rank]
    run.model.module.load_state_dict(state["model"])
    run.epoch = state["epoch"]
    if forgotten != "optimizer":
        run.optimizer.load_state_dict(state["optimizer"])
    if forgotten != "scheduler":
        run.scheduler.load_state_dict(state["scheduler"])
    if forgotten != "sampler":
        run.sampler.load_state_dict(own["sampler"])
    if forgotten != "step":
        run.step = state["step"]
    if forgotten != "rng":
        restore_rng(own["rng"])


def idle_pass(run, images):
    run.model(images[:1]).sum().backward()
    run.optimizer.zero_grad()


# %% [markdown] tags=["predict"]
# Five runs resume after step 6, and each forgets one entry: (a) the optimizer's state, (b) the
# scheduler's, (c) the sampler's, (d) `step`, or (e) the random number generators. One of the five ends
# with the right weights all the same. Which entry did this run forget?

# %% tags=["predict"]
predict("entry_that_changes_nothing", "...")

# %% tags=["break"]
# %%px
expected, is_different = load(folder / "weights-12.pt"), {}
for forgotten in ("optimizer", "scheduler", "sampler", "step", "rng", "nothing"):
    run, data = digits_run(idle_pass=False)
    idle_pass(run, data[0])  # before the restore
    restore_without(forgotten, run, load(folder / "step-6.pt"))
    train(run, *data, 6)
    is_different[forgotten] = not torch.equal(weights_of(run), expected)
if rank == 0:
    for forgotten, answer in is_different.items():
        print(f"{forgotten} forgotten: the weights differ: {answer}")

# %% tags=["run"]
is_different_on_rank = ranks.view["is_different"]  # before a rank is killed
num_different = sum(is_different_on_rank[0].values())
print(f"the weights differ in {num_different} of 6 runs")

# %% [markdown] tags=["read"]
# The answer is (d), `step`: the loop only counts it, because the schedule has its own count. The last
# line is the control: nothing forgotten, nothing different.
#
# The weights differ in 4 of 6 runs, and no run raised an error. Without its state, the optimizer has
# no momentum, the schedule does not halve the rate after step 10, the sampler hands out the samples of
# steps 1 to 6 again, and the generators make other noise. (`epoch` is 0 in all 12 steps, so forgetting it
# changes nothing here; a longer run needs it.)
#
# Now nothing is forgotten, and a real kill comes: rank 2 is killed after step 9.

# %% tags=["break", "raises-exception", "nbval-ignore-output"]
# %%px
import signal

restore(run, load(folder / "step-6.pt"))
train(run, *data, 3 if rank == 2 else 6)
if rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)

# %% [markdown] tags=["read"]
# Rank 2 is a new process now. (The report on the other ranks can differ from run to run. Its advice to
# make `model` again is for the first section's model, which we do not use again.) All ranks make a new
# `run`, and load. (By default, `digits_run` makes the idle pass.)

# %% tags=["mend"]
# %%px
import os
from pathlib import Path
import torch
import torch.distributed as dist
from ddp_lessons.checkpoint import load, restore
from ddp_lessons.workloads.runs import digits_run, train, weights_of

rank = dist.get_rank()
folder = Path(os.environ["LESSON_FOLDER"])
run, data = digits_run()
restore(run, load(folder / "step-6.pt"))
num_wrong = []
for _ in range(2):
    train(run, *data, 3)
    right = load(folder / f"weights-{run.step}.pt")
    num_wrong.append((weights_of(run) != right).sum().item())
    if rank == 0:
        print(f"step {run.step}: {num_wrong[-1]} of {len(right)} weights differ")

# %% [markdown] tags=["read"]
# 0 of 4810 weights differ. Steps 7 to 9 were lost in the kill, and were made again, bit for bit. (This
# needs the same kind of device, the same versions and the same number of ranks.)
#
# [Claim C21](claims.md), that checkpointing lets training resume after a failure, is **half true**: a run
# also resumes from a checkpoint that lacks an entry, but then it is another run. So resume once, early,
# and compare.

# %% tags=["check"]
assert ranks.view["num_wrong"] == [[0, 0]] * 4
assert ranks.view["run.step"] == [12] * 4
for is_different in is_different_on_rank:
    harmless = {name for name in is_different if not is_different[name]}
    assert harmless == {"step", "nothing"}
choices = ("optimizer", "scheduler", "sampler", "step", "rng")
letter_of = dict(zip(choices, "abcde", strict=True))
(letter,) = (letter_of[name] for name in harmless if name in letter_of)
ok("C21 is half true, save all", entry_that_changes_nothing=letter)

# %% [markdown] tags=["question"]
# ## More: why does a resumed run need an idle pass?

# %% [markdown] tags=["explain"]
# After its first `backward`, DDP rearranges the gradients in its buckets ([lesson 06](06_ddp.ipynb)). A
# gradient's place in its bucket decides in which chunk of the ring it travels. Each chunk's sum starts at
# another rank, and a sum in another order rounds differently.
#
# A run that resumes without an idle pass makes its step 7 with the first arrangement. The run that was
# not stopped made its step 7 with the second. No entry of the checkpoint holds the arrangement.

# %% [markdown] tags=["predict"]
# A run resumes after step 6 without an idle pass, and makes steps 7 to 12. What is the largest difference
# between its weights and the right ones: (a) 0, (b) less than 0.00001, or (c) more than that?

# %% tags=["predict"]
predict("largest_difference", "...")

# %% tags=["break"]
# %%px
run, data = digits_run(idle_pass=False)
restore(run, load(folder / "step-6.pt"))
train(run, *data, 6)
expected = load(folder / "weights-12.pt")
difference = (weights_of(run) - expected).abs().max().item()
if rank == 0:
    print(f"equal: {difference == 0}, to less than 0.00001: {difference < 1e-5}")

# %% [markdown] tags=["read"]
# The answer is (b): the sums differ in their last digit, and in six steps such a difference stays small.
# (On a GPU the weights may even be equal; we did not run that.) For most runs this does not matter. It
# matters if you compare two runs bit for bit, because then you cannot tell a rounding from a forgotten
# entry.
#
# The repair is the idle pass. It must come before the restore, because a forward also changes BatchNorm's
# statistics and, with dropout, the generator:

# %% tags=["mend"]
# %%px
run, data = digits_run(idle_pass=False)
run.model(data[0][:1]).sum().backward()  # the next forward rearranges the buckets
run.optimizer.zero_grad()
restore(run, load(folder / "step-6.pt"))
train(run, *data, 6)
num_unequal = (weights_of(run) != expected).sum().item()
if rank == 0:
    print(f"with an idle pass: {num_unequal} of {len(expected)} weights differ")

# %% tags=["check"]
assert ranks.view["num_unequal"] == [0] * 4
(difference,) = set(ranks.view["difference"])
letter = "a" if difference == 0 else "b" if difference < 1e-5 else "c"
ok("an idle pass gives the last digits back", largest_difference=letter)

# %% [markdown] tags=["question"]
# ## More: can two ranks load what four have saved?

# %% [markdown] tags=["explain"]
# If a model is too large for one rank, each rank holds only some rows of each weight, its **shard**,
# and no rank has memory for the whole. (`fully_shard` makes such models. You will meet it in lesson
# 15; here only its rows matter.) Then each rank writes a file with its own rows, by
# `torch.distributed.checkpoint`, **DCP**. A table beside the files says which rows are where, so
# another number of ranks can load them.
#
# `fully_shard` divides the number of rows by the number of ranks, and rounds up. Each rank in turn
# gets that many rows, and the last ranks get fewer, or none.

# %% tags=["run"]
# %%px
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard
from ddp_lessons.process_group import rank_device
from ddp_lessons.workloads import digits_model

model = fully_shard(digits_model(seed=0).to(rank_device()))
dcp.save({"model": model.state_dict()}, checkpoint_id=folder / "sharded")
# to_local() returns this rank's rows
rows = {name: len(p.to_local()) for name, p in model.named_parameters()}
model.unshard()  # gathers all rows on every rank; this model is small
last_layer = model[2].weight.detach().cpu()
print(f"{rows['2.weight']} of {len(last_layer)} rows of the last layer are mine")

# %% tags=["run"]
rows_saved, layer_saved = ranks.view["rows"], ranks.view["last_layer"][0]

# %% [markdown] tags=["predict"]
# Now two ranks take over. The last layer lies on the disk in four pieces, one in each rank's file.
# From how many pieces must the second of the two ranks, rank 1, read its rows?

# %% tags=["predict"]
predict("pieces_for_rank_one", ...)

# %% tags=["run", "nbval-ignore-output"]
ranks = start_ranks(2)

# %% tags=["run"]
# %%px
import os
from pathlib import Path
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard
from ddp_lessons.process_group import rank_device
from ddp_lessons.workloads import digits_model

rank, folder = dist.get_rank(), Path(os.environ["LESSON_FOLDER"])
model = fully_shard(digits_model(seed=1).to(rank_device()))
state = {"model": model.state_dict()}
dcp.load(state, checkpoint_id=folder / "sharded")  # writes into the tensors of `state`
model.load_state_dict(state["model"])
rows = {name: len(p.to_local()) for name, p in model.named_parameters()}
model.unshard()
last_layer = model[2].weight.detach().cpu()

# %% tags=["run"]
# %%px
table = dcp.FileSystemReader(folder / "sharded").read_metadata()
pieces = table.state_dict_metadata["model.2.weight"].chunks
first = 5 * rank  # ceil(10 / 2) rows a rank
own_rows = set(range(first, first + rows["2.weight"]))
num_pieces = 0
for piece in pieces:
    start, length = piece.offsets[0], piece.sizes[0]
    num_pieces += bool(own_rows & set(range(start, start + length)))
print(f"my rows: {sorted(own_rows)}, from {num_pieces} pieces")

# %% tags=["picture"]
sizes = {"2.weight": len(layer_saved)}
saved, loaded = slices_from_rows(rows_saved), slices_from_rows(ranks.view["rows"])
shards_picture(sizes, {"2.weight": saved["2.weight"]}, {"2.weight": loaded["2.weight"]})

# %% [markdown] tags=["read"]
# Rank 1 reads from 3 pieces. The four ranks saved 3, 3, 3 and 1 rows, and each of two ranks holds 5.
# Rows 5 to 9 were saved by rank 1 (row 5), rank 2 (rows 6 to 8) and rank 3 (row 9). The upper bar of
# the picture shows which rank saved which rows, the lower bar which rank loads them (3:6 means rows 3
# to 5).
#
# `get_state_dict(model, optimizer)` of `torch.distributed.checkpoint.state_dict` gives the optimizer's
# state in the same form. Four ranks' generators cannot be given to two ranks, so such a run does not
# go on bit for bit. (Exercise 08 uses `Checkpoints`, a class of the package that keeps a folder of
# checkpoints. Its `load(run, exact=False)` permits an inexact resume.)
#
# A large checkpoint takes minutes to write. `dcp.async_save` returns when it has copied the tensors, and
# a thread writes the copy while training goes on.

# %% tags=["run"]
# %%px
group = dist.new_group(backend="gloo")  # for messages in the background
layer = torch.nn.Linear(64, 64).to(rank_device())
torch.nn.init.constant_(layer.weight, 4.0)
state, path = {"layer": layer.state_dict()}, folder / "async"
saving = dcp.async_save(state, checkpoint_id=path, process_group=group)
torch.nn.init.constant_(layer.weight, 5.0)  # training goes on
saving.result()  # returns when the files are complete
dcp.load(state, checkpoint_id=path)
weight_in_file = layer.weight.mean().item()
print(f"weight in the file: {weight_in_file:.0f}")

# %% [markdown] tags=["read"]
# The file has the weight of the moment of the call, 4, although training had gone on to 5. The price
# is memory for the copy. Call `result()` before the next save, else two saves run at once.

# %% tags=["check"]
assert all(layer.equal(layer_saved) for layer in ranks.view["last_layer"])
assert [rows["2.weight"] for rows in rows_saved] == [3, 3, 3, 1]
assert ranks.view["rows['2.weight']"] == [5, 5]
assert ranks.view["weight_in_file"] == [4] * 2
num_pieces = ranks.view["num_pieces"][1]
ok("saved by 4 ranks, loaded by 2", pieces_for_rank_one=num_pieces)

# %% [markdown] tags=["question"]
# ## More: what does a file with one wrong bit do?

# %% [markdown] tags=["explain"]
# Disks and networks flip a bit now and then. A float32 has a sign, an exponent of 8 bits and a
# fraction; 1.0 is `0 01111111 000...`. The file of `torch.save` holds a checksum of each tensor: a
# number computed from all its bytes, which changes if a byte changes.

# %% [markdown] tags=["predict"]
# A file holds 1,000 weights, all of them 1.0. The first bit of one weight's exponent flips on the disk.
# What does `torch.load` do: (a) it raises an error, because the checksum is wrong; (b) it returns a
# weight that is slightly off; (c) it returns an infinite weight?

# %% tags=["predict"]
predict("load_of_a_damaged_file", "...")

# %% tags=["break"]
# %%px
path, weights = folder / "damaged.pt", torch.ones(1000)
if rank == 0:
    torch.save({"weights": weights}, path)
    content = bytearray(path.read_bytes())
    first_byte = content.index(weights.numpy().tobytes())
    content[first_byte + 3] ^= 0b01000000  # the largest bit of the exponent
    path.write_bytes(content)
dist.barrier()
damaged = torch.load(path)["weights"]
print(f"weights: {damaged[:3].tolist()}; wrong: {(damaged != 1).sum().item()}")

# %% [markdown] tags=["read"]
# The answer is (c), for 1 weight: all 8 bits of its exponent are 1 now, which means infinity.
# `torch.load` does not compare checksums. Python's `zipfile` compares them, because the file is a zip
# archive:

# %% tags=["mend"]
# %%px
import zipfile

with zipfile.ZipFile(folder / "damaged.pt") as archive:
    damaged_record = archive.testzip()  # None if all checksums are right
print(f"damaged record: {damaged_record}")

# %% [markdown] tags=["explain"]
# The line names the record with the first tensor, `data/0` in the folder `damaged` of the archive.
#
# A file can also be hostile. It is a **pickle** ([lesson 02](02_collectives.ipynb)), and may name
# functions to call:

# %% tags=["break"]
# %%px
from pickle import UnpicklingError


class Stranger:
    def __reduce__(self):
        return print, ("this line came with the weights",)


if rank == 0:
    torch.save(Stranger(), folder / "stranger.pt")
dist.barrier()
torch.load(folder / "stranger.pt", weights_only=False)
try:
    torch.load(folder / "stranger.pt", weights_only=True)
except UnpicklingError as error:
    refusal = str(error).split(".")[0]
print(refusal)

# %% [markdown] tags=["read"]
# With `weights_only=False`, `torch.load` called the file's function, `print`; it could have been any
# other. With `weights_only=True`, it refused. Keep this default, save only
# tensors and plain values, and take checkpoints of strangers as
# [safetensors](https://huggingface.co/docs/safetensors), a format without pickles. (DCP's table is a
# pickle, too, which `dcp.load` reads without that protection.)

# %% [markdown] tags=["explain"]
# The commonest way to spoil a file needs neither a flipped bit nor a stranger: all ranks save to one path.
# So several processes open the same file, and each empties it and writes its own state.

# %% tags=["break"]
# %%px
torch.manual_seed(rank)
torch.save(torch.get_rng_state(), folder / "one.pt")
dist.barrier()  # all saves are finished
try:
    is_own = torch.equal(torch.load(folder / "one.pt"), torch.get_rng_state())
except (RuntimeError, UnpicklingError):  # the file is damaged
    is_own = False

# %% tags=["run"]
num_own = sum(ranks.view["is_own"])
print(f"at most one rank finds its own state: {num_own <= 1}")

# %% [markdown] tags=["read"]
# Usually the state of one rank is left, and which rank that is differs from run to run. The file can also
# hold a mixture, or be damaged, so that `torch.load` raises. The repair stands in this lesson's first
# section: the ranks exchange what differs, and one rank writes for all.

# %% tags=["check"]
assert num_own <= 1
for damaged in ranks.view["damaged"]:
    assert (damaged[1:] == 1).all()
assert all(record is not None for record in ranks.view["damaged_record"])
assert all("Weights only load failed" in refusal for refusal in ranks.view["refusal"])
letter = "c" if ranks.view["damaged"][0][0].isinf() else "b"
ok("a file that loads may be wrong", load_of_a_damaged_file=letter)

# %% [markdown] tags=["cluster"]
# ## On your own cluster
#
# This file, `train.py`, is complete: it trains a small model on random data, saves after each epoch, and
# continues after the last saved epoch if it is started again. We ran the commands below with two
# processes a node and both nodes on the CPUs of one machine, with `"gloo"` in place of `"nccl"`, and
# without `set_device`, `.cuda()` and `device_ids`. On GPUs the file was not run.
#
# ```python
# import os
# from pathlib import Path
# import torch
# import torch.distributed as dist
# from torch.nn.functional import cross_entropy
# from torch.nn.parallel import DistributedDataParallel as DDP
# from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
#
# PATH = Path("run.pt")  # on a disk that all nodes share
#
# def save(state):
#     if dist.get_rank() == 0:
#         beside = PATH.with_name(PATH.name + ".new")
#         with open(beside, "wb") as file:
#             torch.save(state, file)
#             file.flush()
#             os.fsync(file.fileno())
#         os.replace(beside, PATH)
#     dist.barrier()
#
# def main():
#     local_rank = int(os.environ["LOCAL_RANK"])  # the rank's number on its own node
#     torch.cuda.set_device(local_rank)
#     dist.init_process_group("nccl")
#     rank, world_size = dist.get_rank(), dist.get_world_size()
#     inputs = torch.randn(8_192, 20, generator=torch.Generator().manual_seed(0))
#     dataset = TensorDataset(inputs, (inputs.sum(dim=1) > 0).long())
#     sampler = DistributedSampler(dataset, seed=0, drop_last=True)
#     loader = DataLoader(dataset, batch_size=32, sampler=sampler)
#
#     torch.manual_seed(rank)
#     model = DDP(torch.nn.Linear(20, 2).cuda(), device_ids=[local_rank])
#     optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
#     scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
#     epoch = 0
#     found = [PATH.exists()]
#     dist.broadcast_object_list(found, src=0)
#     if found[0]:
#         state = torch.load(PATH, map_location="cpu", weights_only=True)
#         model.module.load_state_dict(state["model"])
#         optimizer.load_state_dict(state["optimizer"])
#         scheduler.load_state_dict(state["scheduler"])
#         epoch = state["epoch"]
#         newest = [epoch]
#         dist.broadcast_object_list(newest, src=0)
#         if epoch != newest[0]:
#             raise RuntimeError(f"rank {rank} read epoch {epoch}, and rank 0 read {newest[0]}")
#         if len(state["rng"]) == world_size:
#             torch.set_rng_state(state["rng"][rank])
#
#     while epoch < 5:
#         sampler.set_epoch(epoch)
#         for samples, labels in loader:
#             noisy = samples + 0.1 * torch.randn(samples.shape)
#             loss = cross_entropy(model(noisy.cuda()), labels.cuda())
#             optimizer.zero_grad()
#             loss.backward()
#             optimizer.step()
#         scheduler.step()
#         epoch += 1
#         rng_of_rank = [None] * world_size
#         dist.all_gather_object(rng_of_rank, torch.get_rng_state())
#         save({
#             "model": model.module.state_dict(),
#             "optimizer": optimizer.state_dict(),
#             "scheduler": scheduler.state_dict(),
#             "epoch": epoch,
#             "rng": rng_of_rank,
#         })
#         if rank == 0:
#             print(f"saved epoch {epoch}, loss {loss.item():.4f}")
#     dist.destroy_process_group()
#
# if __name__ == "__main__":
#     main()
# ```
#
# **One node with 8 GPUs:**
#
# ```console
# $ torchrun --standalone --nproc-per-node=8 --max-restarts=3 train.py
# ```
#
# **Two such nodes**, `node1` and `node2`. Run the same command on both:
#
# ```console
# $ torchrun --nnodes=2 --nproc-per-node=8 --max-restarts=3 --rdzv-backend=c10d --rdzv-endpoint=node1:29500 --rdzv-id=42 train.py
# ```
#
# | line or option | what this lesson says of it |
# | --- | --- |
# | `PATH` | One file for all ranks, so on two nodes it must be on a shared disk. |
# | `with_name(... ".new")`, `flush`, `fsync`, `os.replace` | The atomic save. |
# | `dist.barrier()` | No rank goes on before the checkpoint is complete. If the write takes longer than 10 minutes, NCCL's default, pass a longer `timeout` to `init_process_group`. |
# | `model.module` | Names without `module.`, so the file also fits a model without DDP. |
# | `broadcast_object_list(...)`, twice | A network disk can show a new file to some nodes later. So rank 0 decides for all, and a rank that reads an older file raises: then `torchrun` starts all again. |
# | `map_location="cpu"` | Else all 8 ranks of a node load onto GPU 0. |
# | `epoch`, no sampler state | The script saves between epochs, where `set_epoch` alone decides the order. If an epoch takes hours, save within it, with the sampler's state. |
# | `all_gather_object(..., get_rng_state())` | The entry that differs between ranks; with another number of ranks it is left out. |
# | no idle pass | A resumed run may differ in the last digits. |
# | `--max-restarts=3` | If a process fails, `torchrun` ends all of them and starts all again, up to three times, and they continue from `run.pt`. |
# | the other options | Lesson 09. |
#
# **How often?** If a save costs S seconds and a failure comes every M seconds, a usual rule is every
# sqrt(2 x S x M) seconds: with S = 60 and one failure a day, every 54 minutes. **How large?** With
# Adam in float32, 12 bytes a parameter: 4 for the weight, 8 for Adam's two averages, so 84 GB for 7
# billion parameters. **How many?** The script keeps one file; keep two or three, with the epoch in
# the name, because the newest may hold NaN.

# %% [markdown] tags=["recap"]
# You have saved a run of four ranks in plain torch and loaded it with and without DDP, written a file
# that survived a kill, resumed a run bit for bit after a rank was killed, and seen which forgotten
# entries change it.
#
# Rule of thumb: **trust a checkpoint only after you have resumed from it, and compared.**

# %% [markdown] tags=["next"]
# - **Exercise** [08](../exercises/08_checkpoint.ipynb): an atomic save that several ranks call, capture
#   and restore, a resume within an epoch, shards for other ranks, and a task on all of part 1. After the
#   exercise, read how the package does it: [atomic.py](../ddp_lessons/checkpoint/atomic.py), and the run of
#   this lesson, [example.py](../ddp_lessons/checkpoint/example.py).
# - **Next lesson** [09](09_launch.ipynb): how does a cell become a job?
# - **Sources**: T. Pillai and others, [All File Systems Are Not Created
#   Equal](https://www.usenix.org/conference/osdi14/technical-sessions/presentation/pillai), OSDI
#   2014, on what a crash leaves of a file; Meta, [The Llama 3 Herd of
#   Models](https://arxiv.org/abs/2407.21783), 2024, section 3.3.4, on interruptions; J. W. Young,
#   *A First Order Approximation to the Optimum Checkpoint Interval*, Communications of the ACM, 1974; PyTorch's documentation of
#   [`torch.load`](https://docs.pytorch.org/docs/stable/generated/torch.load.html) and of
#   [`torch.distributed.checkpoint`](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html).

# %% tags=["teardown"]
ranks.stop()  # the folder is removed when the kernel ends
