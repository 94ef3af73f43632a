"""
Checkpoints as many guides write them. Each function has the name of the one that mends it.

Kept to be compared with: `save` loses the only copy when it is interrupted, and on several ranks
all write one file; `load` runs code that a file brings; what `capture` leaves out, a run misses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from pathlib import Path

    import torch.distributed as dist

    from .state import Run


def save(state: object, path: Path | str, group: dist.ProcessGroup | None = None) -> None:
    """
    Write a state over the earlier one, on every rank that calls it.

    Lesson: 08_checkpoint, beside `checkpoint.save`.
    """
    torch.save(state, path)


def load(
    path: Path | str, device: torch.device | str = "cpu", group: dist.ProcessGroup | None = None
) -> Any:
    """
    Read a state and run whatever code the file brings.

    Lesson: 08_checkpoint, beside `checkpoint.load`.
    """
    return torch.load(path, map_location=device, weights_only=False)


def capture(run: Run, group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """
    Return the weights, and the number of the epoch that was just run.

    Lesson: 08_checkpoint, beside `checkpoint.capture`.
    """
    return {"model": run.model.state_dict(), "epoch": run.epoch}


def restore(run: Run, state: Mapping[str, Any], group: dist.ProcessGroup | None = None) -> None:
    """
    Take over the weights, and start the saved epoch again.

    Lesson: 08_checkpoint, beside `checkpoint.restore`.
    """
    run.model.load_state_dict(state["model"])
    run.epoch = state["epoch"]
