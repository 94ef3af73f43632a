"""
Join and leave a process group, split it, and name the ranks that do not arrive.

Legend: rank r of w, where w is the world size. A store is a dictionary that all ranks share.

    stores      stores in a file, by TCP, or by the environment variables of a launcher
    joining     from rank, world size and store to a group
    carriers    backends: which exist here, and why the others do not
    subgroups   groups within the group
    missing     the ranks that have not arrived by a deadline

Lesson: 01_process_group.
"""

from ddp_lessons.process_group.carriers import BackendState, backends, backends_table
from ddp_lessons.process_group.joining import (
    DEFAULT_TIMEOUT_S,
    join_group,
    join_group_env,
    join_group_store,
    join_group_tcp,
    leave_group,
    rank_device,
)
from ddp_lessons.process_group.missing import (
    DEFAULT_DEADLINE_S,
    come_together,
    missing_ranks,
    wait_for_ranks,
)
from ddp_lessons.process_group.stores import env_store, file_store, tcp_store
from ddp_lessons.process_group.subgroups import split_by_name, split_evenly

__all__ = [
    "DEFAULT_DEADLINE_S",
    "DEFAULT_TIMEOUT_S",
    "BackendState",
    "backends",
    "backends_table",
    "come_together",
    "env_store",
    "file_store",
    "join_group",
    "join_group_env",
    "join_group_store",
    "join_group_tcp",
    "leave_group",
    "missing_ranks",
    "rank_device",
    "split_by_name",
    "split_evenly",
    "tcp_store",
    "wait_for_ranks",
]
