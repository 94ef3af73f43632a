"""
A record of one call of task 10.2 on a rank, and a store that is slow to set keys.
"""

import time
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

_SETS_S = 0.3


class SlowStore(dist.FileStore):
    """
    A FileStore that is slow to set each key of a rank but the first, which is the rank's own note.

    Args:
        file: The store's file.
        on_set: Function without arguments that is called before a slow key is set.
    """

    def __init__(self, file, on_set):
        super().__init__(file)
        self._on_set, self._num_set = on_set, 0

    def set(self, key, value):
        """
        Set a key. Each one but the first is set 0.3 s after the call.
        """
        self._num_set += 1
        if self._num_set > 1:
            self._on_set()
            time.sleep(_SETS_S)
        super().set(key, value)


@dataclass
class Turn:
    """
    One call of a rank, with its duration.

    Args:
        call: The Call.
        by_clock_s: Its duration by the clock.
        own_s: Its duration without the time in which the rank waited for a core.
        away: The ranks that do not come to the call in time, in order.
    """

    call: Any
    by_clock_s: float
    own_s: float
    away: list
