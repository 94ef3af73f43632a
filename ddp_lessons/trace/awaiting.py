"""
See every way in which Python waits for a call, or makes sure that it is complete.

    work.wait()                     the usual one
    work.is_completed()             once it says yes; a loop around it waits, too
    work.get_future().wait()        and value(), done(); also futures that come of it, by `then` or
                                    by torch.futures.collect_all. Not in their callbacks: those
                                    run when the call is complete, so nobody waits there
    wait_tensor(tensor)             functional collectives: the tensor stands for its call
"""

from __future__ import annotations

import functools
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

import torch
from torch.distributed import Work

from ..private import dispatcher

if TYPE_CHECKING:
    from torch.futures import Future

_FUTURE = dispatcher.future_class()
get_future, is_done, value_of = Work.get_future, _FUTURE.done, _FUTURE.value
"""
torch's own, for a tap that looks at a Work without having waited for it.
"""
_MAX_FUTURES = 128
"""
How many futures are known at a time. Each keeps its Work, and so its tensors, alive.
"""


class _Tap(Protocol):
    # What `tap.Tap` is told and asked here; it imports this module.
    def waited(self, work: Work, start_ns: int) -> None: ...
    def batch_ended(self, work: Work | None) -> None: ...
    def held(self) -> list[tuple[Work, Future[object]]]: ...


class Waits:
    """
    Tell the tap of every wait, and of the Work of every batch, between `install` and `remove`.

    Args:
        tap: Knows the Works that nobody waited for: `tap.waited(work, start_ns)` notes a wait, and
            `tap.held()` lists those that have a future, each with it.
    """

    def __init__(self, tap: _Tap) -> None:
        self._tap = tap
        self._methods = {}  # (class, name) -> torch's own
        self._futures = OrderedDict()  # id of a future -> (it, the Works that it stands for)
        self._asked_ns = {}  # id of a Work -> when it was first found incomplete
        self._library: torch.library.Library | None = None
        self._callback = threading.local()  # `runs`: whether this thread is in a future's callback

    def install(self) -> None:
        """
        Put ours around torch's methods.
        """
        self._around(Work, "wait", self._wait)
        self._around(Work, "is_completed", self._is_completed)
        self._around(Work, "get_future", self._get_future)
        for name in ("wait", "value", "done"):
            self._around(_FUTURE, name, self._future_wait)
        self._around(_FUTURE, "then", self._then)
        self._around(_FUTURE, "add_done_callback", self._add_done_callback)
        self._around(*dispatcher.collect_all_owner(), self._collect_all)
        self._around(*dispatcher.end_coalescing_owner(), self._end_coalescing)
        namespace, name, overload = dispatcher.wait_tensor_operation()
        self._library = torch.library.Library(namespace, "IMPL")
        kernel = self._wait_tensor_kernel(overload)
        self._library.impl(name, kernel, "BackendSelect", with_keyset=True)

    def remove(self) -> None:
        """
        Put torch's own methods back.
        """
        for (owner, name), method in self._methods.items():
            setattr(owner, name, method)
        self._methods.clear()
        self._futures.clear()
        self._asked_ns.clear()
        library, self._library = self._library, None
        dispatcher.destroy_library(library)

    def _around(self, owner, name, ours):
        method = self._methods[owner, name] = getattr(owner, name)

        @functools.wraps(method)
        def traced(*args, **kwargs):
            return ours(method, *args, **kwargs)

        setattr(owner, name, traced)

    def _wait(self, method, work, *args, **kwargs):
        start_ns = self._asked_ns.pop(id(work), time.monotonic_ns())
        result = method(work, *args, **kwargs)
        self._tap.waited(work, start_ns)
        return result

    def _end_coalescing(self, method, group, *args):
        work = method(group, *args)
        self._tap.batch_ended(work)
        return work

    def _is_completed(self, method, work):
        now_ns = time.monotonic_ns()
        is_completed = method(work)
        if is_completed:
            self._tap.waited(work, self._asked_ns.pop(id(work), now_ns))
        else:
            self._asked_ns.setdefault(id(work), now_ns)
        return is_completed

    def _get_future(self, method, work):
        return self._stands_for(method(work), [work])

    def _stands_for(self, future, works):
        # pybind makes a new Python object each time, so this one is kept: ids are not used anew.
        self._futures[id(future)] = (future, works)
        if len(self._futures) > _MAX_FUTURES:
            self._futures.popitem(last=False)
        return future

    def _future_wait(self, method, future):
        start_ns = time.monotonic_ns()
        result = method(future)
        is_waiting = not getattr(self._callback, "runs", False)
        if result is not False and is_waiting:  # what `done` says of one that is not
            for work in self._works_of(future):
                self._tap.waited(work, start_ns)
        return result

    def _then(self, method, future, callback):
        return self._stands_for(method(future, self._noted(callback)), self._works_of(future))

    def _add_done_callback(self, method, future, callback):
        return method(future, self._noted(callback))

    def _noted(self, callback):
        @functools.wraps(callback)
        def called(future):
            runs, self._callback.runs = getattr(self._callback, "runs", False), True
            try:
                return callback(future)
            finally:
                self._callback.runs = runs

        return called

    def _collect_all(self, method, futures):
        works = [work for future in futures for work in self._works_of(future)]
        return self._stands_for(method(futures), works)

    def _works_of(self, future):
        return self._futures.get(id(future), (None, []))[1]

    def _wait_tensor_kernel(self, overload):
        redispatch = dispatcher.redispatch_below_backend_select(overload)

        def wait_tensor(keyset, tensor):
            start_ns = time.monotonic_ns()
            result = redispatch(keyset, tensor)
            for work, future in self._tap.held():
                if is_done(future) and _memory(tensor) in map(_memory, _tensors(value_of(future))):
                    self._tap.waited(work, start_ns)
            return result

        return wait_tensor


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for one in value for tensor in _tensors(one)] if isinstance(value, list) else []


def _memory(tensor):
    return tensor.untyped_storage().data_ptr()
