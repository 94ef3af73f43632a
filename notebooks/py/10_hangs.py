# %% [markdown] tags=["title"]
# # How do you find out why nothing happens?
#
# 30 minutes, 4 ranks. It builds on [02_collectives](02_collectives.ipynb), whose deadlocks come
# back here.

# %% [markdown] tags=["goal"]
# When you are through, you can
#
# - **look** into a job that hangs, from outside, and name the rank and the line;
# - **choose** what makes torch say more: a barrier, a comparison, a record of calls;
# - **leave** a watchdog with a job, which tells in seconds what torch tells in half an hour.

# %% tags=["setup", "nbval-ignore-output"]
import os, tempfile
from ddp_lessons import ok, predict
from ddp_lessons.jobs import run_job, start_job

folder = tempfile.TemporaryDirectory()
os.chdir(folder.name)  # scripts and what jobs write lie there

# %% [markdown] tags=["question"]
# ## Where is each rank of a job that stands still?

# %% [markdown] tags=["predict"]
# Our cells free ranks that wait in vain. Outside of a notebook nobody does. So here ranks are those
# of **jobs**: scripts that `torchrun` starts, as on a cluster. Cells start and end them.
#
# Each step of the first job ends with an all-reduce. In step 3, rank 1 asks a file server for its
# batch, and gets no answer. When all is still, how many of the 2 ranks wait in an all-reduce?

# %% tags=["predict"]
predict("ranks_in_all_reduce", ...)

# %% tags=["run"]
# %%writefile loader.py
import time, torch, torch.distributed as dist


def load_batch(step):
    if step == 3 and dist.get_rank() == 1:
        time.sleep(3600)  # the server does not answer
    return torch.ones(4)

# %% tags=["run"]
# %%writefile train.py
import faulthandler, os, signal, torch.distributed as dist
from loader import load_batch

file = open(f"stack_{os.environ['RANK']}.txt", "w")
faulthandler.register(signal.SIGUSR1, file, all_threads=False)
dist.init_process_group("gloo")
for step in range(1, 5):
    dist.all_reduce(load_batch(step))
    print(f"rank {dist.get_rank()}: step {step} is done\n", end="")  # lines stay whole

# %% tags=["break"]
job = start_job("torchrun --standalone --nproc-per-node 2 train.py")
job.wait_for("step 2 is done", 150, times=2)
print(*sorted(job.stdout.splitlines()), sep="\n")

# %% [markdown] tags=["read"]
# After step 2 it says nothing, and no error comes. But at the signal `SIGUSR1` the script's
# `faulthandler` writes the **stack** into a file: the line that runs, the one that called it, and
# so on. It does so while Python itself waits in torch.
#
# `look` sends the signal until two answers in a row are equal: then the rank stays where it is.

# %% tags=["run"]
from ddp_lessons.hangs import called, look, own_frames

stacks = {rank: look(pid, f"stack_{rank}.txt") for rank, pid in job.workers().items()}
waits = {rank: called(stack) for rank, stack in stacks.items()}
for rank, stack in sorted(stacks.items()):
    print(f"rank {rank}: {own_frames(stack)[0]}: {own_frames(stack)[0].code}")
print(f"in an all_reduce: {list(waits.values()).count('all_reduce')}")

# %% [markdown] tags=["read"]
# 1. Rank 0 waits in its all-reduce, as it must. It is the *other* rank's stack that holds the
# fault. So look at all of them, and for the one that is not like the others.
#
# Nobody asked `faulthandler` beforehand? `py-spy` reads the stack of any Python process from
# outside, if the system lets you (often for root only).

# %% tags=["run", "nbval-ignore-output"]
for rank, pid in sorted(job.workers().items()):
    spy = run_job(f"env py-spy dump --pid {pid}")
    print(f"rank {rank}", spy.stdout.partition("Thread")[2] or spy.stderr)

# %% tags=["check"]
job.end()
assert waits == {0: "all_reduce", 1: ""}
assert own_frames(stacks[1])[0].function == "load_batch"
ok("who waits is not who is to blame", ranks_in_all_reduce=1)

# %% [markdown] tags=["question"]
# ## Whom does a timeout name?

# %% [markdown] tags=["predict"]
# Left alone, torch gives up by itself, after the `timeout` that a group was made with. For Gloo
# there is also a barrier that asks who is there: in `monitored_barrier` rank 0 waits for one rank
# after the other, and gives up at the first that does not come. In a job of 4 ranks, ranks 1 and 2
# stay away. How many ranks does rank 0 name?

# %% tags=["predict"]
predict("ranks_named_by_default", ...)

