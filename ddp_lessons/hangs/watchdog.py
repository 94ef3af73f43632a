"""
A watchdog that says which collective it is, who is missing, and where the missing rank is.

Its heartbeat is the number of collectives that the group has called, so a training loop needs no
line for it. While that number grows, the watchdog reads it and does nothing else. When it stands
still for too long, each rank leaves a note in the store, and reads the others'.
"""

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Self

import torch.distributed as dist

from ddp_lessons.hangs.records import flight_record
from ddp_lessons.hangs.stacks import own_line
from ddp_lessons.private import process_groups

_MOST_LOOKS_S, _LEAST_LOOKS_S = 1.0, 0.02
_LOOKS_A_LIMIT = 20


@dataclass(frozen=True)
class Note:
    """
    Hold what a rank says of itself when nothing happens any more.

    Args:
        number: How many collectives of the group it has called.
        call: The last of them, such as "all_reduce float[4]"; "" if there is none.
        line: The line of its own code at which it is, such as "train.py:9 in load_batch".
    """

    number: int
    call: str
    line: str


@dataclass(frozen=True)
class Stall:
    """
    Hold what ranks know of each other when nothing happens any more. `print` it.

    Args:
        limit_s: For how many seconds nothing has happened.
        notes: {rank: its Note, or None if it says nothing: it has ended, or stands still}.
    """

    limit_s: float
    notes: dict[int, Note | None]

    @property
    def number(self) -> int:
        """
        The number of the collective that somebody waits in: the furthest that any rank has come.
        """
        return max(note.number for note in self.notes.values() if note)

    @property
    def absent(self) -> list[int]:
        """
        The ranks that have not come to it.
        """
        return [r for r, note in self.notes.items() if note is None or note.number < self.number]

    def __str__(self) -> str:
        there = [note for rank, note in self.notes.items() if rank not in self.absent]
        calls = " against ".join(dict.fromkeys(note.call or "none" for note in there))
        who = ", ".join(f"rank {rank}" for rank in self.absent) or "nobody"
        lines = [
            f"No new collective for {self.limit_s:g} s. The last is number {self.number}: {calls}. "
            f"Missing: {who}."
        ]
        for rank, note in self.notes.items():
            where = f"at {note.line}" if note else "says nothing: it has ended, or stands still"
            lines.append(f"  rank {rank} {where}")
        return "\n".join(lines)


def end_job(stall: Stall) -> None:
    """
    Print a Stall on the lowest rank that waits, and end its process: a launcher then ends the job.

    Args:
        stall: The Stall, as a Watchdog hands it over: `Watchdog(60, on_stall=end_job)`.

    Lesson: 10_hangs.
    """
    if dist.get_rank() == min(stall.notes.keys() - set(stall.absent)):
        print(stall, flush=True)
        os._exit(1)


class Watchdog:
    """
    Watch the collectives of a group from a thread of each rank. Use it in a `with`.

    Collective: every rank of the group must have one.

    Args:
        limit_s: Seconds without a new collective after which it barks. Longer than the longest time
            that a rank computes, loads or saves between two of them.
        on_stall: Function of a Stall, called in the watchdog's thread once each time. Default:
            print it. `end_job` ends the job as well.
        group: The process group. Default: the group of all.
        grace_s: Seconds that it then waits for the notes of the others. Default: `limit_s`, since a
            rank that is well has come to its next collective by then, and its watchdog barks too.

    Lesson: 10_hangs.
    """

    def __init__(
        self,
        limit_s: float,
        on_stall: Callable[[Stall], object] = print,
        group: dist.ProcessGroup | None = None,
        *,
        grace_s: float | None = None,
    ) -> None:
        self.limit_s, self.on_stall = limit_s, on_stall
        self.grace_s = limit_s if grace_s is None else grace_s
        group = group or dist.group.WORLD
        self._group, self._rank = group, dist.get_rank(group)
        store = process_groups.store_of(group)
        # A connection of its own: the main thread may be waiting in the store, and keeps its own.
        own = store.clone()
        self._store = dist.PrefixStore("ddp_lessons/watchdog", own)
        self._main_thread_id = threading.get_ident()
        self._is_over = threading.Event()
        self._look_every_s = min(max(limit_s / _LOOKS_A_LIMIT, _LEAST_LOOKS_S), _MOST_LOOKS_S)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """
        Let the watchdog go. Other ranks' watchdogs go on.
        """
        self._is_over.set()
        self._thread.join()

    def _watch(self):
        number, since_s, has_barked = -1, time.monotonic(), False
        while not self._is_over.wait(self._look_every_s):
            latest, now_s = process_groups.sequence_number(self._group), time.monotonic()
            if latest != number:
                if has_barked:  # it was slow, and no more than that
                    self._store.set(str(self._rank), "")
                number, since_s, has_barked = latest, now_s, False
            elif not has_barked and now_s - since_s >= self.limit_s:
                has_barked = True
                notes = self._notes(number)
                if notes:
                    self.on_stall(Stall(self.limit_s, notes))

    def _notes(self, number):
        name = self._group.group_name
        mine = [record for record in flight_record() if record.group == name]
        line = own_line(self._main_thread_id)
        call = str(mine[-1]).partition(", ")[0] if mine else ""
        note = Note(number, call, str(line) if line else "no line of its own")
        self._store.set(str(self._rank), json.dumps(asdict(note)))
        ranks = dist.get_process_group_ranks(self._group)
        found, give_up_at = {self._rank: note}, time.monotonic() + self.grace_s
        while len(found) < len(ranks) and time.monotonic() < give_up_at:
            if process_groups.sequence_number(self._group) != number:
                return None  # it was slow, and no more than that
            for rank in range(len(ranks)):
                if rank not in found and self._store.check([str(rank)]):
                    text = self._store.get(str(rank))
                    found.update({rank: Note(**json.loads(text))} if text else {})
            if self._is_over.wait(self._look_every_s):
                return None
        return {world_rank: found.get(rank) for rank, world_rank in enumerate(ranks)}
