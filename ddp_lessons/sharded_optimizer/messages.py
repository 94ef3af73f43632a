"""
The two collectives of a sharded optimizer, under the names that this torch has for them.

Gloo makes its reduce-scatter of an all-reduce, and throws most of it away. So there are the same
two of other calls, which on Gloo are faster: `start_reduce_scatter` and `start_all_gather`.

Shapes: table (w, C) for w ranks, or flat (w C,), as Gloo wants it; row (C,).

    reduce_scatter   every rank gives a table; rank r gets the sum of all rows r
    all_gather       every rank gives a row; every rank gets the table of all rows
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist

from ..replicas.overlapped import outlast

# torch 2.13 has new names, and warns of the old ones; earlier ones know the old names only.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def reduce_scatter(
    row: torch.Tensor,
    table: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    """
    Fill `row` with the sum over ranks of row r of their tables, on rank r.

    Collective: every rank must call it.

    Args:
        row: (C,), to be filled.
        table: (w, C), this rank's.
        group: The process group; None is the default group.
        async_op: Return a handle to wait for, in place of waiting.

    Source: torch.distributed documentation, `reduce_scatter_tensor`. Lesson: 13_sharded_optimizer.
    """
    return _reduce_scatter(row, table.view(-1), group=group, async_op=async_op)


def all_gather(
    table: torch.Tensor,
    row: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    """
    Fill `table` with the rows of all ranks, rank r's in row r.

    Collective: every rank must call it.

    Args:
        table: (w, C), to be filled.
        row: (C,), this rank's.
        group: The process group; None is the default group.
        async_op: Return a handle to wait for, in place of waiting.

    Source: torch.distributed documentation, `all_gather_into_tensor`.
    Lesson: 13_sharded_optimizer.
    """
    return _all_gather(table.view(-1), row, group=group, async_op=async_op)


def start_reduce_scatter(
    row: torch.Tensor,
    table: torch.Tensor,
    received: torch.Tensor,
    group: dist.ProcessGroup | None = None,
) -> dist.Work | _Handle | None:
    """
    Start a reduce-scatter; on Gloo, ranks exchange rows, and each adds up what it gets.

    The sum is made in rank order, whatever the sizes: it has the same bits in every bucket.

    Collective: every rank must call it.

    Args:
        row: (C,), to be filled when the handle was waited for.
        table: (w, C), this rank's; not to be changed before.
        received: (w, C), room for what comes in.
        group: The process group; None is the default group.

    Returns:
        A handle with `wait`.

    Lesson: 13_sharded_optimizer.
    """
    if dist.get_backend(group) != "gloo":  # pragma: no cover - NCCL, on a GPU for each rank
        return reduce_scatter(row, table, group, async_op=True)
    work = dist.all_to_all_single(received, table, group=group, async_op=True)
    return _Handle([work], lambda: torch.sum(received, dim=0, out=row))


def start_all_gather(
    table: torch.Tensor, row: torch.Tensor, group: dist.ProcessGroup | None = None
) -> dist.Work | _Handle | None:
    """
    Start an all-gather; on Gloo, each rank broadcasts its row to where it belongs.

    Collective: every rank must call it.

    Args:
        table: (w, C), to be filled when the handle was waited for.
        row: (C,), this rank's.
        group: The process group; None is the default group.

    Returns:
        A handle with `wait`.

    Lesson: 13_sharded_optimizer.
    """
    if dist.get_backend(group) != "gloo":  # pragma: no cover - NCCL, on a GPU for each rank
        return all_gather(table, row, group, async_op=True)
    table[dist.get_rank(group)].copy_(row)
    return _Handle(
        [
            dist.broadcast(one, group_src=rank, group=group, async_op=True)
            for rank, one in enumerate(table)
        ]
    )


def start_broadcasts(
    pieces: Iterable[tuple[int, torch.Tensor]], group: dist.ProcessGroup | None = None
) -> _Handle:
    """
    Start to give every rank all pieces, each from the rank that has it, to where it belongs.

    It needs no table, and so neither new memory nor a copy; but a message for each piece.

    Collective: every rank must call it.

    Args:
        pieces: (rank, piece); on that rank it is the source, on others it is to be filled.
        group: The process group; None is the default group.

    Returns:
        A handle with `wait`.

    Lesson: 13_sharded_optimizer.
    """
    return _Handle(
        [dist.broadcast(one, group_src=rank, group=group, async_op=True) for rank, one in pieces]
    )


class _Handle:
    """
    Wait for several calls, and then do what is left to do.
    """

    def __init__(self, works, finish=None):
        self._works, self._finish = works, finish

    def wait(self):
        try:
            for work in self._works:
                work.wait()
        except BaseException:
            for work in self._works:  # none may still write into what the caller gives up now
                outlast(work)
            raise
        if self._finish is not None:
            self._finish()
