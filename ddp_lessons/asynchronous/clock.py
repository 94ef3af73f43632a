"""
A clock that counts ticks: who is ready next, and when all are.

What comes first over real time differs from run to run. Here each step of a rank takes a number of
ticks that one chooses, and the order follows from that. The messages are real all the same.

Legend: rank r makes steps 0, 1, 2 and so on; step s takes `step_ticks(r, s)` ticks.
"""

import heapq
from collections.abc import Callable, Sequence

from ..errors import BadInput


class Clock:
    """
    Say whose step ends next. Of two that end in one tick, the lower rank is first.

    Args:
        step_ticks: Function (rank, number of its step) that returns ticks, at least 1.

    Attributes:
        now: The ticks that have passed.

    Lesson: 14_asynchronous.
    """

    def __init__(self, step_ticks: Callable[[int, int], int]) -> None:
        self.now = 0
        self._step_ticks = step_ticks
        self._under_way = []  # heap of (tick at which the step ends, rank)
        self._num_begun = {}

    def begin(self, rank: int) -> None:
        """
        Note that a rank begins its next step now.

        Raises:
            BadInput: The step would take no time.
        """
        number = self._num_begun.get(rank, 0)
        ticks = self._step_ticks(rank, number)
        if ticks < 1:
            raise BadInput(
                f"Bad ticks: expected 1 or more for each step (got {ticks} for step {number} of "
                f"rank {rank}). A step that takes no time would be made again and again."
            )
        self._num_begun[rank] = number + 1
        heapq.heappush(self._under_way, (self.now + ticks, rank))

    def next(self) -> int:
        """
        Let time pass until the next step ends, and return its rank.

        Raises:
            BadInput: No step is under way.
        """
        if not self._under_way:
            raise BadInput(
                "Nothing is under way: expected a rank that has begun a step (got none). Call "
                "begin first."
            )
        self.now, rank = heapq.heappop(self._under_way)
        return rank


def finish_ticks(
    talks: Sequence[Sequence[Sequence[int]]], step_ticks: Callable[[int, int], int]
) -> int:
    """
    Return the tick at which the last rank is through, if who talks waits for the other.

    Args:
        talks: For each rank, in rank order, for each of its steps the ranks that it talked with
            after it; an empty tuple if it did not talk.
        step_ticks: Function (rank, number of its step) that returns ticks.

    Returns:
        int: Ticks.

    Lesson: 14_asynchronous.
    """
    clocks = [0 for _ in talks]
    for step in range(len(talks[0])):
        clocks = [ticks + step_ticks(rank, step) for rank, ticks in enumerate(clocks)]
        clocks = [
            max(clocks[other] for other in (rank, *talks[rank][step])) for rank in range(len(talks))
        ]
    return max(clocks)
