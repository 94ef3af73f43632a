"""
Record what a rank does in a block of code.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, overload

import torch.distributed as dist

from ..errors import BadInput
from ..private.autograd import current_backward, put_hook_first
from .events import COLLECTIVE, GRADIENT, MARK, MESSAGE, SPAN, Event
from .operations import dtype_name, tensor_bytes
from .tap import TAP

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn


def trace(*models: nn.Module) -> Recorder:
    """
    Record every communication of this rank in a block of code, whoever issues it.

    Seen are calls from Python and from autograd hooks, what DDP's reducer issues in C++, subgroups,
    batches of messages and object collectives, on Gloo, NCCL and every other backend written in
    C++. The group and the DDP model may be older than the block. Outside of one it costs nothing.

    Args:
        models: Modules whose gradients are recorded as they become ready.

    Returns:
        Recorder: A sequence of events and a context manager: `with trace(model) as events:`.

    Lesson: 02_collectives.
    """
    return Recorder(*models)


class Recorder(Sequence[Event]):
    """
    Hold the events of one rank, in the order in which they happened.

    Args:
        models: Modules whose gradients are recorded as they become ready.

    Lesson: 02_collectives.
    """

    def __init__(self, *models: nn.Module) -> None:
        self._models = models
        self._lock = threading.Lock()
        self._events = []
        self._gradients = []  # what hooks noted: (index, time, backward, fields)
        self._indices = count()
        self._threads: dict[int, int] = {}
        self._sequences = {}
        self._backwards = {}
        self._hooks = []
        self._rank = 0
        self._is_on = False

    def start(self) -> Recorder:
        """
        Switch recording on, and return this recorder.

        Raises:
            BadInput: It is on already.
        """
        if self._is_on:
            raise BadInput(
                "The trace is on already: a recorder is started once at a time (got a second "
                "start). Call stop() first, or open another trace()."
            )
        self._rank = dist.get_rank() if dist.is_initialized() else 0
        self._is_on = True
        TAP.open(self)
        for model in self._models:
            for name, parameter in model.named_parameters():
                if parameter.requires_grad:
                    self._hooks.append(_hook_first(parameter, self._gradient_hook(name, parameter)))
        return self

    def stop(self) -> None:
        """
        Switch recording off. Does nothing when it is off.
        """
        if self._is_on:
            self._is_on = False
            TAP.close(self)
            while self._hooks:
                self._hooks.pop().remove()

    def __enter__(self) -> Recorder:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def mark(self, name: str) -> None:
        """
        Record that the code has come to a place, such as the end of a step.
        """
        now = time.monotonic_ns()
        TAP.settle()
        self._append({"kind": MARK, "name": name, "rank": self._rank, "end_ns": now}, now)

    @contextmanager
    def span(self, name: str) -> Iterator[Event]:
        """
        Record how long a part of the code takes, such as the forward pass.
        """
        event = self._append({"kind": SPAN, "name": name, "rank": self._rank})
        try:
            yield event
        finally:
            TAP.settle()
            event.end_ns = time.monotonic_ns()
            event.wait_index = next(self._indices)

    def called(
        self, call: Mapping[str, str | int | tuple[int, ...] | None], graph_task: int
    ) -> tuple[Recorder, Event]:
        """
        Record a call that is about to reach its backend.

        Args:
            call: Fields of Event.
            graph_task: torch's number of the backward pass; -1 outside of one.

        Returns:
            tuple: This recorder and the event, which is completed later.
        """
        event = self._append(call)
        event.backward = self._backward(graph_task)
        event.thread = self._threads.setdefault(threading.get_ident(), len(self._threads))
        return self, event

    def completed(self, event: Event) -> None:
        """
        Record that a call is complete, unless that is known already. Any thread may tell.
        """
        if event.end_ns is None:
            event.end_ns = time.monotonic_ns()

    def waited(self, event: Event, start_ns: int) -> None:
        """
        Record that Python has waited for a call since `start_ns`.
        """
        event.wait_start_ns, event.wait_end_ns = start_ns, time.monotonic_ns()
        event.wait_index = next(self._indices)

    def came_from(self, event: Event, group_rank: int) -> None:
        """
        Record who sent what was received from anyone.
        """
        event.peer = event.ranks[group_rank]
        with self._lock:
            event.sequence = self._next_sequence(event)

    def _gradient_hook(self, name, parameter):
        # The hook runs in the middle of a step, so it only notes; events are made when one reads.
        fields = {
            "kind": GRADIENT, "name": name, "rank": self._rank,
            "output_bytes": tensor_bytes(parameter), "dtype": dtype_name(parameter),
        }  # fmt: skip
        note, next_index = self._gradients.append, self._indices.__next__
        now_ns, backward, task = time.monotonic_ns, self._backward, current_backward()

        def ready(gradient):
            of_this = fields
            if gradient.is_sparse:
                of_this = fields | {"output_bytes": tensor_bytes(gradient)}
            note((next_index(), now_ns(), backward(task()), of_this))

        return ready

    def _read(self):
        """
        Return all events in order, with those that hooks have noted.
        """
        with self._lock:
            noted = self._gradients[:]
            del self._gradients[: len(noted)]
            for index, at_ns, backward, fields in noted:
                times = {"start_ns": at_ns, "end_ns": at_ns}
                self._events.append(Event(index=index, backward=backward, **times, **fields))
            if noted:
                self._events.sort(key=attrgetter("index"))
            return self._events

    def _append(self, fields, start_ns=None):
        with self._lock:
            start_ns = start_ns or time.monotonic_ns()
            event = Event(index=next(self._indices), start_ns=start_ns, **fields)
            if event.kind == COLLECTIVE or (event.kind == MESSAGE and event.peer is not None):
                event.sequence = self._next_sequence(event)
            self._events.append(event)
        return event

    def _next_sequence(self, event):
        is_message = event.kind == MESSAGE
        key = (event.group, *((event.name, event.peer, event.tag) if is_message else ()))
        number = self._sequences.get(key, 0)
        self._sequences[key] = number + 1
        return number

    def _backward(self, graph_task):
        if graph_task < 0:
            return None
        # torch counts all backward passes of the process; a trace counts its own.
        number = self._backwards.get(graph_task)
        if number is not None:
            return number
        with self._lock:
            return self._backwards.setdefault(graph_task, len(self._backwards))

    def __len__(self) -> int:
        return len(self._read())

    @overload
    def __getitem__(self, place: int) -> Event: ...
    @overload
    def __getitem__(self, place: slice) -> list[Event]: ...
    def __getitem__(self, place: int | slice) -> Event | list[Event]:
        return self._read()[place]

    def __iter__(self) -> Iterator[Event]:
        return iter(list(self._read()))

    def __reduce__(self) -> tuple[type[list[Event]], tuple[list[Event]]]:
        return (list, (list(self._read()),))  # events travel; locks and models do not

    def __repr__(self) -> str:
        num_calls = sum(event.is_communication for event in self)
        return f"<trace of rank {self._rank}: {len(self)} events, {num_calls} communications>"


def _hook_first(parameter, hook):
    """
    Call `hook` with a parameter's gradient before any hook that is there already.

    A hook that communicates as soon as it has the last gradient would otherwise seem to start
    before that gradient was ready.
    """
    handle = parameter.register_hook(hook)
    put_hook_first(parameter, handle.id)
    return handle
