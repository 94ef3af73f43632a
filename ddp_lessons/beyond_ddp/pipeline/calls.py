"""
The messages that a table takes, and who waits for ever in one.

Legend: w ranks, v parts each; part c of rank r is stage c w + r. What goes from stage to stage is
named by the action that made it: F2 of stage 1 is sent to stage 2, B2 of stage 1 to stage 0.

A rank receives what an action needs, does it, and sends what came of it. A send can be made in two
ways: one is kept and the rank goes on, or it **waits** until the other rank receives.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from .tables import FORWARD, Action


class Made(NamedTuple):
    """
    Name what goes between two stages: the kind, microbatch and stage of the action that made it.
    """

    kind: str
    microbatch: int
    stage: int


class StageCall(NamedTuple):
    """
    Hold a message, as one of its two ranks sees it.

    Args:
        name: "send" or "receive".
        made: What is in it.
        peer: The other rank.
    """

    name: str
    made: Made
    peer: int

    def __str__(self) -> str:
        to = "to" if self.name == "send" else "from"
        return f"{self.name} {self.made.kind}{self.made.microbatch} {to} rank {self.peer}"


def num_parts_of(table: Sequence[Sequence[Action]]) -> int:
    """
    Return how many parts of the model a rank has at most, by a table.
    """
    return 1 + max((part for row in table for _, _, part in row), default=0)


def made_by(action: Action, rank: int, num_ranks: int) -> Made:
    """
    Return the name of what an action makes on a rank.
    """
    return Made(action.kind, action.microbatch, action.part * num_ranks + rank)


def needed_by(made: Made, num_stages: int) -> Made | None:
    """
    Return what must be there before something can be made, or None if that is nobody else's.
    """
    stage = made.stage + (-1 if made.kind == FORWARD else 1)
    return Made(made.kind, made.microbatch, stage) if 0 <= stage < num_stages else None


def calls_of(table: Sequence[Sequence[Action]]) -> list[list[Action | StageCall]]:
    """
    Return what each rank does by a table, with its messages: Actions and Calls, in order.

    Between two parts of one rank there is no message.

    Args:
        table: For each rank a list of Action.
    """
    num_ranks, num_stages = len(table), len(table) * num_parts_of(table)
    return [
        [call for action in row for call in _around(action, rank, num_ranks, num_stages)]
        for rank, row in enumerate(table)
    ]


def _around(action, rank, num_ranks, num_stages):
    made = made_by(action, rank, num_ranks)
    needed = needed_by(made, num_stages)
    to = made.stage + (1 if made.kind == FORWARD else -1)
    if needed is not None and num_ranks > 1:
        yield StageCall("receive", needed, needed.stage % num_ranks)
    yield action
    if 0 <= to < num_stages and num_ranks > 1:
        yield StageCall("send", made, to % num_ranks)


def waiting_for_ever(
    table: Sequence[Sequence[Action]], sends_wait: bool = False
) -> dict[int, StageCall]:
    """
    Play a table as real ranks would, and return who does not come to its end.

    Args:
        table: For each rank a list of Action.
        sends_wait: Whether a send waits until the other rank receives.

    Returns:
        dict: Rank -> the StageCall that it never comes back from. Empty if all come to their end.

    Lesson: 15_beyond_ddp.
    """
    left = [deque(calls) for calls in calls_of(table)]
    sent: set[Made] = set()
    while any(_get_on(rank, left, sent, sends_wait) for rank in range(len(left))):
        pass
    # An Action waits for nobody.
    return {rank: calls[0] for rank, calls in enumerate(left) if calls}  # type: ignore[misc]


def _get_on(rank, left, sent, sends_wait):
    # Let a rank get on as far as it comes, and say whether it has.
    own, num_before = left[rank], len(left[rank])
    while own:
        call = own[0]
        if isinstance(call, Action):
            pass
        elif call.name == "receive" and call.made in sent:
            sent.remove(call.made)
        elif call.name == "send" and not sends_wait:
            sent.add(call.made)
        elif call.name == "send" and _is_awaited(rank, call, left[call.peer]):
            left[call.peer].popleft()
        else:
            break
        own.popleft()
    return len(own) < num_before


def _is_awaited(rank, call, others):
    return bool(others) and others[0] == StageCall("receive", call.made, rank)
