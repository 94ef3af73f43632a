"""
Join and leave the group of all ranks, in a rank's own process, whatever state it is in.
"""

import gc
import sys
from datetime import timedelta
from traceback import clear_frames

from ddp_lessons.ranks.rank.rank_agent import current_agent
from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.network_interfaces import group_address, using_group_variables


def open_store():
    """
    Open a store in this rank's memory, for the group that is joined next.

    It listens on the interface of its groups alone: that which leads to the kernel's host.

    Returns:
        (str, int): Its address and port.
    """
    from ddp_lessons.process_group import tcp_store

    agent = current_agent()
    with using_group_variables(agent.group_variables):
        address = group_address()
    agent.opened_store = tcp_store(address, 0, agent.rank, clocks.STORE_S, agent.rank, True)
    return address, agent.opened_store.port


def join(meeting, world_size, backend, device, timeout_s=None):
    """
    Join this rank to the group of all ranks, after leaving the one that it may be in.

    Collective: every rank must call it. The group uses the interface that this rank was started
    with, whatever a cell has set since: a cell that plays with another cannot lock the ranks out.

    Args:
        meeting: Path of a file that is the store. Or, where hosts share no files, the address and
            port of a store that rank 0 has opened, and a prefix of its keys that only ranks know.
        world_size: As the arguments that follow, see `join_group_store`.

    Returns:
        list[str]: Names in the learner's namespace whose objects still hold an earlier group,
        such as a DDP model. They must be made again.
    """
    from ddp_lessons.process_group import join_group, join_group_store

    agent = current_agent()
    opened, agent.opened_store = agent.opened_store, None  # from here on the group holds it
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


def leave():
    """
    Leave the group, also when its sockets are cut, and drop the tracebacks that may hold it.

    Returns:
        list[str]: As `join`.
    """
    current_agent().opened_store = None  # for a group that did not come about
    dist = sys.modules.get("torch.distributed")
    if dist is None:
        return []
    if not (dist.is_initialized() or dist.distributed_c10d._world.pg_names):
        # A join that failed has counted all the same. Ranks meet only under the same number.
        dist.distributed_c10d._world.group_count = 0
        return []
    agent = current_agent()
    _forget_exceptions(agent.shell)
    # A thread of Gloo's that still waits for a peer would block the group's destruction.
    agent.free_main_thread()
    if dist.is_initialized():
        # Where torch defines it: the name that it is known by may be that of a mock by now.
        dist.distributed_c10d.destroy_process_group()
    else:
        _finish_leaving(dist.distributed_c10d)
    gc.collect()
    return holders_of_old_groups()


def _finish_leaving(c10d):
    """
    Do what torch's own function has still to do when an interrupt cuts it short.

    It comes when the groups themselves end, which takes longest, and the names are still taken.
    """
    world = c10d._world
    for kept in (
        world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config,
        world.pg_to_tag, world.tags_to_pg, world.pg_coalesce_state,
    ):  # fmt: skip
        kept.clear()
    c10d._unregister_all_process_groups()
    world.group_count = 0


def _forget_exceptions(shell):
    # The last exception holds the frames that hold the group, with its sockets and threads.
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
    Drop what a traceback's frames hold, in the order in which they would have ended.

    Left to the garbage collector, a DataLoader's queues may go before its worker was told to end,
    and then its end is waited for for up to 5 s.
    """
    clear_frames(traceback)
    while traceback is not None:
        # Who rendered it has left a copy of each frame's names there; a look brings it up to date.
        _ = traceback.tb_frame.f_locals
        traceback = traceback.tb_next


def holders_of_old_groups():
    """
    Return the names in the learner's namespace that hold a process group which is no more.
    """
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    living = set(dist.distributed_c10d._world.pg_map)
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
