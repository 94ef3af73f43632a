# %% [markdown] tags=["title"]
# # How does a cell become a job?
#
# 30 minutes, 2 ranks. It builds on [01_process_group](01_process_group.ipynb), for what a group
# needs, and on [08_checkpoint](08_checkpoint.ipynb). Two cells use Open MPI and Slurm, if installed.

# %% [markdown] tags=["goal"]
# When you are through, you can
#
# - **turn** cells into a script, and start it by any launcher;
# - **tell** what is left when a process fails, and which one failed;
# - **rehearse** a batch file before it is queued.

# %% tags=["setup", "nbval-ignore-output"]
import os, pathlib, tempfile
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.jobs import run_job

out = globals().get("out") or tempfile.TemporaryDirectory()
os.environ["OUT"] = out.name  # ranks inherit it
ranks = start_ranks(2, device="cpu")

# %% [markdown] tags=["question"]
# ## What must a script do that a cell need not?

# %% [markdown] tags=["predict"]
# The next two cells train. Then they become a script, and two new processes run it. In how many of
# its 20 losses will such a process differ from the rank of the same number here, if every bit
# counts?

# %% tags=["predict"]
predict("losses_that_differ", ...)

# %% tags=["run", "script"]
# %%px
import json, os
from pathlib import Path
import torch, torch.distributed as dist
from ddp_lessons.workloads import digits_model, load_digits

torch.set_num_threads(1)  # more threads would add up in another order
rank, world_size = dist.get_rank(), dist.get_world_size()
digits = load_digits()
images = digits.train_images[rank::world_size]
labels = digits.train_labels[rank::world_size]

# %% tags=["run", "script"]
# %%px
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(digits_model(seed=0))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
losses = []
for _ in range(20):
    loss = cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
Path(os.environ["OUT"], f"losses-{rank}.json").write_text(json.dumps(losses))
print(f"rank {rank} of {world_size}: loss {losses[-1]:.2f}")

# %% tags=["run"]
folder = pathlib.Path(out.name)
job = run_job("ddp-lessons script 09_launch --output train.py", folder=folder)
print(job.stdout, (folder / "train.py").read_text(), sep="\n")

# %% [markdown] tags=["read"]
# Both cells have the tag `script`, and no line was lost. New are `main`, and what `start_ranks(2)`
# did for the cells: to join a group, and to leave it.

# %% tags=["break"]
alone = run_job("python train.py", folder=folder)
print(f"exit code {alone.returncode}", alone.stderr.splitlines()[-1], sep="\n")

# %% tags=["mend"]
from ddp_lessons.launch.example import num_different, start_by, start_command

job = start_by("torchrun", folder)  # torchrun --nproc-per-node 2 train.py
print("exit code", job.wait(150))
print(job.stdout, end="")  # of rank 0 alone
print("losses that differ:", num_different(folder, "torchrun"))

# %% [markdown] tags=["read"]
# Started by `python`, it does not know its rank. `torchrun` is a **launcher**: it starts 2 processes
# here, and tells each its number. 0 losses differ: same code, same seeds.

# %% tags=["check"]
assert alone.returncode == 1
assert "RANK expected" in alone.stderr
ok("no line was lost, and no bit", losses_that_differ=num_different(folder, "torchrun"))

# %% [markdown] tags=["question"]
# ## Who tells a process its number?

# %% [markdown] tags=["predict"]
# From torchrun each process gets five variables: `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, its number on
# its machine, and `MASTER_ADDR` and `MASTER_PORT`, where ranks meet. MPI, which sends messages, is
# older than torch. How many of the five does its launcher, `mpiexec`, set?

# %% tags=["predict"]
predict("told_by_mpiexec", ...)

# %% tags=["run"]
told = """import os
five = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}
print(len(five & set(os.environ)))"""
(folder / "told.py").write_text(told)
grows = start_command("python -m ddp_lessons.launch.joining", folder, "grows")  # later
job = run_job("torchrun --standalone --nproc-per-node 1 told.py", folder=folder)
alone = run_job("python told.py", folder=folder)
print("torchrun:", job.stdout.split()[0], "of 5; nobody:", alone.stdout.strip())

