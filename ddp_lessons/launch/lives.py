"""
Join the group of this life: what was left in the store by those who were ended must not be read.

torchrun keeps one store for all lives of its workers. Gloo's ranks leave their addresses there, and
the ranks of the next life find them: addresses of processes that are gone.

Legend: rank r of w; a life is the time from a start of all workers to the next.
"""

import os
from collections.abc import Mapping

import torch.distributed as dist

from .environment import place_of


def life_of(environ: Mapping[str, str]) -> int:
    """
    Return which life of its workers this is, from 0. Only torchrun counts them.

    Args:
        environ: The environment of the process, such as os.environ.
    """
    return int(environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def join_life(backend: str = "gloo", environ: Mapping[str, str] | None = None) -> int:
    """
    Join the default group under names that no earlier life has used.

    It is for workers of one torchrun. Where several run, one a machine, each counts its own
    restarts: there, set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for all of them in place of it, and
    every life gets a store of its own.

    Collective: every rank must call it.

    Args:
        backend: "gloo" or "nccl".
        environ: Default: that of this process.

    Returns:
        int: Which life it is, from 0.

    Lesson: 09_launch.
    """
    environ = os.environ if environ is None else environ
    place, life = place_of(environ), life_of(environ)
    # The agent of torchrun holds the store, and all ranks are its clients. Else rank 0 does.
    is_held = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = dist.TCPStore(
        place.address,
        place.port,
        world_size=place.world_size,
        is_master=place.rank == 0 and not is_held,
    )
    own = dist.PrefixStore(f"life {life}", store)
    dist.init_process_group(backend, store=own, rank=place.rank, world_size=place.world_size)
    return life
