"""
Functions by which a rank joins and leaves the group of all ranks, whatever state it is in.
"""

from __future__ import annotations

import gc
import sys
from datetime import timedelta
from traceback import clear_frames

from ddp_lessons.private import process_groups
from ddp_lessons.ranks.rank.rank_agent import current_agent
from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.network_interfaces import group_address, using_group_variables


def open_store() -> tuple[str, int]:
    """
    Open a store in this rank's memory, for the group that is joined next.

    The store listens only on the interface of this rank's groups, which leads to the kernel's host.

    Returns:
        (str, int): The store's address and port.
    """
    from ddp_lessons.process_group import tcp_store

    agent = current_agent()
    with using_group_variables(agent.group_variables):
        address = group_address()
    store = tcp_store(address, 0, agent.rank, clocks.STORE_S, agent.rank, True)
    agent.opened_store = store
    return address, store.port


def join(
    meeting: str | tuple[str, int, str],
    world_size: int,
    backend: str,
    device: str,
    timeout_s: float | None = None,
) -> list[str]:
    """
    Join this rank to the group of all ranks, after it has left the group that it may be in.

    Every rank must call this function, as if it were a collective. The group uses the network
    interface that this rank was started with, whatever a cell has set since. So a cell that tries
    another interface cannot keep the ranks apart.

    Args:
        meeting: Path of a file that is the store. Or, where hosts share no files, the address and
            port of a store that rank 0 has opened, and a prefix of its keys that only ranks know.
        world_size: Number of ranks.
        backend: "gloo" or "nccl".
        device: Device of this rank, such as "cuda:0" or "cpu".
        timeout_s: The group's time limit in seconds (see `join_group_store`).

    Returns:
        list[str]: Names in the learner's namespace whose objects still hold an earlier group,
        such as a DDP model. The learner must make these objects again.
    """
    from ddp_lessons.process_group import join_group, join_group_store

    agent = current_agent()
    opened, agent.opened_store = agent.opened_store, None  # from here on the group owns the store
    leave()
    with using_group_variables(agent.group_variables):
        if isinstance(meeting, str):
            join_group(meeting, agent.rank, world_size, backend, device, timeout_s)
        else:
            store = _store_at(meeting, agent.rank, opened)
            join_group_store(store, agent.rank, world_size, backend, device, timeout_s)
    return holders_of_old_groups()


def _store_at(meeting, rank, opened):
    from torch.distributed import PrefixStore

    from ddp_lessons.process_group import DEFAULT_TIMEOUT_S, tcp_store

    address, port, prefix = meeting
    store = opened or tcp_store(address, port, rank, clocks.STORE_S)
    store.set_timeout(timedelta(seconds=DEFAULT_TIMEOUT_S))
    return PrefixStore(prefix, store)


def leave() -> list[str]:
    """
    Leave the group, also when its sockets are cut, and drop tracebacks that may hold the group.

    Returns:
        list[str]: Names in the learner's namespace that still hold an earlier group (see `join`).
    """
    current_agent().opened_store = None  # it was meant for a group that was never formed
    dist = sys.modules.get("torch.distributed")
    if dist is None:
        return []
    if not (dist.is_initialized() or process_groups.has_named_groups()):
        # torch has counted a join that failed, too. Ranks meet only under the same number.
        process_groups.set_group_count(0)
        return []
    agent = current_agent()
    _forget_exceptions(agent.shell)
    # A thread of Gloo's that still waits for a peer would block the group's destruction.
    agent.free_main_thread()
    if dist.is_initialized():
        # Call it where torch defines it: a cell may have replaced the public name by a mock.
        dist.distributed_c10d.destroy_process_group()
    else:
        process_groups.forget_all_groups()
    gc.collect()
    return holders_of_old_groups()


def _forget_exceptions(shell):
    # The last exception holds frames, and these hold the group with its sockets and threads.
    result = shell.last_execution_result
    error = result and (result.error_before_exec or result.error_in_exec)
    while error is not None:
        _empty_frames(error.__traceback__)
        error = error.__context__
    shell.InteractiveTB.tb = None
    shell.last_execution_result = None
    for name in ("last_exc", "last_value", "last_traceback", "last_type"):
        if hasattr(sys, name):
            delattr(sys, name)


def _empty_frames(traceback):
    """
    Clear the variables of a traceback's frames, in the order in which the frames would have ended.

    The garbage collector may destroy a DataLoader's queues before the DataLoader has used them to
    end its workers. The DataLoader would then wait for a worker's end for up to 5 s.
    """
    clear_frames(traceback)
    while traceback is not None:
        # Rendering cached each frame's locals. Reading `f_locals` refreshes the cache, which drops
        # the cleared values.
        _ = traceback.tb_frame.f_locals
        traceback = traceback.tb_next


def holders_of_old_groups() -> list[str]:
    """
    Return the names in the learner's namespace that hold a process group that was destroyed.
    """
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    living = set(process_groups.all_groups())
    found = []
    for name, value in current_agent().shell.user_ns.items():
        if isinstance(value, DistributedDataParallel):
            group = value.process_group
        elif isinstance(value, dist.ProcessGroup):
            group = value
        else:
            continue
        if not name.startswith("_") and group not in living:
            found.append(name)
    return sorted(found)
