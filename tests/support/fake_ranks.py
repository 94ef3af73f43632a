"""
Made-up ranks: a clock, thread stats and agents that answer as a test sets them. No process runs.
"""

from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

from ddp_lessons.ranks.system.thread_stats import ThreadStats

ASLEEP = ThreadStats(
    main_sleeps=True,
    main_turns=10,
    main_pushed_out=2,
    main_cpu_s=1.0,
    agent_turns=0,
    gloo_turns=100,
    others_sleep=True,
    engine_sleeps=True,
)


class MadeUpRanks:
    """
    A set of ranks as the stall monitor's parts see it. Process ids start at 100.

    Attributes:
        now: The clock, in seconds.
        all_stats: {process id: ThreadStats}.
        states: {rank: what its agent answers}. A rank that is missing does not answer.
        sleepers: {rank: the numbers of threads that its next wake-ups find}.
        told: The requests to ranks, in order: ("release", "state", "wake", "cut" or "resume",
            ranks).
    """

    def __init__(self, num_ranks=4):
        self.now = 100.0
        self.all_stats = {100 + rank: ASLEEP for rank in range(num_ranks)}
        self.states = {}
        self.sleepers = {}
        self.told = []
        self.cpu_s = dict.fromkeys(self.all_stats, 1.0)
        self.supervisor = SimpleNamespace(pids={rank: 100 + rank for rank in range(num_ranks)})
        self.client = SimpleNamespace(ids=list(range(num_ranks)))
        self.engines = SimpleNamespace(resume=lambda ranks: self.told.append(("resume", ranks)))
        self.control = SimpleNamespace(
            release=lambda ranks: self._answer("release", ranks),
            ask_state=lambda ranks: self._answer("state", ranks),
            wake=self._wake,
            cut=lambda ranks: self.told.append(("cut", list(ranks))),
        )

    def __len__(self):
        return len(self.all_stats)

    def clock(self):
        """
        Return the seconds of the made-up clock.
        """
        return self.now

    def change(self, rank, **changes):
        """
        Change the thread stats of a rank.
        """
        self.all_stats[100 + rank] = replace(self.all_stats[100 + rank], **changes)

    def gloo_looks(self):
        """
        Give all Gloo loops the turns that they have in a fifth of a second.
        """
        for pid, stats in self.all_stats.items():
            self.all_stats[pid] = replace(stats, gloo_turns=stats.gloo_turns + 20)

    def _wake(self, ranks):
        self.told.append(("wake", list(ranks)))
        futures = {rank: Future() for rank in ranks if rank in self.states}
        for rank, future in futures.items():
            found = self.sleepers.get(rank, [])
            future.set_result({"content": {"answer": found.pop(0) if found else 0}})
        return futures

    def _answer(self, what, ranks):
        self.told.append((what, list(ranks)))
        futures = {}
        for rank in ranks:
            futures[rank] = Future()
            if rank in self.states:
                answer = {
                    "idle": False,
                    "num_interrupts": 1,
                    "replied_to": None,
                    **self.states[rank],
                }
                futures[rank].set_result({"content": {"answer": answer}})
        return futures
