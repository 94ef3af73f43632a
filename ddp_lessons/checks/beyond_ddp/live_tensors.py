"""
A count of the memory that is alive: of all tensors that a piece of code made, whatever holds them.

C++ holds the tensors that autograd has saved for backward, where Python's garbage collector does
not look. Therefore a mode sees every operation, and keeps a weak reference to the memory of each
result.
"""

import gc
import os
import time

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ddp_lessons.private.dispatcher import dispatch_mode, tree_leaves
from ddp_lessons.private.storages import address_of, storage_at
from ddp_lessons.ranks.system.thread_stats import thread_stats_of

MAX_LINGER_S = 5.0
"""
Seconds to wait for memory that should be gone, if threads of the backend do not come to rest.
"""
_LOOKS_AT_REST = 10
_LOOK_EVERY_S = 0.02


class Alive(dispatch_mode()):  # type: ignore[misc]  # a class of torch
    """
    A mode that notes the memory of each tensor that is made in its `with` block.

    Args:
        most_bytes: Number of bytes that may be alive.
    """

    def __init__(self, most_bytes):
        super().__init__()
        self._most_bytes, self._was_more = most_bytes, False
        self._seen = {}  # {address of a storage: a reference that reserves it}

    @classmethod
    def _should_skip_dynamo(cls):
        # True would import torch's compiler, only to disable it in this mode: seconds on each rank.
        return False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
                reference = StorageWeakRef(tensor.untyped_storage())
                self._seen.setdefault(reference.cdata, reference)
        return result

    def num_bytes(self, besides=()):
        """
        Return the number of bytes that are alive now.

        A thread of the backend may hold the tensors of a call for a moment after the wait for the
        call. So memory that should be gone is counted again, until all threads have slept at ten
        looks in a row.

        Args:
            besides: Tensors or None. The bytes of these tensors do not count. The rest of a view's
                storage does.
        """
        now = self._count(besides)
        if now <= self._most_bytes or self._was_more:
            return now
        gc.collect()
        deadline, num_at_rest = time.monotonic() + MAX_LINGER_S, 0
        while (now := self._count(besides)) > self._most_bytes and not self._was_more:
            pulse = thread_stats_of(os.getpid())
            num_at_rest = num_at_rest + 1 if pulse is not None and pulse.others_sleep else 0
            self._was_more = num_at_rest == _LOOKS_AT_REST or time.monotonic() > deadline
            time.sleep(_LOOK_EVERY_S)
        return now

    def _count(self, besides):
        known: dict = {}
        for tensor in {id(one): one for one in besides if one is not None}.values():
            address = address_of(tensor.untyped_storage())
            known[address] = known.get(address, 0) + tensor.nbytes
        total = 0
        for address, reference in self._seen.items():
            storage = storage_at(address)
            if not reference.expired() and storage is not None:
                total += max(0, storage.nbytes() - known.get(address, 0))
        return total
