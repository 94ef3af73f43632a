"""
Where a rank was when it died: written by itself, as nobody outside can know it.

A crash is written down by faulthandler's signal handler. An `os._exit` or a SIGKILL that a rank
sends itself leaves no time afterwards, so the line is written before. Of a SIGKILL from outside,
such as Linux's when memory runs out, no rank can leave a word.
"""

import faulthandler
import functools
import os
import signal

CRASH = "Fatal Python error: "
"""
What faulthandler begins with when a process crashes.
"""
OWN_WILL = "Ends itself.\n\n"
"""
What a process writes first that ends itself.
"""


def write_crash_log(file):
    """
    From now on, have this process write its stacks to a file before it dies.

    Args:
        file: Descriptor of the file, which must stay open.
    """
    faulthandler.enable(file, all_threads=True)
    os.register_at_fork(after_in_child=faulthandler.disable)  # its children are not the rank
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
