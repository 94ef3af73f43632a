"""
Task 01.1: join a group.

On each rank: `_act`, `_wait_for_bytes`. In the kernel: the rest.
"""

import time
from dataclasses import replace
from datetime import timedelta
from unittest.mock import Mock

import torch
import torch.distributed as dist

from ddp_lessons.checks.kit import VALUES, Case, Expected, Mistake, Task
from ddp_lessons.checks.kit.on_rank.patching import patched
from ddp_lessons.pictures import holdings_picture
from ddp_lessons.process_group import leave_group

_TIMEOUT = timedelta(seconds=3)
_BEGUN_S = 1.0


def _cases(draw):
    yield Case(4, {"path": "first"}, seed=0)
    for world_size in draw.sample((1, 2, 3), 3):
        yield Case(world_size, {"path": f"store-{world_size}-{draw.randint(100, 999)}"})


def _act(context, join):
    path = context.folder / context["path"]
    if context.rank == context.world_size - 1 > 0:
        _wait_for_bytes(path)  # an answer that removes an old file removes the others' store
    has_left = Mock()  # ranks leave later: leaving while others join would break their join
    try:
        # An answer that waits for ranks that do not come must not wait for half an hour.
        with (
            patched(dist.distributed_c10d, default_pg_timeout=_TIMEOUT),
            patched(dist, destroy_process_group=has_left),
        ):
            context.call(join, str(path), context.rank, context.world_size)
        if not dist.is_initialized() or has_left.called:
            return {"is_joined": False}
        total = torch.tensor([10**context.rank])
        dist.all_reduce(total)
        dist.barrier()
        return {
            "is_joined": True,
            "rank": dist.get_rank(),
            "world_size": dist.get_world_size(),
            "file_bytes": path.stat().st_size if path.is_file() else None,
            "total": total.item(),
        }
    finally:
        if not path.exists():
            path.touch()  # a FileStore's destructor waits 300 s for a missing file
        leave_group()


def _wait_for_bytes(path):
    """
    Wait until another rank has written to the file, for at most `_BEGUN_S` seconds.
    """
    until_s = time.monotonic() + _BEGUN_S
    while time.monotonic() < until_s and not (path.is_file() and path.stat().st_size):
        time.sleep(0.005)


def _group_of_other_size(view):
    size = view.output["world_size"]
    return size != view.case.world_size and f"Its group has {size} of {view.case.world_size} ranks."


def _met_elsewhere(view):
    if view.output["file_bytes"]:
        return ""
    what = "not there" if view.output["file_bytes"] is None else "empty"
    return f"The ranks met, but the file at `path` is {what}."


def _draw(case_result):
    names = ("rank", "world_size", "total")
    held = [{name: str(seen.output[name]) for name in names} for seen in case_result.seen]
    return holdings_picture(names, held)


join = Task(
    number="01.1",
    name="join",
    cases=_cases,
    act=_act,
    ok="every rank has its own number, and all meet in the file",
    draw=_draw,
    hints=(
        "A group needs three things: a rank, a world size and a store. Two of them are given.",
        "The store is the file at `path`. dist.FileStore opens it, and so does an address that "
        "begins with file://.",
        "dist.init_process_group takes the backend, then store=... or init_method=..., and rank "
        "and world_size by their names.",
        'Call dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, ...).',
    ),
    expected=Expected(
        lambda case, rank: sum(10**r for r in range(case.world_size)),
        gave=lambda view: view.output.get("total"),
    ),
    mistakes=(
        Mistake(
            "no-identity",
            "A file does not know which rank calls: give rank and world_size, too.",
            raises=("parameter missing", "world_size must be", "rank must be"),
        ),
        Mistake(
            "bare-path",
            "init_method takes an address: file:// and then the path. A path alone is no address.",
            raises=("No rendezvous handler",),
        ),
        Mistake(
            "no-store",
            "Without a store or an init_method, torch looks for an address in environment "
            "variables. Give torch the file.",
            raises=("environment variable",),
        ),
        Mistake(
            "not-joined",
            "A store alone is no group: call dist.init_process_group, and do not leave the group "
            "again. If you catch its error, the check cannot show why it failed.",
            "After the call, this rank is in no group.",
            shows=lambda view: not view.output["is_joined"],
        ),
        Mistake(
            "alone",
            "Pass the world size that the function gets: then this rank waits for all ranks.",
            shows=_group_of_other_size,
        ),
        Mistake(
            "other-rank",
            "Pass the rank that the function gets.",
            shows=lambda view: (
                view.output["rank"] != view.rank
                and f"In its group this process has rank {view.output['rank']}."
            ),
        ),
        Mistake(
            "other-store",
            "Use the file at `path`, which is new, and do not remove it. Another file may be left "
            "from an earlier group.",
            shows=_met_elsewhere,
        ),
        replace(
            VALUES,
            hint="The ranks are in a group, but its messages do not arrive. Some backends, such as "
            "`fake`, move no data: they are for tests.",
            symptom="An all-reduce gave another sum.",
        ),
        Mistake(
            "raised",
            "If the message names a line, it is a line of your function. If the call timed out, "
            "the ranks did not meet: each needs its own rank, and all need the same world size and "
            "the same file, which no rank removes or empties.",
        ),
    ),
    must_return=False,
    in_group=False,
)
