"""
Look after a cell that does not come back: tell computing from standing still, and free the ranks.

    a rank raised or died      its peers are freed once they are seen to wait, or after a grace
    all wait for one another   a deadlock: nothing can come of it, so all are freed
    some wait for a slow rank  a stall: after 5 s a table says who waits for whom
    freed, and still not back  the rank's process is replaced
"""

import time

from ddp_lessons.ranks.diagnosis import diagnose, is_deadlock, waits
from ddp_lessons.ranks.progress import Progress
from ddp_lessons.ranks.stacks import place_from_outside
from ddp_lessons.ranks.system import main_thread_sleeps
from ddp_lessons.ranks.where import source_line

LOOK_EVERY_S = 0.2
STALL_S = 5.0
_QUIET_S = 0.35
_DEADLOCK_S = 0.45
_GRACE_WAITING_S = 0.15
_GRACE_COMPUTING_S = 0.6
_FREE_COMPUTING_WITHIN_S = 10.0
_LOOKS = {True: 4, False: 2}
"""
How often in a row a rank is seen asleep before it is given up, by whether its guard answers.
"""


class Lookout:
    """
    Watch the ranks of one cell.

    Args:
        ranks: The Ranks.
        source: The cell's text.
        targets: The ranks that run it.
    """

    def __init__(self, ranks, source, targets):
        self.ranks = ranks
        self.source = source
        self.targets = targets
        self.diagnosis = None
        self.deadlocked = False
        self.released_at = None
        self.last_places = {}
        self._silent = set()
        self._num_asleep = {}
        self._progress = None
        self._same_since = time.monotonic()
        self._table_shown = False

    def look(self, running, fault_at):
        """
        Look once, and do what has become due. Call it every `LOOK_EVERY_S`.

        Args:
            running: Ranks that have not finished.
            fault_at: When the first rank raised or died, on the monotonic clock, or None.
        """
        now = time.monotonic()
        if self._progress is None:  # most cells are over before anybody looks
            self._progress = self._new_progress()
        self._progress.sample()
        if self.released_at is not None:
            self._replace_what_stays(running, now)
        elif fault_at is not None:
            self._ask(running)
            all_wait = all(waits(self.last_places.get(rank)) for rank in running)
            if now - fault_at > (_GRACE_WAITING_S if all_wait else _GRACE_COMPUTING_S):
                self._release(running)
        elif self._progress.still_s > _QUIET_S:
            self._look_at_standstill(running, now)
        else:
            self._same_since = now

    def stop(self, running):
        """
        Note where everybody is, then free them all: Stop was pressed.
        """
        self._ask(running)
        self.diagnosis = diagnose(self.all_places(running), running)
        self._release(running)

    def all_places(self, running):
        """
        Return the places of all ranks of the cell: the finished ones say what they have called.
        """
        dead = self.ranks.dead
        finished = [r for r in self.targets if r not in running and r not in dead]
        places = {**self.ranks.control.places(finished), **self.last_places}
        return {rank: places.get(rank) for rank in self.targets}

    def _new_progress(self):
        return Progress(lambda: list(self.ranks.keeper.pids.values()))

    def _look_at_standstill(self, running, now):
        before = self.last_places
        # The signal that makes a silent rank tell its line wakes it from a sleep in C, so it is
        # kept for a rank that holds the others up for long.
        stalled = now - self._same_since > STALL_S
        self._ask(running, insist=stalled and not self._table_shown)
        if before != self.last_places and not self._silent:
            self._same_since = now
            return
        places = self.all_places(running)
        if now - self._same_since > _DEADLOCK_S and is_deadlock(places, running):
            self.deadlocked = True
            self.diagnosis = diagnose(places, running)
            self._release(running)
        elif stalled and not self._table_shown:
            self._show_table(diagnose(places, running))

    def _show_table(self, diagnosis):
        if diagnosis.sentence:
            self._table_shown = True
            print(f"No progress for {STALL_S:.0f} s: {diagnosis.sentence}.")
            print(diagnosis.table, flush=True)

    def _ask(self, running, insist=True):
        answers = self.ranks.control.places(running)
        self._silent = set()
        for rank in running:
            if rank not in answers and rank in self.ranks.keeper.pids:
                answers[rank] = place_from_outside(
                    self.ranks.keeper, rank, lambda line: source_line(self.source, line), insist
                )
                self._silent.add(rank)
        self.last_places = answers

    def _release(self, running):
        self.released_at = time.monotonic()
        self.ranks.control.release_all()
        self.ranks.control.cut(self._silent & set(running))

    def _replace_what_stays(self, running, now):
        answers = self.ranks.control.places(running)
        for rank in running:
            pid = self.ranks.keeper.pids.get(rank)
            asleep = pid is not None and main_thread_sleeps(pid)
            self._num_asleep[rank] = self._num_asleep.get(rank, 0) + 1 if asleep else 0
        # Nobody is killed for being slow: a rank inside a long computation, or on a crowded
        # machine, will notice. Only one that sleeps on after it was freed is beyond help.
        overdue = now - self.released_at > _FREE_COMPUTING_WITHIN_S
        lost = [
            rank for rank in running if overdue or self._num_asleep[rank] >= _LOOKS[rank in answers]
        ]
        if lost and self.ranks.engines.has_warden:
            self.ranks.engines.kill(lost)
        elif answers:
            self.ranks.control.release_all()  # what was freed may have begun to wait anew
