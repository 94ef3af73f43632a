"""
A runner of functions on several ranks: it returns each rank's result, within a deadline.

The ranks are forked from a server that has torch loaded, so a world of four starts in a fraction of
a second. Each world has its own Gloo group, over loopback and a file store.
"""

import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path

from waiting import HANGS_AFTER_S

_PRELOADED = [
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.profiler",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "ddp_lessons.checkpoint",
    "pytest",
    "hypothesis",
    "worlds",
    "frozen",  # last
]
WORLD_SIZES = [1, 2, 3]
"""
Numbers of ranks for which results are compared: a rank alone, two ranks where both neighbours are
the same rank, and an odd number that rarely divides a size. Four ranks run the lessons and the
answers; rings and collectives are also tried with more.
"""
_GROUP_TIMEOUT = timedelta(seconds=HANGS_AFTER_S)


class RankFailed(AssertionError):
    """
    An error: a function raised, died or did not end on some rank. The message holds the traceback.
    """


def _context():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def run_world(world_size, function, *args, timeout_s=2 * HANGS_AFTER_S, join=True):
    """
    Run `function(rank, world_size, *args)` on each rank of a new world.

    Args:
        world_size: The number of ranks.
        function: A function at the top level of a module, so that other processes can import it.
        args: Further arguments, the same on every rank; they must pickle.
        timeout_s: Seconds for the whole world. Pass less for a world that must hang.
        join: Whether the ranks join the default process group first.

    Returns:
        list: The functions' results, in rank order.

    Raises:
        RankFailed: A rank raised, died, or did not finish in time. No process is left.
    """
    context = _context()
    with tempfile.TemporaryDirectory(prefix="world-") as folder:
        pipes, members = [], []
        for rank in range(world_size):
            ours, theirs = context.Pipe(duplex=False)
            job = (rank, world_size, folder, join, function, args, theirs)
            member = context.Process(target=_member, args=job, daemon=True)
            member.start()
            theirs.close()
            pipes.append(ours)
            members.append(member)
        try:
            return _collect(pipes, members, time.monotonic() + timeout_s)
        finally:
            for member in members:
                member.kill()
                member.join()
            for pipe in pipes:
                pipe.close()


def _collect(pipes, members, deadline):
    results, waiting = {}, dict(enumerate(pipes))
    while waiting:
        ready = wait(list(waiting.values()), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            raise RankFailed(f"ranks {sorted(waiting)} of {len(pipes)} were not done in time")
        for rank in [rank for rank, pipe in waiting.items() if pipe in ready]:
            pipe = waiting.pop(rank)
            try:
                worked, value = pipe.recv()
            except EOFError:
                members[rank].join()
                code = members[rank].exitcode
                raise RankFailed(f"rank {rank} of {len(pipes)} ended with code {code}") from None
            if not worked:
                raise RankFailed(f"rank {rank} of {len(pipes)} raised:\n{value}")
            results[rank] = value
    return [results[rank] for rank in range(len(pipes))]


def _member(rank, world_size, folder, join, function, args, pipe):
    import torch
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        if join:
            store = dist.FileStore(str(Path(folder) / "store"), world_size)
            dist.init_process_group(
                "gloo", store=store, rank=rank, world_size=world_size, timeout=_GROUP_TIMEOUT
            )
        answer = (True, function(rank, world_size, *args))
        if join:
            # A rank that ends while others still connect to each other would make them fail, so all
            # ranks wait for each other here. The group is not destroyed: Gloo may destroy it in one
            # of its own threads, which then tries to join itself and aborts.
            store.set(f"through-{rank}", "")
            store.wait([f"through-{other}" for other in range(world_size)], _GROUP_TIMEOUT)
    except BaseException:
        answer = (False, traceback.format_exc())
    _save_coverage()
    pipe.send(answer)
    pipe.close()


def _save_coverage():
    """
    Write down which lines this rank ran, if coverage is measured: the rank is killed once it has
    answered.
    """
    coverage = sys.modules.get("coverage")
    measured = coverage and coverage.Coverage.current()
    if measured:
        measured.stop()
        measured.save()
