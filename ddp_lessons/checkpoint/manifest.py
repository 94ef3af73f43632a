"""
A list of the files of a checkpoint with their checksums, written after all of them.

A folder with a manifest that fits is whole: no file is missing, short or changed. A folder
without one was never finished.

CRC-32 finds every fault of up to 32 bits in a row, and all but one in 4 thousand million of the
others. SHA-256 would find those too, and no intent either: who can write a file can write the
manifest. A load with it takes 3.1 times as long as torch.load, and 1.8 times with CRC-32
(benchmarks/checkpoint.py).
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from ddp_lessons.errors import CheckpointRefused

from .atomic import BLOCK_BYTES, write_atomically
from .safe import FORMAT

if TYPE_CHECKING:

    class Checksum(TypedDict):
        """
        The length of a file, and the CRC-32 of each of its blocks.
        """

        num_bytes: int
        crc32: list[int]


MANIFEST = "manifest.json"
VERSION = 3
WHOLE, SHARDED = "whole", "sharded"


@dataclass(frozen=True)
class Manifest:
    """
    The contents of a checkpoint's folder.

    Args:
        step: Number of optimizer steps that were done.
        kind: "whole" if rank 0 wrote all, "sharded" if every rank wrote its part.
        world_size: Number of ranks that saved it.
        files: dict from a file's name to what `checksum` returns of it.
    """

    step: int
    kind: str
    world_size: int
    files: dict[str, Checksum]


def checksum(path: Path | str) -> Checksum:
    """
    Return {"num_bytes": length, "crc32": [a number for every 4 MiB]} of a file.

    Source: ISO/IEC 3309 (CRC-32), as in zip archives and gzip. Lesson: 08_checkpoint.
    """
    num_bytes = Path(path).stat().st_size
    return {
        "num_bytes": num_bytes,
        "crc32": [_block_sum(path, number) for number in range(_num_blocks(num_bytes))],
    }


def _num_blocks(num_bytes):
    return -(-num_bytes // BLOCK_BYTES)


def _block_sum(path, number):
    with open(path, "rb") as file:
        file.seek(number * BLOCK_BYTES)
        return zlib.crc32(file.read(BLOCK_BYTES))


def write_manifest(folder: Path | str, manifest: Manifest) -> None:
    """
    Write the manifest of a folder, atomically. All other files must be on the disk already.
    """
    document = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    text = json.dumps(document, indent=1) + "\n"
    write_atomically(Path(folder) / MANIFEST, lambda file: file.write(text.encode()))


def read_manifest(folder: Path | str) -> Manifest:
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
            len(entry["crc32"]) == _num_blocks(names[name])
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


def verify(folder: Path | str, rank: int = 0, world_size: int = 1) -> Manifest:
    """
    Return the Manifest of a folder after comparing the checksums of this rank's share of blocks.

    A block is read by one rank only, so that all of it together is read once.

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
        (name, number, crc)
        for name, entry in manifest.files.items()
        for number, crc in enumerate(entry["crc32"])
    ]
    for name, number, crc in blocks[rank::world_size]:
        if _block_sum(Path(folder) / name, number) != crc:
            raise _refused("damaged", f"{name} with its CRC-32", "another")
    return manifest


def _refused(fault, expected, got):
    return CheckpointRefused(f"{fault}: expected {expected} (got {got}). Load an earlier one.")
