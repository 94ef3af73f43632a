"""
Save one file so that it is either the old one or the new one, never half of either.

Legend: rank r of w. Rank 0 writes; a state is nested dicts, lists and tuples of tensors, numbers
and strings.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch

from ddp_lessons.errors import CheckpointRefused

from .faults import agree, first_of_all, place
from .safe import check_plain, read_state, sealed

if TYPE_CHECKING:
    import torch.distributed as dist

BLOCK_BYTES = 4 << 20
"""
Bytes that share a checksum, so that several ranks can check one file, each some of its blocks.
"""


class SummedFile:
    """
    A file to write to that counts what passes through, and sums up every block of it.

    Args:
        file: A binary file that is open for writing.
        sums: Take the CRC-32 of every block.
    """

    def __init__(self, file: IO[bytes], sums: bool = True) -> None:
        self._file = file
        self._sums = sums
        self._blocks: list[int] = []
        self.num_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """
        Write all of `data` and return its length in bytes.
        """
        self._file.write(data)
        if self._sums:
            self._sum(memoryview(data).cast("B"))
        self.num_bytes += len(data)
        return len(data)

    def _sum(self, data):
        used = self.num_bytes % BLOCK_BYTES
        while len(data):
            if used == 0:
                self._blocks.append(0)
            now, data = data[: BLOCK_BYTES - used], data[BLOCK_BYTES - used :]
            self._blocks[-1] = zlib.crc32(now, self._blocks[-1])
            used = (used + len(now)) % BLOCK_BYTES

    def flush(self) -> None:
        """
        Hand what is buffered to the operating system.
        """
        self._file.flush()

    def checksums(self) -> list[int]:
        """
        Return the CRC-32 of every block that was written.
        """
        return list(self._blocks)


def sync_folder(folder: Path | str) -> None:
    """
    Wait until the names in a folder are on the disk. A synced file may still lack its name.

    Source: fsync(2), Linux manual pages. Lesson: 08_checkpoint.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(
    path: Path | str,
    write: Callable[[SummedFile], object],
    sums: bool = True,
    check: Callable[[Path], object] | None = None,
) -> SummedFile:
    """
    Replace the file at `path` by what `write` writes, wholly or not at all.

    The new file grows under another name in the same folder, since a rename is atomic within one
    file system only. It is on the disk before it takes the name of the old one.

    Args:
        path: The file. Its folder must exist; the file need not.
        write: Called with a SummedFile.
        sums: Take the CRC-32 of what is written.
        check: Called with the path of the new file before it takes its name, or None.

    Returns:
        SummedFile: Knows the length in bytes and the checksums of the file.

    Raises:
        OSError: No room, or no permission. The old file is as it was, the new one is removed.

    Source: rename(2) and fsync(2), Linux manual pages. Lesson: 08_checkpoint.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            summed = SummedFile(file, sums)
            write(summed)
            file.flush()
            os.fsync(file.fileno())
        if check is not None:
            check(temporary)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
            # torch.save reports a full disk as a wrong position in its archive.
            raise error.__context__ from None
        raise
    sync_folder(path.parent)
    return summed


def write_state(state: object, path: Path | str, sums: bool = True) -> SummedFile:
    """
    Write a state atomically from this process alone. `sums` is as for `write_atomically`.

    Returns:
        SummedFile: Knows the length in bytes and the checksums of the file.

    Raises:
        BadInput: The state holds what `load` would refuse. Better to hear of it now than then.
    """
    return write_atomically(
        path,
        lambda file: torch.save(sealed(state), file),  # type: ignore[arg-type]  # it only writes
        sums,
        check=lambda written: check_plain(written, state),
    )


def save(state: object, path: Path | str, group: dist.ProcessGroup | None = None) -> None:
    """
    Save a state from rank 0; return on every rank once it is on the disk.

    Killed at any moment, it leaves the earlier file or the new one.

    Collective: every rank must call it. The state of rank 0 counts; others may pass None.

    Args:
        state: Nested dicts, lists and tuples of tensors, numbers, strings and None.
        path: The file. It is replaced if it exists.
        group: The process group; None is the default group, or no group at all.

    Raises:
        SaveFailed: On every rank, if rank 0 could not save. The earlier file is as it was.

    Lesson: 08_checkpoint, task 08.1.
    """
    rank, _ = place(group)
    error = None
    if rank == 0:
        try:
            # The archive's own checksums, which torch.save writes, are enough for one file.
            write_state(state, path, sums=False)
        except BaseException as caught:  # also Ctrl-C: the others must hear of it
            error = caught
    agree(error, group)


def load(
    path: Path | str, device: torch.device | str = "cpu", group: dist.ProcessGroup | None = None
) -> Any:
    """
    Load a state that `save` saved, on every rank, or refuse it on every rank.

    Collective: every rank must call it. All read at once, and compare the checksums of a share
    each; then they tell each other how it went.

    Args:
        path: The file, on a disk that every rank can read.
        device: Where the tensors go.
        group: The process group; None is the default group, or no group at all.

    Returns:
        The state, without ever having run code from the file.

    Raises:
        CheckpointRefused: On every rank. The message says what is wrong with the file.

    Lesson: 08_checkpoint.
    """
    rank, world_size = place(group)
    fault, state = None, None
    try:
        state = read_state(path, device, rank=rank, world_size=world_size)
    except CheckpointRefused as error:
        fault = str(error)
    fault = first_of_all(fault, group)
    if fault is not None:
        raise CheckpointRefused(fault)
    return state
