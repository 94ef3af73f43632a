"""
Interrupt a rank's main thread, as Stop does, and the agent: but not at two places.

A library that is imported by half stays so. torch's own registers operators with C++ as it comes,
and refuses to do it twice: nobody could import `torch.distributed.tensor` in that process again.
So an interrupt waits for the import's end. An import computes, and ends by itself; one that waits
is found asleep, and one that computes for ever is found stubborn, as any other code.

A block such as `with torch.no_grad():` that is left by an error restores what it has changed in
`__exit__`. An interrupt that comes while C++ runs reaches Python there: the error has left C++, and
`__exit__` is the first function after it. Raised in its first instruction, the interrupt would
leave the rank without gradients for ever. So it waits until `__exit__` has begun.
"""

import dis
import os
import select
import signal
import site
import sys
import sysconfig
import threading

from ddp_lessons.ranks.system import clocks

_INTERRUPT = getattr(signal, "SIGRTMIN", signal.SIGINT)
"""
What interrupts the main thread for the agent. SIGINT is the learner's: it reaches the agent through
a pipe that may be read long after the cell in which it came, so the agent's own must not go there.
"""
_IMPORT = ("<frozen importlib._bootstrap>", "_find_and_load")
_FOLDERS = {
    *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
    *site.getsitepackages(),
    site.getusersitepackages(),
}
_LIBRARIES = ("<frozen ", *(os.path.join(folder, "") for folder in _FOLDERS))


def imports_a_library(frame):
    """
    Whether a frame belongs to the import of an installed package: to nothing that a learner wrote.

    Args:
        frame: The innermost frame of a thread.
    """
    while frame is not None:
        code = frame.f_code
        if (code.co_filename, code.co_name) == _IMPORT:
            return True
        if not code.co_filename.startswith(_LIBRARIES):
            return False
        frame = frame.f_back
    return False


def begins_to_leave_a_block(frame):
    """
    Whether a thread is about to run the first instruction of an `__exit__` that is written in
    Python. Later it can be interrupted: a pool of threads waits there for all its work.

    Args:
        frame: The innermost frame of a thread.
    """
    if frame is None or frame.f_code.co_name not in ("__exit__", "__aexit__"):
        return False
    begin = next(one.offset for one in dis.get_instructions(frame.f_code) if one.opname == "RESUME")
    return frame.f_lasti <= begin


class Interrupts:
    """
    The interrupts of the main thread.

    Args:
        is_busy: Function that says whether the learner's code runs. Nothing else is interrupted.
        on_stop: Called, in a thread, when SIGINT has come.
        cancel_await: Function that ends the `await` in which the cell waits, and returns whether
            the cell waits in one.

    Attributes:
        num: How many the running cell has been given.
    """

    def __init__(self, is_busy, on_stop, cancel_await):
        self.num = 0
        self._is_busy = is_busy
        self._on_stop = on_stop
        self._cancel_await = cancel_await
        self._is_put_off = False

    def start(self):
        """
        Take the signals. Call it from the main thread.
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

    def begin(self):
        """
        Count anew: a cell begins.
        """
        self.num = 0
        self._is_put_off = False

    def send(self):
        """
        Interrupt the main thread, now or when it has left the place where it must not be.
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
        # An object's `__del__` was freed from a wait, such as a DataLoader's for its workers. That
        # is no fault of the learner's, and Python would print its traceback.
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
