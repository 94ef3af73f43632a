"""
Capture everything that a run is made of, and put it back, so that no bit differs.

Legend: rank r of w. The model, its optimizer, the schedule and the scaler are equal on all ranks;
the random numbers and the place in the data are each rank's own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from ddp_lessons.errors import BadInput, CheckpointRefused

from .faults import from_all, place

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.checkpoint.stateful import Stateful

PLACES = "place_shard"
"""
The method of a model that keeps plain shards on its ranks, as FullySharded does: it says of each
where it belongs. No rank has all of such a model.
"""


@dataclass
class Run:
    """
    Everything that a run is made of.

    Args:
        model: The module, wrapped in DistributedDataParallel or not.
        optimizer: Its optimizer.
        scheduler: Its learning rate schedule, or None.
        scaler: Its torch.amp.GradScaler, or None.
        sampler: Anything with `state_dict` and `load_state_dict` that knows its place in the data,
            or None.
        epoch: Number of epochs that are done: the one to go on with.
        step: Number of optimizer steps that are done.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None
    scaler: torch.amp.GradScaler | None = None
    sampler: Stateful | None = None
    epoch: int = 0
    step: int = 0

    def remaining_epochs(self, num_epochs: float) -> Iterator[int]:
        """
        Yield the epochs that are still to be run, and count each as done when its body ends.

        Saved in the middle of a body, a run comes back to the same epoch, where its sampler
        knows what was seen. Saved after the loop, it has no epoch left.

        Args:
            num_epochs: Number of epochs of the whole run.
        """
        while self.epoch < num_epochs:
            yield self.epoch
            self.epoch += 1


