"""
Every error that this package raises on purpose, in one tree.

    DDPLessonsError
    |-- BadInput (also ValueError)      an argument is wrong; nothing was started
    |-- StartFailed                     ranks could not be started; nothing is left running
    |-- RanksGone                       the ranks were stopped, or their warden died
    |-- CellFailed                      a cell failed on some rank; the others were released
    |   |-- RankRaised                  a rank raised
    |   |-- RankDied                    a rank's process ended; a new rank took its place
    |   `-- CellStopped                 Stop was pressed while ranks were busy
    |-- NotebookRefused (also ValueError)   a notebook breaks a rule of the course
    |-- SaveFailed (also RuntimeError)      a checkpoint was not saved
    `-- CheckpointRefused (also ValueError) a checkpoint was not loaded

A message reads `<fault>: <expected> (got <value>, rank r of w). <next step>.` It holds no
address, process number, port or long float, because nbval compares it.
"""


class DDPLessonsError(Exception):
    """
    Base of all errors of this package.
    """


class BadInput(DDPLessonsError, ValueError):
    """
    An argument is wrong. Nothing was started or changed.
    """


class StartFailed(DDPLessonsError, RuntimeError):
    """
    Ranks could not be started. Nothing is left running.
    """


class RanksGone(DDPLessonsError, RuntimeError):
    """
    The ranks that a call needs were stopped or have died with their warden.
    """


class CellFailed(DDPLessonsError, RuntimeError):
    """
    A cell failed on at least one rank. The other ranks were released and keep their variables.

    Args:
        message: What happened, the culprit named in its first line.
        traceback_lines: The culprit's traceback, as lines that may hold ANSI colours.
    """

    def __init__(self, message, traceback_lines=()):
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


class NotebookRefused(DDPLessonsError, ValueError):
    """
    A notebook breaks a rule of the course. The message names the cell and the rule.
    """


class SaveFailed(DDPLessonsError, RuntimeError):
    """
    A checkpoint was not saved. Those saved before are as they were.
    """


class CheckpointRefused(DDPLessonsError, ValueError):
    """
    A checkpoint was not loaded: it is missing, damaged, unfinished, foreign, or holds code.
    """
