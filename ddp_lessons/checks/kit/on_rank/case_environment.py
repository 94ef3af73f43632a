"""
What a case puts around an answer, and takes away again: a default group of its size, a store and
random numbers of its own, and torch's usual modes.
"""

import random
from contextlib import contextmanager

import torch
import torch.distributed as dist

from ddp_lessons.private import process_groups

_GROUP = "ddp-lessons check of {} ranks"


def make_groups(sizes):
    """
    Make a group of ranks 0 to n - 1 for each n. Collective: every rank must call it.
    """
    for size in sizes:
        dist.new_group(list(range(size)), group_desc=_GROUP.format(size))


def find_group(size):
    """
    Return the group of ranks 0 to size - 1, or None.

    By its description, so that nothing here keeps a group alive after the ranks have left it.
    """
    if not dist.is_initialized():
        return None
    for group in process_groups.all_groups():
        if group.group_desc == _GROUP.format(size):
            return group
    return None


@contextmanager
def default_group(size):
    """
    Make the group of ranks 0 to size - 1 the default one for a while. None: leave it as it is.
    """
    whole = process_groups.default_group()
    if size is None or size == whole.size():
        yield
        return
    process_groups.set_default_group(find_group(size))
    try:
        yield
    finally:
        # What the answer destroyed, it destroyed for all.
        process_groups.set_default_group(whole if process_groups.is_alive(whole) else None)


@contextmanager
def fresh_store(name):
    """
    Give the default group a store without keys for a while.

    A key that an earlier check has left would hide that an answer puts it there again.
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
def names_of_groups(context):
    """
    Have torch name new groups by the case for a while.

    It names them by how many its process has made: ranks that were in other cases than this one
    would wait for groups of different names.
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
        if dist.is_initialized():  # or it counts from 0, as it does on ranks that leave later
            process_groups.set_group_count(count)


@contextmanager
def random_states(context):
    """
    Have every rank draw its own numbers; the learner's go on afterwards as if nothing had been.
    """
    python, cpu = random.getstate(), torch.get_rng_state()
    gpus = [context.device] if context.device.type == "cuda" else []
    on_gpus = [torch.cuda.get_rng_state(gpu) for gpu in gpus]
    random.seed(f"{context.case.seed} {context.rank}")
    # Not torch.manual_seed: without a GPU it formats the stack, as long as a short case takes.
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
def usual_modes():
    """
    Have gradients on and float32 as the default for a while, whatever cells or answers have left.
    """
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(dtype)
