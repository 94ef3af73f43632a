"""
A small run with everything that a checkpoint can forget.

Shapes: N samples, images (N, F). Legend: rank r of w, each with a seed and a shard of its own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, dropout
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler

from ddp_lessons.samplers import ResumableSampler

from .faults import place
from .state import Run

if TYPE_CHECKING:
    from pathlib import Path


def make_run(model: torch.nn.Module, images: torch.Tensor, idle_pass: bool = True) -> Run:
    """
    Make a run of momentum, a falling rate, a shuffle that knows its place, and random numbers.

    DDP orders its buckets anew when its second forward begins. A gradient's place in its bucket
    says in which order ranks are added, and from three ranks on that order shows in the last bits.
    So a resumed run would make its first step with other bits than the one that went on. One idle
    pass puts that behind every run.

    Collective: every rank must call it.

    Args:
        model: Equal on all ranks, or DDP takes that of rank 0.
        images: (N, F) float32, all of them on every rank.
        idle_pass: False leaves it out, to see what becomes of the last bits.

    Returns:
        Run: At step 0. Torch's generator has the rank for a seed, so that each rank's noise is
        another.

    Lesson: 08_checkpoint.
    """
    rank, world_size = place()
    torch.manual_seed(rank)
    model = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if idle_pass:
        model(images[:1]).sum().backward()
        optimizer.zero_grad()
    return Run(
        model,
        optimizer,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.5),
        sampler=ResumableSampler(range(len(images)), rank=rank, world_size=world_size),
    )


class KillsWhenSaved:
    """
    An object whose process is killed when `torch.save` comes to it, with the file begun.

    Lesson: 08_checkpoint.
    """

    def __reduce__(self) -> NoReturn:  # type: ignore[misc]  # nobody comes back
        os.kill(os.getpid(), signal.SIGKILL)


def flip_bit(path: Path, tensor: torch.Tensor) -> None:
    """
    Flip one bit of a tensor's first number, where it stands in a file.

    Args:
        path: The file.
        tensor: A tensor that the file holds; float32, so that a 1.0 becomes infinite.

    Lesson: 08_checkpoint.
    """
    data = bytearray(path.read_bytes())
    data[data.index(tensor.numpy().tobytes()) + 3] ^= 64
    path.write_bytes(data)


def train(  # type: ignore[return]  # noqa: RET503 - its epochs do not end
    run: Run, images: torch.Tensor, labels: torch.Tensor, num_steps: int
) -> float:
    """
    Make some more steps of 16 samples a rank, with noise on the images, and return the last loss.

    Collective: every rank must call it.

    Args:
        run: From `make_run`, at any step.
        images: (N, F) float32, all of them on every rank.
        labels: (N,) int64.
        num_steps: Steps to make, at least 1.

    Returns:
        float: The loss of this rank's last batch.

    Lesson: 08_checkpoint.
    """
    last_step = run.step + num_steps
    run.sampler.load_state_dict(run.sampler.state_dict())  # go on where the last call left
    for epoch in run.remaining_epochs(float("inf")):
        run.sampler.set_epoch(epoch)
        for batch in BatchSampler(run.sampler, 16, drop_last=False):  # type: ignore[arg-type]
            loss = cross_entropy(run.model(dropout(images[batch], 0.1)), labels[batch])
            run.optimizer.zero_grad()
            loss.backward()
            run.optimizer.step()
            run.scheduler.step()
            run.step += 1
            if run.step == last_step:
                return loss.item()


def weights_of(run: Run) -> torch.Tensor:
    """
    Return a copy of all weights of a run as one vector, on the CPU.

    Lesson: 08_checkpoint.
    """
    return torch.cat([p.detach().flatten() for p in run.model.parameters()]).cpu()


def forget(state: Mapping[str, Any], fresh: Mapping[str, Any], part: str) -> dict[str, Any]:
    """
    Return a captured state in which one part is that of a fresh run, as if it had not been saved.

    Args:
        state: The state that `capture` returned.
        fresh: The state that `capture` returned for a run at step 0.
        part: "optimizer", "scheduler", or of every rank "rng" or "sampler". Any other is no part:
            nothing is forgotten.

    Returns:
        dict: The other parts are those of `state`.

    Lesson: 08_checkpoint.
    """
    ranks = [
        {**own, part: new[part]} if part in own else own
        for own, new in zip(state["ranks"], fresh["ranks"], strict=True)
    ]
    return {**state, "ranks": ranks, **({part: fresh[part]} if part in state else {})}
