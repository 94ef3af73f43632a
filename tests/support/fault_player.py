"""
A player of faults on the ranks of a real kernel. It checks that all that was promised follows.
"""

import contextlib
import re
from dataclasses import dataclass

import psutil
from fault_tools import RunQueues, busy_cores, killing
from faults import KINDS, MODEL, PREPARE
from kernels import running_kernel
from waiting import HANGS_AFTER_S, comes_true

from ddp_lessons.ranks.diagnosis.wording import rank_names

PROMPT_S = 2.0
"""
Seconds after a fault within which the prompt must be back.
"""
CHANGES = r"0x[0-9a-f]{4}|127\.0\.0\.1|\x1b"
"""
Parts that no message may hold, as a regular expression: they differ between runs, or are a colour.
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
    One fault to play.

    Args:
        seed: The number from which the fault was drawn. It marks the variables that must survive.
        kind: The fault's name in KINDS.
        world_size: The number of ranks.
        culprit, other: Two ranks.
        pause_s: Seconds before the ranks commit the fault.
        stop_presses_s: When Stop is pressed, in seconds after the cell's start.
        kill_s: When ranks are killed from outside, in seconds after the cell's start.
        has_model: Whether a live DDP model exists.
        is_under_load: Whether other processes keep every core busy.
    """

    seed: int
    kind: str
    world_size: int
    culprit: int
    other: int
    pause_s: float
    stop_presses_s: tuple
    kill_s: float
    has_model: bool
    is_under_load: bool

    def fill(self, text):
        """
        Replace the placeholders of a text of `faults` with ranks.
        """
        others = [rank for rank in range(self.world_size) if rank != self.culprit]
        everybody = rank_names(range(self.world_size))
        text = text.replace("{C}", str(self.culprit)).replace("{D}", str(self.other))
        return text.replace("{V}", rank_names(others)).replace("{ALL}", everybody)

    def ranks(self, letters):
        """
        Return the ranks for which "C", "D" or "CD" stand.
        """
        return [{"C": self.culprit, "D": self.other}[letter] for letter in letters]


def fault_of(kind, world_size):
    """
    Return the fault of a kind without random choices: the culprit is the middle rank.
    """
    culprit = world_size // 2
    return Fault(
        1, kind, world_size, culprit, culprit - 1, pause_s=0.0, kill_s=0.5,
        stop_presses_s=(0.5,) if KINDS[kind].needs_stop else (),
        has_model=KINDS[kind].needs_model,
        is_under_load=False,
    )  # fmt: skip


class Player:
    """
    Play faults on one kernel's ranks, one after another, and check what follows each of them.

    Args:
        kernel: A running Kernel.
        world_size: The number of its ranks.
    """

    def __init__(self, kernel, world_size):
        self.kernel, self.world_size = kernel, world_size
        started = kernel.run(
            f"from ddp_lessons import start_ranks\nranks = start_ranks({world_size})"
        )
        assert started.status == "ok", started

    def play(self, fault, limit_s=None, stop_at=None):
        """
        Play a fault. Raises AssertionError unless all that must follow does.

        Args:
            fault: A Fault.
            limit_s: Seconds within which the prompt must be back, not counting those for which the
                machine had no core free. None: no limit.
            stop_at: Press Stop when the cell has printed this text, instead of after
                `stop_presses_s`.

        Returns:
            float: Seconds from the fault until the prompt was back.
        """
        kind = KINDS[fault.kind]
        with busy_cores() if fault.is_under_load else contextlib.nullcontext():
            self._run(PREPARE.replace("keep = 100", f"keep = {1000 * fault.seed}"))
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
                result = self.kernel.run(
                    source,
                    stop_after_s=() if stop_at else fault.stop_presses_s,
                    stop_at=stop_at,
                    timeout_s=HANGS_AFTER_S,
                )
            waited_s = waited.seconds(self._processes())
        assert result.status == "error", f"the cell ended as if nothing had happened: {result}"
        pattern = fault.fill(kind.message_pattern)
        assert re.match(pattern, result.evalue), f"expected {pattern!r}\ngot {result.evalue}"
        assert fault.fill(kind.message_contains) in result.evalue, result.evalue
        assert not re.search(CHANGES, result.evalue), result.evalue
        aborted = [
            int(rank)
            for rank in re.findall(r"^rank (\d) died: .*(?:SIGABRT|SIGSEGV)", result.evalue, re.M)
        ]
        lost = aborted if kind.loses_variables == "?" else fault.ranks(kind.loses_variables)
        self._check_kept(fault, result, lost)
        fault_s = (
            fault.stop_presses_s[0]
            if kind.needs_stop
            else fault.kill_s
            if victims
            else fault.pause_s
        )
        took_s = result.seconds - fault_s
        self._check_nothing_left(before, len(lost))
        if limit_s is not None:
            allowed = f"{limit_s} s, and {waited_s:.2f} s for which no core was free"
            assert took_s < limit_s + waited_s, f"{took_s:.2f} s, allowed: {allowed}\n{result}"
        return took_s

    def _run(self, source):
        result = self.kernel.run(source)
        assert result.status == "ok", f"a cell of no fault failed: {source}\n{result}"
        return result

    def _pids(self):
        return self.kernel.value("dict(ranks.supervisor.pids)")

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
        # A worker of a DataLoader ends a moment after its loader.
        def are_as_many():
            return len(self._processes_beside(before)) == num_lost

        if not comes_true(are_as_many, HANGS_AFTER_S):
            new = _named(self._processes_beside(before))
            raise AssertionError(f"{num_lost} new processes expected, there are {new}")

    def _processes_beside(self, before):
        return [pid for pid in self._processes() if pid not in before]

    def footprint(self):
        """
        Return what the kernel holds: {"fds": number, "threads": number, "rss_mib": MiB}.
        """
        self._run("import gc\nn = gc.collect()")
        process = psutil.Process(self.kernel.pid)
        lines = set(self.kernel.value("ranks.control.controller_ports"))
        num_lines = sum(
            bool(connection.raddr) and connection.raddr.port in lines
            for connection in process.net_connections()
        )
        return {
            "fds": process.num_fds() - num_lines,  # ZMQ opens its connections at any time
            "threads": process.num_threads(),
            "rss_mib": process.memory_info().rss / 2**20,
        }


class Kernels:
    """
    A kernel for many faults. A new kernel replaces it after each failure, and for another world
    size.
    """

    def __init__(self):
        self._stack, self._player = contextlib.ExitStack(), None

    @contextlib.contextmanager
    def player(self, world_size):
        """
        Give a Player of that many ranks. If the block raises, the kernel ends.
        """
        if self._player is None or self._player.world_size != world_size:
            self.close()
            self._player = Player(self._stack.enter_context(running_kernel()), world_size)
        try:
            yield self._player
        except BaseException:
            self.close()
            raise

    def close(self):
        """
        End the kernel if one runs.
        """
        self._stack.close()
        self._player = None


def _named(pids):
    named = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            named.append(psutil.Process(pid).as_dict(["pid", "ppid", "name", "status", "cmdline"]))
    return named
