"""
Room for what has arrived and is not added yet, kept from one call to the next.

The system hands out new memory page by page, as each is first touched. For 4 MiB that is 1,024
interruptions, a third of the time that two ranks take for 8 MiB.

Lesson: 03_ring.
"""

from collections import deque

import torch


class SpareRoom:
    """
    Lend buffers on the CPU, and keep some of those that come back.

    Args:
        num_bytes: Size of each; a multiple of 16, so that it holds whole numbers of any dtype.
        most: How many are kept.
    """

    def __init__(self, num_bytes: int, most: int) -> None:
        self._num_bytes = num_bytes
        self._free = deque(maxlen=most)  # its pop and append are safe in any thread

    def take(self, like: torch.Tensor) -> torch.Tensor:
        """
        Return a flat tensor of uninitialized numbers, of the dtype of another.

        A caller that gives up on it, as when a message fails, keeps it: data may yet arrive there.
        """
        try:
            room = self._free.pop()
        except IndexError:
            room = torch.empty(self._num_bytes, dtype=torch.uint8)
        return room.view(like.dtype)

    def give_back(self, room: torch.Tensor) -> None:
        """
        Take back a tensor that `take` has returned, once nothing arrives there any more.
        """
        self._free.append(room.view(torch.uint8))
