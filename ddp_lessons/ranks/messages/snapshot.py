"""
The answers of a rank agent: where its rank is, and what became of a release.

They travel as JSON, so each class makes itself of what `dataclasses.asdict` gives.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Collective:
    """
    One collective or message that a rank has called, as torch's flight recorder has it.

    Args:
        name: The call, such as "all_reduce".
        number: Which of its group's collectives it is, from 1.
        group: The group's name.
        sizes: The sizes of each tensor.
        dtypes: The dtype of each tensor, as torch writes it, such as "Float".
        timeout_s: Seconds after which the call fails.
        is_p2p: Whether it is a message between two ranks.
        record: A running number of all that the rank has called, in all groups.
    """

    name: str
    number: int
    group: str
    sizes: list[list[int]]
    dtypes: list[str]
    timeout_s: float
    is_p2p: bool
    record: int

    @property
    def key(self) -> tuple[str, int]:
        """
        The group and the number, by which torch pairs the calls of different ranks.
        """
        return self.group, self.number


@dataclass(frozen=True)
class FormingGroup:
    """
    A group that a rank is making.

    Args:
        name: Its name; "" for the group of all ranks.
        ranks: Its members.
        count: For the group of all ranks, the number under which torch looks for the other ranks in
            the store, or "" until torch has chosen it. None for any other group.
    """

    name: str
    ranks: list[int]
    count: str | None = None


@dataclass(frozen=True)
class RankSnapshot:
    """
    Where a rank is at one moment.

    Args:
        rank: The rank.
        busy: Whether it runs a cell or a function.
        line, code: Line of the cell, from 1, and its text; None and "" outside of a cell.
        call: The communication call that the main thread is in; also "backward", "DDP forward",
            "wait" (for a handle) and "store" (for a key). "" if it is in none.
        function: Name of the innermost function.
        module: Line of a learner's own module that the cell calls, such as "helpers.py:12", or "".
        peer, tag: The other rank and the tag of a message, or None.
        group: Name of the call's group, or None.
        root: Root of a collective that has one, or None.
        forming: The group that the rank is making, or None.
        operation: "send" or "recv" for the handle of a message, else "".
        timeout_s: The call's own time limit, or None.
        collectives: The collectives of this cell, oldest first, without messages.
        groups: Name of each of its groups -> sorted ranks of its members.
        helpers: Names of the learner's threads and child processes that may act; None: not known.
        replied_to: Id of the last request to which the rank has replied, or None.
        outside: Whether the rank was not asked to run this cell. The kernel adds it.
        host: Name of its host, where there are several; else "". The kernel adds it.
    """

    rank: int = -1
    busy: bool = False
    line: int | None = None
    code: str = ""
    call: str = ""
    function: str = ""
    module: str = ""
    peer: int | None = None
    tag: int | None = None
    group: str | None = None
    root: int | None = None
    forming: FormingGroup | None = None
    operation: str = ""
    timeout_s: float | None = None
    collectives: list[Collective] = field(default_factory=list)
    groups: dict[str, list[int]] = field(default_factory=dict)
    helpers: list[str] | None = None
    replied_to: str | None = None
    outside: bool = False
    host: str = ""

    @classmethod
    def from_message(cls, content: dict[str, Any]) -> "RankSnapshot":
        """
        Return the snapshot that a rank agent has sent.
        """
        forming = content["forming"]
        return cls(
            **{
                **content,
                "forming": None if forming is None else FormingGroup(**forming),
                "collectives": [Collective(**each) for each in content["collectives"]],
            }
        )


Snapshots = dict[int, RankSnapshot | None]
"""
For each rank of a cell its snapshot, or None if it did not answer.
"""


def snapshot_of(rank: int, snapshots: Snapshots) -> RankSnapshot:
    """
    Return the snapshot of a rank that has answered.
    """
    snapshot = snapshots[rank]
    assert snapshot is not None, f"rank {rank} did not answer"
    return snapshot


@dataclass(frozen=True)
class AgentState:
    """
    The answer of a rank agent after a release.

    Args:
        idle: Whether the main thread waits for the next request.
        num_interrupts: How often the cell was interrupted.
        replied_to: Id of the last request to which the rank has replied, or None.
    """

    idle: bool
    num_interrupts: int
    replied_to: str | None
