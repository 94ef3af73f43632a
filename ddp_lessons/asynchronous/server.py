"""
A parameter server: one rank keeps the weights, the others send it gradients when they have one.

Legend: G weights. The server counts updates: version v of the weights is what v gradients made.
A worker gets version v, computes a gradient there, and sends it; by then the server may be at
version v + a. The gradient's age is a.

    server to worker    (G + 1,): weights, and 1 to go on or 0 to stop
    worker to server    (G,): a gradient

A bound of b: nobody begins a step while it has made b + 1 more steps than the slowest worker, or
more. It waits for its weights until it may. So while the slowest makes one step, each of the other
k - 1 workers can make b + 1, and no gradient of it is older than (k - 1) (b + 1). While any other
worker makes one, the rest may come from b steps behind it to b + 1 ahead: (k - 1) (2 b + 1).

Source: M. Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014
(the server); Q. Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel
Parameter Server", NeurIPS 2013 (the bound).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ..errors import BadInput
from .lockstep import members
from .weights import set_gradient, set_weights, weights_of

if TYPE_CHECKING:
    from .clock import Clock

_TAG = 14_001  # so that nothing here meets a message of the caller's


@dataclass(frozen=True)
class Arrival:
    """
    Record a gradient that the server has applied.

    Args:
        worker: The rank that computed it.
        step: Which of the worker's steps it was, from 0.
        age: How many updates were made since the worker got its weights.
        began: Tick at which the worker got its weights, if a clock decides; else None.
        tick: Tick at which the gradient came.
    """

    worker: int
    step: int
    age: int
    began: int | None = None
    tick: int | None = None


class Server:
    """
    Keep a model's weights, and step by each worker's gradient as it comes.

    Args:
        model: The model; its weights are the first ones.
        optimizer: The optimizer of its parameters.
        bound: How many steps a worker may be ahead of the slowest when it begins one; None: any.
        clock: A `Clock` that says whose gradient is next; None: whoever's comes first.
        group: The process group, or None for the default group. All its other ranks are workers.

    Raises:
        BadInput: The bound is negative, nobody can work, or the group cannot take whoever comes
            first.

    Lesson: 14_asynchronous.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        bound: int | None = None,
        clock: Clock | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.model, self.optimizer, self.group = model, optimizer, group
        self.bound, self.clock = bound, clock
        self.workers = [rank for rank in members(group) if rank != dist.get_rank()]
        if not self.workers:
            raise BadInput(
                "Nobody works: a server needs one other rank at least (got a group of 1). Start "
                "more ranks."
            )
        if bound is not None and bound < 0:
            raise BadInput(
                f"Bad bound: expected 0 or more steps ahead of the slowest (got {bound}). Pass 0 "
                "for steps in turns, None for no bound."
            )
        if dist.get_backend(group) == "nccl":
            raise BadInput(
                "No such receive: a server takes whoever comes first, which Gloo can and NCCL "
                'cannot (got NCCL). Pass group=dist.new_group(backend="gloo").'
            )

    def run(self, num_updates: int) -> list[Arrival]:
        """
        Make updates until there are enough, then send the workers home.

        Args:
            num_updates: How many gradients to apply. Those that are under way then are dropped.

        Returns:
            list of Arrival: One for each update, in order.
        """
        num_steps = dict.fromkeys(self.workers, 0)
        given = {}  # worker -> version of its weights, and when it got them
        waiting, log = list(self.workers), []
        while len(log) < num_updates:
            slowest = min(num_steps.values())
            ready = [worker for worker in waiting if self._may_begin(num_steps[worker] - slowest)]
            for worker in ready:
                self._give(worker, go_on=True)
                given[worker] = len(log), self.clock and self.clock.now
                waiting.remove(worker)
            worker, gradient = self._take()
            set_gradient(self.model, gradient)
            self.optimizer.step()
            (version, began), tick = given[worker], self.clock and self.clock.now
            log.append(
                Arrival(
                    worker,
                    num_steps[worker],
                    len(log) - version,
                    began,  # type: ignore[arg-type]  # a Clock is never false
                    tick,  # type: ignore[arg-type]  # the same
                )
            )
            num_steps[worker] += 1
            waiting.append(worker)
        self._send_home(waiting)
        return log

    def _may_begin(self, num_ahead):
        return self.bound is None or num_ahead <= self.bound

    def _give(self, worker, go_on):
        weights = weights_of(self.model)
        message = torch.cat([weights, weights.new_tensor([float(go_on)])]).cpu()
        dist.send(message, worker, group=self.group, tag=_TAG)
        if go_on and self.clock is not None:
            self.clock.begin(worker)

    def _take(self):
        weights = weights_of(self.model)
        gradient = torch.empty_like(weights, device="cpu")
        source = None if self.clock is None else self.clock.next()
        worker = dist.recv(gradient, source, group=self.group, tag=_TAG)
        return worker, gradient.to(weights.device)

    def _send_home(self, waiting):
        under_way = [worker for worker in self.workers if worker not in waiting]
        for worker in waiting:
            self._give(worker, go_on=False)
        for _ in under_way:
            worker, _ = self._take()
            self._give(worker, go_on=False)


def work(
    model: torch.nn.Module,
    gradient_at: Callable[[int], torch.Tensor],
    server: int = 0,
    group: dist.ProcessGroup | None = None,
) -> int:
    """
    Compute gradients for a server until it says stop.

    Args:
        model: A model like the server's; its weights are overwritten.
        gradient_at: Function of the number of the step, from 0, that computes the gradient of the
            model as it is, and returns it, (G,).
        server: The server's rank in the default group.
        group: The process group, or None for the default group.

    Returns:
        int: How many gradients were sent.

    Lesson: 14_asynchronous.
    """
    weights = weights_of(model)
    message = torch.empty(len(weights) + 1, dtype=weights.dtype)
    for step in range(2**62):
        dist.recv(message, server, group=group, tag=_TAG)
        if not message[-1]:
            break
        set_weights(model, message[:-1].to(weights.device))
        dist.send(gradient_at(step).cpu(), server, group=group, tag=_TAG)
    return step


def worker_spans(log: Iterable[Arrival], world_size: int) -> list[list[tuple[str, int, int, str]]]:
    """
    Return when each worker computed and when it waited, as `pictures.timeline_picture` takes it.

    Args:
        log: Arrivals with ticks.
        world_size: Number of ranks, the server's among them.

    Returns:
        list: For each rank its spans (kind, start, stop, label); the server's are none.
    """
    tracks = [[] for _ in range(world_size)]
    ended = [0] * world_size
    for arrival in log:
        own = tracks[arrival.worker]
        if arrival.began > ended[arrival.worker]:  # type: ignore[operator]  # there is a clock
            own.append(("waiting", ended[arrival.worker], arrival.began, "waits"))
        own.append(("compute", arrival.began, arrival.tick, f"age {arrival.age}"))
        ended[arrival.worker] = arrival.tick  # type: ignore[assignment]  # the same
    return tracks
