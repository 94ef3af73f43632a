"""
Interrupts of a rank's main thread, by Stop or by the rank agent, except at two places in code.

The first place is the import of a library, because a half-imported library cannot be repaired.
torch's modules register operators with C++ while they are imported, and torch refuses to register
them twice: `torch.distributed.tensor` could not be imported in that process again. So an interrupt
waits until the import ends. An import computes and ends by itself. The kernel gives up a rank whose
import sleeps or computes for ever, as it does with any other code.

The second place is the start of `__exit__`. A block such as `with torch.no_grad():` restores its
changes there when an error leaves the block. An interrupt that comes while C++ runs reaches Python
exactly there: the error has left C++, and `__exit__` is the first Python function after it. An
interrupt in its first instruction would leave gradients disabled for ever in this rank. So the
interrupt waits until `__exit__` has begun.
"""

import dis
import os
import select
import signal
import site
import sys
import sysconfig
import threading
from collections.abc import Callable
from types import FrameType

from ddp_lessons.ranks.system import clocks

_INTERRUPT = getattr(signal, "SIGRTMIN", signal.SIGINT)
"""
The signal by which the rank agent interrupts the main thread. SIGINT belongs to the learner: it
reaches the agent through a pipe, which may be read long after the cell that was interrupted. The
agent's own interrupts must not go through that pipe, so they use another signal.
"""
_IMPORT = ("<frozen importlib._bootstrap>", "_find_and_load")
_FOLDERS = {
    *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
    *site.getsitepackages(),
    site.getusersitepackages(),
}
_LIBRARIES = ("<frozen ", *(os.path.join(folder, "") for folder in _FOLDERS))


def imports_a_library(frame: FrameType | None) -> bool:
    """
    Return whether a thread imports an installed package, rather than a module of the learner's.

    Args:
        frame: The innermost frame of the thread.
    """
    while frame is not None:
        code = frame.f_code
        if (code.co_filename, code.co_name) == _IMPORT:
            return True
        if not code.co_filename.startswith(_LIBRARIES):
            return False
        frame = frame.f_back
    return False


def begins_to_leave_a_block(frame: FrameType | None) -> bool:
    """
    Return whether a thread is about to run the first instruction of a Python `__exit__`.

    Later instructions can be interrupted, and must be: the `__exit__` of a thread pool blocks until
    all its work is done.

    Args:
        frame: The innermost frame of the thread.
    """
    if frame is None or frame.f_code.co_name not in ("__exit__", "__aexit__"):
        return False
    begin = next(one.offset for one in dis.get_instructions(frame.f_code) if one.opname == "RESUME")
    return frame.f_lasti <= begin


class Interrupts:
    """
    The interrupts of the main thread.

    Args:
        is_busy: Function that returns whether the learner's code runs. Only that is interrupted.
        on_stop: Function to call, in a thread, when SIGINT has come.
        cancel_await: Function that ends the `await` in which the cell waits, and returns whether
            the cell was waiting in an `await`.

    Attributes:
        num: How many interrupts the running cell has been given.
    """

    def __init__(
        self,
        is_busy: Callable[[], bool],
        on_stop: Callable[[], object],
        cancel_await: Callable[[], bool],
    ) -> None:
        self.num = 0
        self._is_busy = is_busy
        self._on_stop = on_stop
        self._cancel_await = cancel_await
        self._is_put_off = False

    def start(self) -> None:
        """
        Install the signal handlers. Call it from the main thread.
        """
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGINT, _INTERRUPT):
            signal.signal(number, self._on_signal)
        self._tell_unraisable, sys.unraisablehook = sys.unraisablehook, self._on_unraisable
        watcher = threading.Thread(target=self._watch, args=(reader,), daemon=True)
        watcher.name = "ddp-lessons-agent"
        watcher.start()

    def begin(self) -> None:
        """
        Count interrupts from zero, because a new cell begins.
        """
        self.num = 0
        self._is_put_off = False

    def send(self) -> None:
        """
        Interrupt the main thread: now, or once it has left code that must not be interrupted.
        """
        signal.pthread_kill(threading.main_thread().ident or 0, _INTERRUPT)

    def _on_signal(self, signum, frame):
        if not self._is_busy():
            return
        self._is_put_off = imports_a_library(frame) or begins_to_leave_a_block(frame)
        if not self._is_put_off:
            self.num += 1
            if not self._cancel_await():
                raise KeyboardInterrupt

    def _on_unraisable(self, unraisable):
        # The interrupt ended a wait in an object's `__del__`, such as a DataLoader's for its
        # workers. The learner made no mistake, but Python would print a traceback.
        if unraisable.exc_type is not KeyboardInterrupt or not self.num:
            self._tell_unraisable(unraisable)

    def _watch(self, reader):
        parent_pid = os.getppid()
        while True:
            is_put_off = self._is_put_off
            wait_s = clocks.INTERRUPT_AGAIN_EVERY_S if is_put_off else clocks.PARENT_LOOK_EVERY_S
            ready, _, _ = select.select([reader], [], [], wait_s)
            if ready and signal.SIGINT in os.read(reader, 64):
                self._on_stop()
            elif not ready and self._is_put_off and self._is_busy():
                self.send()
            if os.getppid() != parent_pid:  # for systems that cannot tie a child to its parent
                os._exit(1)
