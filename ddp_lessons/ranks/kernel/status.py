"""
The table of all ranks, with the process, state, device and memory of each.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from ddp_lessons.private.ipyparallel_client import has_unanswered_requests

if TYPE_CHECKING:
    from ddp_lessons.ranks.kernel.ranks import Ranks


@dataclass(frozen=True)
class RankRow:
    """
    One rank in the table. `memory_mib` is its resident memory in MiB; None if that is unknown.
    """

    rank: int
    state: str
    device: str
    pid: int | None
    memory_mib: float | None
    host: str = ""


@dataclass(frozen=True)
class Status:
    """
    The state of all ranks at one moment.

    Args:
        title: The line above the table.
        rows: One RankRow a rank, in rank order.
    """

    title: str
    rows: tuple[RankRow, ...]

    @classmethod
    def of(cls, ranks: Ranks) -> Status:
        """
        Return the Status of some Ranks at this moment.
        """
        rows = []
        for rank, device in enumerate(ranks.placement.devices):
            if not ranks.alive:
                rows.append(RankRow(rank, "ended", device, None, None))
                continue
            state, host = _state(ranks, rank), ranks.engines.hosts.get(rank, "")
            pid = None if state == "dead" else ranks.engines.pid(rank)
            memory_mib = None if host else _resident_mib(pid)
            rows.append(RankRow(rank, state, device, pid, memory_mib, host))
        return cls(repr(ranks), tuple(rows))

    def _cells(self):
        last = "host" if any(row.host for row in self.rows) else "memory"
        yield ("rank", "state", "device", "process", last)
        for row in self.rows:
            memory = "" if row.memory_mib is None else f"{row.memory_mib:.0f} MiB"
            pid = "" if row.pid is None else str(row.pid)
            yield (str(row.rank), row.state, row.device, pid, row.host or memory)

    def __repr__(self) -> str:
        table = list(self._cells())
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in table
        ]
        return "\n".join([self.title, *lines])

    def _repr_html_(self):
        header, *body = self._cells()
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
        lines = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>"
            for line in body
        )
        title = html.escape(self.title)
        style = "white-space: nowrap; text-align: left"
        return f'<table><caption style="{style}">{title}</caption><tr>{head}</tr>{lines}</table>'


def _state(ranks, rank):
    if rank in ranks.dead:
        return "dead"
    # The client knows which requests have no reply yet; the controller keeps no record of them.
    is_waiting = has_unanswered_requests(ranks.client, rank)
    return "busy" if ranks.alive and is_waiting else "idle"


def _resident_mib(pid):
    if pid is None:
        return None
    try:
        return psutil.Process(pid).memory_info().rss / 2**20
    except psutil.NoSuchProcess:
        return None
