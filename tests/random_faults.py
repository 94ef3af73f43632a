"""
Faults at random: what goes wrong, on how many ranks, in which and when, drawn from a seed.

    python tests/random_faults.py 17        plays the fault of seed 17 once more, by itself
    python tests/random_faults.py 0 100     plays those of seeds 0 to 99
"""

import contextlib
import random
import re
import sys
import time
from dataclasses import dataclass

import psutil
from fault_kinds import KINDS
from fault_tools import RunQueues, busy_cores, killing
from kernels import running_kernel

from ddp_lessons.ranks.diagnosis.telling import rank_names

PROMPT_S = 2.0
NUM_TRIES = 3
WORLD_SIZES = range(2, 9)
_PAUSE_S = 0.6
_FIRST_STOP_S = (0.3, 1.5)

PRINT_MUCH = "print('x' * 200_000)"
"""
For a message of 64 KiB pyzmq starts a thread that it keeps: seven descriptors, and no leak.
"""
PREPARE = """%%px
import ctypes, gc, os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
rank, world_size = dist.get_rank(), dist.get_world_size()
t = torch.ones(4)
for name in ("model", "first", "second", "store", "handle"):
    globals().pop(name, None)
keep = {seed} + rank
"""
MODEL = """%%px
model = DistributedDataParallel(torch.nn.Linear(4, 4))
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
"""
CHECK = """%%px
import torch, torch.distributed as dist
x = torch.full((3,), float(dist.get_rank()))
dist.all_reduce(x)
print(x.tolist(), globals().get("keep", "gone"), "model" in globals())
"""


@dataclass(frozen=True)
class Fault:
    """
    One fault, as a seed has it.

    Args:
        kind: Its name in KINDS.
        culprit, other: Two ranks.
        pause_s: Seconds before the ranks do what they should not.
        stops_s: When Stop is pressed, in seconds after the cell has begun.
        kill_s: When ranks are killed from outside.
        has_model: Whether a live DDP model is there.
        is_under_load: Whether every core is kept busy by others.
    """

    seed: int
    kind: str
    world_size: int
    culprit: int
    other: int
    pause_s: float
    stops_s: tuple
    kill_s: float
    has_model: bool
    is_under_load: bool

    @property
    def command(self):
        """
        The command that plays this fault alone.
        """
        return f"{sys.executable} tests/random_faults.py {self.seed}"

    def fill(self, text):
        """
        Put ranks into a text of `fault_kinds`.
        """
        others = [rank for rank in range(self.world_size) if rank != self.culprit]
        everybody = rank_names(range(self.world_size))
        text = text.replace("{C}", str(self.culprit)).replace("{D}", str(self.other))
        return text.replace("{V}", rank_names(others)).replace("{ALL}", everybody)

    def ranks(self, letters):
        """
        Return the ranks that "C", "D" or "CD" stand for.
        """
        return [{"C": self.culprit, "D": self.other}[letter] for letter in letters]


def plan(seed):
    """
    Draw the fault of a seed.
    """
    draw = random.Random(seed)
    # A deck of kinds after another, each in an order of its own: so none is left out for long.
    deck, place = divmod(seed, len(KINDS))
    kind = random.Random(-deck - 1).sample(sorted(KINDS), len(KINDS))[place]
    world_size = draw.choice(WORLD_SIZES)
    culprit, other = draw.sample(range(world_size), 2)
    has_model, is_under_load = draw.random() < 0.5, draw.random() < 0.2
    first_s = draw.uniform(*_FIRST_STOP_S)
    presses = [first_s + draw.uniform(0, 0.6) for _ in range(draw.choice([0, 0, 1, 2]))]
    return Fault(
        seed, kind, world_size, culprit, other,
        pause_s=0.0 if KINDS[kind].stops else draw.choice([0.0, draw.uniform(0, _PAUSE_S)]),
        stops_s=(first_s, *sorted(presses)) if KINDS[kind].stops else (),
        kill_s=draw.uniform(0.2, 1.5),
        has_model=has_model or KINDS[kind].needs_model,
        is_under_load=is_under_load,
    )  # fmt: skip


class TooSlow(AssertionError):
    """
    All came out right, and too late.
    """


