"""
Listen to every call of every process group of this process, without touching one of them.

The reducer of DDP, the hooks of autograd, functional collectives and Python calls all meet in
torch's dispatcher, at the operations of the namespace `c10d`. A kernel under the key BackendSelect
is asked just before the backend's own, whatever the device, the grad mode and the thread. It notes
the call and passes it on. So a group, or a DDP model, may be older than the trace; and when the
kernels are gone the dispatcher's table is as it was.

Waits are seen whichever way they go: `Work.wait`, a look at `is_completed` that finds it complete,
the future of a Work and those made from it, and the `wait_tensor` of functional collectives.

Not seen: a process group that is itself written in Python, because it overrides the methods that
would ask the dispatcher.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import OrderedDict
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed.utils
from torch.distributed import Work

from ..private import dispatcher, process_groups
from ..private.autograd import current_backward
from .awaiting import Waits, get_future, is_done, value_of
from .operations import OPERATIONS, read_call

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.futures import Future

    from .events import Event

MAX_LINGER_S = 1.0
"""
How long closing waits for backend threads that are about to tell of calls that are complete.
"""

MAX_HELD_WORKS = 32
"""
How many handles that nobody waited for are kept. Each keeps its tensors alive.
"""

_WAITS_BY_ITSELF = str(Path(torch.distributed.utils.__file__))
"""
What torch calls from here, such as the broadcast of a module's states, waits in C++ before it
comes back.
"""


class _Recorder(Protocol):
    # What a tap asks of `recorder.Recorder`, which imports this module.
    def called(
        self, call: Mapping[str, str | int | tuple[int, ...] | None], graph_task: int
    ) -> tuple[_Recorder, Event]: ...
    def completed(self, event: Event) -> None: ...
    def waited(self, event: Event, start_ns: int) -> None: ...
    def came_from(self, event: Event, group_rank: int) -> None: ...


class Tap:
    """
    Tell recorders of every call, and of every wait from Python, while at least one is open.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._recorders: tuple[_Recorder, ...] = ()
        self._library: torch.library.Library | None = None
        self._waits = Waits(self)
        self._held = OrderedDict()  # id of a Work -> (the Work, its future, its events)
        self._untold = {}  # number of a call -> its future, until the backend's thread has told us
        self._numbers = count()
        self._batch = threading.local()  # `events`: of messages that wait for their batch's end

    def open(self, recorder: _Recorder) -> None:
        """
        Tell `recorder` of all calls from now on. The first one puts the kernels in place.
        """
        with self._lock:
            self._recorders += (recorder,)
            if self._library is None:
                self._install()

    def close(self, recorder: _Recorder) -> None:
        """
        Tell `recorder` no more. The last one takes the kernels away.
        """
        self.settle()
        self._linger()
        with self._lock:
            self._recorders = tuple(other for other in self._recorders if other is not recorder)
            if not self._recorders and self._library is not None:
                self._remove()

    def settle(self) -> None:
        """
        Give an end to all calls that are complete by now.

        When a call completes, C++ may wake the thread that waits before it tells us.
        """
        with self._lock:
            held = list(self._held.values())
        for _, future, events in held:
            if future is not None and is_done(future):
                _complete(events, future)

    def _linger(self):
        # A backend's thread that still wants to run Python when the interpreter ends would kill it.
        deadline = time.monotonic() + MAX_LINGER_S
        while time.monotonic() < deadline:
            if not any(map(is_done, list(self._untold.values()))):
                return
            time.sleep(0.0002)

    def _install(self):
        self._library = torch.library.Library("c10d", "IMPL")
        for name, operation in OPERATIONS.items():
            kernel = self._kernel(getattr(torch.ops.c10d, name).default, operation)
            self._library.impl(name, kernel, "BackendSelect", with_keyset=True)
        self._waits.install()

    def _remove(self):
        library, self._library = self._library, None
        dispatcher.destroy_library(library)
        self._waits.remove()
        self._held.clear()  # a Work of Gloo keeps its sockets open

    def _kernel(self, overload, operation):
        redispatch = dispatcher.redispatch_below_backend_select(overload)
        graph_task = current_backward()

        def kernel(keyset, *args):
            call = read_call(operation, args)
            events = [recorder.called(call, graph_task()) for recorder in self._recorders]
            result = redispatch(keyset, *args)
            # None in the thread that autograd has for a GPU: nothing of Python is below it.
            caller = sys._getframe().f_back
            if caller is not None and caller.f_code.co_filename == _WAITS_BY_ITSELF:
                self._watch(events, None)
            else:
                self._watch(events, result[-1] if isinstance(result, tuple) else result)
            return result

        return kernel

    def _watch(self, events, boxed_work):
        work = None if boxed_work is None else Work.unbox(boxed_work)
        if work is None:
            self._watch_without_work(events)
        else:
            self._hold(work, events)

    def _watch_without_work(self, events):
        """
        Note calls that the backend gave no Work for.

        The call itself waited, as monitored_barrier does, or what comes after it is ordered after
        it, as NCCL does on a GPU's stream. Or it is a message of NCCL in a batch, which has one
        Work for all, at its end.
        """
        for recorder, event in events:
            if event.is_send or event.is_receive:
                self._batch.__dict__.setdefault("events", []).append((recorder, event))
            else:
                recorder.completed(event)
                recorder.waited(event, event.start_ns)

    def batch_ended(self, work: Work | None) -> None:
        """
        Note the one Work of all messages that this thread has batched.
        """
        events = self._batch.__dict__.pop("events", [])
        if work is not None and events:
            self._hold(work, events)

    def _hold(self, work, events):
        try:
            future = get_future(work)
        except RuntimeError:
            future = None  # Gloo's messages have none: they are complete when a wait returns
        with self._lock:
            # As long as this handle lives, pybind11 gives the same Python object to the caller.
            self._held[id(work)] = (work, future, events)
            if len(self._held) > MAX_HELD_WORKS:
                self._held.popitem(last=False)
        if future is not None:
            number = next(self._numbers)
            self._untold[number] = future

            def tell(future):
                _complete(events, future)
                self._untold.pop(number, None)

            future.add_done_callback(tell)

    def waited(self, work: Work, start_ns: int) -> None:
        """
        Note that Python has waited for a Work since `start_ns`.
        """
        with self._lock:
            *_, events = self._held.pop(id(work), (None, None, ()))
        for recorder, event in events:
            if event.name == "recv" and event.peer is None:
                recorder.came_from(event, process_groups.source_rank(work))
            recorder.completed(event)
            recorder.waited(event, start_ns)

    def held(self) -> list[tuple[Work, Future[object]]]:
        """
        Return each Work that nobody has waited for yet and its future, if it has one.
        """
        with self._lock:
            return [(work, future) for work, future, _ in self._held.values() if future is not None]


def _complete(events, future):
    try:
        value_of(future)
    except Exception:
        return  # it failed: it has no end
    for recorder, event in events:
        recorder.completed(event)


TAP = Tap()
"""
The one tap. The table of torch's dispatcher is one per process, and this mirrors it.
"""
