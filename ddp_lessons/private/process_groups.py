"""
Private names of torch.distributed: the table of all process groups, and what a group tells.

torch imports slowly, so every import of it is inside of a function: an idle rank has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddp_lessons.private.reaching import uses_private_name

if TYPE_CHECKING:
    from types import ModuleType

    from torch import device
    from torch._C._distributed_c10d import Store
    from torch.distributed import ProcessGroup, Work
    from torch.distributed.distributed_c10d import _World

_WORLD = "torch.distributed.distributed_c10d._world"


def _c10d() -> ModuleType:
    import torch.distributed

    return torch.distributed.distributed_c10d


@uses_private_name(
    _WORLD,
    oldest_promised="torch 2.11",
    lost="ranks cannot be released, leave their groups or join new ones, so no ranks start",
)
def group_tables() -> _World:
    """
    Return torch's table of groups.

    torch has no public way to list the groups of a process, to find a group's store, or to reset
    the count by which it names new groups.
    """
    world: _World = _c10d()._world
    return world


def all_groups() -> list[ProcessGroup]:
    """
    Return every process group of this process, in the order in which they were made.
    """
    return list(group_tables().pg_map)


def is_alive(group: object) -> bool:
    """
    Return whether torch still knows a group, so that it was not destroyed.
    """
    return group in group_tables().pg_map


def backend_name(group: ProcessGroup) -> str:
    """
    Return the name of a group's backend, such as "gloo".
    """
    return str(group_tables().pg_map[group][0])


def store_of(group: Any) -> Store | Any:  # torch's stubs leave out `clone`
    """
    Return the store in which the ranks of a group have met.
    """
    return group_tables().pg_map[group][1]


def set_store(group: ProcessGroup | None, store: Store) -> None:
    """
    Give a group another store. Does nothing if the group was destroyed.
    """
    groups = group_tables().pg_map
    if group in groups:
        groups[group] = groups[group][0], store


def ranks_of(group: ProcessGroup) -> list[int] | None:
    """
    Return the sorted ranks of a group's members; None while the group is being made or destroyed.
    """
    ranks = group_tables().pg_group_ranks.get(group)
    return None if ranks is None else sorted(ranks)


def default_group() -> ProcessGroup | None:
    """
    Return the default group, or None outside of every group.
    """
    return group_tables().default_pg


def has_named_groups() -> bool:
    """
    Return whether torch has given a name to a group, even to one that did not come about.
    """
    return bool(group_tables().pg_names)


def group_count() -> int:
    """
    Return how many groups this process has made. torch names the next group by this number.
    """
    return int(group_tables().group_count)


def set_group_count(count: int) -> None:
    """
    Have torch name the next group by `count`. Ranks meet only under the same name.
    """
    group_tables().group_count = count


@uses_private_name(
    "torch.distributed.distributed_c10d._update_default_pg",
    oldest_promised="torch 2.11",
    lost="a check cannot run an answer on fewer ranks than there are",
)
def set_default_group(group: ProcessGroup | None) -> None:
    """
    Make a group the default one. None: there is no default group.

    torch's public functions set it only while they make, destroy or shrink groups.
    """
    _c10d()._update_default_pg(group)


@uses_private_name(
    "torch.distributed.distributed_c10d._get_default_store",
    oldest_promised="torch 2.11",
    lost="lesson 14's queues and some checks cannot use the store of the default group",
)
def default_store() -> Store:
    """
    Return the store of the default group.
    """
    store: Store = _c10d()._get_default_store()
    return store


@uses_private_name(
    "torch.distributed.distributed_c10d._unregister_all_process_groups",
    oldest_promised="torch 2.11",
    lost="a rank that was released while it left its group cannot join another one",
)
def forget_all_groups() -> None:
    """
    Finish what `destroy_process_group` does, after an interrupt has cut it short.

    The interrupt comes while the groups end, which takes longest; their names are still in use.
    """
    table = group_tables()
    for entries in (
        table.pg_map, table.pg_names, table.pg_group_ranks, table.pg_backend_config,
        table.pg_to_tag, table.tags_to_pg, table.pg_coalesce_state,
    ):  # fmt: skip
        entries.clear()
    _c10d()._unregister_all_process_groups()
    table.group_count = 0


@uses_private_name(
    "torch.distributed.ProcessGroup._get_sequence_number_for_group",
    oldest_promised="torch 2.11",
    lost="the table of a stalled cell cannot say which collective a rank called last",
)
def sequence_number(group: Any) -> int:
    """
    Return the number of the last collective that this rank has called in a group.

    Cheap, where reading the flight recorder is not.
    """
    return int(group._get_sequence_number_for_group())


@uses_private_name(
    "torch.distributed.Work._get_op_type",
    oldest_promised="torch 2.11",
    lost="the table of a stalled cell cannot say which call a handle stands for",
)
def operation_number(work: Work) -> int:
    """
    Return the number of a Work's operation, as the enum OpType of torch's C++ code has it.
    """
    return int(work._get_op_type())  # type: ignore[attr-defined]  # torch's stubs lack it


@uses_private_name(
    "torch.distributed.Work._source_rank",
    oldest_promised="torch 2.11",
    lost="a trace cannot say which rank sent what `recv` got from any rank",
)
def source_rank(work: Work) -> int:
    """
    Return the rank whose message a finished `recv` from any rank has got.
    """
    return int(work._source_rank())


@uses_private_name(
    "torch._C._distributed_c10d.FakeProcessGroup._create_internal",
    "torch.distributed.ProcessGroup._register_backend",
    "torch.distributed.ProcessGroup._set_default_backend",
    "torch.distributed.ProcessGroup._set_group_name",
    oldest_promised="torch 2.11",
    lost="a check cannot simulate a world of more ranks than run",
)
def make_fake(
    group: ProcessGroup, rank: int, world_size: int, devices: Sequence[device], name: str
) -> None:
    """
    Have a ProcessGroup of our own move nothing: its calls return at once.

    Args:
        group: A `ProcessGroup` without a backend.
        rank: Its rank in its world.
        world_size: The number of ranks of that world.
        devices: The torch devices whose tensors it takes.
        name: The group's name.
    """
    from torch._C._distributed_c10d import FakeProcessGroup

    kind = group.BackendType.CUSTOM
    for device in devices:
        backend = FakeProcessGroup._create_internal(rank, world_size)
        group._register_backend(device, kind, backend)
    group._set_default_backend(kind)
    group._set_group_name(name)  # type: ignore[arg-type]  # a NewType of str


def add_group(group: ProcessGroup, backend: str, store: Store) -> None:
    """
    Enter a group of our own into torch's table, so that torch's functions take it.

    Args:
        group: The group. Its ranks are numbered from 0.
        backend: The name of its backend, such as "gloo".
        store: A store.
    """
    table = group_tables()
    table.pg_map[group] = backend, store
    table.pg_group_ranks[group] = {rank: rank for rank in range(group.size())}


def remove_group(group: ProcessGroup) -> None:
    """
    Take a group that `add_group` has entered out of torch's table again.
    """
    table = group_tables()
    table.pg_map.pop(group, None)
    table.pg_group_ranks.pop(group, None)


_RECORDERS = ("_dump_fr_trace", "_dump_nccl_trace")


@uses_private_name(
    "torch._C._distributed_c10d._dump_fr_trace",
    oldest_promised="torch 2.11",
    lost="a deadlock's message cannot say which collective is missing",
)
def dump_flight_recorders(*, with_stacks: bool, only_active: bool = False) -> list[bytes]:
    """
    Return what each of torch's flight recorders holds, pickled; NCCL has a recorder of its own.

    Pickled, since as JSON it takes twice as long: as long as a short all-reduce.

    Args:
        with_stacks: Whether each entry has the stack of its call.
        only_active: Whether to leave out collectives that have ended.

    Source: torch/csrc/distributed/c10d/FlightRecorder.hpp.
    """
    from torch._C import _distributed_c10d as bindings

    if not any(hasattr(bindings, name) for name in _RECORDERS):
        raise AttributeError("no flight recorder")
    dumps = [getattr(bindings, name) for name in _RECORDERS if hasattr(bindings, name)]
    return [dump(True, with_stacks, only_active) for dump in dumps]
