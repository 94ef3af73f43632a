"""
The unblocker: it releases ranks from whatever they wait for, and tells lost ranks from slow ones.

A rank is released by its rank agent. If the agent is silent, the supervisor also cuts the rank's
sockets. A rank is lost, and must be replaced, once it *had a core and still waits*:

    asleep    its agent has released it, and so have all other agents; no wake-up has helped, and
              none of its threads runs
    gil held  its agent had many turns and could not answer: C code holds the interpreter
    stubborn  it had seconds of CPU time, or dozens of interrupts, and runs on

A rank that is only kept from the cores is in none of these three states, however long it waits. A
rank that a signal has stopped is resumed. It is lost if it stays stopped for seconds, and so is a
rank that waits for a disk for as long without a single turn. A rank that waits for the answer of a
name server gets the time in which the system's own lookup ends.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ddp_lessons.ranks.kernel.agent_client import state_in
from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.network_interfaces import asks_name_server
from ddp_lessons.ranks.system.processes import children_of, descendants_of, tree_cpu_seconds
from ddp_lessons.ranks.system.sleep_tracker import SleepTracker
from ddp_lessons.ranks.system.thread_stats import ThreadStats, thread_stats_of

if TYPE_CHECKING:
    from ddp_lessons.ranks.kernel.ranks import Ranks
    from ddp_lessons.ranks.messages.snapshot import AgentState

_MOST_WAKES = 20
"""
The most wake-ups of one rank, one after the other. Gloo may forget a wait per bucket in flight.
"""


class Resuming:
    """
    The resumption of ranks that a signal has stopped. Idle ranks are resumed, too, because the next
    group needs all ranks.

    Args:
        ranks: The Ranks.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._resumed: set[int] = set()  # each rank once: a rank that stays stopped is given up

    def step(self, rests: Mapping[int, SleepTracker]) -> None:
        """
        Resume ranks that are stopped or have no SleepTracker, unless they were resumed before.

        Args:
            rests: For each rank that is a child of the supervisor, its SleepTracker.
        """
        elsewhere = set(self._ranks.client.ids) - rests.keys()
        stopped = {rank for rank, rest in rests.items() if rest.is_stopped}
        stopped = (stopped | elsewhere) - self._resumed
        if stopped:
            self._resumed |= stopped
            self._ranks.engines.resume(sorted(stopped))