# %% tags=["run"]
from ddp_lessons.launch import command_of, is_here, stored_output

found = [n for n in ("launch", "spawn", "mpiexec", "srun") if is_here(n, os.environ)]
running = {name: start_by(name, folder) for name in found}
for name in ("launch", "spawn"):
    running[name].wait(150)
    print(f"{name}: losses that differ: {num_different(folder, name)}")

# %% tags=["run", "nbval-ignore-output"]
for name in ("mpiexec", "srun"):
    if name not in running:
        print(stored_output(name))
        continue
    running[name].wait(150)
    command, needed = command_of(name, 2, "told.py", adopts=False)  # in its own words
    num_told = run_job(command, folder=folder, env=needed).stdout.split()[0]
    print(f"{name}: {num_told} of 5, {num_different(folder, name)} losses differ")

# %% [markdown] tags=["read"]
# `mpiexec`, here Open MPI's, and `srun`, Slurm's, set 0 of them. They have words of their own, such
# as `SLURM_PROCID`. So we started `python -m ddp_lessons.launch train.py`, which reads these and
# tells torch in torch's. `spawn`, of `torch.multiprocessing`, starts ranks from Python. `launch` is
# `torch.distributed.launch`.

# %% tags=["run"]
note = running["launch"].stderr.splitlines()
print(*[line.partition(": ")[2] for line in note if "deprecated" in line])

# %% [markdown] tags=["read"]
# A guide calls MPI, Slurm, Kubernetes, Horovod, Lightning and TorchElastic, now torchrun, ways to
# distribute: [claim C30](claims.md). That is **half true**. Slurm and Kubernetes are **schedulers**:
# they say where and when. `srun`, `mpiexec` and torchrun start ranks: with each, 0 losses differ. MPI
# and Horovod are libraries: they move numbers. Lightning writes your loop.
#
# `torch.distributed.launch`, which another guide recommends, is torchrun's old name. It works, and
# says so: [claim C22](claims.md) is **half true**.

# %% tags=["check"]
codes = {name: job.returncode for name, job in running.items()}
assert set(codes.values()) == {0}, codes
assert [num_different(folder, name) for name in running] == [0] * len(running)
assert any("torch.distributed.launch is deprecated" in line for line in note)
ok("C22 is half true, launch still works; C30 is half true, they are of several kinds",
   told_by_mpiexec=0)  # fmt: skip

# %% [markdown] tags=["question"]
# ## Who starts again when one process fails?

# %% [markdown] tags=["predict"]
# In a notebook, one new process takes the place of a dead one. Now 2 processes run under
# `torchrun --max-restarts 1`, and rank 1 ends in its step 6. How many new processes start?

# %% tags=["predict"]
predict("new_processes", ...)

# %% tags=["run"]
script = """
import os, pathlib, torch, torch.distributed as dist
from ddp_lessons.launch.example import known_addresses  # of this rank, in the store
life, rank = (int(os.environ[n]) for n in ("TORCHELASTIC_RESTART_COUNT", "RANK"))
saved = pathlib.Path(os.environ["OUT"], "step")
first = int(saved.read_text()) + 1 if saved.exists() else 1
print(f"{life} {os.getpid()} {first} {known_addresses(rank)}\\n", end="")
dist.init_process_group("gloo")
for step in range(first, 9):
    if (life, rank, step) == (0, 1, 6): os._exit(3)
    dist.all_reduce(torch.ones(1))
    if rank == 0 and step % 2 == 0:
        saved.write_text(str(step))
dist.destroy_process_group()"""

# %% tags=["break"]
from ddp_lessons.launch.example import wait_for_lines

(folder / "lives.py").write_text(script)
command = "torchrun --standalone --nproc-per-node 2 --max-restarts 1 lives.py"
cure = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # of this later
own = start_command(command, folder, "own", **cure)
shared = start_command(command, folder, "shared")
wait_for_lines(shared, 4)
shared.end()  # what it would come to is chance
lives = [line.split() for line in shared.stdout.splitlines()]
new = {process for life, process, *_ in lives if life == "1"}
stale = sum(int(known) for life, *_, known in lives if life == "1")
print(f"new processes: {len(new)}; addresses known before anyone joins: {stale}")

