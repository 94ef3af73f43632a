"""
Go on in the middle of an epoch: nothing twice, nothing lost.

Shapes: N samples in an epoch's order, w ranks. After each rank has had k samples, the first k w
places of the order have been seen. That one number, the position, is all there is to save: it is
the same on every rank, and another number of ranks can share what is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import BadInput
from ..whole import whole_number
from .shards import ShardSampler

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sized

    import torch.distributed as dist
    from torch.utils.data import DataLoader

_SAME = ("num_samples", "shuffle", "seed")


class ResumableSampler(ShardSampler):
    """
    Give a DataLoader this rank's share, and remember how far the epoch has come.

    A fresh one yields what `ShardSampler` and torch's DistributedSampler do. `state_dict` counts
    what the sampler has given out. That is what the training loop got if nothing reads ahead: a
    DataLoader without workers, or torchdata's StatefulDataLoader, which asks for the state batch
    by batch. The workers of a plain DataLoader do read ahead: loop over `deliver(loader)`, which
    counts what the loop got.

    On another world size, what is left is shared among the ranks there are. Then it still holds
    that no sample comes twice but for padding at the end (`repeats` tells which), and that none is
    lost but, with `drop_last`, fewer than world_size at the end. It does not hold that batches have
    the same samples: the global batch is as large as before only if each rank's batch is adapted.

    `len` is how many samples are left at the start of this pass, or of the next if it is resumed;
    `repeats` tells which places of that pass are padding.

    Args and Raises: as ShardSampler.

    Source: torchdata documentation, "Stateful DataLoader Tutorial". Lesson: 04_samplers,
    08_checkpoint.
    """

    def __init__(
        self,
        *args: Sized | int | dist.ProcessGroup | None,
        **kwargs: Sized | int | dist.ProcessGroup | None,
    ) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._rewind(0)

    def _rewind(self, start):
        self._start = start  # the position at which this pass, or the next, begins
        self._pending = start > 0  # the next pass begins there; any later one at 0
        self._num_drawn = 0
        self._num_delivered = None  # a number only inside `deliver`

    def set_epoch(self, epoch: int) -> None:
        """
        Make the next pass the one of this epoch; the epoch of a loaded state goes on where it was.

        Args:
            epoch: The same on every rank.
        """
        if epoch != self.epoch:
            self._rewind(0)
        super().set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        # Not a generator: the place to start is taken now, before anybody loads another state.
        if not self._pending:
            self._start = 0
        self._pending = False
        self._num_drawn = 0
        return self._draw(super().__iter__())

    def _draw(self, indices):
        for number, index in enumerate(indices, start=1):
            self._num_drawn = number
            yield index

    def deliver(self, loader: DataLoader[object]) -> Iterator[Any]:
        """
        Yield a DataLoader's batches, and count each when the training loop takes it.

        A batch counts as seen from the moment the loop has it: save the state after its step.

        Args:
            loader: A torch DataLoader with this sampler, in order, with any number of workers.

        Raises:
            BadInput: The loader does not use this sampler, forms no batches, gives them out of
                order, or keeps count itself, as a StatefulDataLoader does.
        """
        self._check_loader(loader)
        return self._deliver(loader)

    def _deliver(self, loader):
        self._num_delivered = 0
        try:
            for batch in loader:
                if self._num_delivered is not None:
                    # The last batch may be short; what it would lack is not in the shard.
                    num_delivered = self._num_delivered + loader.batch_size
                    self._num_delivered = min(num_delivered, len(self))
                yield batch
        finally:
            if self._num_delivered is not None:  # None: another epoch or state came meanwhile
                self._num_drawn, self._num_delivered = self._num_delivered, None

    def _check_loader(self, loader):
        faults = {
            "this sampler": loader.sampler is not self,
            "a batch size": loader.batch_size is None,
            "in_order=True": not getattr(loader, "in_order", True),
            "no count of its own": hasattr(loader, "state_dict"),
        }
        missing = [name for name, is_missing in faults.items() if is_missing]
        if missing:
            raise BadInput(
                f"Cannot count batches: the DataLoader must have {' and '.join(missing)} (got "
                f"{type(loader).__name__}, rank {self.rank} of {self.world_size}). Make it with "
                "sampler=, batch_size= and nothing that changes the order."
            )

    def state_dict(self) -> dict[str, int]:
        """
        Return what a resumed run needs, as plain numbers; the same on all ranks after equal steps.

        Returns:
            dict: The epoch, the position (how many places of its order all ranks have seen), and
            what the order depends on.
        """
        num_seen = self._num_drawn if self._num_delivered is None else self._num_delivered
        if num_seen == 0:
            position = self._start
        elif num_seen == len(self):
            position = self.num_samples  # an epoch that has ended is over on any world size
        else:
            position = self._start + num_seen * self.world_size
        return {
            "epoch": self.epoch,
            "position": position,
            **{name: getattr(self, name) for name in _SAME},
        }

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """
        Make the next pass go on where a state was taken. An ended epoch has nothing left.

        Args:
            state_dict: From `state_dict` of any rank, on any world size.

        Raises:
            BadInput: The state belongs to another order, so samples would be lost or come twice.
        """
        keys = {"epoch", "position", *_SAME}
        if set(state_dict) != keys:
            raise BadInput(
                f"Not a sampler's state: expected {', '.join(sorted(keys))} (got "
                f"{', '.join(sorted(state_dict)) or 'nothing'}). Pass what state_dict() returned."
            )
        for name in _SAME:
            if state_dict[name] != getattr(self, name):
                raise BadInput(
                    f"State of another order: expected {name}={getattr(self, name)} (got "
                    f"{state_dict[name]}, rank {self.rank} of {self.world_size}). Make the sampler "
                    "as it was when the state was saved."
                )
        position, epoch = state_dict["position"], state_dict["epoch"]
        whole = whole_number(position)
        if whole is None or not 0 <= whole <= self.num_samples:
            raise BadInput(
                f"Bad position: expected 0 to {self.num_samples} (got {position}, rank {self.rank} "
                f"of {self.world_size}). Pass what state_dict() returned."
            )
        self.epoch = epoch
        self._rewind(whole)
