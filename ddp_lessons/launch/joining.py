"""
A job that grows and shrinks while it runs: a second node joins, and leaves again.

    python -m ddp_lessons.launch.joining

Both nodes are this machine: each has an agent, which is a torchrun of its own, and one worker. When
nodes come or go, agents end all workers and start new ones. So memory is lost each time.

Legend: a life is counted by an agent, and only after a failure: a node that joins is none.

Lesson: 09_launch.
"""

import os
import time
from typing import NoReturn

import torch
import torch.distributed as dist

from ..jobs import start_job
from .environment import free_port
from .lives import life_of

AGENT = (
    "torchrun --nnodes 1:2 --nproc-per-node 1 --max-restarts 3 "
    "--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --rdzv-conf last_call_timeout=1 "
    "--module ddp_lessons.launch.joining"
)
"""
What each node types. `1:2` are the fewest nodes and the most.
"""
_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # a store for each life, see `lives`
}
_LONGEST_S = 60.0
_STEP_S = 0.05


def work() -> NoReturn:
    """
    Be a worker: say how large the world is, then take steps until somebody ends it.

    Collective: every rank must call it.
    """
    dist.init_process_group("gloo")
    said = f"a world of {dist.get_world_size()}, process {os.getpid()}, life {life_of(os.environ)}"
    print(said, flush=True)
    while True:
        dist.all_reduce(torch.ones(1))
        time.sleep(_STEP_S)


def join_and_leave() -> None:
    """
    Start a node, let a second one join, and leave. Print what the first one's workers have said.

    Raises:
        JobLate: A world did not come about.
    """
    command = AGENT.format(port=free_port())
    with start_job(command, env=_VARIABLES) as first:
        first.wait_for("a world of 1", _LONGEST_S)
        with start_job(command, env=_VARIABLES):
            first.wait_for("a world of 2", _LONGEST_S)
        first.wait_for("a world of 1", _LONGEST_S, times=2)
    print(first.stdout, end="")


if __name__ == "__main__":
    if "RANK" in os.environ:
        work()
    else:
        join_and_leave()
