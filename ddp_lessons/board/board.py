"""
What a board knows at this moment: columns, rows from wherever they come, and who wants to be told.
"""

import asyncio
import json
import time

from ddp_lessons.board import view

AGAIN_S = 15.0
"""
After so many seconds a page is drawn again without a change: who is stuck depends on the time.
"""
_END_S = 2.0
_LOOK_EVERY_S = 0.02


class Board:
    """
    Hold what the page shows: columns, and rows from wherever they come.

    Args:
        columns: The Columns.
        people: The People, or None if nobody can send.
        sources: Whatever else has `rows()`.
        address: Where learners reach the board; None if they send nothing.
        clock: Function that returns seconds since 1970.
    """

    def __init__(self, columns, people=None, sources=(), address=None, clock=time.time):
        self.columns = columns
        self.people = people
        self.address = address
        self.num_streams = 0
        self.is_over = False
        self._sources = [*([people] if people else []), *sources]
        self._clock = clock
        self._tick = asyncio.Event()
        self._told: tuple = (None, "")

    @property
    def tick(self):
        """
        An event that the next change sets.
        """
        return self._tick

    def rows(self):
        """
        Return all Rows.
        """
        return [row for source in self._sources for row in source.rows()]

    def changed(self):
        """
        Have all pages drawn again.
        """
        tick, self._tick = self._tick, asyncio.Event()
        tick.set()

    async def end(self):
        """
        Have all pages' streams end, and wait for them; not for a page that does not read.
        """
        self.is_over = True
        self.changed()
        give_up_at = time.monotonic() + _END_S
        while self.num_streams and time.monotonic() < give_up_at:
            await asyncio.sleep(_LOOK_EVERY_S)

    def told(self):
        """
        Return what the page shows now, as JSON. Reckoned once for all who look.
        """
        now_s = self._clock()
        mark = self._tick, now_s // AGAIN_S
        if self._told[0] != mark:
            shown = view.board(self.columns, self.rows(), now_s)
            if self.people is not None and self.address:
                shown["join"] = {"address": self.address, "code": self.people.code}
            self._told = mark, json.dumps(shown)
        return self._told[1]
