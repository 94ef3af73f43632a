"""
The two collectives of a sharded optimizer, under the names that this torch has for them.

Shapes: table (w, C) for w ranks, or flat (w C,), as Gloo wants it; row (C,).

    reduce_scatter   every rank gives a table; rank r gets the sum of all rows r
    all_gather       every rank gives a row; every rank gets the table of all rows
"""

import torch.distributed as dist

# torch 2.13 has new names, and warns of the old ones; earlier ones know the old names only.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def reduce_scatter(row, table, group=None, async_op=False):
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


def all_gather(table, row, group=None, async_op=False):
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
