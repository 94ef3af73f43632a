"""
A list of the files of a checkpoint with their checksums, written after all of them.

A folder with a manifest that fits is whole: no file is missing, short or changed. A folder
without one was never finished.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ddp_lessons.errors import CheckpointRefused

from .atomic import BLOCK_BYTES, write_atomically
from .safe import FORMAT

MANIFEST = "manifest.json"
VERSION = 2
WHOLE, SHARDED = "whole", "sharded"


@dataclass(frozen=True)
class Manifest:
    """
    What a checkpoint's folder holds.

    Args:
        step: Number of optimizer steps that were done.
        kind: "whole" if rank 0 wrote all, "sharded" if every rank wrote its part.
        world_size: Number of ranks that saved it.
        files: dict from a file's name to what `checksum` returns of it.
    """

    step: int
    kind: str
    world_size: int
    files: dict


def checksum(path):
    """
    Return {"num_bytes": length, "sha256": [64 hexadecimal digits of every 4 MiB]} of a file.

    Source: FIPS 180-4 (SHA-256). Lesson: 08_checkpoint.
    """
    num_bytes = Path(path).stat().st_size
    return {
        "num_bytes": num_bytes,
        "sha256": [_block_digest(path, number) for number in range(_num_blocks(num_bytes))],
    }


def _num_blocks(num_bytes):
    return -(-num_bytes // BLOCK_BYTES)


def _block_digest(path, number):
    with open(path, "rb") as file:
        file.seek(number * BLOCK_BYTES)
        return hashlib.sha256(file.read(BLOCK_BYTES)).hexdigest()


def write_manifest(folder, manifest):
    """
    Write the manifest of a folder, atomically. All other files must be on the disk already.
    """
    document = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    text = json.dumps(document, indent=1) + "\n"
    write_atomically(Path(folder) / MANIFEST, lambda file: file.write(text.encode()))


def read_manifest(folder):
    """
    Return the Manifest of a folder, and compare the length of each file with it.

    This is quick: no file is read. It finds what was never finished and what was cut short.

    Raises:
        CheckpointRefused: The reason, for the user.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise _refused("no checkpoint", "a folder", "none")
    try:
        document = json.loads((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise _refused("unfinished", "a manifest", "none") from None
    except (OSError, ValueError):
        raise _refused("damaged", "a manifest in JSON", "something else") from None
    try:
        ours = document.pop("format") == FORMAT and document.pop("version") == VERSION
        manifest = Manifest(**document)
        names = {name: int(entry["num_bytes"]) for name, entry in manifest.files.items()}
        # Without this a manifest that lists too few blocks would have a file half checked.
        ours &= all(
            len(entry["sha256"]) == _num_blocks(names[name])
            for name, entry in manifest.files.items()
        )
        whole = ours and int(manifest.step) >= 0 and manifest.kind in (WHOLE, SHARDED)
    except (AttributeError, KeyError, TypeError, ValueError):
        whole = False
    if not whole:
        raise _refused("foreign", f"a manifest of {FORMAT} {VERSION}", "another")
    for name, num_bytes in names.items():
        path = folder / name
        if path.name != name or not path.is_file():
            raise _refused("damaged", f"the file {name[:60]}", "none of that name")
        length = path.stat().st_size
        if length != num_bytes:
            raise _refused("truncated", f"{name} of {num_bytes} bytes", length)
    return manifest


def verify(folder, rank=0, world_size=1):
    """
    Return the Manifest of a folder after comparing the checksums of this rank's share of blocks.

    A block is read by one rank only: SHA-256 takes longer than reading a file that is in memory.

    Args:
        folder: The folder.
        rank: Which share, from 0.
        world_size: Number of shares. Only together they say that the folder is good.

    Raises:
        CheckpointRefused: The reason, for the user.

    Lesson: 08_checkpoint.
    """
    manifest = read_manifest(folder)
    blocks = [
        (name, number, digest)
        for name, entry in manifest.files.items()
        for number, digest in enumerate(entry["sha256"])
    ]
    for name, number, digest in blocks[rank::world_size]:
        if _block_digest(Path(folder) / name, number) != digest:
            raise _refused("damaged", f"{name} with its SHA-256", "another")
    return manifest


def _refused(fault, expected, got):
    return CheckpointRefused(f"{fault}: expected {expected} (got {got}). Load an earlier one.")