def capture_rng(device: torch.device | str | None = None) -> dict[str, Any]:
    """
    Return the state of every random number generator of this process.

    Args:
        device: A CUDA device whose generator counts as well. None: the current one, if used.

    Returns:
        dict: "python", "numpy" and "torch", and "cuda" where a GPU is in use. Tensors, numbers
        and strings only, so that it loads without running code.

    Source: PyTorch documentation, "Reproducibility". Lesson: 08_checkpoint.
    """
    version, words, gauss = random.getstate()
    # Augmentations draw from NumPy's global generator, whatever is thought of it.
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    states = {
        "python": (version, torch.tensor(words, dtype=torch.int64), gauss),
        "numpy": (
            name,
            torch.tensor(np.asarray(keys, dtype=np.int64)),
            position,
            has_gauss,
            cached,
        ),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():  # asking for it would start CUDA where it is not wanted
        states["cuda"] = torch.cuda.get_rng_state("cuda" if device is None else device)
    return states


def restore_rng(states: Mapping[str, Any], device: torch.device | str | None = None) -> None:
    """
    Put every random number generator of this process back to a captured state.

    Args:
        states: The dict that `capture_rng` returned.
        device: The CUDA device whose generator "cuda" is for. None: the current one.
    """
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    name, keys, position, has_gauss, cached = states["numpy"]
    words = keys.cpu().numpy().astype(np.uint32)
    np.random.set_state((name, words, position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(states["torch"].cpu())
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"].cpu(), "cuda" if device is None else device)


def capture_rest(run: Run, group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """
    Return all of a run but its model and optimizer: what sharded checkpoints keep in one file.

    Collective: every rank must call it, as each gives its random numbers and its place in the data.

    Returns:
        dict: The same on every rank; about 13 KB for each rank of the group.
    """
    own = {"rng": capture_rng()}
    if run.sampler is not None:
        own["sampler"] = run.sampler.state_dict()
    ranks = from_all(own, group)
    rest = {"epoch": run.epoch, "step": run.step, "world_size": len(ranks), "ranks": ranks}
    for name in ("scheduler", "scaler"):
        if getattr(run, name) is not None:
            rest[name] = getattr(run, name).state_dict()
    return rest


def capture(run: Run, group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """
    Return the whole state of a run, from which it goes on as if it had never stopped.

    The tensors are the run's own, not copies: save them before the next step. With BatchNorm, the
    running statistics are those of rank 0, which DDP's `broadcast_buffers` gives to all ranks.

    Collective: every rank must call it, as each gives its random numbers and its place in the data.

    Args:
        run: The Run.
        group: The process group; None is the default group, or no group at all.

    Returns:
        dict: Plain values and tensors, ready for `save`.

    Source: PyTorch tutorials, "Saving and Loading a General Checkpoint". Lesson: 08_checkpoint,
    task 08.2.
    """
    return {
        "model": bare(run.model).state_dict(),
        "optimizer": run.optimizer.state_dict(),
        **capture_rest(run, group),
    }


def restore_rest(
    run: Run,
    rest: Mapping[str, Any],
    group: dist.ProcessGroup | None = None,
    exact: bool = True,
) -> None:
    """
    Put back all of a run but its model and optimizer. Call it last, just before the next step.

    Args:
        run: The Run.
        rest: The dict that `capture_rest` or `capture` returned.
        group: The process group; None is the default group, or no group at all.
        exact: As for `restore`.

    Raises:
        CheckpointRefused: As for `restore`. Nothing was changed.
    """
    check_fits(run, rest, group, exact)
    rank, world_size = place(group)
    run.epoch, run.step = rest["epoch"], rest["step"]
    for name in ("scheduler", "scaler"):
        if getattr(run, name) is not None:
            getattr(run, name).load_state_dict(rest[name])
    if rest["world_size"] == world_size:
        own = rest["ranks"][rank]
        if run.sampler is not None:
            run.sampler.load_state_dict(own["sampler"])
        restore_rng(own["rng"])
    elif run.sampler is not None:
        run.sampler.load_state_dict(rest["ranks"][0]["sampler"])


def restore(
    run: Run,
    state: Mapping[str, Any],
    group: dist.ProcessGroup | None = None,
    exact: bool = True,
) -> None:
    """
    Put a run back to a captured state. The next step is the one that the first run would have made.

    Making an iterator of a DataLoader draws a number from torch's generator, so a run that stopped
    within an epoch goes on exactly only if its loader has a `generator` of its own, or if the
    iterator is made before this call.

    Sums are rounded in the order of adding, so the last bits are equal only where that order is:
    on as many ranks and threads, on the same kind of CPU or GPU, with the same versions. And DDP
    orders its buckets anew when its second forward begins, which changes the order in which three
    ranks and more are added: let the model make a pass, backward included, before this call.

    Args:
        run: A Run of the same model, optimizer and so on; its values are replaced.
        state: The state that `capture` returned, or `load` read.
        group: The process group; None is the default group, or no group at all.
        exact: Refuse what cannot go on bit for bit. False lets another number of ranks take over:
            their random numbers stay as they are, and every sampler gets rank 0's place.

    Raises:
        CheckpointRefused: A part is missing, or, if exact, the number of ranks differs. Nothing
            was changed.

    Lesson: 08_checkpoint, task 08.2.
    """
    missing = [name for name in ("model", "optimizer") if name not in state]
    if missing:
        raise CheckpointRefused(_lacks(missing, group))
    check_fits(run, state, group, exact)
    bare(run.model).load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    restore_rest(run, state, group, exact)


def check_fits(
    run: Run,
    rest: Mapping[str, Any],
    group: dist.ProcessGroup | None = None,
    exact: bool = True,
) -> None:
    """
    Raise CheckpointRefused unless a state has every part that a run needs, and ranks as many.
    """
    rank, world_size = place(group)
    needed = ["epoch", "step", "world_size", "ranks"]
    needed += [name for name in ("scheduler", "scaler") if getattr(run, name) is not None]
    missing = [name for name in needed if name not in rest]
    if not missing and run.sampler is not None and "sampler" not in rest["ranks"][0]:
        missing = ["sampler"]
    if missing:
        raise CheckpointRefused(_lacks(missing, group))
    if exact and rest["world_size"] != world_size:
        raise CheckpointRefused(
            f"checkpoint of another world: expected {rest['world_size']} ranks (got {world_size}, "
            f"rank {rank} of {world_size}). Pass exact=False to go on with new random numbers."
        )


def bare(model: torch.nn.Module) -> torch.nn.Module:
    """
    Return the module inside DistributedDataParallel, so that a checkpoint fits with or without it.
    """
    if isinstance(model, DistributedDataParallel):
        return model.module
    if not isinstance(model, torch.nn.Module):
        raise BadInput(f"no model: expected a torch.nn.Module (got {type(model).__name__}).")
    if hasattr(model, PLACES):
        raise BadInput(
            f"no whole model: expected one that each rank has (got a {type(model).__name__}, of "
            "which it has shards). Use Checkpoints.save_sharded."
        )
    return model


def _lacks(missing, group):
    rank, world_size = place(group)
    return (
        f"checkpoint lacks a part: expected all that the run has (got no {', '.join(missing)}, "
        f"rank {rank} of {world_size}). Save with checkpoint.capture."
    )
