"""
Read checkpoints without running what they hold.

A pickle is a small program, and reading it with `pickle.load` runs it. torch's own loader with
`weights_only=True` runs only what builds tensors and plain containers. torch's DCP reads its
metadata, and all that is no tensor, with the full pickle; the reader and the planner of this
module put the safe way in their place.
"""

from __future__ import annotations

import dataclasses
import enum
import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType
from torch.serialization import get_unsafe_globals_in_checkpoint

from ddp_lessons.errors import BadInput, CheckpointRefused
from ddp_lessons.private import storages

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem

FORMAT = "ddp_lessons.checkpoint"
VERSION = 1
_PIECE_BYTES = 1 << 20
_ZIP_START = b"PK\x03\x04"
_SAFE_CLASSES = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex",
        "StorageMeta", "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "pathlib": {"PosixPath", "WindowsPath"},
    "pathlib._local": {"PosixPath", "WindowsPath"},
    "torch": {"Size"},
}  # fmt: skip
"""
The parts of DCP's metadata, by module: plain records, sizes and paths. None acts when it is built.
"""


def sealed(state: object) -> dict[str, object]:
    """
    Return a state in an envelope that tells our files from others.
    """
    return {"format": FORMAT, "version": VERSION, "state": state}


def saved(value: object) -> io.BytesIO:
    """
    Return a value as a file of torch.save that is in memory.
    """
    content = io.BytesIO()
    torch.save(value, content)
    content.seek(0)
    return content


def check_plain(path: Path | str | IO[bytes], state: object, name: str = "state") -> None:
    """
    Raise BadInput if a file of torch.save holds more than tensors and plain values.

    Args:
        path: The file, or an open one.
        state: The value that was written into it, to name the entry that is at fault.
        name: The error's name for the state.

    Source: torch.serialization documentation, `get_unsafe_globals_in_checkpoint`.
    """
    names = sorted(get_unsafe_globals_in_checkpoint(path))
    if not names:
        return
    entry, value = next(_entries_with_code(state, name), (name, None))
    got = ", ".join(names)[:60]
    if isinstance(value, np.generic):
        got = f"numpy.{type(value).__name__}: save {type(value.item()).__name__}(x)"
    elif isinstance(value, np.ndarray):
        got = "numpy.ndarray: save torch.from_numpy(x)"
    raise BadInput(f"{entry} holds code: expected plain values (got {got}).")


def _entries_with_code(value, name):
    """
    Yield (name, value) of every entry of a nested state that torch's loader would run code for.
    """
    if type(value) in (dict, OrderedDict):
        for key, each in value.items():
            yield from _entries_with_code(each, f"{name}[{key!r}]")
    elif type(value) in (list, tuple):
        for place, each in enumerate(value):
            yield from _entries_with_code(each, f"{name}[{place}]")
    elif not isinstance(value, torch.Tensor) and get_unsafe_globals_in_checkpoint(saved(value)):
        yield name, value


