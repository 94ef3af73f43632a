"""
All ways on one table: bytes, ticks, seconds and the loss that is left.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist

from ..workloads import digits_model
from .clock import finish_ticks
from .example import NUM_GRADIENTS, WAYS, make_way, serve, train

if TYPE_CHECKING:
    from ..workloads import Digits
    from .server import Arrival

    Trained = tuple[float, int, list[tuple[int, ...]]]
    Served = tuple[float | None, list[Arrival] | None, int]


def one_slow(rank: int, step: int) -> int:
    """
    Return the ticks of a step if rank 3 is slow in all of them.
    """
    return 3 if rank == 3 else 1


def slow_turns(rank: int, step: int) -> int:
    """
    Return the ticks of a step if each of four ranks is slow in its turn.
    """
    return 3 if step % 4 == rank else 1


def seconds_of(
    name: str, digits: Digits, tick_s: float = 0.01, num_gradients: int = NUM_GRADIENTS // 5
) -> float:
    """
    Measure how long a way takes with one slow rank; it sleeps for its ticks.

    Collective: every rank must call it.

    Args:
        name: One of `WAYS`, or "server".
        digits: The Digits.
        tick_s: Seconds of a tick.
        num_gradients: Gradients of all ranks together.

    Returns:
        float: Seconds until the last rank is through. They differ from run to run.

    Lesson: 14_asynchronous.
    """
    rank, model = dist.get_rank(), digits_model(seed=0)
    options: dict[str, Any] = {
        "num_gradients": num_gradients,
        "pause": lambda step: time.sleep(tick_s * one_slow(rank, step)),
    }
    dist.barrier()
    began_s = time.perf_counter()
    if name == "server":
        serve(model, digits, **options)
    else:
        train(make_way(name, model), digits, **options)
    took_s = torch.tensor([time.perf_counter() - began_s])
    dist.all_reduce(took_s, dist.ReduceOp.MAX)
    return took_s.item()


def compare(
    trained: Sequence[Mapping[str, tuple[Trained, float]]],
    served: Sequence[tuple[Served, Served, Served]],
) -> list[tuple[str, int, int, int, float, float]]:
    """
    Return the rows of the lesson's table.

    Args:
        trained: For each rank {name of a way: (what `train` returned, the loss on own classes)}.
        served: For each rank what `serve` returned with one slow rank, with slow turns, and with
            one slow rank on own classes.

    Returns:
        list: For each way its name, the bytes of the busiest rank, the ticks with one slow rank and
        with slow turns, the loss, and that on own classes.

    Lesson: 14_asynchronous.
    """
    rows: list[tuple] = []
    for name in WAYS:
        (loss, _, _), apart = trained[0][name]
        num_bytes = max(one[name][0][1] for one in trained)
        talks = [one[name][0][2] for one in trained]
        ticks = [finish_ticks(talks, ticks_of) for ticks_of in (one_slow, slow_turns)]
        rows.append((name, num_bytes, *ticks, loss, apart))
    (loss, log, _), (_, in_turns, _), (apart, _, _) = cast(Any, served[0])  # with losses and logs
    num_bytes = max(one[0][2] for one in served)
    return [*rows, ("server", num_bytes, log[-1].tick, in_turns[-1].tick, loss, apart)]
