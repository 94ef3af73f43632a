"""
Measure how soon a notebook goes on after a rank raises, dies, or leaves the others waiting.

Times are taken outside the kernel, as a learner sees them. Ranks and this process share one
monotonic clock.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from kernel import BenchmarkFailed, running_kernel
from starting import NUM_RANKS, START_OURS, all_reduce_cell

_CULPRIT = 2
# The file `fault` is written at the moment of the fault, `here-r` by rank r just before it waits.
_PREPARE = f"""\
%%px
import os, signal, sys, threading, time
from pathlib import Path
rank, culprit, folder = dist.get_rank(), {_CULPRIT}, Path({{folder!r}})
kept = 100 + rank

def note(name):
    (folder / name).write_text(str(time.monotonic()))

def wait_for(condition):
    while not condition():
        time.sleep(0.001)

def in_all_reduce():
    frame = sys._current_frames()[threading.main_thread().ident]
    return frame.f_code.co_name == "all_reduce"

def die_in_all_reduce():
    wait_for(in_all_reduce)
    note("fault")
    os.kill(os.getpid(), signal.SIGKILL)
"""
_RAISE = """\
%%px
dist.all_reduce(total)
if rank == culprit:
    note("fault")
    raise RuntimeError("on purpose")
dist.all_reduce(total)
"""
# Rank 0 enters the all-reduce only when the culprit dies, so that it cannot end before that.
_DIE = """\
%%px
if rank == culprit:
    threading.Thread(target=die_in_all_reduce).start()
if rank == 0:
    wait_for((folder / "fault").exists)
dist.all_reduce(total)
"""
_SKIP = """\
%%px
note(f"here-{rank}")
if rank == culprit:
    note("fault")
else:
    dist.all_reduce(total)
"""
_CHECK_KEPT = "%%px --targets {healthy}\nassert kept == 100 + dist.get_rank()"


@dataclass(frozen=True)
class Fault:
    """
    A cell that goes wrong, and whether Stop is pressed as soon as all ranks are in it.
    """

    name: str
    cell: str
    stop: bool = False


FAULTS = (
    Fault("raise", _RAISE),
    Fault("die", _DIE),
    Fault("deadlock", _SKIP),
    Fault("stop", _SKIP, stop=True),
)


def measure(round_number):
    """
    Cause every fault once in a fresh kernel, in an order that rotates from round to round.

    Args:
        round_number: Number of the round, from 0.

    Returns:
        dict: For each fault `<name>_prompt_s` and `<name>_good_s`, seconds from the fault, or from
        Stop, to the prompt and to the end of the next cell, an all-reduce.
    """
    first = round_number % len(FAULTS)
    samples = {}
    with tempfile.TemporaryDirectory() as folder, running_kernel(folder) as kernel:
        kernel.run_well(START_OURS)
        for fault in FAULTS[first:] + FAULTS[:first]:
            samples |= measure_fault(kernel, fault)
        kernel.run_well("ranks.stop()")
    return samples


def measure_fault(kernel, fault, num_ranks=NUM_RANKS):
    """
    Cause a fault once, and measure the seconds to the prompt and to the next all-reduce.

    Args:
        kernel: A Kernel whose ranks run.
        fault: The Fault.
        num_ranks: Number of the kernel's ranks, more than 2.

    Returns:
        dict: The two entries of this fault (see `measure`).
    """
    healthy = ",".join(str(rank) for rank in range(num_ranks) if rank != _CULPRIT)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        all_reduce = all_reduce_cell(num_ranks)
        kernel.run_well(all_reduce)
        kernel.run_well(_PREPARE.format(folder=name))
        stop_when = _all_here(folder, num_ranks) if fault.stop else None
        result = kernel.run(fault.cell, stop_when=stop_when)
        good = kernel.run_well(all_reduce)
        if result.status != "error":
            raise BenchmarkFailed(f"A cell with a fault ended as {result.status}:\n{fault.cell}")
        if fault.stop and result.stopped_s is None:
            raise BenchmarkFailed("The deadlock ended before Stop was pressed.")
        kernel.run_well(_CHECK_KEPT.format(healthy=healthy))
        fault_s = result.stopped_s if fault.stop else float((folder / "fault").read_text())
    return {
        f"{fault.name}_prompt_s": result.prompt_s - fault_s,
        f"{fault.name}_good_s": good.prompt_s - fault_s,
    }


def _all_here(folder, num_ranks):
    paths = [folder / f"here-{rank}" for rank in range(num_ranks)]
    return lambda: all(path.exists() for path in paths)
