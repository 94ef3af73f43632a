"""
Tell a framework who this rank is.

Accelerate and Fabric join no group that they are not told of: they read the environment, as scripts
do that torchrun has started. The ranks of a notebook are told who they are, but have a prompt, and
no place to meet.

Legend: rank r of w, all on one machine.
"""

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from ..launch.environment import PORT, Place

_MISSING = object()
_FABRICS = ("lightning_fabric.connector", "lightning.fabric.connector")


@contextmanager
def told() -> Iterator[None]:
    """
    Have this rank look, for a while, as if torchrun had started it in a script.

    The environment says what torchrun would say of the default group, which must be there: the five
    variables, and how many threads there are, for otherwise Accelerate would choose their number.
    Nothing says that there is a prompt, for where there is one Fabric refuses to be made.

    Lesson: 16_frameworks.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    variables = Place(rank, world_size, rank, "127.0.0.1", PORT).variables()  # nobody meets there
    variables["LOCAL_WORLD_SIZE"] = str(world_size)
    variables["OMP_NUM_THREADS"] = str(torch.get_num_threads())
    prompt = vars(sys).pop("ps1", _MISSING)
    knew = _set_prompts(dict.fromkeys(_FABRICS, False))
    try:
        with _environment(variables):
            yield
    finally:
        if prompt is not _MISSING:
            vars(sys)["ps1"] = prompt
        _set_prompts(knew)


@contextmanager
def untold() -> Iterator[None]:
    """
    Have nobody tell this rank who it is, for a while, as if it had been started by hand.

    Lesson: 16_frameworks.
    """
    with _environment(dict.fromkeys(Place(0, 1, 0, "", 0).variables())):
        yield


@contextmanager
def _environment(variables):
    before = {name: os.environ.get(name) for name in variables}
    forget_accelerate()
    _put(variables)
    try:
        yield
    finally:
        forget_accelerate()
        _put(before)


def _put(variables):
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _set_prompts(flags):
    # Fabric looks for a prompt when it is imported, and keeps what it found.
    knew = {}
    for name, flag in flags.items():
        module = vars(sys.modules[name]) if name in sys.modules else {}
        if "_IS_INTERACTIVE" in module:
            knew[name], module["_IS_INTERACTIVE"] = module["_IS_INTERACTIVE"], flag
    return knew


def forget_accelerate() -> None:
    """
    Let the next Accelerator of this process look at the environment anew.

    The first one of a process notes what it finds, and all later ones take it from there. A script
    makes one and needs none of this; a notebook makes many.
    """
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()


def quiet() -> None:
    """
    Let frameworks keep to themselves what they miss on this machine, such as a bar of progress.
    """
    warnings.filterwarnings("ignore", message="IProgress not found")
    for name in ("lightning_fabric", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module=name.replace(".", r"\.") + r"\.")
