"""
The fast version: stage 2, whose all-gather goes on while the next forward already computes, by
the calls that are fastest on this backend.

Shapes: pieces, tables and rows are those of `pieces`; w ranks.

    step       | inner step |
    messages                | bucket of layer 1 | bucket of layer 2 | bucket of layer 3 |
    forward                                     | layer 1 | layer 2           | layer 3 |
"""

import functools
import weakref
from collections.abc import Callable, Collection

import torch
import torch.distributed as dist

from ..replicas.overlapped import outlast
from .messages import start_all_gather, start_broadcasts, start_reduce_scatter
from .zero2 import Zero2Optimizer

LARGE_PIECE_BYTES = 64 << 10
"""
Bytes of a piece, on average over a bucket, that are worth a message of their own.
"""


class OverlappedOptimizer(Zero2Optimizer):
    """
    Shard as Zero2Optimizer, and wait for a bucket only when a layer is about to use it.

    Between a step and the next forward, parameters may still be old. Whoever reads them elsewhere
    calls `wait` first; the model's `state_dict` does so by itself. Room for gradients under way is
    kept from step to step, as new memory costs more than what is sent in it: at most four times
    four buckets.

    Collective: as Zero2Optimizer; `wait` is not.

    Args:
        module: The model, whose layers wait. The optimizer takes all of its parameters.
        optimizer_class: A class of optimizer, such as torch.optim.Adam.
        group: The process group; None is the default group.
        settings: What the class takes, such as lr.

    Source: S. Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.3, on overlap, turned round.
    Lesson: 13_sharded_optimizer.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        optimizer_class: type[torch.optim.Optimizer],
        group: dist.ProcessGroup | None = None,
        **settings: object,
    ) -> None:
        self._pending = []  # what was sent and not yet waited for, in the order of forward
        self._spare_rooms = {}  # by dtype and device
        super().__init__(module.parameters(), optimizer_class, group, **settings)
        self._room_bytes = 4 * self._cap_bytes
        this = weakref.ref(self)
        for part in module.modules():
            own = {id(parameter) for parameter in part.parameters(recurse=False)}
            if own:
                part.register_forward_pre_hook(functools.partial(_before_forward, this, own))
        module.register_state_dict_pre_hook(functools.partial(_before_state_dict, this))

    @property
    def num_under_way(self) -> int:
        """
        How many buckets of parameters were sent and not yet waited for.
        """
        return len(self._pending)

    def step(  # type: ignore[override]  # a loss may be a tensor
        self, closure: Callable[[], torch.Tensor | float] | None = None
    ) -> torch.Tensor | float | None:
        """
        Make a step; when it returns, parameters may still be under way.

        Collective: every rank must call it.
        """
        self.wait()
        return super().step(closure)

    def gather_parameters(self) -> None:
        """
        Start to give each rank the pieces of all others.

        Collective: every rank must call it.
        """
        self._pending = [self._send_pieces(bucket) for bucket in reversed(self.buckets())]

    def _send_gradients(self, bucket):
        rooms = [self._take_room(bucket), self._take_room(bucket)]
        table, received = (bucket.table_in(room) for room in rooms)
        row = bucket.new_row()
        bucket.put_gradients(table)
        return bucket, rooms, row, start_reduce_scatter(row, table, received, self._group)

    def _finish_gradients(self, bucket, rooms, row, work):
        super()._finish_gradients(bucket, rooms, row, work)
        if bucket.table_bytes <= self._room_bytes:
            self._spare_rooms[bucket.kind] += rooms

    def _take_room(self, bucket):
        # A parameter that is larger than all buckets should be gets room for this once.
        spare = self._spare_rooms.setdefault(bucket.kind, [])
        if spare and bucket.table_bytes <= self._room_bytes:
            return spare.pop()
        return bucket.new_room(max(self._room_bytes, bucket.table_bytes))

    def _send_pieces(self, bucket):
        pieces = bucket.pieces_of_all()
        is_small = bucket.table_bytes < LARGE_PIECE_BYTES * len(pieces)
        if is_small or dist.get_backend(self._group) != "gloo":
            return super()._send_pieces(bucket)
        return bucket, None, None, start_broadcasts(pieces, self._group)

    def _finish_pieces(self, bucket, table, row, work):
        if table is None:
            work.wait()  # they have come to where they belong
        else:
            super()._finish_pieces(bucket, table, row, work)

    def _all_gather(self, table, row):
        return start_all_gather(table, row, self._group)

    @torch.no_grad()
    def wait(self, wanted: Collection[int] | None = None) -> None:
        """
        Wait for parameters that are under way.

        Args:
            wanted: Ids of parameters; None: all of them.

        Raises:
            RuntimeError: Some did not come, as the group has ended. The next step sends all.
        """
        num_waited = len(self._pending)
        if wanted is not None:
            places = [
                place
                for place, (bucket, *_) in enumerate(self._pending, start=1)
                if any(id(parameter) in wanted for parameter, _ in bucket.pairs)
            ]
            num_waited = max(places, default=0)
        try:
            for sent in self._pending[:num_waited]:
                self._finish_pieces(*sent)
        except BaseException as error:
            num_waited = len(self._pending)
            for *_, work in self._pending:
                outlast(work)
            if not isinstance(error, RuntimeError):
                raise
            raise RuntimeError(
                "Parameters of the last step did not come: the group has ended while they were "
                "under way. Train on: the next step sends all of them again."
            ) from error
        finally:
            del self._pending[:num_waited]


def _before_forward(optimizer_ref, wanted, *_):
    optimizer = optimizer_ref()
    if optimizer is not None:
        optimizer.wait(wanted)


def _before_state_dict(optimizer_ref, *_):
    optimizer = optimizer_ref()
    if optimizer is not None:
        optimizer.wait()
