"""
Run a function on the ranks of a new group, on this machine's CPU or its GPUs.
"""

import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from kernel import BenchmarkFailed

from ddp_lessons.process_group import join_group, leave_group
from ddp_lessons.ranks.kernel.bootstrap import this_machine
from ddp_lessons.ranks.messages.orders import TorchImported
from ddp_lessons.ranks.system.placement import choose_placement


def run_ranks(num_ranks, function, *args, device="cpu"):
    """
    Call `function(rank, *args)` on each rank of a new group, with one thread each.

    Args:
        num_ranks: Number of ranks.
        function: A function at the top level of a module.
        args: Further arguments, the same on every rank. It must be possible to pickle them.
        device: "cpu", or "cuda" to place ranks as `start_ranks` does. `rank_device` returns it.

    Returns:
        list: The result of each rank, in rank order.

    Raises:
        BenchmarkFailed: A rank raised or died. Its traceback is on standard error.
    """
    facts = TorchImported(torch.cuda.device_count(), dist.is_nccl_available())
    placement = choose_placement(num_ranks, device, this_machine(facts))
    context = multiprocessing.get_context("spawn")
    pipes, members = [], []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for rank in range(num_ranks):
            ours, theirs = context.Pipe(duplex=False)
            job = (rank, placement, str(Path(folder, "store")), function, args, theirs)
            member = context.Process(target=_member, args=job, daemon=True)
            member.start()
            theirs.close()
            pipes.append(ours)
            members.append(member)
        try:
            answers = [pipe.recv() for pipe in pipes]
            for member in members:
                member.join()
        except EOFError:
            raise BenchmarkFailed("a rank raised or died, see above") from None
        finally:
            for member in members:  # a rank that raised leaves the others waiting
                member.kill()
                member.join()
    return answers


def run_starts(num_starts, num_rounds, num_ranks, function, *args, device="cpu"):
    """
    Distribute rounds over several starts of the ranks.

    Which cores and which memory a process gets is luck that lasts as long as the process.

    Args:
        num_starts: How often ranks are started; at most once a round.
        num_rounds: Number of rounds in all starts together.
        num_ranks: Number of ranks.
        function: A function (see `run_ranks`), whose last argument is the rounds of this start.
        args: Further arguments, the same on every rank.
        device: "cpu" or "cuda" (see `run_ranks`).

    Yields:
        list: For each start, the result of each rank, in rank order.
    """
    for start in range(min(num_starts, num_rounds)):
        rounds = len(range(start, num_rounds, num_starts))
        yield run_ranks(num_ranks, function, *args, rounds, device=device)


def settle(device):
    """
    Wait until a GPU has done all its work. For a CPU, return at once.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _member(rank, placement, store, function, args, pipe):
    # Launchers and our supervisor give each rank its own session, too: see "training_step.py" in
    # README.md.
    os.setsid()
    # Otherwise Gloo looks up the machine's own name, which may be slow, or another interface's.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    os.environ["DDP_LESSONS_DEVICE"] = device = placement.devices[rank]
    torch.set_num_threads(1)
    join_group(store, rank, placement.world_size, placement.backend, device)
    answer = function(rank, *args)
    dist.barrier()  # a rank that leaves while others still join makes them fail
    leave_group()
    pipe.send(answer)


def in_turns(names, round_number):
    """
    Return names in an order that rotates by one from round to round.

    Args:
        names: A list of names.
        round_number: Number of the round, from 0.
    """
    first = round_number % len(names)
    return names[first:] + names[:first]
