"""
Tell a cell that stands still from one that is slow: by what each rank's threads have done.

    computing   the ranks, their threads or their children use the cores, or wait for one
    resting     a main thread had no turn since the last look, and sleeps
    polling     it wakes up, looks, and sleeps again: that is how a store is waited for, and what a
                loop with a sleep in it does
    halted      a signal has stopped it, or its main thread waits for a disk

A cell stands still while every rank that runs it rests, polls or is halted, and nobody else stirs.
"""

import time

from ddp_lessons.ranks.diagnosis.cpu_activity import DescendantsCpu, Progress
from ddp_lessons.ranks.diagnosis.wording import POLLING
from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.sleep_tracker import Rest
from ddp_lessons.ranks.system.thread_stats import pulse_of


class Standstill:
    """
    Watch the ranks of one cell.

    Args:
        ranks: The Ranks.
        clock: Function that returns seconds.
        pulse: Function from a process id to its Pulse or None.
        cpu_seconds: Function from a process id to the CPU seconds of its children. Default: as the
            system tells. The ranks themselves are judged by the turns of their threads.
    """

    def __init__(self, ranks, clock=time.monotonic, pulse=pulse_of, cpu_seconds=None):
        self._ranks = ranks
        self._num_ranks = len(ranks)
        self._clock = clock
        self._pulse = pulse
        cpu_seconds = cpu_seconds or DescendantsCpu(clock)
        self._progress = Progress(lambda: list(ranks.keeper.pids.values()), clock, cpu_seconds)
        self._rests = {}
        self._pulses = {}  # rank -> its Pulse at the look before
        self.began_at = None
        self._looked_at = clock()
        self._pulses_at_start = {}

    def look(self, running):
        """
        Look at all ranks. Call it a few times a second.

        Args:
            running: Ranks that have not finished the cell.
        """
        self._progress.sample()
        for rank, pid in list(self._ranks.keeper.pids.items()):
            rest = self._rests.get(rank)
            if rest is None or rest.pid != pid:
                self._rests[rank] = Rest(pid, self._clock, self._pulse)
                self._pulses[rank] = None
            else:
                self._pulses[rank] = rest.last
                rest.look()
        if self._is_computing(running):
            self.begin_anew()
        elif self.began_at is None:
            self.began_at = self._looked_at  # what rests now has rested since
            self._pulses_at_start = {rank: rest.last for rank, rest in self._rests.items()}
        self._looked_at = self._clock()

    def look_again(self, rank):
        """
        Take one rank's pulse once more.
        """
        if rank in self._rests:
            self._rests[rank].look()

    def begin_anew(self):
        """
        Count from now on: something has moved.
        """
        self.began_at = None

    @property
    def seconds(self):
        """
        Seconds for which the cell has stood still; 0.0 while it computes.
        """
        return 0.0 if self.began_at is None else self._clock() - self.began_at

    def _is_computing(self, running):
        if self._progress.moved:
            return True
        return any(
            (rank in running and self._is_at_work(rank)) or not self._others_sleep(rank)
            for rank in self._rests.keys() - self.halts.keys()
        )

    @property
    def halts(self):
        """
        For each rank that is halted, what halts it, in words.
        """
        return {rank: rest.halt for rank, rest in self._rests.items() if rest.halt}

    def _others_sleep(self, rank):
        pulse = self._rests[rank].last
        return pulse is None or pulse.others_sleep

    def _is_at_work(self, rank):
        # Neither resting nor polling.
        return not (self.rests(rank) or self._polls(rank))

    def rests(self, rank):
        """
        Whether a rank's main thread has slept since the look before, without a turn.
        """
        rest = self._rests.get(rank)
        return rest is None or not rest.is_known or rest.rest_s > 0

    def _polls(self, rank):
        before, now = self._pulses[rank], self._rests[rank].last
        if before is None or now is None:
            return False
        turns = now.main_turns - before.main_turns
        pushed_out = now.main_pushed_out - before.main_pushed_out
        cpu_s = now.main_cpu_s - before.main_cpu_s
        return 0 < turns >= pushed_out * 2 and cpu_s <= turns * clocks.CPU_OF_A_POLL_S

    def is_vain(self, rank, place):
        """
        Tell whether a rank that waits in a call had all that it needs, and waits on.

        Args:
            rank: The rank.
            place: Where it is.
        """
        rest, start = self._rests.get(rank), self._pulses_at_start.get(rank)
        if rest is None or not rest.is_known or start is None:
            return True  # the system does not tell
        if rest.halt:
            return False  # it goes on once its disk answers, or somebody resumes it
        if not self.had_turns(rank):
            return rest.nothing_stirs
        return self._is_polling_call(place) and rest.turns_since(start) >= clocks.VAIN_POLLS

    def moves_in_a_call(self, rank, place):
        """
        Tell whether a rank has turns in a call that sleeps until it is through: so it gets on.

        Or it came into the call only while the cell stood still, and said so late.
        """
        if rank in self.halts:
            return False
        is_wait = bool(place and place["call"]) and not self._is_polling_call(place)
        return is_wait and (not self.rests(rank) or self.had_turns(rank))

    def had_turns(self, rank):
        """
        Tell whether a rank's main thread has had turns since the cell stands still.
        """
        rest, start = self._rests.get(rank), self._pulses_at_start.get(rank)
        return bool(rest) and rest.turns_since(start) != 0

    def _is_polling_call(self, place):
        # torch looks in the store for the address of a rank that it has no line to yet.
        peer = place.get("peer")
        is_absent = peer is not None and peer not in range(self._num_ranks)
        return place["call"] in POLLING or is_absent

    def had_a_chance(self, rank, place, fault_at, at_fault):
        """
        Tell whether a rank has had the time to see for itself what another rank failed of.

        Args:
            rank: A rank that still runs.
            place: Where it is, as asked after the fault, or None.
            fault_at: When the fault became known.
            at_fault: Its Pulse then, or None.
        """
        rest = self._rests.get(rank)
        if rest is None or not rest.is_known or at_fault is None:
            return self._clock() - fault_at > 2 * clocks.CHANCE_REST_S
        if rest.last.main_cpu_s - at_fault.main_cpu_s >= clocks.CHANCE_CPU_S:
            return True
        pushed_out = rest.last.main_pushed_out - at_fault.main_pushed_out
        if rest.turns_since(at_fault) - pushed_out >= clocks.CHANCE_TURNS:
            return True
        if rest.halted_s >= clocks.CHANCE_REST_S:
            return True
        if place and place["call"]:
            return rest.nothing_stirs and rest.rest_s > 0
        return rest.rest_s >= clocks.CHANCE_REST_S

    def pulse(self, rank):
        """
        Return a rank's Pulse at the last look, or None.
        """
        rest = self._rests.get(rank)
        return rest.last if rest else None
