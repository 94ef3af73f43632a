"""
A probe of torch that runs in its own process, so that torch may hang or crash without the doctor.

Its command is `python -m ddp_lessons.course.doctor.torch_probe FOLDER`. Each step prints one line
of JSON when it is done, so that a deadline or a crash does not lose the results before it:

    {"version": "2.13.0", "cuda": "13.0", "num_gpus": 2, "backends": ["gloo", "nccl"]}
    {"fork_s": 0.05}     or   {"fork_error": "rank 1 of 2 ended with exit code 1"}
    {"spawn_s": 2.95}    or   {"spawn_error": ...}, if ranks cannot be forked
    {"num_private_names": 52, "gone": [["torch.x._y", "what is lost"]]}
    {"cell_s": 0.004}    or   {"cell_error": "a sentence"}
"""

import contextlib
import json
import multiprocessing
import sys
import time
from datetime import timedelta
from pathlib import Path

RANKS_DEADLINE_S = 20
BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")


def say(**facts):
    """
    Print what a step found, as one line of JSON.
    """
    print(json.dumps(facts), flush=True)


def describe_torch():
    """
    Import torch and print its version, its wheel's CUDA runtime, its GPUs and its backends.
    """
    import torch
    import torch.distributed as dist

    backends = []
    if dist.is_available():
        backends = [name for name in BACKENDS if getattr(dist, f"is_{name}_available")()]
    say(
        version=torch.__version__,
        cuda=torch.version.cuda or torch.version.hip,
        # This call asks the driver. It does not initialise CUDA, which would make forking unsafe.
        num_gpus=torch.cuda.device_count(),
        backends=backends,
    )


def all_reduce_as(rank, folder):
    """
    Join two ranks through a file store, all-reduce 1 + 2, and leave the answer in a file.

    Collective: both ranks.

    Args:
        rank: 0 or 1.
        folder: A folder that both ranks see and nobody else can read.
    """
    import torch
    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        init_method=(Path(folder) / "store").absolute().as_uri(),
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=RANKS_DEADLINE_S),
    )
    # Large enough for BLAS to use its threads, which a fork has to survive.
    ones = torch.ones(256, 256)
    total = (ones @ ones).mean() / 256 * (rank + 1)
    dist.all_reduce(total)
    (Path(folder) / f"answer_{rank}").write_text(f"{total.item():g}")
    dist.destroy_process_group()


def run_two_ranks(method, folder):
    """
    Run an all-reduce on two ranks and print its seconds, from their start to their end.

    Args:
        method: "fork", as the course does on Linux, or "spawn".
        folder: Path of a private folder to make, for the store and the answers.

    Returns:
        bool: Whether both ranks had the right sum. A rank that hangs is killed at a deadline.
    """
    folder.mkdir(mode=0o700)
    context = multiprocessing.get_context(method)
    ranks = [context.Process(target=all_reduce_as, args=(rank, str(folder))) for rank in range(2)]
    start = time.perf_counter()
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(max(0.0, start + RANKS_DEADLINE_S - time.perf_counter()))
    seconds = time.perf_counter() - start

    error = ""
    for rank, process in enumerate(ranks):
        if process.is_alive():
            process.kill()
            process.join()
            error = error or f"rank {rank} of 2 did not end within {RANKS_DEADLINE_S} s"
        elif process.exitcode != 0:
            error = error or f"rank {rank} of 2 ended with exit code {process.exitcode}"
    answers = [path.read_text() for path in folder.glob("answer_*")]
    if not error and answers != ["3", "3"]:
        error = f"1 + 2 on two ranks: 3 on both expected (got {' and '.join(answers)})"
    say(**({f"{method}_error": error} if error else {f"{method}_s": seconds}))
    return not error


def list_private_names():
    """
    Print how many private names of other packages the course uses, and which of them are gone.
    """
    from ddp_lessons.private import PRIVATE_NAMES, missing_names

    gone = missing_names()
    say(num_private_names=len(PRIVATE_NAMES), gone=[(name.name, name.lost) for name in gone])


def run_a_cell():
    """
    Start two of the course's own ranks, run a cell with an all-reduce on them, and print its time.
    """
    from ddp_lessons.ranks import start_ranks
    from ddp_lessons.ranks.kernel.cells import run_cell

    cell = "import torch, torch.distributed as dist\ndist.all_reduce(torch.ones(1))"
    try:
        with contextlib.redirect_stdout(sys.stderr), start_ranks(2, device="cpu") as ranks:
            run_cell(ranks, cell)
            start = time.perf_counter()
            run_cell(ranks, cell)
            seconds = time.perf_counter() - start
    except Exception as error:  # whatever it is, the learner is to read it in the table
        say(cell_error=str(error).partition("\n")[0] or type(error).__name__)
    else:
        say(cell_s=seconds)


def main(folder):
    """
    Run every step.

    Args:
        folder: A folder that only this user can read.
    """
    describe_torch()
    forked = sys.platform.startswith("linux") and run_two_ranks("fork", Path(folder) / "fork")
    if not forked:
        run_two_ranks("spawn", Path(folder) / "spawn")
    list_private_names()
    run_a_cell()


if __name__ == "__main__":
    main(sys.argv[1])
