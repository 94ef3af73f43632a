"""
Data for the start of a rank on any host: where the rank finds its number, and the host's facts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

RANK_FROM = "DDP_LESSONS_RANK_FROM"
"""
The environment variable that names the variables that hold a rank's number, separated by spaces.
Without it, a kernel that runs in a Slurm job would pass its own number, 0, to each of its ranks.
"""
ENGINE_GIVEN_UP = b"given up "
"""
The start of the controller's message to an engine that it has given up and that answers again. The
engine's identity follows.
"""


@dataclass(frozen=True)
class HostInfo:
    """
    The facts about a rank's process and its host.

    Args:
        host: Name of the host.
        pid: Process id of the rank there.
        python, torch, ddp_lessons: The versions that are installed there.
        sees_file: Whether the kernel's file exists there, so that the rank shares its folder.
    """

    host: str = ""
    pid: int = -1
    python: str = "none"
    torch: str = "none"
    ddp_lessons: str = "none"
    sees_file: bool = False

    @classmethod
    def from_message(cls, content: Mapping[str, Any]) -> "HostInfo":
        """
        Return the HostInfo that a rank has sent.

        The rank may have another version of the course, as these facts will show. So unknown
        entries are ignored, and a missing entry has its default.
        """
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in content.items() if name in known})
