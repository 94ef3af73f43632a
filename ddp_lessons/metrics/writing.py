"""
What TensorBoard shows: events in files, of which one rank writes one.

Several writers in one folder do not harm each other: each has a file of its own. But TensorBoard
takes a folder for one run, and draws the points of all files as one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch.distributed as dist

if TYPE_CHECKING:
    from pathlib import Path


class RankZeroWriter:
    """
    Write scalars on rank 0; on other ranks do nothing. Use it in a `with`, which closes the file.

    Args:
        folder: The folder of the run. Only rank 0 makes it.
        group: The process group, or None for the default group.

    Lesson: 12_metrics.
    """

    def __init__(self, folder: Path | str, group: dist.ProcessGroup | None = None) -> None:
        self._writer = None
        if dist.get_rank(group) == 0:
            from torch.utils.tensorboard import SummaryWriter  # takes a second; one rank needs it

            self._writer = SummaryWriter(str(folder))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """
        Write one number down. Every rank may call it; it sends no message.

        Args:
            name: The name of the curve, such as "loss/test".
            value: The number of all ranks, not that of this rank.
            step: Where on the axis.
        """
        if self._writer is not None:
            self._writer.add_scalar(name, value, step)


def read_scalars(folder: Path | str, name: str) -> list[tuple[int, float]]:
    """
    Return the points of a curve as TensorBoard reads them: (step, value) in the order of its files.

    Args:
        folder: The folder of one run.
        name: The name of the curve.

    Raises:
        KeyError: There is no such curve.

    Lesson: 12_metrics.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = EventAccumulator(str(folder))
    run.Reload()
    return [(point.step, point.value) for point in run.Scalars(name)]