def read_state(
    path: Path | str,
    device: torch.device | str = "cpu",
    verified: bool = False,
    rank: int = 0,
    world_size: int = 1,
) -> Any:
    """
    Read a state from one file, in this process alone.

    torch.save writes a checksum of every tensor, and torch.load does not look at it: a flipped bit
    would come back as a weight. So the checksums are compared first.

    Args:
        path: A file that `write_state` wrote.
        device: Where the tensors go.
        verified: The file's own checksums were compared just now, so the archive's need not be.
        rank: Which share of the checksums to compare, from 0.
        world_size: Number of shares. Only together they say that the file is good.

    Raises:
        CheckpointRefused: The file is missing, damaged, foreign, or holds code. No code was run.

    Source: torch.load documentation, `weights_only`. Lesson: 08_checkpoint.
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            start = file.read(len(_ZIP_START))
    except OSError as error:
        raise _refused(f"expected a file that can be read (got {error.strerror})") from error
    if start != _ZIP_START:
        # An old-style or bare pickle is refused before any unpickler sees it.
        raise _refused("expected a file of torch.save (got one that begins otherwise)")
    try:
        if not verified:
            _compare_checksums(path, rank, world_size)
        envelope = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        raise _refused(_why_unreadable(path)) from error
    if not isinstance(envelope, dict) or envelope.get("format") != FORMAT:
        raise _refused("expected a file that checkpoint.save wrote (got another program's)")
    if envelope.get("version") != VERSION or "state" not in envelope:
        raise _refused(f"expected version {VERSION} (got {str(envelope.get('version'))[:20]})")
    return envelope["state"]


def _compare_checksums(path, rank, world_size):
    """
    Compare the CRC-32 of this rank's share of an archive's records: by size, largest first.
    """
    with zipfile.ZipFile(path) as archive:
        records = sorted(archive.infolist(), key=lambda record: -record.file_size)
        for record in records[rank::world_size]:
            with archive.open(record) as file:
                while file.read(_PIECE_BYTES):  # raises at the end, if it is not what was written
                    pass


class SafeReader(dcp.FileSystemReader):
    """
    Read a sharded checkpoint of DCP whose metadata may hold nothing but plain records.
    Each number is read once.

    Source: torch.distributed.checkpoint documentation, `FileSystemReader`. Lesson: 08_checkpoint.
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__(path)
        self._layouts: dict = {}

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        """
        Return DCP's metadata.

        Raises:
            CheckpointRefused: It is missing, damaged, holds code, or names files elsewhere.
        """
        try:
            data = (Path(self.path) / ".metadata").read_bytes()
        except OSError as error:
            raise _refused(f"expected DCP's metadata (got {error.strerror})") from error
        try:
            metadata = _MetadataUnpickler(io.BytesIO(data)).load()
            names = {info.relative_path for info in metadata.storage_data.values()}
        except CheckpointRefused:
            raise
        except Exception as error:
            raise _refused("expected DCP's metadata (got damaged data)") from error
        if any(Path(name).name != name for name in names):
            raise _refused("expected shards in the checkpoint's own folder (got a path)")
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future[None]:
        """
        Read every part of a tensor to where it belongs.

        DCP's own way reads into a new tensor and copies that: two passes over everything. It is
        kept for what is no tensor, for parts that are cut anew, and for GPUs.
        """
        left = [item for item in plan.items if not self._read_straight(item, planner)]
        return super().read_data(dataclasses.replace(plan, items=left), planner)

    def _read_straight(self, item, planner):
        """
        Fill one tensor from the file, if its numbers lie there as they do in memory.

        Returns:
            bool: False if they do not. Nothing was read then.
        """
        info = self.storage_data[item.storage_index]
        if item.type == LoadItemType.BYTE_IO:
            return False
        target = planner.resolve_tensor(item).detach()
        with open(Path(self.path) / info.relative_path, "rb", buffering=0) as file:
            saved, offset = self._layout(storages.slice_of(self, file, info))
            alike = saved.dtype == target.dtype and saved.shape == target.shape == item.lengths
            if (
                not alike
                or saved.untyped_storage().nbytes() != target.nbytes
                or not (target.is_cpu and target.is_contiguous() and saved.is_contiguous())
            ):
                return False
            file.seek(info.offset + offset)
            left = memoryview(target.view(-1).view(torch.uint8).numpy())
            while len(left):  # the system reads 2 GiB at a time, not more
                num_bytes = file.readinto(left)
                if not num_bytes:  # pragma: no cover - checksums were compared before
                    raise _refused("expected a whole file (got a damaged or truncated one)")
                left = left[num_bytes:]
        planner.commit_tensor(item, target)
        return True

    def _layout(self, part):
        """
        Return a tensor without numbers like the one in an archive, and where its numbers begin.

        Many tensors are alike but for their numbers: what describes them is read once.

        Returns:
            tuple: Tensor on the meta device, and bytes from the archive's start.

        Source: PyTorch documentation, "Serialization semantics", `torch.save` and its zip archive.
        """
        archive = storages.archive_reader(part)
        described = archive.get_record("data.pkl")
        if described not in self._layouts:
            part.seek(0)
            self._layouts[described] = torch.load(part, map_location="meta", weights_only=True)
        return self._layouts[described], archive.get_record_offset("data/0")


class SafePlanner(dcp.DefaultLoadPlanner):
    """
    Load a sharded checkpoint of DCP whose values that are no tensors may hold no code.

    Source: torch.distributed.checkpoint documentation, `DefaultLoadPlanner`. Lesson: 08_checkpoint.
    """

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """
        Take over one value that is no tensor, such as a learning rate.

        Raises:
            CheckpointRefused: The value holds code, which was not run.
        """
        try:
            content = torch.load(value, weights_only=True)
        except Exception as error:
            raise _refused("expected plain values (got code or damaged data)") from error
        # DCP's planner would read it with the full pickle. All else is as there.
        storages.set_element(
            self.original_state_dict, self.mappings[read_item.dest_index.fqn], content
        )


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) == ("builtins", "getattr"):
            return _member  # so early versions of Python 3.11 write the member of an Enum
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or name in _SAFE_CLASSES.get(module, ()):
            return super().find_class(module, name)
        raise _refused(f"expected tensors and plain values (got code: {module}.{name})")


def _member(kind, name):
    """
    Return the member of an Enum by its name: all that a getattr in metadata may do.
    """
    if not (isinstance(kind, enum.EnumMeta) and name in kind.__members__):
        raise _refused("expected tensors and plain values (got code: builtins.getattr)")
    return kind[name]


def _why_unreadable(path):
    try:
        names = sorted(get_unsafe_globals_in_checkpoint(path))
    except Exception:
        names = []
    if names:
        return f"expected tensors and plain values (got code: {', '.join(names)[:120]})"
    return "expected a whole file (got a damaged or truncated one)"


def _refused(fault):
    return CheckpointRefused(
        f"checkpoint refused: {fault}. Load an earlier one; nothing in this one was run."
    )
