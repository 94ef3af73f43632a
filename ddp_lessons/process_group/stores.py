"""
Stores: a dictionary that all ranks share, in a file, by TCP, or by the variables of a launcher.
"""

import os
import socket
import time
from datetime import timedelta

import torch.distributed as dist

from ddp_lessons.errors import BadInput, RanksMissing
from ddp_lessons.process_group.missing import check_place

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""
The environment variables that a launcher such as torchrun sets for each rank.
"""

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""
Hosts that nobody but this machine's own users can reach.
"""

_CONNECT_EVERY_S = 0.05


def file_store(path: str | os.PathLike[str], world_size: int) -> dist.FileStore:
    """
    Return a store that lives in a file.

    Args:
        path: A file that all ranks can open. It must not exist before, or be of no other group:
            a used file makes ranks meet those of an earlier group.
        world_size: Number of ranks.

    Source: torch.distributed documentation, "FileStore". Lesson: 01_process_group.
    """
    return dist.FileStore(os.fspath(path), world_size)


def tcp_store(
    host: str,
    port: int,
    rank: int,
    timeout_s: float,
    owner: int | None = 0,
    only_there: bool = False,
) -> dist.TCPStore:
    """
    Return a store that lives in one rank's memory and that the others reach over TCP.

    Args:
        host: Name or address of the owner's machine. A user who reaches it can write to the store,
            which has no password. With one of LOOPBACK, only this machine's users do.
        port: Port of the store. 0 lets the owner's system choose one, to be read as
            `store.port`; the others must be told which.
        rank: This rank.
        timeout_s: Seconds to wait for the owner, and the store's own time limit.
        owner: The rank that holds the store; None if another process does, as under torchrun.
        only_there: Whether the owner is to be reached at that host's address only, also where it is
            none of LOOPBACK. It has to be an address of the owner's machine then.

    Raises:
        BadInput: The port cannot be one, or is 0 on a rank that is not the owner.
        OSError: The port is taken, or the address is not the owner's.
        RanksMissing: The owner did not open the store in time; only it can be named.

    Source: torch.distributed documentation, "TCPStore". Lesson: 01_process_group.
    """
    if not 0 <= port < 2**16 or (port == 0 and rank != owner):
        least = 0 if rank == owner else 1
        raise BadInput(
            f"The port of the store is none: {least} to 65535 (got {port}, rank {rank}). "
            "Let the owner open port 0, and tell the others its store.port."
        )
    if rank != owner:
        _wait_for_owner(host, port, rank, timeout_s, owner)
    listen_fd = None
    if rank == owner and (only_there or host in LOOPBACK):
        # Without this socket, torch listens on every network of the machine, whatever the host.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
        port, listen_fd = listener.getsockname()[1], listener.detach()
    return dist.TCPStore(
        host,
        port,
        is_master=rank == owner,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=listen_fd,
    )


def env_store(timeout_s: float) -> tuple[dist.PrefixStore, int, int]:
    """
    Return the store, the rank and the world size that the environment tells, as torchrun sets it.

    Args:
        timeout_s: Seconds to wait for the store's owner, and the store's own time limit.

    Returns:
        tuple: The store, this rank and the world size.

    Raises:
        BadInput: Variables are missing, or hold no number; all of them are named at once.
        RanksMissing: Rank 0, or torchrun's agent, did not open the store in time.

    Source: torch.distributed documentation, "Environment variable initialization".
    Lesson: 01_process_group.
    """
    missing = [name for name in VARIABLES if not os.environ.get(name)]
    if missing:
        raise BadInput(
            f"The environment does not say how to join: {', '.join(VARIABLES)} "
            f"(got no {', no '.join(missing)}). Set them, or start with torchrun, which does."
        )
    numbers = {}
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        try:
            numbers[name] = int(os.environ[name])
        except ValueError:
            raise BadInput(
                f"{name} is no number: a whole number (got {os.environ[name]!r}). Correct it."
            ) from None
    rank, world_size = numbers["RANK"], numbers["WORLD_SIZE"]
    check_place(rank, world_size)
    has_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    owner = None if has_agent else 0
    store = tcp_store(
        os.environ["MASTER_ADDR"], numbers["MASTER_PORT"], rank, timeout_s, owner=owner
    )
    # After a failure torchrun starts all ranks again, and they meet in the same store.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"attempt-{attempt}", store), rank, world_size


def _wait_for_owner(host, port, rank, timeout_s, owner):
    # torch's own attempt to connect prints a page of C++ frames when it fails.
    give_up_at = time.monotonic() + timeout_s
    while True:
        left_s = max(give_up_at - time.monotonic(), _CONNECT_EVERY_S)
        try:
            with socket.create_connection((host, port), timeout=left_s):
                return
        except OSError:
            if time.monotonic() >= give_up_at:
                break
            time.sleep(_CONNECT_EVERY_S)
    who = "the launcher's agent" if owner is None else f"rank {owner}"
    raise RanksMissing(
        f"{who[0].upper()}{who[1:]} did not open its store within {timeout_s:g} s (reported by "
        f"rank {rank}). Check whether {who} started, and whether every rank was told the same "
        "address.",
        [] if owner is None else [owner],
    )
