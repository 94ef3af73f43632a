"""
A case in which an answer is tried.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """
    Hold one case in which an answer is tried: the world, and what it is given.

    Args:
        world_size: Number of ranks; they are 0 to world_size - 1, and the default group.
        data: Plain values (numbers, strings, lists) that tell the case from others.
        seed: What its random numbers are drawn from. None: drawn anew at every check.
        is_simulated: Whether rank 0 plays all ranks, of which there may be more than run. For an answer
            that only sends and receives: see `kit.on_rank.simulated_world`.
    """

    world_size: int
    data: dict = field(default_factory=dict)
    seed: int | None = None
    is_simulated: bool = False

    def __hash__(self):  # so that what is made of a case can be cached
        return hash((self.world_size, str(self.data), self.seed, self.is_simulated))

    def __getitem__(self, name):
        return self.data[name]

    def __str__(self):
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        ranks += " that rank 0 plays on paper" if self.is_simulated else ""
        return ", ".join([ranks, *(f"{name} {value}" for name, value in self.data.items())])
