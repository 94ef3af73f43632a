"""
Stall detection: it tells a cell that stands still from a slow one, by the threads of each rank.

    computing   the rank, its threads or its children use cores, or wait for a core
    resting     the main thread sleeps, and had no turn since the last look
    polling     the main thread wakes up, checks, and sleeps again: torch waits for a store like
                this, and a loop with a sleep does the same
    halted      a signal has stopped the rank, or its main thread waits for a disk

A cell stands still while every rank that runs it rests, polls or is halted, and no other thread or
child of the ranks works.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from ddp_lessons.ranks.diagnosis.cpu_activity import CpuActivity, DescendantsCpu
from ddp_lessons.ranks.diagnosis.wording import POLLING
from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.sleep_tracker import SleepTracker
from ddp_lessons.ranks.system.thread_stats import thread_stats_of

if TYPE_CHECKING:
    from ddp_lessons.ranks.messages.snapshot import RankSnapshot
    from ddp_lessons.ranks.system.thread_stats import ThreadStats


class StallDetector:
    """
    The detector that watches the ranks of one cell.

    Args:
        num_ranks: The number of ranks.
        pids: Function that returns the process id of each rank that lives.
        clock: Function that returns seconds.
        stats: Function from a process id to its ThreadStats or None.
        cpu_seconds: Function from a process id to the CPU seconds of its children. Default: the
            system's values. The ranks themselves are judged by the turns of their threads.
    """

    def __init__(
        self,
        num_ranks: int,
        pids: Callable[[], Mapping[int, int]],
        clock: Callable[[], float] = time.monotonic,
        stats: Callable[[int], ThreadStats | None] = thread_stats_of,
        cpu_seconds: Callable[[int], float | None] | None = None,
    ) -> None:
        self._pids = pids
        self._num_ranks = num_ranks
        self._clock = clock
        self._read_stats = stats
        cpu_seconds = cpu_seconds or DescendantsCpu(clock)
        self._progress = CpuActivity(lambda: list(pids().values()), clock, cpu_seconds)
        self._rests: dict[int, SleepTracker] = {}
        # rank -> its ThreadStats at the look before
        self._stats: dict[int, ThreadStats | None] = {}
        self.began_at: float | None = None
        self._looked_at = clock()
        self._pulses_at_start: dict[int, ThreadStats | None] = {}

    def look(self, running: Collection[int]) -> None:
        """
        Read the thread stats of all ranks. Call it a few times a second.

        Args:
            running: Ranks that have not finished the cell.
        """
        self._progress.sample()
        for rank, pid in list(self._pids().items()):
            rest = self._rests.get(rank)
            if rest is None or rest.pid != pid:
                self._rests[rank] = SleepTracker(pid, self._clock, self._read_stats)
                self._stats[rank] = None
            else:
                self._stats[rank] = rest.last
                rest.look()
        if self._is_computing(running):
            self.begin_anew()
        elif self.began_at is None:
            self.began_at = self._looked_at  # all ranks have rested or polled since the last look
            self._pulses_at_start = {rank: rest.last for rank, rest in self._rests.items()}
        self._looked_at = self._clock()

    def look_again(self, rank: int) -> None:
        """
        Read one rank's thread stats once more.
        """
        if rank in self._rests:
            self._rests[rank].look()

    def begin_anew(self) -> None:
        """
        Start a new count of the seconds of standstill, because a rank has made progress.
        """
        self.began_at = None

    @property
    def seconds(self) -> float:
        """
        Seconds for which the cell has stood still; 0.0 while it computes.
        """
        return 0.0 if self.began_at is None else self._clock() - self.began_at

    def _is_computing(self, running: Collection[int]) -> bool:
        if self._progress.moved:
            return True
        return any(
            (rank in running and self._is_at_work(rank)) or not self._others_sleep(rank)
            for rank in self._rests.keys() - self.halts.keys()
        )

    @property
    def halts(self) -> dict[int, str]:
        """
        The halted ranks: {rank: words for what halts it}.
        """
        return {rank: rest.halt for rank, rest in self._rests.items() if rest.halt}

    def _others_sleep(self, rank: int) -> bool:
        stats = self._rests[rank].last
        return stats is None or stats.others_sleep

    def _is_at_work(self, rank: int) -> bool:
        # A rank is at work if it neither rests nor polls.
        return not (self.rests(rank) or self._polls(rank))

    def rests(self, rank: int) -> bool:
        """
        Return whether a rank's main thread has slept since the previous look, without a turn.
        """
        rest = self._rests.get(rank)
        return rest is None or not rest.is_known or rest.rest_s > 0

    def _polls(self, rank: int) -> bool:
        before, now = self._stats[rank], self._rests[rank].last
        if before is None or now is None:
            return False
        turns = now.main_turns - before.main_turns
        preemptions = now.main_pushed_out - before.main_pushed_out
        cpu_s = now.main_cpu_s - before.main_cpu_s
        return 0 < turns >= preemptions * 2 and cpu_s <= turns * clocks.CPU_OF_A_POLL_S

    def waits_forever(self, rank: int, snapshot: RankSnapshot) -> bool:
        """
        Return whether a rank that waits in a call will wait for ever, unless another rank acts.

        Args:
            rank: The rank.
            snapshot: The rank's snapshot.
        """
        rest, start = self._rests.get(rank), self._pulses_at_start.get(rank)
        if rest is None or not rest.is_known or start is None:
            return True  # the system shows no thread stats of this rank
        if rest.halt:
            return False  # the rank goes on once its disk answers, or a signal resumes it
        if not self.had_turns(rank):
            return rest.nothing_stirs
        return self._is_polling_call(snapshot) and rest.turns_since(start) >= clocks.VAIN_POLLS

    def moves_in_a_call(self, rank: int, snapshot: RankSnapshot | None) -> bool:
        """
        Return whether a rank makes progress in a call that sleeps until it has finished.

        Turns in such a call show progress. Or the rank has entered the call only after the cell
        began to stand still, and its snapshot came late.
        """
        if rank in self.halts:
            return False
        is_wait = bool(snapshot and snapshot.call) and not self._is_polling_call(
            snapshot  # type: ignore[arg-type]  # it is not None here
        )
        return is_wait and (not self.rests(rank) or self.had_turns(rank))

    def had_turns(self, rank: int) -> bool:
        """
        Return whether a rank's main thread has had turns since the cell began to stand still.
        """
        rest, start = self._rests.get(rank), self._pulses_at_start.get(rank)
        return rest is not None and rest.turns_since(start) != 0

    def _is_polling_call(self, snapshot: RankSnapshot) -> bool:
        # torch polls the store for the address of a peer to which it has no connection yet. A peer
        # that does not exist never sets its address.
        peer = snapshot.peer
        is_absent = peer is not None and peer not in range(self._num_ranks)
        return snapshot.call in POLLING or is_absent

    def had_a_chance(
        self,
        rank: int,
        snapshot: RankSnapshot | None,
        fault_at: float,
        at_fault: ThreadStats | None,
    ) -> bool:
        """
        Return whether a rank has had the time to raise the same error as the rank that failed.

        Args:
            rank: A rank that still runs.
            snapshot: The rank's snapshot after the fault, or None.
            fault_at: Time of the clock at which the fault became known.
            at_fault: The rank's ThreadStats at that time, or None.
        """
        rest = self._rests.get(rank)
        if rest is None or rest.last is None or at_fault is None:
            return self._clock() - fault_at > 2 * clocks.CHANCE_REST_S
        if rest.last.main_cpu_s - at_fault.main_cpu_s >= clocks.CHANCE_CPU_S:
            return True
        preemptions = rest.last.main_pushed_out - at_fault.main_pushed_out
        if rest.turns_since(at_fault) - preemptions >= clocks.CHANCE_TURNS:
            return True
        if rest.halted_s >= clocks.CHANCE_REST_S:
            return True
        if snapshot and snapshot.call:
            return rest.nothing_stirs and rest.rest_s > 0
        return rest.rest_s >= clocks.CHANCE_REST_S

    def stats(self, rank: int) -> ThreadStats | None:
        """
        Return a rank's ThreadStats at the last look, or None.
        """
        rest = self._rests.get(rank)
        return rest.last if rest else None
