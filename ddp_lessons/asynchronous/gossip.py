"""
Average with one neighbour at a time: no call in which all ranks take part.

Legend: w ranks in a ring. In even rounds 0 and 1, 2 and 3 and so on are partners; in odd rounds 1
and 2, 3 and 4, and the last one and 0. Where w is odd, one rank sits out.
"""

import torch
import torch.distributed as dist

from ..collectives import Peers
from .local import average_weights
from .lockstep import members
from .weights import set_weights, weights_of


def partner_of(rank: int, world_size: int, round_number: int) -> int | None:
    """
    Return with whom a rank averages in a round, or None if it sits out.

    Lesson: 14_asynchronous.
    """
    shift = round_number % 2
    place = (rank - shift) % world_size
    other = place + 1 if place % 2 == 0 else place - 1
    return None if other >= world_size else (other + shift) % world_size


class Gossip:
    """
    Step by each rank's own gradient, then average weights with this round's partner.

    Args:
        model: The model, the same on every rank, not wrapped.
        optimizer: Its optimizer.
        group: The process group, or None for the default group.

    Source: X. Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?",
    NeurIPS 2017. Lesson: 14_asynchronous.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.model, self.optimizer, self.group = model, optimizer, group
        self.num_rounds = 0
        self._peers = Peers(group)

    def step(self) -> tuple[int, ...]:
        """
        Make one step alone, and average with one other rank.

        All ranks must call it equally often: each waits for its partner only.

        Returns:
            tuple: The partner's rank, or nothing if this rank sits out.
        """
        self.optimizer.step()
        self.optimizer.zero_grad()
        peers = self._peers
        partner = partner_of(peers.rank, peers.world_size, self.num_rounds)
        self.num_rounds += 1
        if partner is None:
            return ()
        mine = weights_of(self.model)
        outgoing = peers.flatten(mine)
        theirs = torch.empty_like(outgoing)
        peers.exchange(outgoing, partner, theirs, partner)
        set_weights(self.model, (mine + theirs.to(mine.device)) / 2)
        return (members(self.group)[partner],)

    def finish(self) -> None:
        """
        Average over all ranks once: until then each has weights of its own.

        Collective: every rank must call it.
        """
        average_weights(self.model, self.group)
