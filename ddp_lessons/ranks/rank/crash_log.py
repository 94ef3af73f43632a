"""
The crash log: the line at which a rank died, written by the rank, as no other process can know it.

faulthandler's signal handler writes it when the rank crashes. Before the rank calls `os._exit` or
sends itself SIGKILL, the log is written too, because there is no time afterwards. A SIGKILL from
outside, such as Linux's when memory runs out, leaves no log.
"""

import faulthandler
import functools
import os
import signal

from ddp_lessons.ranks.messages.stack_files import OWN_WILL


def write_crash_log(file: int) -> None:
    """
    Have this process write its stacks to a file before it dies, from now on.

    Args:
        file: Descriptor of the file, which must stay open.
    """
    faulthandler.enable(file, all_threads=True)
    os.register_at_fork(after_in_child=faulthandler.disable)  # a forked child is not the rank
    own = os.getpid()
    os._exit = _noting(os._exit, file, lambda *_: os.getpid() == own)
    os.kill = _noting(os.kill, file, lambda *what: what == (own, signal.SIGKILL))


def _noting(end, file, is_the_end):
    @functools.wraps(end)
    def noting(*args, **kwargs):
        if is_the_end(*args):
            os.write(file, OWN_WILL.encode())
            faulthandler.dump_traceback(file, all_threads=False)
        return end(*args, **kwargs)

    return noting
