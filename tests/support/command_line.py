"""
A runner of the command line in this process.
"""

import signal

from ddp_lessons.course.cli import app

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_command(*words):
    """
    Run a command of `ddp-lessons`, and return its exit status.

    The command sets signal handlers for the whole process, so the earlier ones are restored.
    """
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        app([str(word) for word in words], prog_name="ddp-lessons")
    except SystemExit as end:
        return end.code or 0
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return 0