class Player:
    """
    Play faults on one kernel's ranks, one after another, and hold each to what must follow.

    Args:
        kernel: A running Kernel.
        world_size: Number of its ranks.
    """

    def __init__(self, kernel, world_size):
        self.kernel = kernel
        started = kernel.run(
            f"from ddp_lessons import start_ranks\nranks = start_ranks({world_size})"
        )
        assert started.status == "ok", started

    def play(self, fault):
        """
        Make a fault happen. Raises AssertionError if anything that must follow does not.

        Returns:
            float: Seconds until the prompt was back.
        """
        kind = KINDS[fault.kind]
        with busy_cores() if fault.is_under_load else contextlib.nullcontext():
            self._run(PREPARE.replace("{seed}", str(1000 * fault.seed)))
            if fault.has_model:
                self._run(MODEL)
            if kind.prepare:
                self._run(fault.fill(kind.prepare))
            before = self._processes()
            pause = f"time.sleep({fault.pause_s:.3f})"
            source = "\n".join([fault.fill(kind.magic), pause, fault.fill(kind.cell)])
            victims = [self._pids()[rank] for rank in fault.ranks(kind.killed)]
            waited = RunQueues(before)
            with killing(victims, fault.kill_s):
                result = self.kernel.run(source, stop_after_s=fault.stops_s, timeout_s=120)
            waited_s = waited.seconds(self._processes())
        assert result.status == "error", f"the cell ended as if nothing had happened: {result}"
        told = fault.fill(kind.told)
        assert re.match(told, result.evalue), f"expected {told!r}\ngot {result.evalue}"
        dies = kind.dies
        aborted = [
            int(rank)
            for rank in re.findall(r"^rank (\d) died: .*(?:SIGABRT|SIGSEGV)", result.evalue, re.M)
        ]
        lost = aborted if dies == "?" else fault.ranks(dies)
        self._check_kept(fault, result, lost)
        fault_s = fault.stops_s[0] if kind.stops else fault.kill_s if victims else fault.pause_s
        took_s = result.seconds - fault_s
        limit_s = PROMPT_S + waited_s
        self._check_nothing_left(before, len(lost))
        if took_s >= limit_s:
            raise TooSlow(
                f"the prompt came after {took_s:.2f} s: expected {PROMPT_S} s and the "
                f"{waited_s:.2f} s for which this machine had no core free\n{result}"
            )
        return took_s

    def play_in_time(self, fault):
        """
        Make a fault happen until the prompt comes in time, `NUM_TRIES` times at most.

        Whatever else goes wrong fails at once. Seconds alone may be a neighbour's doing, which is
        not seen in the ranks' run queues, such as that of a disk or of a virtual machine's host.
        """
        for _ in range(NUM_TRIES - 1):
            with contextlib.suppress(TooSlow):
                return self.play(fault)
        return self.play(fault)

    def _run(self, source):
        result = self.kernel.run(source)
        assert result.status == "ok", f"a cell of no fault failed: {source}\n{result}"
        return result

    def _pids(self):
        return self.kernel.value("dict(ranks.keeper.pids)")

    def _processes(self):
        children = psutil.Process(self.kernel.pid).children(recursive=True)
        return [self.kernel.pid, *(child.pid for child in children)]

    def _check_kept(self, fault, result, lost):
        after = self._run(CHECK)
        total = float(sum(range(fault.world_size)))
        lines = [
            f"[{rank}] {[total] * 3} "
            + ("gone False" if rank in lost else f"{1000 * fault.seed + rank} {fault.has_model}")
            for rank in range(fault.world_size)
        ]
        assert after.text.splitlines() == lines, f"{after.text}\nafter {result.evalue}"

    def _check_nothing_left(self, before, num_lost):
        deadline = time.monotonic() + 5
        while True:
            new = [pid for pid in self._processes() if pid not in before]
            if len(new) == num_lost or time.monotonic() > deadline:
                break
            time.sleep(0.05)  # polls; a worker of a loader ends a moment after its loader
        assert len(new) == num_lost, f"{num_lost} new processes expected, there are {_named(new)}"

    def footprint(self):
        """
        Return what the kernel holds: `fds`, `threads` and `rss_mib`.
        """
        self._run("import gc\nn = gc.collect()")
        process = psutil.Process(self.kernel.pid)
        lines = set(self.kernel.value("ranks.control.controller_ports"))
        num_lines = sum(
            bool(connection.raddr) and connection.raddr.port in lines
            for connection in process.net_connections()
        )
        return {
            "fds": process.num_fds() - num_lines,  # ZMQ opens its lines when it likes
            "threads": process.num_threads(),
            "rss_mib": process.memory_info().rss / 2**20,
        }


def _named(pids):
    named = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            named.append(psutil.Process(pid).as_dict(["pid", "ppid", "name", "status", "cmdline"]))
    return named


def play_all(faults, world_size, say=print):
    """
    Play faults on a kernel; one that fails ends that kernel, and the next begins with a new one.

    Returns:
        (list[str], list[dict]): What failed, with the command that repeats it; footprints of the
        last kernel after each of its faults.
    """
    failures, footprints, left = [], [], list(faults)
    while left:
        with running_kernel() as kernel:
            kernel.run(PRINT_MUCH)
            player, footprints = Player(kernel, world_size), []
            while left:
                fault = left.pop(0)
                began = time.monotonic()
                try:
                    took_s = player.play_in_time(fault)
                except (AssertionError, TimeoutError) as error:
                    failures.append(f"{fault.command}    # {fault}\n{error}")
                    say(f"FAILED {fault}\n{error}")
                    break
                footprints.append(player.footprint())
                say(
                    f"seed {fault.seed}: {fault.kind} on {world_size}, prompt {took_s:.2f} s, "
                    f"in all {time.monotonic() - began:.1f} s {footprints[-1]}"
                )
    return failures, footprints


def main(arguments):
    """
    Play the faults of one seed, or from one up to another.
    """
    first, last = int(arguments[0]), int(arguments[-1]) if len(arguments) > 1 else None
    faults = [plan(seed) for seed in range(first, last or first + 1)]
    num_failed = 0
    for world_size in WORLD_SIZES:
        those = [fault for fault in faults if fault.world_size == world_size]
        num_failed += len(play_all(those, world_size)[0])
    print(f"{len(faults) - num_failed} of {len(faults)} faults came out right")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
