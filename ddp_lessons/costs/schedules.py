"""
Each collective by each algorithm: every message's step, sender, receiver and exact elements.

A schedule is a list of steps. In a step every rank sends at most one message and receives at most
one, both at once. A message carries one chunk or several; the receiver adds them to its own or
keeps them as they are. From that follow messages, bytes and seconds, and who holds what when.

`num_elements` is always the length of the whole tensor: what all-reduce and broadcast are given,
what reduce-scatter and all-to-all take in on each rank, what all-gather and gather put out. Chunk
i belongs to rank i wherever each rank has one chunk. A message whose chunks are all empty is not
sent, except in a barrier, where it is the point.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ddp_lessons.costs import hub_and_ring, rounds
from ddp_lessons.costs.chunks import chunk_lengths, need_count
from ddp_lessons.costs.transfers import Transfer, power_of_two_below
from ddp_lessons.errors import BadInput

_Builder = Callable[[int, int], list[list[Transfer]]]
_BUILDERS: dict[str, dict[str, _Builder]] = {
    "broadcast": {
        "hub": hub_and_ring.broadcast_hub,
        "ring": hub_and_ring.broadcast_ring,
        "tree": rounds.broadcast_tree,
    },
    "scatter": {"hub": hub_and_ring.scatter_hub, "tree": rounds.scatter_tree},
    "gather": {"hub": hub_and_ring.gather_hub, "tree": rounds.gather_tree},
    "reduce": {
        "hub": hub_and_ring.reduce_hub,
        "ring": hub_and_ring.reduce_ring,
        "tree": rounds.reduce_tree,
    },
    "all_reduce": {
        "hub": hub_and_ring.all_reduce_hub,
        "ring": hub_and_ring.all_reduce_ring,
        "tree": rounds.all_reduce_tree,
        "recursive_doubling": rounds.all_reduce_doubling,
        "halving_doubling": rounds.all_reduce_halving_doubling,
    },
    "reduce_scatter": {
        "hub": hub_and_ring.reduce_scatter_hub,
        "ring": hub_and_ring.reduce_scatter_ring,
        "bruck": rounds.reduce_scatter_bruck,
        "recursive_halving": rounds.reduce_scatter_halving,
    },
    "all_gather": {
        "hub": hub_and_ring.all_gather_hub,
        "ring": hub_and_ring.all_gather_ring,
        "bruck": rounds.all_gather_bruck,
        "recursive_doubling": rounds.all_gather_doubling,
    },
    "all_to_all": {
        "hub": hub_and_ring.all_to_all_hub,
        "ring": hub_and_ring.all_to_all_ring,
        "pairwise": hub_and_ring.all_to_all_pairwise,
        "bruck": rounds.all_to_all_bruck,
    },
    "barrier": {
        "hub": hub_and_ring.all_reduce_hub,
        "ring": hub_and_ring.barrier_ring,
        "tree": rounds.all_reduce_tree,
        "dissemination": rounds.barrier_dissemination,
    },
}

ALGORITHMS = {collective: tuple(builders) for collective, builders in _BUILDERS.items()}
"""
The algorithms known for each collective.
"""

_ONE_CHUNK = {
    ("broadcast", "hub"), ("broadcast", "tree"), ("reduce", "hub"), ("reduce", "tree"),
    ("all_reduce", "hub"), ("all_reduce", "tree"), ("all_reduce", "recursive_doubling"),
}  # fmt: skip


@dataclass(frozen=True)
class Schedule:
    """
    Every message of one collective.

    Args:
        collective: Its name, as in torch.distributed.
        algorithm: How it is done.
        world_size: Number of ranks.
        root: The rank in the middle, or at the root of the tree.
        lengths: Length of each chunk, in elements.
        steps: For each step a tuple of Transfer; those of one step happen at the same time.
    """

    collective: str
    algorithm: str
    world_size: int
    root: int
    lengths: tuple[int, ...]
    steps: tuple[tuple[Transfer, ...], ...]

    def is_sent(self, transfer: Transfer) -> bool:
        """
        Return whether a transfer is a message: it carries something, or is a barrier's.
        """
        return self.collective == "barrier" or self.num_elements(transfer) > 0

    def num_elements(self, transfer: Transfer) -> int:
        """
        Return how many elements a transfer carries.
        """
        return sum(self.lengths[chunk] for chunk in transfer.chunks)

    def holdings(self) -> list[list[list[tuple[int, ...]]]]:
        """
        Play the schedule and return who holds what, at the start and after each step.

        Returns:
            list: For each moment, for each rank, for each chunk: the sorted tuple of ranks whose
            data are summed in what it holds; empty where it holds nothing.

        Raises:
            AssertionError: A rank sends what it does not hold or adds a part twice, which would
                be a mistake in the algorithm.

        Lesson: 03_ring.
        """
        held = [[frozenset(part) for part in row] for row in self._start()]
        moments = [held]
        for step in self.steps:
            after = [list(row) for row in held]
            for sender, receiver, chunks, adds in step:
                for chunk in chunks:
                    sent, own = held[sender][chunk], after[receiver][chunk]
                    assert sent, f"rank {sender} sends chunk {chunk}, which it does not hold"
                    # A barrier carries no data: to hear twice of the same rank does no harm.
                    twice = adds and self.collective != "barrier" and sent & own
                    assert not twice, f"rank {receiver} adds a part of chunk {chunk} twice"
                    after[receiver][chunk] = sent | own if adds else sent
            held = after
            moments.append(held)
        return [[[tuple(sorted(part)) for part in row] for row in held] for held in moments]

    def _start(self):
        ranks, chunks = range(self.world_size), range(len(self.lengths))
        if self.collective in ("broadcast", "scatter"):
            return [[(r,) if r == self.root else () for _ in chunks] for r in ranks]
        if self.collective in ("all_gather", "gather"):
            return [[(r,) if chunk == r else () for chunk in chunks] for r in ranks]
        if self.collective == "all_to_all":
            return [[(r,) if chunk // self.world_size == r else () for chunk in chunks]
                    for r in ranks]  # fmt: skip
        return [[(r,) for _ in chunks] for r in ranks]


def schedule(
    collective: str, algorithm: str, world_size: int, num_elements: int = 0, root: int = 0
) -> Schedule:
    """
    Plan every message of a collective.

    Args:
        collective: A key of `ALGORITHMS`, for example "all_reduce".
        algorithm: One of its algorithms, for example "ring".
        world_size: Number of ranks.
        num_elements: Length of the whole tensor; a barrier has none.
        root: The rank in the middle, where there is one.

    Returns:
        Schedule: Its steps.

    Raises:
        BadInput: The collective, the algorithm, a count or the root does not exist.

    Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
    MPICH", 2005 (trees, recursive doubling and halving); Patarasuk, Yuan, "Bandwidth optimal
    all-reduce algorithms for clusters of workstations", 2009 (ring); Bruck et al., "Efficient
    algorithms for all-to-all communications in multiport message-passing systems", 1997 (bruck).
    Lesson: 03_ring.
    """
    builders = known_algorithms(collective, algorithm)
    need_count("world_size", world_size, at_least=1)
    need_count("num_elements", num_elements)
    if isinstance(root, bool) or root not in range(world_size):
        raise BadInput(
            f"No such root: expected a rank from 0 to {world_size - 1} (got {root!r}). "
            "Pass a rank of the group."
        )
    num_chunks = world_size
    if collective == "barrier":
        num_chunks, num_elements = 1, 0
    elif (collective, algorithm) in _ONE_CHUNK:
        num_chunks = 1
    elif algorithm == "halving_doubling":
        num_chunks = power_of_two_below(world_size)
    lengths = chunk_lengths(num_elements, num_chunks)
    if collective == "all_to_all":
        lengths = lengths * world_size  # chunk s * w + d goes from rank s to rank d
    steps = tuple(tuple(step) for step in builders[algorithm](world_size, root))
    return Schedule(collective, algorithm, world_size, root, lengths, steps)


def known_algorithms(collective: str, algorithm: str) -> dict[str, _Builder]:
    """
    Return the builders of a collective; refuse a name that is not known.

    Args:
        collective: A key of `ALGORITHMS`.
        algorithm: One of its algorithms.

    Raises:
        BadInput: There is no such collective or algorithm.
    """
    if collective not in _BUILDERS:
        raise BadInput(
            f"No such collective: expected one of {', '.join(ALGORITHMS)} (got {collective!r}). "
            "Pass one of these."
        )
    if algorithm not in _BUILDERS[collective]:
        raise BadInput(
            f"No such algorithm for {collective}: expected one of "
            f"{', '.join(ALGORITHMS[collective])} (got {algorithm!r}). Pass one of these."
        )
    return _BUILDERS[collective]