class Unblocker:
    """
    The release of ranks after a fault, after Stop, or before they join a group.

    Args:
        ranks: The Ranks.
        clock: Function that returns seconds.
        stats: Function from a process id to its ThreadStats or None.
        limits: {rank: seconds} for ranks in a call that retries until its own time limit, even
            though its sockets are cut (see `short_joins`). Default: none.
    """

    def __init__(
        self,
        ranks: Ranks,
        clock: Callable[[], float] = time.monotonic,
        stats: Callable[[int], ThreadStats | None] = thread_stats_of,
        limits: Mapping[int, float] | None = None,
    ) -> None:
        self._ranks = ranks
        self._clock = clock
        self._read_stats = stats
        self._began_at = clock()
        self._limits = limits or {}
        # rank -> (when, future) of its unanswered request
        self._asked: dict[int, tuple[float, Future[Any]]] = {}
        # rank -> (when it was asked, its agent's answer)
        self._states: dict[int, tuple[float, AgentState]] = {}
        self._child_cpu_s: dict[int, dict[int, float | None]] = {}
        # rank -> (when, future) of its last wake-up
        self._wakes: dict[int, tuple[float, Future[Any]]] = {}
        self._num_wakes: Counter[int] = Counter()
        self._num_releases = Counter(ranks.client.ids)
        self._waits_anew: set[int] = set()  # ranks that were released again for another wait
        self._resuming = Resuming(ranks)
        self.halts: dict[int, str] = {}  # rank -> what halted it when it was given up
        self._rests = {
            rank: SleepTracker(pid, clock, stats) for rank, pid in ranks.supervisor.pids.items()
        }
        # rank -> turns of its main thread at its last release
        self._turns_at_release = {rank: self._turns(rank) for rank in self._rests}
        # Release idle ranks, too, so that they cut their ends of all connections: a rank that holds
        # its interpreter while it waits in C++ cannot cut its own end, but notices a cut peer.
        self._note(ranks.control.release(ranks.client.ids))
        self._resuming.step(self._rests)  # later than the release, or the waits would succeed

    def _note(self, futures):
        for rank, future in futures.items():
            self._asked[rank] = (self._clock(), future)

    def _hear(self):
        for rank, (when, future) in list(self._asked.items()):
            if future.done():
                del self._asked[rank]
                if future.exception() is None:
                    self._states[rank] = (when, state_in(future.result()))

    def has_released(self, rank: int) -> bool:
        """
        Return whether a rank's agent has cut its communication and has said so.
        """
        return rank in self._states

    @property
    def agent_states(self) -> dict[int, AgentState]:
        """
        The last AgentState of each rank that has answered.
        """
        return {rank: said for rank, (_, said) in self._states.items()}

    def step(self, running: Collection[int]) -> list[int]:
        """
        Look at ranks that still run, and release those again that need it. Call this every
        `FREE_EVERY_S` seconds.

        Args:
            running: The ranks that have not finished.

        Returns:
            list[int]: The lost ranks, which must be replaced.
        """
        self._hear()
        for rank in running:
            self._look_at(rank)
        self._resuming.step(self._rests)
        asleep = [rank for rank in running if self._is_asleep(rank, running)]
        lost = [rank for rank in running if self._is_lost(rank)]
        anew = [rank for rank in asleep if self._has_begun_another_wait(rank)]
        lost += [rank for rank in asleep if rank not in anew and not self._may_be_woken(rank)]
        free = [rank for rank in running if rank not in self._asked and rank not in lost]
        # A released rank may have blocked again. Release ranks again that ran since then; only ask
        # the others for their state, because a release would wake them.
        moved = [rank for rank in free if rank in anew or self._has_moved(rank)]
        self._num_releases.update(moved)
        for rank in moved:
            self._turns_at_release[rank] = self._turns(rank)
        self._note(self._ranks.control.release(moved))
        self._note(self._ranks.control.ask_state([rank for rank in free if rank not in moved]))
        self._ranks.control.cut([rank for rank in running if self._has_gil_held(rank)])
        return lost

    def _look_at(self, rank):
        pid = self._ranks.supervisor.pids.get(rank)
        rest = self._rests.get(rank)
        if rest is None or rest.pid != pid:
            self._rests[rank] = SleepTracker(pid, self._clock, self._read_stats)
        else:
            rest.look()

    def _turns(self, rank):
        stats = self._rests[rank].last
        return stats.main_turns if stats else 0

    def _has_moved(self, rank):
        # A release itself costs a turn or two.
        return self._turns(rank) > self._turns_at_release.get(rank, 0) + 2

    def _has_begun_another_wait(self, rank):
        """
        Return whether a sleeping rank has had all its interrupts, so that this is another wait,
        as in a `finally` or a `__del__`. True only once a rank: some catch every interrupt.
        """
        has_had_all = self._states[rank][1].num_interrupts >= self._num_releases[rank]
        if not has_had_all or rank in self._waits_anew:
            return False
        self._waits_anew.add(rank)
        return True

    def _may_be_woken(self, rank):
        """
        Wake a rank that is asleep. Return False once a wake-up has found no waiting thread.
        """
        if rank in self._wakes:
            when, future = self._wakes[rank]
            if not future.done():
                return True
            if future.exception() is not None or not future.result()["content"]["answer"]:
                return False
            if self._clock() - when < clocks.FREE_ASLEEP_S:
                return True  # a woken thread may wake others
        if self._num_wakes[rank] == _MOST_WAKES:
            return False
        self._num_wakes[rank] += 1
        for future in self._ranks.control.wake([rank]).values():
            self._wakes[rank] = self._clock(), future
        return rank in self._wakes

    def _is_lost(self, rank):
        rest = self._rests[rank]
        if rest.pid is None and self._ranks.engines.is_supervised:
            return False  # dead
        if rest.halted_s >= clocks.FREE_HALTED_S:
            self.halts[rank] = rest.halt
            return True
        if self.has_released(rank) and self._states[rank][1].idle:
            return False  # its cell has ended, and its reply is under way
        if not rest.is_known:
            return self._clock() - self._began_at > clocks.FREE_UNKNOWN_S
        has_computed = rest.cpu_s >= clocks.STUBBORN_CPU_S
        if not self.has_released(rank):
            # The thread that holds the interpreter may itself wait for a core: that is no sleep.
            is_asleep = rest.rest_s >= clocks.FREE_ASLEEP_S and rest.all_sleep
            is_stuck = self._has_gil_held(rank) and is_asleep and not self._looks_up_a_name(rank)
            return has_computed or is_stuck
        _, said = self._states[rank]
        return has_computed or said.num_interrupts >= clocks.STUBBORN_INTERRUPTS

    def _is_asleep(self, rank, running):
        rest = self._rests[rank]
        if rest.pid is None or not rest.is_known or not self.has_released(rank):
            return False
        asked_at, said = self._states[rank]
        return (
            not said.idle
            and self._clock() - self._began_at > self._limits.get(rank, 0.0)
            and rest.rest_s >= clocks.FREE_ASLEEP_S
            and asked_at >= rest.began_at
            and rest.nothing_stirs
            and all(self.has_released(other) or self._has_gil_held(other) for other in running)
            and not self._children_move(rest.pid)
            and not self._looks_up_a_name(rank)
        )

    def _has_gil_held(self, rank):
        return (
            not self.has_released(rank) and self._rests[rank].agent_turns >= clocks.GIL_HELD_TURNS
        )

    def _looks_up_a_name(self, rank):
        # The thread of a torch store looks up the name of each host that connects. The end of the
        # store waits for that thread, in C code that holds the interpreter.
        rest = self._rests[rank]
        if rest.pid is None or rest.rest_s >= clocks.FREE_NAME_LOOKUP_S:
            return False
        return asks_name_server(rest.pid)

    def _children_move(self, pid):
        # A DataLoader's workers, or a program that the cell waits for, may be about to end.
        if not children_of(pid):
            return False
        used = {child: tree_cpu_seconds(child) for child in descendants_of(pid)}
        before = self._child_cpu_s.get(pid)
        self._child_cpu_s[pid] = used
        return used != before
