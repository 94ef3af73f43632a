"""
A process beside a rank, as a guide has it for validation. Kept to be tried, and to be ended.

A forked process is a copy of its parent's memory at that moment. What the parent learns later, it
does not see. Threads are not copied: those that carry a group's messages are missing in it.
"""

import multiprocessing
import signal
import warnings
from collections.abc import Callable
from typing import Any, Self


class ForkedProcess:
    """
    Fork a process that answers questions by a function. Use it in a `with`, which ends it.

    The function may be one of a cell: a fork needs no pickle of it. On a GPU the child cannot use
    what its parent has there; it says so.

    Args:
        function: Called in the child with each question; what it returns must pickle.
        most_s: Seconds after which the child ends, whatever it waits for, and whoever is gone.

    Source: Python documentation, `multiprocessing`, "Contexts and start methods". Lesson:
    12_metrics.
    """

    def __init__(self, function: Callable[[Any], object], most_s: int = 60) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_answer_all, args=(function, theirs, most_s), daemon=True
        )
        with warnings.catch_warnings():
            # Python warns that a fork of a process with threads may wait for ever. It may.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def ask(self, question: object, patience_s: float) -> Any:
        """
        Return what the function says, or the error as text; None if nothing comes in time.

        Args:
            question: Anything that pickles.
            patience_s: Seconds to wait.
        """
        self._pipe.send(question)
        return self._pipe.recv() if self._pipe.poll(patience_s) else None

    def end(self) -> None:
        """
        Kill the process, wherever it waits, and wait until it is gone.
        """
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _answer_all(function, pipe, most_s):  # pragma: no cover: who is killed counts no lines
    import torch

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(most_s)  # nobody else ends it if the rank is killed while it waits
    torch.set_num_threads(1)  # the parent's threads are not here
    while True:
        question = pipe.recv()
        try:
            answer = function(question)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        pipe.send(answer)
