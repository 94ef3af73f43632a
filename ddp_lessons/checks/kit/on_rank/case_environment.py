"""
The surroundings of an answer in a case: a default group of the case's size, a store and random
numbers for the case alone, and torch's usual modes. All are undone after the case.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ddp_lessons.private import process_groups

if TYPE_CHECKING:
    from ddp_lessons.checks.kit.on_rank.rank_record import RankContext

_GROUP = "ddp-lessons check of {} ranks"


def make_groups(sizes: Iterable[int]) -> None:
    """
    Make a group of ranks 0 to n - 1 for each n. Collective: every rank must call it.
    """
    for size in sizes:
        dist.new_group(list(range(size)), group_desc=_GROUP.format(size))


def find_group(size: int) -> dist.ProcessGroup | None:
    """
    Return the group of ranks 0 to size - 1, or None.

    The group is found by its description: a stored reference would keep it alive after the ranks
    have left it.
    """
    if not dist.is_initialized():
        return None
    for group in process_groups.all_groups():
        if group.group_desc == _GROUP.format(size):
            return group
    return None


@contextmanager
def smaller_default_group(size: int | None) -> Iterator[None]:
    """
    Make the group of ranks 0 to size - 1 the default one in a `with` block. None: change nothing.
    """
    whole = process_groups.default_group()
    if size is None or size == whole.size():
        yield
        return
    process_groups.set_default_group(find_group(size))
    try:
        yield
    finally:
        # If the answer destroyed its default group, the group of all ranks is gone as well.
        process_groups.set_default_group(whole if process_groups.is_alive(whole) else None)


@contextmanager
def fresh_store(name: str) -> Iterator[None]:
    """
    Give the default group a store without keys in a `with` block.

    A key that an earlier check left would hide that an answer writes it again.
    """
    if not dist.is_initialized():
        yield
        return
    group = process_groups.default_group()
    store = process_groups.store_of(group)
    process_groups.set_store(group, dist.PrefixStore(name, store))
    try:
        yield
    finally:
        process_groups.set_store(group, store)


@contextmanager
def names_of_groups(context: RankContext) -> Iterator[None]:
    """
    Make torch derive the names of new groups from the case in a `with` block.

    torch numbers groups by how many their process has made. Ranks that were in different cases
    before would give one group different names, and wait for ever.
    """
    if not dist.is_initialized():
        yield
        return
    count = process_groups.group_count()
    name = random.Random(f"{context.folder} {context.case!r}").getrandbits(48)
    process_groups.set_group_count(name)
    try:
        yield
    finally:
        if dist.is_initialized():  # else torch counts from 0 again
            process_groups.set_group_count(count)


@contextmanager
def random_states(context: RankContext) -> Iterator[None]:
    """
    Give every rank its own random numbers in a `with` block, and restore the learner's afterwards.
    """
    python, cpu = random.getstate(), torch.get_rng_state()
    gpus = [context.device] if context.device.type == "cuda" else []
    on_gpus = [torch.cuda.get_rng_state(gpu) for gpu in gpus]
    assert context.case.seed is not None
    random.seed(f"{context.case.seed} {context.rank}")
    # torch.manual_seed is too slow: without a GPU it formats the stack, which takes as long as a
    # short case.
    torch.default_generator.manual_seed(context.case.seed * 64 + context.rank)
    for gpu in gpus:
        with torch.cuda.device(gpu):
            torch.cuda.manual_seed(context.case.seed * 64 + context.rank)
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(cpu)
        for gpu, state in zip(gpus, on_gpus, strict=True):
            torch.cuda.set_rng_state(state, gpu)


@contextmanager
def usual_modes() -> Iterator[None]:
    """
    Turn gradients on and make float32 the default in a `with` block, whatever earlier cells set.
    """
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(dtype)
