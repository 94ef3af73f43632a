"""
Private names of torch's tensors, storages and files.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any, Protocol

from ddp_lessons.private.reaching import uses_private_name

if TYPE_CHECKING:
    from torch import Tensor, UntypedStorage
    from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo


class ArchiveReader(Protocol):
    """
    A reader of the zip archive that `torch.save` writes.
    """

    def get_record(self, name: str) -> bytes:
        """
        Return a record's content.
        """

    def get_record_offset(self, name: str) -> int:
        """
        Return how many bytes of the archive come before a record's content.
        """


@uses_private_name(
    "torch.Tensor._indices",
    "torch.Tensor._values",
    oldest_promised="torch 2.11",
    lost="a trace cannot count the bytes of a sparse gradient",
)
def sparse_parts(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """
    Return the indices and the values of a sparse tensor. Its public methods refuse a tensor in
    which an index stands twice.
    """
    return tensor._indices(), tensor._values()


@uses_private_name(
    "torch.UntypedStorage._cdata",
    oldest_promised="torch 2.11",
    lost="tasks of lesson 15 cannot count the bytes that an answer holds",
)
def address_of(storage: UntypedStorage) -> int:
    """
    Return the address of the C++ object behind an untyped storage.
    """
    return int(storage._cdata)


@uses_private_name(
    "torch.UntypedStorage._new_with_weak_ptr",
    oldest_promised="torch 2.11",
    lost="tasks of lesson 15 cannot count the bytes that an answer holds",
)
def storage_at(address: int) -> UntypedStorage | None:
    """
    Return the untyped storage at an address; None if it was freed.

    Args:
        address: As `address_of` gives it. A weak reference must keep it from being used anew.
    """
    import torch

    return torch.UntypedStorage._new_with_weak_ptr(address)


@uses_private_name(
    "torch._C.PyTorchFileReader",
    oldest_promised="torch 2.11",
    lost="a sharded checkpoint is loaded through a second copy in memory",
)
def archive_reader(file: IO[bytes]) -> ArchiveReader:
    """
    Return a reader of the zip archive that `torch.save` writes: its records and their offsets.
    """
    import torch

    return torch._C.PyTorchFileReader(file)  # type: ignore[return-value]  # lacks an offset


@uses_private_name(
    "torch.distributed.checkpoint.FileSystemReader._slice_file",
    oldest_promised="torch 2.11",
    lost="a sharded checkpoint is loaded through a second copy in memory",
)
def slice_of(reader: FileSystemReader, file: IO[bytes], info: _StorageInfo) -> IO[bytes]:
    """
    Return a view of the part of an open file in which one item of a sharded checkpoint is.

    Args:
        reader: A FileSystemReader.
        file: The open file.
        info: The item's entry in the reader's `storage_data`.
    """
    return reader._slice_file(file, info)


@uses_private_name(
    "torch.distributed.checkpoint._traverse.set_element",
    oldest_promised="torch 2.11",
    lost="a sharded checkpoint cannot be loaded into nested dictionaries",
)
def set_element(tree: dict[str, Any], path: tuple[str | int, ...], value: object) -> None:
    """
    Set a value inside of nested dictionaries and lists, and make those that are missing.

    Args:
        tree: The outermost dictionary.
        path: Keys and indices, from the outside in.
        value: The value.
    """
    from torch.distributed.checkpoint._traverse import set_element

    set_element(tree, path, value)