# %% tags=["run"]
# %%writefile late.py
import time, torch, torch.distributed as dist
from datetime import timedelta
from ddp_lessons.hangs import attempt  # calls, and prints when it ended, and how

dist.init_process_group("gloo")
rank, limit = dist.get_rank(), timedelta(seconds=2)
one, two, three = [dist.new_group(timeout=limit) for _ in range(3)]
if rank in (0, 3):  # ranks 1 and 2 do not come
    attempt("monitored", lambda: dist.monitored_barrier(one, limit))
    attempt("of all", lambda: dist.monitored_barrier(two, limit, wait_all_ranks=True))
if rank == 0:
    attempt("all_reduce", lambda: dist.all_reduce(torch.ones(3), group=three))
time.sleep(3600)

# %% tags=["break"]
from torch.distributed.distributed_c10d import default_pg_timeout as limit

with start_job("torchrun --standalone --nproc-per-node 4 late.py") as job:
    job.wait_for("all_reduce, rank 0", 150)
    said = [line for line in job.stdout.splitlines() if "rank 0:" in line]
print(*said, f"by default: {limit.total_seconds() / 60:.0f} minutes", sep="\n")

# %% [markdown] tags=["read"]
# The all-reduce says only that 2000 ms are over. The barrier names rank 1, and with
# `wait_all_ranks=True` both. Only rank 0 learns it.
#
# A timeout ends a job that would block a cluster for 30 minutes (10 under NCCL, by the
# documentation). It must be longer than the longest honest wait, such as for rank 0 that saves.

# %% tags=["check"]
told = dict(line.split(", rank 0: ") for line in said)
assert "Rank 1 failed" in told["monitored"]
assert "Ranks 1, 2 failed" in told["of all"]
assert told["all_reduce"].startswith("late, Timed out waiting")
ok("a barrier that asks one by one names who is missing", ranks_named_by_default=1)

# %% [markdown] tags=["question"]
# ## Do all ranks call the same?

# %% [markdown] tags=["predict"]
# Nobody is missing, and calls do not meet. First rank 0 adds up 3 numbers, and rank 1
# brings 4. Then rank 0 alone wants to know the loss in step 3, with a `reduce`. Two faults, two
# ranks: how many of these four end with an error at once, if nothing is set?

# %% tags=["predict"]
predict("errors_at_once", ...)

# %% tags=["run"]
# %%writefile steps.py
import torch, torch.distributed as dist


def train(group):
    for step in range(1, 5):
        dist.all_reduce(torch.ones(10), group=group)  # gradients
        if step == 3 and dist.get_rank() == 0:
            dist.reduce(torch.ones(1), 0, group=group)  # the loss, for rank 0
        dist.all_reduce(torch.ones(1), group=group)  # the number of samples

# %% tags=["run"]
# %%writefile differ.py
import sys, torch, torch.distributed as dist
from datetime import timedelta
from ddp_lessons.hangs import agree, attempt, save_record
from steps import train

dist.init_process_group("gloo")
rank = dist.get_rank()
limit = timedelta(seconds=2 + 2 * rank)  # rank 0 is always the first to give up
one, two, three = [dist.new_group(timeout=limit) for _ in range(3)]
attempt("sizes", lambda: dist.all_reduce(torch.ones(3 + rank), group=one))
dist.barrier()
attempt("ours", lambda: agree("all_reduce", torch.ones(3 + rank), group=three))
attempt("names", lambda: train(two))
save_record(f"{sys.argv[1]}_{rank}")  # for the next section
dist.destroy_process_group()

# %% tags=["break"]
line = "torchrun --standalone --nproc-per-node 2 differ.py"
detail = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
jobs = start_job(f"{line} plain"), start_job(f"{line} detail", env=detail)
codes = [job.wait(150) for job in jobs]
plain, compared = (sorted(job.stdout.splitlines()) for job in jobs)
faults = [text for text in plain if not text.startswith("ours")]
num_errors = sum("at once" in text and "no error" not in text for text in faults)
print(*faults, f"errors at once: {num_errors}", sep="\n")

# %% [markdown] tags=["read"]
# 0. Rank 0 "added up" 3 numbers without an error, and would train on with them. In the second fault
# rank 0 gave up first, and rank 1 was told `Connection closed by peer`, a victim's message.
#
# With `TORCH_DISTRIBUTED_DEBUG=DETAIL` in the environment torch checks. Before each call every rank
# tells the others a **fingerprint** of it: name, shapes, dtypes.

