# ruff: noqa: E501 - each row of the matrix stands on one line
"""
Every way in which a rank can fail: what happens, how long it may take, and how it is told.
"""

from dataclasses import dataclass

STOP_S = 0.5

PREPARE = """%%px
import ctypes, gc, os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from ddp_lessons.process_group import rank_device
rank, world_size = dist.get_rank(), dist.get_world_size()
if rank_device().type == "cuda":  # all that follows is where NCCL, or Gloo for a GPU, takes it
    torch.set_default_device(rank_device())
t = torch.ones(4)
keep = 100 + rank
for name in ("model", "pair"):
    globals().pop(name, None)
"""
MODEL = """%%px
model = DistributedDataParallel(torch.nn.Linear(4, 4))
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
"""


@dataclass(frozen=True)
class Mishap:
    """
    One row of the matrix. `{C}` in its texts stands for the culprit, `{V}` for the others.
    """

    cell: str
    first_line: str
    stop_after_s: tuple = ()
    fault_after_s: float = 0.0
    loses: bool = False
    prepare: str = ""
    shows: str = ""
    num_settling: int = 1


MISHAPS = {
    "raise_before_collective": Mishap(
        "if rank == {C}:\n    raise ValueError('bad shard')\ndist.all_reduce(t)",
        r"rank {C} raised ValueError: bad shard at line 2: raise ValueError\('bad shard'\)",
    ),
    "raise_between_collectives": Mishap(
        "dist.all_reduce(t)\nif rank == {C}:\n    1 / 0\ndist.broadcast(t, 0)",
        r"rank {C} raised ZeroDivisionError: division by zero at line 3: 1 / 0",
    ),
    "syntax_error": Mishap("print(rank", r"ranks .* raised SyntaxError: .* at line 1: print\(rank"),
    "sys_exit": Mishap(
        "if rank == {C}:\n    sys.exit(3)\ndist.barrier()",
        r"rank {C} raised SystemExit: 3 at line 2: sys.exit\(3\)",
    ),
    "skipped_collective_stop": Mishap(
        "if rank != {C}:\n    dist.all_reduce(t)",
        r"Stopped: rank {C} finished the cell without all_reduce \d+; {V} waits? in all_reduce \d+ \(line 2\)",
        stop_after_s=(STOP_S,),
    ),
    "skipped_collective_alone": Mishap(
        "if rank != {C}:\n    dist.all_reduce(t)",
        r"Deadlock: rank {C} finished the cell without all_reduce \d+; {V} waits? in all_reduce \d+ \(line 2\)",
    ),
    "different_collectives_stop": Mishap(
        "if rank == {C}:\n    dist.broadcast(t, 0)\nelse:\n    dist.all_reduce(t)",
        r"Stopped: rank {C} called broadcast .* as collective \d+, where .* called all_reduce",
        stop_after_s=(STOP_S,),
    ),
    "different_collectives_alone": Mishap(
        "if rank == {C}:\n    dist.broadcast(t, 0)\nelse:\n    dist.all_reduce(t)",
        r"Deadlock: rank {C} called broadcast .* as collective \d+, where .* called all_reduce",
    ),
    "all_receive_first_stop": Mishap(
        "dist.recv(t, (rank + 1) % world_size)",
        r"Stopped: ranks 0.* all wait in recv \(line 1\), and none sends",
        stop_after_s=(STOP_S,),
    ),
    "all_receive_first_alone": Mishap(
        "dist.recv(t, (rank + 1) % world_size)",
        r"Deadlock: ranks 0.* all wait in recv \(line 1\), and none sends",
    ),
    "shapes_differ": Mishap(
        "x = torch.ones(3 if rank == {C} else 4)\ndist.all_reduce(x)",
        r"(Deadlock: )?rank {C} called all_reduce float\[3\] as collective \d+, where .* all_reduce float\[4\]",
    ),
    "dtypes_differ": Mishap(
        "x = torch.ones(4, dtype=torch.int32 if rank == {C} else torch.float32)\ndist.all_reduce(x)",
        r"(Deadlock: )?rank {C} called all_reduce int\[4\] as collective \d+, where .* all_reduce float\[4\]",
    ),
    "pure_python_stop": Mishap(
        "n = 0\nwhile True:\n    n += 1",
        r"Stopped: ranks 0.* were at line [23]: |Stopped: ranks? .* at line [23]",
        stop_after_s=(STOP_S,),
    ),
    "backward_while_one_is_away_stop": Mishap(
        "if rank == {C}:\n    time.sleep(60)\nmodel(torch.ones(2, 4)).sum().backward()",
        r"Stopped: rank {C} is at line 2: time.sleep\(60\); {V} waits? for it in .* \(line 3\)",
        stop_after_s=(STOP_S,),
        prepare=MODEL,
        num_settling=2,  # torch keeps the last group that a DDP model had
        shows="`model` holds the old group: run the cell that makes it again.",
    ),
    "kill_in_collective": Mishap(
        "if rank == {C}:\n    os.kill(os.getpid(), 9)\ndist.all_reduce(t)",
        r"rank {C} died: its process was ended by SIGKILL",
        loses=True,
        shows="A new rank {C} is in place; its variables are gone.",
    ),
    "abort_in_c": Mishap(
        "if rank == {C}:\n    os.abort()\ndist.all_reduce(t)",
        r"rank {C} died: its process was ended by SIGABRT",
        loses=True,
    ),
    "subgroup_only": Mishap(
        "if rank == {C}:\n    raise ValueError('bad shard')\n"
        "if rank == {C} - 1:\n    dist.all_reduce(t, group=pair)",
        r"rank {C} raised ValueError: bad shard at line 2",
        prepare="%%px\npair = dist.new_group([{C} - 1, {C}])",
        shows="`pair` holds the old group",
    ),
    "subgroup_deadlock_alone": Mishap(
        "if rank == {C} - 1:\n    dist.all_reduce(t, group=pair)",
        r"Deadlock: rank {C} finished the cell without all_reduce 1; rank {B} waits in all_reduce 1 \(line 2\)",
        prepare="%%px\npair = dist.new_group([{C} - 1, {C}])",
    ),
    "new_group_by_one_rank_alone": Mishap(
        "if rank == {C}:\n    dist.new_group([0, {C}])",
        r"Deadlock: rank 0 finished the cell without new_group; rank {C} waits in new_group \(line 2\)",
    ),
    "stop_twice": Mishap(
        "if rank != {C}:\n    dist.all_reduce(t)\nelse:\n    time.sleep(60)",
        r"Stopped: rank {C} is at line 4: time.sleep\(60\); {V} waits? for it in all_reduce \d+ \(line 2\)",
        stop_after_s=(STOP_S, STOP_S + 0.1),
    ),
    "fault_in_async_wait": Mishap(
        "if rank == {C}:\n    raise ValueError('bad shard')\n"
        "handle = dist.all_reduce(t, async_op=True)\nhandle.wait()",
        r"rank {C} raised ValueError: bad shard at line 2",
    ),
    "async_wait_stop": Mishap(
        "if rank != {C}:\n    handle = dist.all_reduce(t, async_op=True)\n    handle.wait()",
        r"Stopped: rank {C} finished the cell without all_reduce \d+.*; {V} waits? in all_reduce \d+ in wait \(line 3\)",
        stop_after_s=(STOP_S,),
    ),
    "holds_its_interpreter_stop": Mishap(
        "if rank == {C}:\n    sleep = ctypes.PyDLL(None).sleep\n    while sleep(60):\n        pass\n"
        "dist.barrier()",
        r"Stopped: rank {C} is at line 3: while sleep\(60\):; {V} waits? for it in barrier \d+ \(line 5\)",
        stop_after_s=(STOP_S,),
        loses=True,
    ),
}