# %% [markdown] tags=["read"]
# torchrun ended the healthy rank too, and started 2 new processes. Everybody's memory is gone.
#
# But one thing is left: the *dead* rank 1's address. torchrun keeps one store for all lives. Who
# finds that address is refused, or waits for ever; or the right one comes in time, which is chance.
# The cure is a store for each life: `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`.

# %% tags=["mend"]
print("with a store for each life: comes back:", own.wait(150) == 0)
lives = [line.split() for line in own.stdout.splitlines()]
(first,) = {int(step) for life, _, step, _ in lives if life == "1"}
known = sum(int(known) for *_, known in lives)
print(f"addresses known: {known}; it begins with step {first}")

# %% [markdown] tags=["read"]
# It finds 0 addresses, and comes back. What survives is on the disk: after the save of step 4, it
# makes step 5 again. Nobody told the script of its first life: it looked.

# %% tags=["check"]
assert (stale, own.returncode, known, first) == (1, 0, 0, 5)
ok("all start again, from what was saved", new_processes=len(new))

# %% [markdown] tags=["question"]
# ## Whose fault was it that a job failed?

# %% [markdown] tags=["predict"]
# Three jobs of 2 ranks. In the first, rank 1 raises; in the second it ends by `os._exit(3)`; in the
# third it is killed. Which exit code has torchrun after the second?

# %% tags=["predict"]
predict("exit_code_of_torchrun", ...)

# %% tags=["run"]
fails = """import os, sys, time
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    if os.environ["RANK"] == "1": exec(sys.argv[1])
    time.sleep(60)
main()"""
(folder / "fails.py").write_text(fails)
ways = {"raise": "raise ValueError('batch 17')", "exit": "os._exit(3)"}
ways["kill"] = "os.kill(os.getpid(), 9)"
start = ["torchrun", "--standalone", "--nproc-per-node=2", "fails.py"]
jobs = {name: start_command([*start, way], folder, name) for name, way in ways.items()}

# %% tags=["run"]
from ddp_lessons.launch import exit_codes, recorded_error, root_cause

for name, job in jobs.items():
    print(f"{name}: torchrun's exit code {job.wait(150)},", end=" ")
    rank, code = root_cause(job.stderr)
    print(f"of rank {rank}: {code}, of rank 0: {exit_codes(job.stderr)[0]}")
    print("  recorded:", recorded_error(job.stderr))

# %% [markdown] tags=["read"]
# torchrun's own is 1 each time. Those of ranks are in the report that it ends with. A positive one
# was chosen by the program, -9 is an end by signal 9. Rank 0 has -15: `SIGTERM`, sent by torchrun.
#
# The root cause is the first that torchrun has *observed*. `ValueError: batch 17` is there thanks to
# `@record`. Who exits or is killed records nothing: read what that rank has printed.

# %% tags=["check"]
assert [root_cause(job.stderr) for job in jobs.values()] == [(1, 1), (1, 3), (1, -9)]
assert recorded_error(jobs["raise"].stderr) == "ValueError: batch 17"
ok("who, and under @record why", exit_code_of_torchrun=jobs["exit"].returncode)

# %% [markdown] tags=["question"]
# ## How many ranks will a batch file start?

# %% [markdown] tags=["predict"]
# For a cluster you write a **batch file**: what you ask Slurm for, and what to run. The one below
# asks for 2 nodes, which are machines, and 2 tasks on each; a task runs its last line. How many
# processes run `train.py`?

# %% tags=["predict"]
predict("processes_of_a_batch", ...)

# %% tags=["break"]
from ddp_lessons.launch import Cluster, rehearse

