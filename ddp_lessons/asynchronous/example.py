"""
What the lesson trains: digits, in five ways, on samples that are spread or sorted by class.

Shapes: N samples of a step, images (N, 64), labels (N,).

`spread`: each rank draws from all samples. Otherwise it draws from classes of its own, so that no
two ranks see the same digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW

from ..trace import trace
from ..workloads import rank_generator
from .clock import Clock
from .gossip import Gossip
from .local import DiLoCo, LocalSGD
from .lockstep import Lockstep
from .server import Server, work
from .weights import gradient_of, set_gradient

if TYPE_CHECKING:
    from ..trace import Event
    from ..workloads import Digits
    from .server import Arrival

NUM_GRADIENTS = 560
"""
How many gradients a run computes, over all ranks.
"""
EVERY = 14
"""
Steps between two meetings.
"""
WAYS = ("lockstep", "local SGD", "DiLoCo", "gossip")
"""
Ways in which all ranks make equally many steps, in the order of the table.
"""
BATCH_SIZE = 32
"""
Samples of one gradient.
"""


def _no_pause(step):
    """
    Do nothing beside a step.
    """


def draw(
    digits: Digits, rank: int, num_ranks: int, step: int, spread: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Return the samples of one step of a rank: images (N, 64) and labels (N,).

    Args:
        digits: The Digits.
        rank: Whose samples, from 0.
        num_ranks: Among how many ranks classes are divided.
        step: Number of the step: the same samples on every run.
        spread: Whether all ranks draw from all classes.

    Lesson: 14_asynchronous.
    """
    mine = torch.arange(len(digits.train_labels))
    if not spread:
        mine = (digits.train_labels.cpu() * num_ranks // 10 == rank).nonzero().flatten()
    draws = torch.randint(len(mine), (BATCH_SIZE,), generator=rank_generator(1, rank, step))
    chosen = mine[draws]
    chosen = chosen.to(digits.train_labels.device)
    return digits.train_images[chosen], digits.train_labels[chosen]


def backward(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    """
    Add the gradient of the mean loss over some samples to `.grad`.
    """
    cross_entropy(model(images), labels).backward()


def make_way(name: str, model: torch.nn.Module) -> Lockstep | LocalSGD | Gossip:
    """
    Return a way to train, by its name in the lesson's table.

    Args:
        name: One of `WAYS`.
        model: The model.

    Lesson: 14_asynchronous.
    """
    ways: dict[str, Callable[[], Lockstep | LocalSGD | Gossip]] = {
        "lockstep": lambda: Lockstep(model, SGD(model.parameters(), lr=0.3)),
        "local SGD": lambda: LocalSGD(model, SGD(model.parameters(), lr=0.3), EVERY),
        "DiLoCo": lambda: DiLoCo(model, AdamW(model.parameters(), lr=0.003), EVERY),
        "gossip": lambda: Gossip(model, SGD(model.parameters(), lr=0.3)),
    }
    return ways[name]()


def train(
    way: Lockstep | LocalSGD | Gossip,
    digits: Digits,
    spread: bool = True,
    num_gradients: int = NUM_GRADIENTS,
    pause: Callable[[int], object] = _no_pause,
) -> tuple[float, int, list[tuple[int, ...]]]:
    """
    Train a model in some way; all ranks make equally many steps.

    Collective: every rank must call it.

    Args:
        way: A Lockstep, LocalSGD, DiLoCo or Gossip.
        digits: The Digits.
        spread: Whether all ranks draw from all classes.
        num_gradients: Gradients of all ranks together.
        pause: Function of the number of a step that is called in it.

    Returns:
        tuple: The loss over all training digits, the bytes that this rank handed over, and for each
        step the ranks that it talked with.

    Lesson: 14_asynchronous.
    """
    rank, num_ranks, talks = dist.get_rank(), dist.get_world_size(), []
    with trace() as events:
        for step in range(num_gradients // num_ranks):
            pause(step)
            backward(way.model, *draw(digits, rank, num_ranks, step, spread))
            talks.append(way.step())
        way.finish()
    return whole_loss(way.model, digits), bytes_given(events), talks


def serve(
    model: torch.nn.Module,
    digits: Digits,
    step_ticks: Callable[[int, int], int] | None = None,
    lr: float = 0.1,
    bound: int | None = None,
    spread: bool = True,
    num_gradients: int = NUM_GRADIENTS,
    pause: Callable[[int], object] = _no_pause,
) -> tuple[float | None, list[Arrival] | None, int]:
    """
    Train a model by a server, which is rank 0, and its workers, all other ranks.

    Collective: every rank must call it.

    Args:
        model: The model, the same on every rank; rank 0's is the one that is trained.
        digits: The Digits.
        step_ticks: Function (rank, step) that says how many ticks a step takes; None: whoever
            comes first is served, without a clock.
        lr: The learning rate of the server.
        bound: How many steps a worker may be ahead; None: any.
        spread: Whether all workers draw from all classes.
        num_gradients: How many gradients the server applies.
        pause: Function of the number of a step that is called in it.

    Returns:
        tuple: The loss over all training digits and the log, which others than rank 0 do not have,
        and the bytes that this rank handed over.

    Lesson: 14_asynchronous.
    """
    rank, num_workers = dist.get_rank(), dist.get_world_size() - 1
    loss, log = None, None

    def gradient_at(step):
        pause(step)
        model.zero_grad()
        backward(model, *draw(digits, rank - 1, num_workers, step, spread))
        return gradient_of(model)

    with trace() as events:
        if rank == 0:
            clock = None if step_ticks is None else Clock(step_ticks)
            server = Server(model, SGD(model.parameters(), lr=lr), bound, clock)
            log = server.run(num_gradients)
        else:
            work(model, gradient_at)
    if rank == 0:
        loss = whole_loss(model, digits)
    return loss, log, bytes_given(events)


def own_items(rank: int, num_items: int) -> Callable[[], tuple[int, int] | None]:
    """
    Return a function that hands out a rank's own items (rank, number) one by one, then None.

    Lesson: 14_asynchronous.
    """
    items = iter([(rank, number) for number in range(num_items)])
    return lambda: next(items, None)


def step_of_items(
    model: torch.nn.Module,
    digits: Digits,
    take: Callable[[], tuple[int, int] | None],
    item_ticks: int,
    lr: float,
) -> tuple[int, int]:
    """
    Make one step from items of work: an item is the gradient of one batch.

    A rank begins an item when it is through with the one before. Ranks count ticks together, so
    that who is fast does not depend on the machine.

    Collective: every rank must call it.

    Args:
        model: The model, the same on every rank.
        digits: The Digits.
        take: Function that returns this rank's next item, (owner, number), or None.
        item_ticks: How many ticks an item takes on this rank.
        lr: The learning rate of the step.

    Returns:
        tuple: How many items this rank did, and after how many ticks all were done.

    Lesson: 14_asynchronous.
    """
    num_ranks, num_done, tick, busy_until = dist.get_world_size(), 0, 0, 0
    model.zero_grad()
    while True:
        if busy_until == tick and (item := take()) is not None:
            backward(model, *draw(digits, item[0], num_ranks, item[1]))
            num_done, busy_until = num_done + 1, tick + item_ticks
        num_busy = torch.tensor([busy_until > tick]).float()
        dist.all_reduce(num_busy)
        if not num_busy:
            break
        tick += 1
        busy_until = max(busy_until, tick)
    # Ranks have done unequally many: sums, and one division by the number of all.
    gradient = gradient_of(model)
    total = torch.cat([gradient, gradient.new_tensor([num_done])])
    dist.all_reduce(total)
    set_gradient(model, total[:-1] / total[-1])
    SGD(model.parameters(), lr=lr).step()
    return num_done, tick


def bytes_given(events: Iterable[Event]) -> int:
    """
    Return the bytes that a rank handed over to its calls, in messages and collectives.
    """
    return sum(event.input_bytes for event in events)


def whole_loss(model: torch.nn.Module, digits: Digits) -> float:
    """
    Return the mean loss over all training digits; no gradient is left.
    """
    with torch.no_grad():
        return cross_entropy(model(digits.train_images), digits.train_labels).item()
