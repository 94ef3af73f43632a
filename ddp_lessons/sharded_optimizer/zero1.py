"""
ZeRO stage 1: each rank keeps the optimizer's state for one piece of every parameter.

Shapes: pieces, tables and rows are those of `pieces`; w ranks.

    backward    every rank has the whole gradient of its own samples
    step        a reduce-scatter leaves each rank the mean gradient of its pieces
                the inner optimizer makes its step on them, in place
                an all-gather gives each rank the pieces of all others

The two send what one all-reduce of the gradients would. An inner optimizer that looks at each
number alone (SGD, Adam and most others) cannot tell a piece from a parameter. One that looks at
a whole matrix can: for it there is `owners`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from ..replicas.buckets import MIB, broadcast_from_first, plan_buckets
from .arguments import WHOLE_MATRIX, check_class, check_group
from .messages import all_gather, reduce_scatter
from .over_inner import OverInner, loss_of
from .pieces import ShardedBucket, cut_like, gradient_like, piece_of
from .saving import local_state, sharded_state

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.optim.optimizer import ParamsT, StateDict

BUCKET_CAP_BYTES = 8 * MIB
"""
When a bucket is full: as `OverlappedReplica`'s. There are two tables of that size at a time.
"""


class Zero1Optimizer(OverInner):
    """
    Shard any optimizer that looks at each number alone: a rank has about 1 / w of the state.

    It takes the place of the optimizer and of DDP's averaging: a step goes by the mean of all
    ranks' gradients. A parameter without a gradient on some rank counts as a gradient of zeros
    there. What is frozen is left alone. The model's parameters stay where they are in memory: do
    not move the model to another device afterwards.

    Collective: every rank must make it, with parameters of the same shapes; `step` and
    `add_param_group` are collective, too.

    Args:
        params: Parameters, or groups of them, as for any optimizer. They become those of rank 0.
        optimizer_class: A class of optimizer, such as torch.optim.Adam.
        group: The process group; None is the default group.
        averaged: Gradients are the mean of all ranks already, as DDP leaves them. Then a step
            sends parameters only, and a parameter without a gradient is left alone.
        bucket_cap_bytes: Bytes of parameters at which a bucket, a message, is full.
        settings: What the class takes, such as lr.

    Attributes:
        inner: This rank's optimizer, of that class, over this rank's pieces.

    Raises:
        BadInput: There is no such class, it needs whole parameters, parameters have holes, or
            ranks differ.

    Source: S. Rajbhandari et al., "ZeRO", SC 2020, section 5.1. Lesson: 13_sharded_optimizer,
    task 13.2.
    """

    _buckets: list[ShardedBucket]
    _planned_for: list[int] | None

    def __init__(
        self,
        params: ParamsT,
        optimizer_class: type[torch.optim.Optimizer],
        group: dist.ProcessGroup | None = None,
        averaged: bool = False,
        bucket_cap_bytes: int = BUCKET_CAP_BYTES,
        **settings: object,
    ) -> None:
        check_class(optimizer_class, WHOLE_MATRIX)
        self.averaged, self._cap_bytes = averaged, bucket_cap_bytes
        self._buckets, self._planned_for = [], None
        super().__init__(params, optimizer_class, group, settings)

    def add_param_group(self, param_group: dict[str, object]) -> None:
        """
        Shard more parameters, with settings of their own.

        Collective: every rank must call it.
        """
        super().add_param_group(param_group)
        outer = self.param_groups[-1]
        check_group(self._class, {**self._settings, **outer}, self._group)
        broadcast_from_first(outer["params"], self._group)
        pieces = [piece_of(p, self._world_size, self._rank) for p in outer["params"]]
        self._add_to_inner(pieces)

    def pieces(self) -> dict[torch.Tensor, torch.Tensor]:
        """
        Return the pieces that this rank's inner optimizer updates, {parameter: piece}.
        """
        pairs = zip(self.param_groups, self.inner.param_groups, strict=True)
        return {
            parameter: piece
            for outer, own in pairs
            for parameter, piece in zip(outer["params"], own["params"], strict=True)
        }

    def buckets(self) -> list[ShardedBucket]:
        """
        Return what is sent together, in the order in which backward makes it: the last ones first.
        """
        pairs = [(p, piece) for p, piece in self.pieces().items() if p.requires_grad]
        planned_for = [id(parameter) for parameter, _ in pairs]
        if self._planned_for != planned_for:  # a group was added, or something frozen
            pairs.reverse()
            plan = plan_buckets([parameter for parameter, _ in pairs], self._cap_bytes)
            self._buckets = [
                ShardedBucket([pairs[i] for i in places], self._world_size) for places in plan
            ]
            self._planned_for = planned_for
        return self._buckets

    @torch.no_grad()
    def step(  # type: ignore[override]  # a loss may be a tensor
        self, closure: Callable[[], torch.Tensor | float] | None = None
    ) -> torch.Tensor | float | None:
        """
        Make a step by the mean gradient of all ranks.

        Collective: every rank must call it.

        Args:
            closure: A function that computes gradients and returns the loss, or None.

        Returns:
            What the closure returned, or None.
        """
        loss = loss_of(closure)
        self.reduce_gradients()
        self._hand_on_settings()
        self.inner.step()
        self.inner.zero_grad()
        self.gather_parameters()
        return loss

    def reduce_gradients(self) -> None:
        """
        Give each piece its gradient: the mean over ranks.

        Collective: every rank must call it.
        """
        if self.averaged:
            for bucket in self.buckets():
                self._take_averages(bucket)
        else:
            _one_ahead(self.buckets(), self._send_gradients, self._finish_gradients)

    def gather_parameters(self) -> None:
        """
        Give each rank the pieces of all others.

        Collective: every rank must call it.
        """
        _one_ahead(reversed(self.buckets()), self._send_pieces, self._finish_pieces)

    def _take_averages(self, bucket):
        for parameter, piece in bucket.pairs:
            if parameter.grad is not None:
                piece.grad = cut_like(gradient_like(parameter), parameter, piece)

    def _send_gradients(self, bucket):
        table, row = bucket.new_table(), bucket.new_row()
        bucket.put_gradients(table)
        return bucket, table, row, self._reduce_scatter(row, table)

    def _finish_gradients(self, bucket, table, row, work):
        # The table is an argument so that it lives as long as the message may read it.
        work.wait()
        row.div_(self._world_size)
        for piece, part in bucket.parts(row):
            piece.grad = part if piece.grad is None else piece.grad.add_(part)

    def _send_pieces(self, bucket):
        table, row = bucket.new_table(), bucket.new_row()
        for piece, part in bucket.parts(row):
            part.copy_(piece)
        return bucket, table, row, self._all_gather(table, row)

    def _reduce_scatter(self, row, table):
        return reduce_scatter(row, table, self._group, async_op=True)

    def _all_gather(self, table, row):
        return all_gather(table, row, self._group, async_op=True)

    def _finish_pieces(self, bucket, table, row, work):
        work.wait()
        bucket.take_parameters(table)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """
        Forget the gradients of parameters and of pieces.
        """
        super().zero_grad(set_to_none)
        self.inner.zero_grad()

    def state_dict(self) -> StateDict:
        """
        Return this rank's part of the state: what belongs to pieces as DTensors, each a part of a
        whole of n numbers. `Checkpoints.save_sharded` writes it, and any number of ranks loads it.

        Collective: every rank must call it.
        """
        self._hand_on_settings()
        return sharded_state(self.inner.state_dict(), list(self.pieces().items()), self._group)

    def load_state_dict(self, state_dict: StateDict) -> None:
        """
        Put the state back: one that `state_dict` of as many ranks has returned, or the whole one
        of an optimizer that is not sharded, of which each rank keeps its part.
        """
        self.inner.load_state_dict(local_state(state_dict, list(self.pieces().items())))
        self.state = self.inner.state
        for outer, own in zip(self.param_groups, self.inner.param_groups, strict=True):
            outer.update({name: value for name, value in own.items() if name != "params"})


def _one_ahead(buckets, send, finish):
    # The next message is on its way while one is finished, and never more than two are.
    before = None
    for bucket in buckets:
        sent = send(bucket)
        if before is not None:
            finish(*before)
        before = sent
    if before is not None:
        finish(*before)