cluster = Cluster(nodes=2, cores=4, gpus=0, partition="debug", hours=1)
batch = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
srun torchrun --standalone --nproc-per-node=2 train.py
"""
started = rehearse(batch, cluster).ranks
print(f"{len(started)} processes; world sizes: {[r.world_size for r in started]}")

# %% tags=["mend"]
batch = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --output=batch.txt
export OMP_NUM_THREADS=4
srun python -m ddp_lessons.launch train.py
"""
mended = rehearse(batch, cluster).ranks
for r in mended:
    print(f"node {r.node}: rank {r.rank} of {r.world_size}, {r.threads} threads")

# %% [markdown] tags=["read"]
# 8 processes, in 4 worlds: each task is a torchrun, and starts 2 more. One launcher is enough.
#
# `rehearse` runs the file here, where `srun` and `python` only note how they were called. Next, Slurm
# itself, where it is. [slurm.sh](../scripts/slurm.sh) starts one on your machine, and takes it away.

# %% tags=["run", "nbval-ignore-output"]
if is_here("srun", os.environ):
    (folder / "job.sh").write_text(batch)
    here = {"MASTER_ADDR": "127.0.0.1"}  # both nodes are this machine
    job = start_command("sbatch --wait job.sh", folder, "batch", **here)
    print("exit code", job.wait(150))
    print(*sorted((folder / "batch.txt").read_text().splitlines()), sep="\n")
    assert num_different(folder, "batch") == 0
else:
    print(stored_output("sbatch"))

# %% tags=["check"]
assert [(r.rank, r.node, r.threads) for r in mended] == [(0, 0, 4), (1, 1, 4)]
ok("one launcher, and a rank for each task", processes_of_a_batch=len(started))

# %% [markdown] tags=["question"]
# ## More: what if a machine comes later, and another must go?

# %% [markdown] tags=["predict"]
# A job of `torchrun --nnodes 1:2` needs 1 node, and takes 2. It runs on one; a second joins; then
# the second leaves. Each node has 1 process at a time. How many has the *first* node had by then?

# %% tags=["predict"]
predict("processes_of_the_first_node", ...)

# %% tags=["run"]
from ddp_lessons.launch.joining import AGENT

print(AGENT.format(port="PORT").replace(" --", "\n  --"))
grows.wait(150)  # it runs since section 2: a lost node is missed after 15 s
worlds = [line.split() for line in grows.stdout.splitlines()]
for world in worlds:
    print("a world of", world[3], *world[6:])
print("processes of the first node:", len({world[5] for world in worlds}))

# %% [markdown] tags=["read"]
# Such a job is **elastic**. It went on with 2, and with 1 again: 3 worlds, each of new processes. So
# a node that comes costs all memory too, as a failure does. Only a failure counts as a life, and is
# taken off `--max-restarts`. A script that survives a restart needs nothing more to be elastic, but
# its share of the data changes with the world.

# %% tags=["check"]
assert [world[3] for world in worlds] == ["1,", "2,", "1,"]
processes = {world[5] for world in worlds}
ok("each world begins anew", processes_of_the_first_node=len(processes))

# %% [markdown] tags=["recap"]
# You have made a script of cells and started it by several launchers, seen what a restart takes
# away, read who failed, and rehearsed a batch file.
#
# Rule of thumb: **the environment says who you are, the disk how far you were.**

# %% [markdown] tags=["next"]
# - **On your own cluster**: give your cells the tag (JupyterLab shows tags behind the cogs at the
#   right), run `ddp-lessons script my.ipynb -o train.py`, put your numbers into the batch file, and
#   `sbatch job.sh`. On one machine: `torchrun --standalone --nproc-per-node=8 train.py`.
# - **Exercise** [09](../exercises/09_launch.ipynb): find a place, survive, write a batch file, tell
#   six logs apart. After it: [environment.py](../ddp_lessons/launch/environment.py),
#   [reports.py](../ddp_lessons/launch/reports.py).
# - **Next lesson** [10](10_hangs.ipynb): a job that does nothing.
# - **Sources**: [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html) in PyTorch's
#   documentation; [sbatch](https://slurm.schedmd.com/sbatch.html) in Slurm's.

# %% tags=["teardown"]
ranks.stop()  # the folder goes with the kernel