# %% tags=["mend"]
print(*(text for text in compared if not text.startswith("ours")), sep="\n")
print(*(text for text in plain if text.startswith("ours, rank 0")), sep="\n")

# %% [markdown] tags=["read"]
# All 4 at once, and each says what differs. It costs messages for each call, so it is for a run
# that has hung before. Our `agree` does it through the group's store, and names the ranks.

# %% tags=["check"]
assert codes == [0, 0]
assert num_errors == 0
told = [text for text in compared if not text.startswith("ours")]
assert all("at once, calls differ" in text for text in told)
ok("only who compares fingerprints knows at once", errors_at_once=num_errors)

# %% [markdown] tags=["question"]
# ## What has each rank called until then?

# %% [markdown] tags=["predict"]
# Nobody set that variable, and the job hangs now. torch keeps a **flight record** on each rank:
# the last collectives that it called, numbered from 1 in each group, with sizes and lines. In
# `steps.py` each step has 2 collectives, and in step 3 rank 0 makes one more, between them. At which
# number do the records of both ranks first differ?

# %% tags=["predict"]
predict("first_different_number", ...)

# %% tags=["run"]
from ddp_lessons.hangs import first_differences, load_record

records = {rank: load_record(f"plain_{rank}") for rank in (0, 1)}
differences = first_differences(records)
print(*differences, sep="\n")

# %% tags=["picture"]
from ddp_lessons.pictures import holdings_picture

held = [{}, {}]
for rank, of_rank in records.items():
    for one in of_rank:
        if one.group == "2" and one.number > 3:
            held[rank][f"collective {one.number}"] = f"{one.name} {list(*one.sizes)}"
holdings_picture([f"collective {number}" for number in (4, 5, 6)], held)

# %% [markdown] tags=["read"]
# Number 6: the records name both calls, and their lines. All that follows would be shifted. Which
# rank is right they cannot say: that is for you.
#
# With Gloo a rank must write its record itself, as `differ.py` does after the timeout. NCCL does it
# when a call is late, says its documentation, if `TORCH_NCCL_DUMP_ON_TIMEOUT` is set.

# %% tags=["check"]
assert [difference.number for difference in differences] == [1, 6]
called_sixth = {r: record.name for r, record in differences[1].records.items()}
assert called_sixth == {0: "reduce", 1: "all_reduce"}
ok("records tell where calls part", first_different_number=differences[1].number)

# %% [markdown] tags=["question"]
# ## Who looks when you are asleep?

# %% [markdown] tags=["predict"]
# A **watchdog** is a thread that waits for a heartbeat. Each rank of the first job gets one. After
# each all-reduce a rank beats. Without a beat for 2 seconds its watchdog barks: it writes the
# rank's stack. How many of the 2 bark when rank 1 gets no batch in step 3?

# %% tags=["predict"]
predict("watchdogs_that_bark", ...)

# %% tags=["run"]
import inspect
from ddp_lessons.hangs import NaiveWatchdog

source = inspect.getsource(NaiveWatchdog._watch)
print(source, "lines:", len(source.splitlines()))

# %% [markdown] tags=["read"]
# 6 lines around an `Event`. The second kind, `Watchdog`, needs no beat: it watches the number of
# collectives that its group has called. When that stands still, each rank leaves a note in the
# store, and reads the others'. Here it also ends the job.

# %% tags=["run"]
# %%writefile watched.py
import torch.distributed as dist
from ddp_lessons.hangs import NaiveWatchdog, Watchdog, end_job
from loader import load_batch

dist.init_process_group("gloo")
naive = NaiveWatchdog(2, open(f"naive_{dist.get_rank()}.txt", "w"))
with Watchdog(3, on_stall=end_job):
    for step in range(1, 5):
        dist.all_reduce(load_batch(step))
        naive.beat()
dist.destroy_process_group()

# %% tags=["break"]
from pathlib import Path
from ddp_lessons.hangs import read_stack

job = run_job("torchrun --standalone --nproc-per-node 2 watched.py")
written = [Path(f"naive_{rank}.txt").read_text() for rank in (0, 1)]
barked = [own_frames(read_stack(text))[0] for text in written if text]
print(f"{len(barked)} naive ones barked:", *(str(frame) for frame in barked))
print(f"{job.stdout}exit code {job.returncode}")

# %% [markdown] tags=["read"]
# 2: who waits in a collective has no heartbeat either. The naive ones leave the rest to you.
#
# The second kind says it: rank 1 is missing in collective 3, and is in `load_batch`. And `end_job`
# has ended the job, with exit code 1. Now the loader gets a deadline, after which it asks another
# server.

