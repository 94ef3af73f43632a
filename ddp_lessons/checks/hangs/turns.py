"""
What a call of task 10.2 was like on a rank, and a store that is slow to set.
"""

import time
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

_SETS_S = 0.3


class SlowStore(dist.FileStore):
    """
    Take a while to set a key, but for the first one of a rank, its own note.

    Args:
        file: The store's file.
        on_set: Function that is called when such a key is about to be set.
    """

    def __init__(self, file, on_set):
        super().__init__(file)
        self._on_set, self._num_set = on_set, 0

    def set(self, key, value):
        """
        Set a key, a while after the call unless it is the first.
        """
        self._num_set += 1
        if self._num_set > 1:
            self._on_set()
            time.sleep(_SETS_S)
        super().set(key, value)


@dataclass
class Turn:
    """
    Hold one call of a rank.

    Args:
        call: The Call.
        by_clock_s: What it took by the clock.
        own_s: The same, less what the rank waited for a core.
        away: The ranks that do not come to it in time, in order.
    """

    call: Any
    by_clock_s: float
    own_s: float
    away: list
