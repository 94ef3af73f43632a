"""
Save and load in parts, each rank its own, through torch's distributed checkpoint (DCP).

Legend: a tensor of n numbers that w ranks share is a DTensor, of which each rank holds about n / w.
DCP stores the parts with their place in the whole, so another number of ranks can load them.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from ddp_lessons.errors import CheckpointRefused

from .atomic import write_state
from .faults import agree, first_of_all, from_all, in_words, place
from .housekeeping import REST_FILE
from .manifest import checksum
from .safe import SafePlanner, SafeReader, check_plain, read_state, saved
from .state import PLACES, Run, check_fits, restore_rest

if TYPE_CHECKING:
    from concurrent.futures import Future

    from .manifest import Checksum


def capture_shards(run: Run) -> dict[str, Any]:
    """
    Return {"model": ..., "optimizer": ..., "fresh": ...} of a run, each rank its own parts.

    DCP lets an optimizer that made no step yet make one, with gradients of zero, to learn what its
    state looks like. Adam would count that step, so it is undone here, and noted as "fresh".

    Collective: every rank must call it.

    Source: torch.distributed.checkpoint.state_dict documentation, `get_state_dict`.
    Lesson: 08_checkpoint, task 08.4.
    """
    return _placed(run, _captured(run))


def _captured(run):
    fresh = not run.optimizer.state
    model, optimizer = get_state_dict(run.model, run.optimizer)
    if fresh:
        run.optimizer.state.clear()
    return {"model": model, "optimizer": optimizer, "fresh": fresh}


def _placed(run, shards):
    # A model that keeps plain shards must tell DCP where they belong.
    put, optimizer = getattr(run.model, PLACES, None), shards["optimizer"]
    if put is None:
        return shards
    states = {
        name: {key: put(name, value) for key, value in state.items()}
        for name, state in optimizer["state"].items()
    }
    model = {name: put(name, value) for name, value in shards["model"].items()}
    return {**shards, "model": model, "optimizer": {**optimizer, "state": states}}


def _unplaced(placed, shards):
    """
    Return what was loaded, with the plain shards themselves where DCP has filled their memory.
    """
    if isinstance(placed, dict):
        return {name: _unplaced(value, shards[name]) for name, value in placed.items()}
    is_view = isinstance(placed, torch.Tensor) and isinstance(shards, torch.Tensor)
    return shards if is_view else placed


def check_values(shards: Mapping[str, Any], group: dist.ProcessGroup | None = None) -> None:
    """
    Raise on every rank if the optimizer's settings are more than plain values on some rank.

    Collective: every rank must call it.

    Args:
        shards: The dict that `capture_shards` returned.
        group: The process group; None is the default group, or no group at all.

    Raises:
        SaveFailed: On every rank. `load_shards` would refuse what was saved.
    """
    error, settings = None, shards["optimizer"]["param_groups"]
    try:
        check_plain(saved(settings), settings, "param_groups")
    except Exception as caught:
        error = caught
    agree(error, group)


def write_rest(rest: Mapping[str, Any], folder: Path | str) -> None:
    """
    Write what is no model and no optimizer: schedule, random numbers, place in the data.
    """
    write_state(rest, Path(folder) / REST_FILE)


def write_shards(
    shards: dict[str, Any], folder: Path | str, group: dist.ProcessGroup | None = None
) -> None:
    """
    Write every rank's part into a folder that exists. Each file is synced.

    Collective: every rank must call it.

    Args:
        shards: The dict that `capture_shards` returned.
        folder: An empty folder that every rank can write to.
        group: The process group; None is the default group, or no group at all.

    Raises:
        SaveFailed: On every rank, if one could not write.

    Source: torch.distributed.checkpoint documentation, `save`. Lesson: 08_checkpoint.
    """
    error = None
    _one_process_is_fine()
    try:
        dcp.save(
            shards,
            storage_writer=_writer(folder),
            process_group=group,
            no_dist=not dist.is_initialized(),
        )
    except BaseException as caught:  # DCP's CheckpointException is no Exception
        error = caught
    agree(error, group)


def write_shards_async(
    shards: dict[str, Any], folder: Path | str, group: dist.ProcessGroup | None
) -> Future[object]:
    """
    Copy every rank's part, and return while DCP still writes the copies in the background.

    Collective: every rank must call it. The group must be used by nothing else meanwhile, or the
    messages of the two threads get mixed up.

    Returns:
        concurrent.futures.Future: Its `result()` waits for the files.

    Source: torch.distributed.checkpoint documentation, `async_save`. Lesson: 08_checkpoint.
    """
    _one_process_is_fine()
    return dcp.async_save(  # type: ignore[return-value]  # without a stager it is a Future
        shards,
        storage_writer=_writer(folder),
        process_group=group,
        no_dist=not dist.is_initialized(),
    )


def checksums(folder: Path | str, group: dist.ProcessGroup | None = None) -> dict[str, Checksum]:
    """
    Return the checksum of every file of a folder; each rank reads a share of them.

    Collective: every rank must call it.

    Returns:
        dict: From a file's name to its checksum, the same on every rank.

    Raises:
        SaveFailed: On every rank, if one could not read.
    """
    rank, world_size = place(group)
    error, mine = None, {}
    try:
        paths = sorted(path for path in Path(folder).iterdir() if path.is_file())
        mine = {path.name: checksum(path) for path in paths[rank::world_size]}
    except Exception as caught:
        error = caught
    agree(error, group)
    return {name: entry for share in from_all(mine, group) for name, entry in share.items()}


def load_shards(
    run: Run,
    folder: Path | str,
    group: dist.ProcessGroup | None = None,
    exact: bool = True,
    rest: Mapping[str, Any] | None = None,
) -> None:
    """
    Put a run back to what a folder holds, each rank reading the parts that it needs.

    The ranks that load may be more or fewer than those that saved.

    Collective: every rank must call it.

    Args:
        run: A Run of the same model and optimizer, sharded in any way or not at all.
        folder: A folder that `write_shards` filled.
        group: The process group; None is the default group, or no group at all.
        exact: As for `restore`: False if the number of ranks may differ.
        rest: The state that `write_rest` put beside the shards, if it was read already.

    Raises:
        CheckpointRefused: On every rank; the run may hold a part of what was loaded.

    Source: torch.distributed.checkpoint documentation, `load`. Lesson: 08_checkpoint, task 08.4.
    """
    rest = read_state(Path(folder) / REST_FILE) if rest is None else rest
    check_fits(run, rest, group, exact)
    run.optimizer.zero_grad(set_to_none=True)  # with gradients, DCP makes no state to load into
    shards = _captured(run)
    placed = _placed(run, shards)
    error = None
    _one_process_is_fine()
    try:
        # Nothing is shared out, so each rank plans and reads for itself.
        dcp.load(placed, storage_reader=SafeReader(folder), planner=SafePlanner(), no_dist=True)
    except dcp.CheckpointException as caught:
        error = next((fault for fault, _ in caught.failures.values()), caught)
    refusal = first_of_all(None if error is None else _refusal(error), group)
    if refusal is not None:
        raise CheckpointRefused(refusal) from error
    shards = _unplaced(placed, shards)
    set_state_dict(
        run.model,
        run.optimizer,
        model_state_dict=shards["model"],
        optim_state_dict=shards["optimizer"],
    )
    if shards["fresh"]:
        run.optimizer.state.clear()
    restore_rest(run, rest, group, exact)


class _PlainErrors(FileSystem):
    @contextlib.contextmanager
    def create_stream(self, path, mode):
        try:
            with super().create_stream(path, mode) as stream:
                yield stream
        except RuntimeError as error:
            # torch.save reports a full disk as a wrong position in its archive.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def _writer(folder):
    writer = dcp.FileSystemWriter(folder)
    writer.fs = _PlainErrors()
    return writer


def _refusal(fault):
    if isinstance(fault, CheckpointRefused):
        return str(fault)
    return (
        f"checkpoint does not fit: expected the shards of this model and optimizer (got "
        f"{in_words(fault)}). Make the same model as the run that saved it."
    )


def _one_process_is_fine():
    # DCP warns where ranks are not to talk, also from its thread, long after the call.
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
