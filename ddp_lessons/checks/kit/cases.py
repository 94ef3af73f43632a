"""
One case in which an answer is tried: a world size and arguments.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """
    One case in which an answer is tried: its world size, its data and its seed.

    Args:
        world_size: Number of ranks. They are ranks 0 to world_size - 1, and the default group.
        data: Plain values (numbers, strings, lists) by name, which tell this case from others.
        seed: Seed of the case's random numbers. None: each check draws a new one.
        is_simulated: Whether rank 0 plays all ranks, so that there may be more of them than running
            ranks. The answer may only send and receive (see `kit.on_rank.simulated_world`).
    """

    world_size: int
    data: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    is_simulated: bool = False

    def __hash__(self) -> int:  # so that a function of a case can be cached
        return hash((self.world_size, str(self.data), self.seed, self.is_simulated))

    def __getitem__(self, name: str) -> Any:
        return self.data[name]

    def __str__(self) -> str:
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        ranks += " that rank 0 simulates" if self.is_simulated else ""
        return ", ".join([ranks, *(f"{name} {value}" for name, value in self.data.items())])
