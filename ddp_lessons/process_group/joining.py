"""
Make a group from a rank, a world size and a store; leave it again.
"""

import os
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from ddp_lessons.errors import BadInput
from ddp_lessons.private import process_groups
from ddp_lessons.process_group.carriers import check_backend
from ddp_lessons.process_group.missing import check_place, come_together
from ddp_lessons.process_group.stores import env_store, file_store, tcp_store

DEFAULT_TIMEOUT_S = 1800.0
"""
How long a collective waits for its peers before it gives up: torch's own default for Gloo.
"""


def rank_device() -> torch.device:
    """
    Return the torch.device of this rank: "cpu", or the GPU that was chosen for it.

    Outside ranks that `start_ranks` started, it is the GPU of LOCAL_RANK if there is one.
    """
    name = os.environ.get("DDP_LESSONS_DEVICE")
    if name is None and torch.cuda.is_available():
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        name = f"cuda:{local_rank % torch.cuda.device_count()}"
    return torch.device(name or "cpu")


def join_group_store(
    store: dist.Store,
    rank: int,
    world_size: int,
    backend: str = "gloo",
    device: torch.device | str | None = None,
    timeout_s: float | None = None,
    deadline_s: float | None = None,
) -> None:
    """
    Join the default process group through a store that all ranks share.

    Collective: every rank must call it with the same world size, backend and deadline.

    Args:
        store: A store that no other group has used.
        rank: This rank, from 0.
        world_size: Number of ranks.
        backend: "gloo" or "nccl"; `backends` says which exist here.
        device: The torch.device of this rank; binds NCCL to its GPU. None on the CPU.
        timeout_s: Seconds that a collective waits for its peers. Default 1,800.
        deadline_s: Seconds within which all ranks must come, or those missing are named.
            Default: torch waits for timeout_s, and names nobody.

    Raises:
        BadInput: Rank, world size, backend or a time cannot be, or this process is in a group.
        RanksMissing: Some ranks did not come in time; its `ranks` holds them.
        RuntimeError: Without a deadline: a rank did not come in time.

    Source: torch.distributed documentation, "Initialization". Lesson: 01_process_group.
    """
    _check(rank, world_size, backend, timeout_s)
    if deadline_s is not None:
        come_together(store, rank, world_size, deadline_s)
    on_gpu = device is not None and torch.device(device).type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    _count_groups_anew()
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s or DEFAULT_TIMEOUT_S),
        device_id=(
            torch.device(device)  # type: ignore[arg-type]  # on a GPU it is not None
            if on_gpu and backend == "nccl"
            else None
        ),
    )


def join_group(
    store_file: str | os.PathLike[str],
    rank: int,
    world_size: int,
    backend: str = "gloo",
    device: torch.device | str | None = None,
    timeout_s: float | None = None,
    deadline_s: float | None = None,
) -> None:
    """
    Join the default process group through a file that all ranks can open.

    Collective: every rank must call it with the same file, world size and backend.

    Args:
        store_file: Path of the file that serves as store. It must not exist before, or be of no
            other group: a used file makes ranks meet those of an earlier group.
        rank: As the arguments that follow, see `join_group_store`.

    Raises:
        BadInput: Rank, world size, backend or a time cannot be, or this process is in a group.
        RanksMissing: Some ranks did not come in time; its `ranks` holds them.

    Source: torch.distributed documentation, "Shared file-system initialization".
    Lesson: 01_process_group.
    """
    _check(rank, world_size, backend, timeout_s)
    store = file_store(store_file, world_size)
    join_group_store(store, rank, world_size, backend, device, timeout_s, deadline_s)


def join_group_tcp(
    host: str,
    port: int,
    rank: int,
    world_size: int,
    backend: str = "gloo",
    device: torch.device | str | None = None,
    timeout_s: float | None = None,
    deadline_s: float | None = None,
    publish: Callable[[int], object] | None = None,
) -> None:
    """
    Join the default process group through a store in rank 0's memory, reached over TCP.

    Collective: every rank must call it with the same host, world size and backend.

    Args:
        host: Name or address of rank 0's machine.
        port: Port of the store. Rank 0 may pass 0: its system chooses one that is free.
        rank: As the arguments that follow, see `join_group_store`.
        publish: On rank 0, called with the port once the store can be reached, so that the others
            can be told.

    Raises:
        BadInput: As `join_group_store`; or the port is 0 on a rank other than 0.
        RanksMissing: Some ranks did not come in time; without rank 0's store, only rank 0 is named.

    Source: torch.distributed documentation, "TCP initialization". Lesson: 01_process_group.
    """
    _check(rank, world_size, backend, timeout_s)
    store = tcp_store(host, port, rank, _patience_s(timeout_s, deadline_s))
    if rank == 0 and publish is not None:
        publish(store.port)
    join_group_store(store, rank, world_size, backend, device, timeout_s, deadline_s)


def join_group_env(
    backend: str = "gloo",
    device: torch.device | str | None = None,
    timeout_s: float | None = None,
    deadline_s: float | None = None,
) -> None:
    """
    Join the default process group as environment variables say, which torchrun sets.

    Collective: every rank must call it. The variables are RANK, WORLD_SIZE, MASTER_ADDR and
    MASTER_PORT.

    Args:
        backend: As the arguments that follow, see `join_group_store`.

    Raises:
        BadInput: As `join_group_store`; or a variable is missing, or holds no number.
        RanksMissing: Some ranks did not come in time; without the store, only its owner is named.

    Source: torch.distributed documentation, "Environment variable initialization".
    Lesson: 01_process_group.
    """
    _check(0, 1, backend, timeout_s)
    store, rank, world_size = env_store(_patience_s(timeout_s, deadline_s))
    join_group_store(store, rank, world_size, backend, device, timeout_s, deadline_s)


def leave_group() -> None:
    """
    Leave the default process group and all subgroups. Does nothing outside a group.

    Source: torch.distributed documentation, "Shutdown". Lesson: 01_process_group.
    """
    if dist.is_initialized():
        dist.destroy_process_group()


def _count_groups_anew():
    # torch names groups by a count, and ranks meet under the name. A join that failed has counted
    # too, so that this rank would wait for ever under a name that the others do not know.
    process_groups.set_group_count(0)


def _check(rank, world_size, backend, timeout_s):
    # Before anything is opened: a rank that is refused later leaves the others waiting.
    check_place(rank, world_size)
    check_backend(backend)
    if timeout_s is not None and timeout_s <= 0:
        raise BadInput(
            f"The timeout leaves no time: seconds above 0 (got {timeout_s:g}, rank {rank} of "
            f"{world_size}). Leave it out for {DEFAULT_TIMEOUT_S:.0f} s."
        )
    if dist.is_initialized():
        raise BadInput(
            f"This process is in a group: it can be in one default group (got rank "
            f"{dist.get_rank()} of {dist.get_world_size()}). Call leave_group() first."
        )


def _patience_s(timeout_s, deadline_s):
    return deadline_s if deadline_s is not None else timeout_s or DEFAULT_TIMEOUT_S
