"""
Queues of work for ranks of which some are slow. How slow they are depends on the other ranks, and
not on the machine.

- No rank ends its first item before every rank has begun an item or has returned.
- A slow rank ends its first item only when all items of all ranks have been begun, or all fast
  ranks have returned. So it begins a second item only if the fast ranks left one.
- No fast rank ends the first item that it has stolen before all fast ranks have stolen an item or
  have returned. So a fast rank that does not help returns while there is work.

A read of a counter, `add(key, 0)`, is followed by a ghost: it takes the next item at that moment,
as another rank might. It does so at the first read of each key by each rank, and when one item is
left.
"""

import torch
import torch.distributed as dist


class Work:
    """
    The work of all ranks as this rank sees it: a store that counts items, and a function to do one.

    Args:
        store: A store that all ranks of the case share, without keys yet.
        sizes: The number of items of each rank.
        slow: The slow ranks.

    Attributes:
        done: (owner, number) of each item that this rank did, in order.
        ghosts: (owner, number) of each item that the ghost took.
        added: (key, amount) of each call of `add`.
        left: Number of items that no rank had begun when this slow rank's first item ended; 0 on
            fast ranks.
        hoarded: Number of these items that a rank had taken.
        untaken: Number of items that no rank had taken when the answer returned on this rank.
        held: The most items that this rank had taken and not begun while it began another one.
    """

    def __init__(self, store, sizes, slow):
        self._store, self._sizes = store, sizes
        self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
        self._is_slow, self._num_fast = self._rank in slow, self._world_size - len(slow)
        self._has_stolen = False
        self.done, self.ghosts, self.added = [], [], []
        self.left, self.hoarded, self.untaken = 0, 0, 0
        self.held, self._num_taken = 0, 0

    def add(self, key, amount):
        """
        Add to a counter and return the new number, as one atomic operation.
        """
        if key not in map(str, range(self._world_size)) or type(amount) is not int:
            raise ValueError(
                f"No such counter: expected str(rank) and a whole number (got {key!r} and "
                f"{amount!r}). Count the items of a rank under its number, as a string."
            )
        number = self._store.add(f"taken {key}", amount)
        num_left = self._sizes[int(key)] - number
        is_ghosts_turn = (key, 0) not in self.added or num_left == 1
        if amount == 0 and is_ghosts_turn and self._world_size > 1 and num_left > 0:
            self._play_ghost(int(key))
        self.added.append((key, amount))
        size = self._sizes[int(key)]
        self._num_taken += max(0, min(number, size) - min(number - amount, size))
        return number

    def _play_ghost(self, owner):
        number = self._store.add(f"taken {owner}", 1) - 1
        if number < self._sizes[owner]:
            self.ghosts.append((owner, number))
            self._note_begun()

    def do(self, owner, number):
        """
        Do one item.

        Args:
            owner: The rank whose item it is.
            number: The item's number, from 0.

        Returns:
            torch.Tensor: (2,), the owner and the number.
        """
        if owner not in range(self._world_size) or number not in range(self._sizes[owner]):
            raise ValueError(
                f"No such item: expected a rank and a number below its size (got rank {owner}, "
                f"number {number}). Sizes are {self._sizes}."
            )
        self.done.append((owner, number))
        self.held = max(self.held, self._num_taken - len(self.done))
        self._note_begun()
        if len(self.done) == 1:
            self._wait_for_all("all have begun", self._world_size)
            if self._is_slow:
                self._store.wait(["slow may end"])
                self.left = max(0, sum(self._sizes) - self._store.add("begun", 0))
                self.hoarded = max(0, self.left - self._num_untaken())
        if owner != self._rank and not self._is_slow and not self._has_stolen:
            self._has_stolen = True
            self._wait_for_all("all have stolen", self._num_fast)
        return torch.tensor([owner, number], dtype=torch.float64)

    def leave(self):
        """
        Note that the answer has returned on this rank.
        """
        self.untaken = self._num_untaken()
        if not self.done:
            self._note("all have begun", self._world_size)
        if self._is_slow:
            return
        if not self._has_stolen:
            self._note("all have stolen", self._num_fast)
        if self._store.add("fast ranks gone", 1) == self._num_fast:
            self._store.set("slow may end", "")

    def _num_untaken(self):
        taken = [self._store.add(f"taken {owner}", 0) for owner in range(self._world_size)]
        return sum(max(0, n - m) for n, m in zip(self._sizes, taken, strict=True))

    def _note_begun(self):
        if self._store.add("begun", 1) == sum(self._sizes):
            self._store.set("slow may end", "")

    def _note(self, what, num_needed):
        if self._store.add(f"how many: {what}", 1) == num_needed:
            self._store.set(what, "")

    def _wait_for_all(self, what, num_needed):
        self._note(what, num_needed)
        self._store.wait([what])
