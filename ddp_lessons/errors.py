"""
Every error that this package raises on purpose, in one tree.

    DDPLessonsError
    |-- BadInput (also ValueError)      an argument is wrong; nothing was started
    |-- StartFailed                     ranks could not be started; nothing is left running
    |-- StartStopped (also KeyboardInterrupt)   Stop was pressed while ranks were starting
    |-- RanksGone                       the ranks were stopped, or their supervisor died
    |-- JobLate (also TimeoutError)         a job did not end in time; its processes were ended
    |-- PrivateNameGone                 an installed package lacks a name that the course needs
    |-- RanksMissing (also RuntimeError)    ranks did not come to a group in time
    |-- CallsDiffer (also RuntimeError)     ranks are about to make different calls; none was made
    |-- CellFailed                      a cell failed on some rank; the others were released
    |   |-- RankRaised                  a rank raised
    |   |-- RankDied                    a rank's process ended; a new rank took its place
    |   `-- CellStopped                 Stop was pressed while ranks were busy
    |-- WrongAnswer (also AssertionError)   an exercise is not solved yet
    |-- NotebookRefused (also ValueError)   a notebook breaks a rule of the course
    |-- SaveFailed (also RuntimeError)      a checkpoint was not saved
    `-- CheckpointRefused (also ValueError) a checkpoint was not loaded

A message reads `<fault>: <expected> (got <value>, rank r of w). <next step>.` It holds no
address, process number, port or long float, because nbval compares it.
"""

from __future__ import annotations

import linecache
import os
import traceback
from collections.abc import Iterable

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class DDPLessonsError(Exception):
    """
    Base of all errors of this package.
    """

    def _render_traceback_(self):
        """
        Return the lines that IPython shows: the line that called this package, and the message.
        """
        said = f"{type(self).__name__}: {self}".splitlines()
        return [*_line_that_called(self.__traceback__), *said]


def _line_that_called(frames):
    """
    Return a list with the last line of a traceback before this package, or an empty list.
    """
    called = []
    for frame, number in traceback.walk_tb(frames):
        name = frame.f_code.co_filename
        line = linecache.getline(name, number).strip()
        if name.startswith(_PACKAGE):
            break
        if "site-packages" in name or line.startswith("get_ipython()"):
            continue  # IPython's frames before a magic
        where = "" if frame.f_globals.get("__name__") == "__main__" else f"{name}, "
        called = [f"{where}line {number}: {line}"]
    return called


class BadInput(DDPLessonsError, ValueError):
    """
    An argument is wrong. Nothing was started or changed.
    """


class StartFailed(DDPLessonsError, RuntimeError):
    """
    Ranks could not be started. Nothing is left running.
    """


class StartStopped(DDPLessonsError, KeyboardInterrupt):
    """
    Stop was pressed while ranks were starting. Nothing is left running.
    """


class RanksGone(DDPLessonsError, RuntimeError):
    """
    The ranks that a call needs were stopped, or died with their supervisor.
    """


class PrivateNameGone(DDPLessonsError, RuntimeError):
    """
    An installed version of torch, ipyparallel or ipykernel lacks a private name that is needed.
    """


class JobLate(DDPLessonsError, TimeoutError):
    """
    A job that a cell started did not end in time. None of its processes is left.
    """


class RanksMissing(DDPLessonsError, RuntimeError):
    """
    Some ranks did not join a group, or did not reach a common point, in time. Nothing else changed.

    Args:
        message: Text with the missing ranks, the number of all ranks, and the seconds.
        ranks: The missing ranks, in rising order; empty if no rank was missing.
    """

    def __init__(self, message: str, ranks: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.ranks = list(ranks)


class CallsDiffer(DDPLessonsError, RuntimeError):
    """
    Ranks are about to make different collective calls. None of them was made.

    Args:
        message: Text that says which rank makes which call.
        ranks: The ranks whose call differs from that of most ranks, in rising order.
    """

    def __init__(self, message: str, ranks: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.ranks = list(ranks)


class CellFailed(DDPLessonsError, RuntimeError):
    """
    A cell failed on at least one rank. The other ranks were released and keep their variables.

    Args:
        message: Text that says what happened, with the culprit in its first line.
        traceback_lines: List of the lines of the culprit's traceback, maybe with ANSI colours.
    """

    def __init__(self, message: str, traceback_lines: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.traceback_lines = list(traceback_lines)

    def _render_traceback_(self):
        """
        Return the lines that IPython shows in place of a traceback of this package's own code.
        """
        return [*str(self).splitlines(), *self.traceback_lines]


class RankRaised(CellFailed):
    """
    A rank raised an exception in a cell.
    """


class RankDied(CellFailed):
    """
    The process of a rank ended. A new rank with the same number took its place.
    """


class CellStopped(CellFailed):
    """
    Stop was pressed while a cell was running. Every rank was released.
    """


class WrongAnswer(DDPLessonsError, AssertionError):
    """
    An exercise is not solved yet: what was called, what came back, what was expected, and a hint.

    Args:
        message: Text with all of these, and without the solution.
        mistake: The mistake's name in its task, such as "left-handle".
        hint: The hint for that mistake.
    """

    def __init__(self, message: str, mistake: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.mistake = mistake
        self.hint = hint

    def _render_traceback_(self):
        """
        Return the lines that IPython shows in place of a traceback of this package's own code.
        """
        return str(self).splitlines()


class NotebookRefused(DDPLessonsError, ValueError):
    """
    A notebook breaks a rule of the course. The message names the cell and the rule.
    """


class SaveFailed(DDPLessonsError, RuntimeError):
    """
    A checkpoint was not saved. Earlier checkpoints are unchanged.
    """


class CheckpointRefused(DDPLessonsError, ValueError):
    """
    A checkpoint was not loaded: it is missing, damaged, unfinished, foreign, or holds code.
    """
