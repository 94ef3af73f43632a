"""
The outcome of a cell on one rank: what the kernel knows once the rank has ended the cell.
"""

from dataclasses import dataclass
from typing import Any

OK, RAISED, RELEASED, DIED, GIVEN_UP = "ok", "raised", "released", "died", "given up"


@dataclass(frozen=True)
class Outcome:
    """
    The outcome of a cell on one rank.

    Args:
        kind: OK, RAISED (by itself), RELEASED (from a wait, or interrupted), DIED, or GIVEN_UP (the
            rank could not be released, so its process was ended).
        ename, evalue: Type and text of the rank's exception.
        line, code: Line of the cell, from 1, and its text, where the cell ended.
        traceback: The traceback as text.
        exit_code: Exit code of a rank that died, or minus the signal.
        is_last_seen: Whether the line is from the last snapshot before the death, perhaps an old
            one.
        ended_itself: Whether the rank ended itself, such as by `os._exit`.
        digest: Hash of the rank's collectives in the cell.
        host: Name of the rank's host, where there are several; else "".
        silent: The host's name if the whole host is silent, "it" if only the rank is; else "".
        halt: Words for what halted the rank until it was given up; else "".
        enclosed: Object that came with the reply (see `RankAgent.enclose`), or None.
    """

    kind: str
    ename: str = ""
    evalue: str = ""
    line: int | None = None
    code: str = ""
    traceback: str = ""
    exit_code: int | None = None
    digest: str = ""
    is_last_seen: bool = False
    ended_itself: bool = False
    host: str = ""
    silent: str = ""
    halt: str = ""
    enclosed: Any = None

    def named(self, rank: int) -> str:
        """
        Return the rank's name in messages: "rank 3", or "rank 3 on node2".
        """
        return f"rank {rank} on {self.host}" if self.host else f"rank {rank}"
