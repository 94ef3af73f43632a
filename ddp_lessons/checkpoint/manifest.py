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

from .atomic import write_atomically
from .safe import FORMAT, VERSION

MANIFEST = "manifest.json"
WHOLE, SHARDED = "whole", "sharded"


@dataclass(frozen=True)
class Manifest:
    """
    What a checkpoint's folder holds.

    Args:
        step: Number of optimizer steps that were done.
        kind: "whole" if rank 0 wrote all, "sharded" if every rank wrote its part.
        world_size: Number of ranks that saved it.
        files: dict from a file's name to {"num_bytes": its length, "sha256": 64 digits}.
    """

    step: int
    kind: str
    world_size: int
    files: dict


def checksum(path):
    """
    Return {"num_bytes": length, "sha256": 64 hexadecimal digits} of a file.

    Source: FIPS 180-4 (SHA-256). Lesson: 08_checkpoint.
    """
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"num_bytes": file.tell(), "sha256": digest}


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


def verify(folder):
    """
    Return the Manifest of a folder after reading every file and comparing its checksum.

    Raises:
        CheckpointRefused: The reason, for the user.

    Lesson: 08_checkpoint.
    """
    manifest = read_manifest(folder)
    for name, entry in manifest.files.items():
        if checksum(Path(folder) / name)["sha256"] != entry.get("sha256"):
            raise _refused("damaged", f"{name} with its SHA-256", "another")
    return manifest


def _refused(fault, expected, got):
    return CheckpointRefused(f"{fault}: expected {expected} (got {got}). Load an earlier one.")
