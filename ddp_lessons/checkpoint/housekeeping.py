"""
The folders of one run's checkpoints, as one process sees them: begin, complete, choose, remove.

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

from ddp_lessons.errors import CheckpointRefused

from .atomic import sync_folder
from .manifest import SHARDED, WHOLE, read_manifest, verify, write_manifest
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
    skipped: tuple = ()


def names(root):
    """
    Return the names of all checkpoints, the earliest first, damaged ones included.
    """
    root = Path(root)
    if not root.is_dir():
        return []
    return sorted((p.name for p in root.iterdir() if _NAME.fullmatch(p.name)), key=_order)


def begin(root, step):
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


def hidden_folder(root, step):
    """
    Return the folder that a checkpoint is written in. The same on every rank.
    """
    return Path(root) / f".step-{step:08d}.tmp"


def complete(root, folder, manifest):
    """
    Write the manifest, and give the folder its name: from now on it is a checkpoint.

    A step that was saved before, such as a damaged one, stays until the new one is complete: the
    new one gets a number behind its name.

    Args:
        root: The folder of all checkpoints.
        folder: What `begin` returned, with every file written and synced.
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


def sweep(root):
    """
    Remove what no complete checkpoint needs: folders that a killed run was writing or removing.
    """
    root = Path(root)
    if root.is_dir():
        for path in root.iterdir():
            if _HIDDEN.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)


def keep_only(root, newest, keep_last, keep_every=None):
    """
    Remove old checkpoints. What is unfinished or cut short stays, and does not count.

    Args:
        root: The folder of all checkpoints.
        newest: Name of the one that was just saved. It stays, even if its step is not the last.
        keep_last: Number of latest steps to keep.
        keep_every: Also keep those whose step is a multiple of this; None keeps none of them.
    """
    whole = [name for name in names(root) if not _fault(Path(root) / name, read_manifest)]
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


def choose(root, readable=True):
    """
    Return the latest good checkpoint as a Choice, and why each later one is none.

    Args:
        root: The folder of all checkpoints.
        readable: Also read what is no tensor of a sharded one, and all of a whole one, so that
            code in a file with the right checksum is found. False compares checksums only.

    Lesson: 08_checkpoint.
    """
    skipped = []
    for name in reversed(names(root)):
        folder = Path(root) / name
        fault = _fault(folder, verify) or (_fault(folder, _read) if readable else None)
        if fault is None:
            manifest = read_manifest(folder)
            return Choice(name, manifest.step, manifest.kind, tuple(skipped))
        skipped.append((name, fault))
    return Choice(skipped=tuple(skipped))


def _read(folder):
    kind = read_manifest(folder).kind
    read_state(folder / (WHOLE_FILE if kind == WHOLE else REST_FILE), "meta", verified=True)
    if kind == SHARDED:
        SafeReader(folder).read_metadata()


def _fault(folder, judge):
    try:
        judge(folder)
    except (CheckpointRefused, OSError) as error:
        return str(error) if isinstance(error, CheckpointRefused) else str(error.strerror)
    return None


def _order(name):
    step, number = _NAME.fullmatch(name).groups()
    return int(step), int(number or 1)
