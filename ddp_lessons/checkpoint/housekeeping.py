"""
The folders of one run's checkpoints, as they are on the disk: begin, complete, choose, remove.

    root/step-00000012/manifest.json     checksums, written last
                       run.pt            all of the run, or
                       rest.pt, __0_0.distcp ..., .metadata    every rank's part
    root/.step-00000020.tmp/             being written, or left behind by a killed run

A checkpoint is complete the moment its folder is renamed: a rename is done or not done. A folder
is renamed again before it is removed, so no half of one is ever in sight.
"""

import contextlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ddp_lessons.errors import CheckpointRefused

from .atomic import sync_folder
from .faults import first_of_all, place
from .manifest import SHARDED, WHOLE, Manifest, read_manifest, verify, write_manifest
from .safe import SafeReader, read_state

WHOLE_FILE = "run.pt"
REST_FILE = "rest.pt"
_NAME = re.compile(r"step-(\d{8,})(?:\.(\d+))?")
_HIDDEN = re.compile(r"\.step-.*\.(tmp|old)")


@dataclass(frozen=True)
class Choice:
    """
    The checkpoint that was chosen, and those that were passed over.

    Args:
        name: Its folder's name, or None if there is no good one.
        step: Its step, or None.
        kind: "whole", "sharded" or None.
        skipped: ((name, reason), ...) of the later ones that are damaged or unfinished.
    """

    name: str | None = None
    step: int | None = None
    kind: str | None = None
    skipped: tuple[tuple[str, str], ...] = ()


def names(root: Path | str) -> list[str]:
    """
    Return the names of all checkpoints, the earliest first, damaged ones included.
    """
    root = Path(root)
    if not root.is_dir():
        return []
    return sorted((p.name for p in root.iterdir() if _NAME.fullmatch(p.name)), key=_order)


def begin(root: Path | str, step: int) -> Path:
    """
    Make the folder that a checkpoint is written in, after removing what a killed run left.

    Args:
        root: The folder of all checkpoints. It is made if it does not exist.
        step: Number of optimizer steps that are done.

    Returns:
        pathlib.Path: An empty folder, hidden by a dot.
    """
    sweep(root)
    folder = hidden_folder(root, step)
    folder.mkdir(parents=True)
    return folder


def hidden_folder(root: Path | str, step: int) -> Path:
    """
    Return the folder that a checkpoint is written in. The same on every rank.
    """
    return Path(root) / f".step-{step:08d}.tmp"


def complete(root: Path | str, folder: Path | str, manifest: Manifest) -> str:
    """
    Write the manifest, and give the folder its name: from now on it is a checkpoint.

    A step that was saved before, such as a damaged one, stays until the new one is complete: the
    new one gets a number behind its name.

    Args:
        root: The folder of all checkpoints.
        folder: The folder that `begin` returned, with every file written and synced.
        manifest: The Manifest.

    Returns:
        str: The checkpoint's name.
    """
    write_manifest(folder, manifest)
    name, number = f"step-{manifest.step:08d}", 1
    while (Path(root) / name).exists():
        number += 1
        name = f"step-{manifest.step:08d}.{number}"
    os.rename(folder, Path(root) / name)
    sync_folder(root)
    return name


def sweep(root: Path | str) -> None:
    """
    Remove what no complete checkpoint needs: folders that a killed run was writing or removing.
    """
    root = Path(root)
    if root.is_dir():
        for path in root.iterdir():
            if _HIDDEN.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)


def keep_only(root: Path | str, newest: str, keep_last: int, keep_every: int | None = None) -> None:
    """
    Remove old checkpoints. A checkpoint that is unfinished or cut short stays, and does not count.

    Args:
        root: The folder of all checkpoints.
        newest: Name of the one that was just saved. It stays, even if its step is not the last.
        keep_last: Number of latest steps to keep.
        keep_every: Also keep those whose step is a multiple of this; None keeps none of them.
    """
    whole = [name for name in names(root) if not _judge(read_manifest, Path(root) / name)[1]]
    latest = {_order(name)[0]: name for name in whole}  # of one step, the one saved last
    kept = set(sorted(latest)[-keep_last:])
    kept |= {step for step in latest if keep_every and step % keep_every == 0}
    wanted = {newest, *(latest[step] for step in kept)}
    for name in whole:
        if name not in wanted:
            out_of_sight = Path(root) / f".{name}.old"
            with contextlib.suppress(OSError):
                os.rename(Path(root) / name, out_of_sight)
                shutil.rmtree(out_of_sight)


def choose(
    root: Path | str, group: dist.ProcessGroup | None = None, takes_state: bool = False
) -> tuple[Choice, dict[str, Any] | None]:
    """
    Return the latest good checkpoint as a Choice, and why each later one is none.

    Every rank compares the checksums of its share. Rank 0, or every rank that reads the state
    anyway, also reads all that is no tensor, to find code in a file with the right checksum.

    Collective: every rank must call it.

    Args:
        root: The folder of all checkpoints.
        group: The process group; None is the default group, or no group at all.
        takes_state: Whether every rank reads what is in one file: the whole state, or what is
            beside the shards.

    Returns:
        tuple: The Choice, and what was read or None.

    Lesson: 08_checkpoint.
    """
    rank, world_size = place(group)
    skipped = []
    for name in reversed(_from_rank_0(names(root), group)):
        folder = Path(root) / name
        manifest, fault = _judge(verify, folder, rank, world_size)
        state = None
        if fault is None:
            state, fault = _judge(_read, folder, manifest.kind, takes_state, rank)
        fault = first_of_all(fault, group)
        if fault is None:
            return Choice(name, manifest.step, manifest.kind, tuple(skipped)), state
        skipped.append((name, fault))
    return Choice(skipped=tuple(skipped)), None


def _read(folder, kind, takes_state, rank):
    state, path = None, folder / (WHOLE_FILE if kind == WHOLE else REST_FILE)
    if takes_state:
        state = read_state(path, verified=True)
    elif rank == 0:
        read_state(path, "meta", verified=True)
    if rank == 0 and kind == SHARDED:
        SafeReader(folder).read_metadata()
    return state


def _from_rank_0(thing, group):
    box = [thing]
    if dist.is_initialized():
        dist.broadcast_object_list(box, group=group, group_src=0)
    return box[0]


def _judge(judge, *args):
    """
    Return what `judge(*args)` returns and None, or None and why it refused.
    """
    try:
        return judge(*args), None
    except (CheckpointRefused, OSError) as error:
        return None, str(error) if isinstance(error, CheckpointRefused) else str(error.strerror)


def _order(name):
    step, number = _NAME.fullmatch(name).groups()
    return int(step), int(number or 1)
