"""
The board in memory: its columns, its sources of rows, and the pages that wait for changes.
"""

import asyncio
import json
import time

from ddp_lessons.course.classroom.board import view

AGAIN_S = 15.0
"""
Seconds after which a page is updated without a change, since learners get stuck as time passes.
"""
_END_S = 2.0
_LOOK_EVERY_S = 0.02


class ClassBoard:
    """
    The data that the page shows: columns, and rows from several sources.

    Args:
        columns: List of Columns.
        people: The People, or None if learners cannot send.
        sources: Other objects with a method `rows()` that returns Rows.
        address: Address at which learners reach the board; None if they cannot send.
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
        Return the Rows of all sources.
        """
        return [row for source in self._sources for row in source.rows()]

    def changed(self):
        """
        Notify all open pages of a change.
        """
        tick, self._tick = self._tick, asyncio.Event()
        tick.set()

    async def end(self):
        """
        End the streams of all pages, and wait for that, but at most 2 s: a page may not be reading.
        """
        self.is_over = True
        self.changed()
        give_up_at = time.monotonic() + _END_S
        while self.num_streams and time.monotonic() < give_up_at:
            await asyncio.sleep(_LOOK_EVERY_S)

    def told(self):
        """
        Return the page's present contents as JSON, which is computed once for all open pages.
        """
        now_s = self._clock()
        mark = self._tick, now_s // AGAIN_S
        if self._told[0] != mark:
            shown = view.board(self.columns, self.rows(), now_s)
            if self.people is not None and self.address:
                shown["join"] = {"address": self.address, "code": self.people.code}
            self._told = mark, json.dumps(shown)
        return self._told[1]