# %% tags=["mend"]
# %%writefile loader.py
import time, torch, torch.distributed as dist


def load_batch(step):
    if step == 3 and dist.get_rank() == 1:
        time.sleep(0.5)  # the deadline; the next server answers at once
    return torch.ones(4)

# %% tags=["mend"]
job = run_job("torchrun --standalone --nproc-per-node 2 watched.py")
mended = job.returncode, job.stdout
print(f"exit code {job.returncode}, barks: {job.stdout.count('Missing')}")

# %% tags=["check"]
assert [frame.name for frame in barked] == ["watched.py", "loader.py"]
assert mended == (0, "")
ok("a watchdog that asks names who is missing", watchdogs_that_bark=len(barked))

# %% [markdown] tags=["question"]
# ## More: can you step through one rank?

# %% [markdown] tags=["predict"]
# Two ranks hold 1 each, and will add them up. Before that, rank 1 alone stops in Python's debugger,
# where somebody types `x += 41`, and then `continue`. What does rank 0 print?

# %% tags=["predict"]
predict("sum_on_the_first_rank", ...)

# %% tags=["run"]
# %%writefile stepped.py
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank, x = dist.get_rank(), torch.ones(1)
dist.breakpoint(rank=1)  # the others wait at a barrier
dist.all_reduce(x)
print(f"\nrank {rank}: {x.item():.0f}")
dist.destroy_process_group()

# %% tags=["run"]
Path("typed.txt").write_text("up\n!x += 41\ncontinue\n")  # in place of a keyboard
line = "torchrun --standalone --nproc-per-node 2 stepped.py < typed.txt"
job = run_job(["sh", "-c", line])
sums = sorted(line for line in job.stdout.splitlines() if line.startswith("rank"))
print(*sums, f"prompts of the debugger: {job.stdout.count('(Pdb)')}", sep="\n")

# %% [markdown] tags=["read"]
# 43: rank 0 brought 1, and rank 1 now 42. `dist.breakpoint` stops one rank, and the others wait for
# an hour at most. In a terminal you type yourself: `up` goes to your own line, `p x` shows a number.

# %% tags=["check"]
assert sums == ["rank 0: 43", "rank 1: 43"]
ok("a debugger holds one rank, a barrier the others", sum_on_the_first_rank=43)

# %% [markdown] tags=["recap"]
# You have looked into hanging jobs, made torch say more, and left a watchdog with one.
#
# | what you see | what it may be | what tells it |
# | --- | --- | --- |
# | steps stop, no error comes | a rank waits for something else | all stacks, `py-spy` |
# | `Timed out waiting` | a rank does not come | `monitored_barrier` |
# | `Connection closed by peer` | another rank gave up first | that rank's error |
# | wrong numbers, no error | sizes differ | `TORCH_DISTRIBUTED_DEBUG=DETAIL` |
# | all wait, at different lines | calls differ, or are shifted | flight records |
# | nothing: nobody looks | all of these | a watchdog |
#
# Rule of thumb: **who waits is not to blame; look at all ranks, and at the first difference.**

# %% [markdown] tags=["next"]
# - **On your own cluster**, ask for it before you need it:
#
#   ```console
#   export TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1
#   export TORCH_FR_DUMP_TEMP_FILE=$PWD/record_
#   torchrun --nproc-per-node 8 train.py    # with a Watchdog
#   py-spy dump --pid 12345    # each of pgrep -f train.py
#   torchfrtrace --prefix record_ .
#   TORCH_DISTRIBUTED_DEBUG=DETAIL torchrun --nproc-per-node 8 train.py    # after a hang
#   ```
# - **Exercise** [10](../exercises/10_hangs.ipynb): four stacks, a timeout, a comparison of calls,
#   and four scripts that hang. After the exercise:
#   [stacks.py](../ddp_lessons/hangs/stacks.py),
#   [fingerprints.py](../ddp_lessons/hangs/fingerprints.py) and
#   [watchdog.py](../ddp_lessons/hangs/watchdog.py).
# - **Next lesson** [11](11_speed.ipynb): where does a step's time go?
# - **Sources**: Python's documentation of
#   [`faulthandler`](https://docs.python.org/3/library/faulthandler.html); PyTorch's documentation
#   of [torch.distributed](https://docs.pytorch.org/docs/stable/distributed.html), "Debugging";
#   PyTorch's tutorial [Flight
#   Recorder](https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html), on NCCL
#   and `torchfrtrace`.

# %% tags=["teardown"]
os.chdir(tempfile.gettempdir())
folder.cleanup()
