"""
The supervisor: the one parent of a set of ranks and of their controller.

The supervisor imports torch once and forks the ranks. It sends them signals, reports to the kernel
at once when a rank ends, replaces a rank on demand, and ends everything when the kernel ends, in
whatever way. It has one thread only, because forking a process with threads is not safe.

Where forking is not safe at all, the supervisor starts each rank as a fresh interpreter instead.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddp_lessons.ranks.messages.json_messages import message_to_json
from ddp_lessons.ranks.messages.orders import (
    ControllerDied,
    ControllerStarted,
    CutSockets,
    EndAll,
    ImportTorch,
    OrderFailed,
    RankProcessDied,
    RankStarted,
    RemoveAtEnd,
    RunAtEnd,
    SignalRanks,
    StartController,
    StartRank,
    TorchImported,
    from_json,
)
from ddp_lessons.ranks.supervisor import child_main
from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system import processes as system
from ddp_lessons.ranks.system.json_pipe import JsonPipe
from ddp_lessons.ranks.system.runtime_folder import remove_runtime_folder

if TYPE_CHECKING:
    from ddp_lessons.ranks.supervisor.memory_watch import MemoryWatch


class Supervisor:
    """
    The supervisor of one set of ranks.

    Args:
        link: The JsonPipe to the kernel.
        kernel_pid: Process id of the kernel.
        folder: The runtime folder, which is removed at the end.
        fork: True to fork ranks, False to start fresh interpreters.
    """

    def __init__(
        self, link: JsonPipe, kernel_pid: int, folder: str | os.PathLike[str], fork: bool
    ) -> None:
        self.link = link
        self.kernel_pid = kernel_pid
        self.folder = Path(folder)
        self.fork = fork
        self.ranks: dict[int, int] = {}  # pid -> rank
        self.controller_pid: int | None = None
        self.files_to_remove: list[str] = []
        # commands, lists of words, that end ranks which are not our children
        self.commands: list[list[str]] = []
        self._running = True
        self._memory: MemoryWatch | None = None  # None until the first rank starts
        self._selector = selectors.DefaultSelector()

    # ---- orders of the kernel ----

    def start_controller(self, argv: list[str]) -> None:
        """
        Start ipyparallel's controller in a child process.
        """
        self.controller_pid = child_main.fork_child(
            self.folder / "controller.log", self._in_child, child_main.run_controller, argv
        )
        self._report(ControllerStarted(self.controller_pid))

    def import_torch(self) -> None:
        """
        Import the modules that every rank needs, and send the kernel this machine's capabilities.
        """
        child_main.import_for_forks()
        import torch.distributed

        has_nccl = torch.distributed.is_nccl_available()
        self._report(TorchImported(count_gpus(), has_nccl, torch.__version__))

    def start_rank(self, order: StartRank) -> None:
        """
        Start one rank.
        """
        job = (
            order.rank,
            order.environment,
            order.num_threads,
            order.connection_file,
            order.profile_dir,
            self.folder,
        )
        if self.fork:
            log = self.folder / f"rank-{order.rank}.log"
            pid = child_main.fork_child(log, self._in_child, child_main.run_rank, *job)
        else:
            pid = child_main.spawn_rank(*job)
        self.ranks[pid] = order.rank
        self._report(RankStarted(order.rank, pid))
        if self._memory is None:
            # Imported only now: at the start, psutil's import would delay the controller.
            from ddp_lessons.ranks.supervisor.memory_watch import MemoryWatch

            self._memory = MemoryWatch()

    def _report(self, event):
        self.link.send(**message_to_json(event))

    def _in_child(self, work, *args):
        # If a child kept the pipe open, the kernel would not notice the supervisor's end.
        self._selector.close()
        self.link.sock.close()
        work(*args)

    def _obey(self, order):
        match order:
            case StartController():
                self.start_controller(order.argv)
            case ImportTorch():
                self.import_torch()
            case StartRank():
                self.start_rank(order)
            case SignalRanks():
                for pid in self._pids_of(order.ranks):
                    os.kill(pid, order.signum)
            case CutSockets():
                for pid in self._pids_of(order.ranks):
                    system.shut_down_sockets(pid, order.spared_ports)
            case RemoveAtEnd():
                self.files_to_remove += order.paths
            case RunAtEnd():
                self.commands = order.commands
            case EndAll():
                self._running = False

    def _pids_of(self, ranks):
        return [pid for pid, rank in self.ranks.items() if rank in ranks]

    # ---- the loop ----

    def run(self) -> None:
        """
        Carry out the kernel's orders until it ends or orders to stop.
        """
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # Python writes to the pipe if this is set
        signal.signal(signal.SIGTERM, self._stop_running)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._selector.register(reader, selectors.EVENT_READ, self._on_signal)
        self._selector.register(self.link, selectors.EVENT_READ, self._from_kernel)
        kernel = system.open_process(self.kernel_pid)
        if kernel is not None:
            self._selector.register(kernel, selectors.EVENT_READ, self._stop_running)
        while self._running:
            for key, _ in self._selector.select(self._memory.wait_s if self._memory else None):
                key.data(key.fileobj)
            if self._memory and (pid := self._memory.too_large(self.ranks)) is not None:
                _kill(pid, signal.SIGKILL)  # one rank of this learner's, before others lose theirs

    def _stop_running(self, *_):
        self._running = False

    def _on_signal(self, reader):
        os.read(reader, 4096)
        for pid, code in child_main.reap():
            if pid == self.controller_pid:
                self.controller_pid = None
                self._report(ControllerDied(code))
                self._running = False  # without a controller no cell can reach a rank
            elif pid in self.ranks:
                self._report(RankProcessDied(self.ranks.pop(pid), pid, code))

    def _from_kernel(self, link):
        orders = link.receive()
        if orders is None:
            self._running = False
            return
        for order in orders:
            try:
                self._obey(from_json(order))
            except Exception as error:
                traceback.print_exc()
                self._report(OrderFailed(f"{type(error).__name__}: {error}"))

    # ---- the end ----

    def end_everything(self) -> None:
        """
        End every descendant, then remove what was on disk.
        """
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._run_commands()
        for pid in self.ranks:
            _kill(pid, system.END_SIGNAL)
        if self.controller_pid is not None:
            _kill(self.controller_pid, signal.SIGTERM)
        deadline = time.monotonic() + clocks.POLITE_S
        while system.children_of(os.getpid()) and time.monotonic() < deadline:
            child_main.reap()
            time.sleep(clocks.POLITE_POLL_S)  # after the deadline, SIGKILL ends the rest
        for pid in [*self.ranks, *system.descendants_of(os.getpid())]:
            _kill(pid, signal.SIGKILL)
        for path in self.files_to_remove:
            Path(path).unlink(missing_ok=True)
        remove_runtime_folder(self.folder)

    def _run_commands(self):
        # Run all commands at once: a command that cannot reach its server must not delay others.
        running = []
        for command in self.commands:
            try:
                running.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
            except OSError:
                traceback.print_exc()  # write it to the log and go on: the rest must be ended, too
        deadline = time.monotonic() + clocks.END_COMMANDS_S
        for process in running:
            try:
                process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                traceback.print_exc()


def count_gpus() -> int:
    """
    Return how many GPUs torch can use, without touching CUDA in this process.

    torch asks NVIDIA's management library. Where that is missing, or a device is a slice of a GPU,
    torch has to initialise CUDA, and no rank that is forked later could use CUDA. So a child
    process asks torch, and returns the number as its exit code.
    """
    import torch

    if not torch.backends.cuda.is_built():
        return 0
    pid = os.fork()
    if pid == 0:
        num_gpus = 0
        try:
            num_gpus = torch.cuda.device_count()
        finally:
            os._exit(num_gpus)
    _, status = os.waitpid(pid, 0)
    return max(0, os.waitstatus_to_exitcode(status))


def _kill(pid, signum):
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        pass  # the process has ended by itself


def main(argv: Sequence[str]) -> None:
    """
    Run a supervisor.

    Args:
        argv: Four words: descriptor of the pipe to the kernel, process id of the kernel, path of
            the runtime folder, and "fork" or "spawn".
    """
    fd, kernel_pid, folder, how = argv
    child_main.prepare_to_fork()
    system.adopt_orphans()
    link = JsonPipe(socket.socket(fileno=int(fd)))
    supervisor = Supervisor(link, int(kernel_pid), folder, how == "fork")
    try:
        supervisor.run()
    finally:
        supervisor.end_everything()


if __name__ == "__main__":
    main(sys.argv[1:])
