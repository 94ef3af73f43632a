"""
Write a trace in Chrome's format, which Perfetto and chrome://tracing open.

Legend: a process of the picture is a rank, a thread is a track of it. Times are microseconds.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from .events import COLLECTIVE, GRADIENT, MARK, MESSAGE, SPAN, Event
from .merge import match, merge

_TRACKS = ("marks and spans", "gradients", "communication")


def chrome_trace(
    traces: Sequence[Sequence[Event]], clock: Literal["wall", "logical"] = "wall"
) -> dict[str, object]:
    """
    Return one trace of all ranks in Chrome's format, with a process for each rank.

    A rank has a track for marks and spans, one for gradients, and as many for communication as
    calls were under way at once. An arrow leads from each send to its receive.

    Args:
        traces: One list of events a rank, as `gather` returns them.
        clock: "wall", or "logical": then a tick is shown as a microsecond.

    Returns:
        dict: What JSON is to hold.

    Source: "Trace Event Format", Google; Perfetto documentation, "Visualizing external trace
    formats". Lesson: 05_replicas.
    """
    placed = merge(traces, clock)
    ends = {}  # a call that was never complete is drawn to the end of its rank
    for it in placed:
        latest = it.start if it.end is None else it.end
        ends[it.event.rank] = max(ends.get(it.event.rank, 0), latest)
    slices, lanes, places = [], {}, {}
    for it in placed:
        end = ends[it.event.rank] if it.end is None else it.end
        track = _track(it, end, lanes)
        places[(it.event.rank, it.event.index)] = (track, it.start, max(end, it.start))
        slices.append(_slice(it, end, track))
    names = _names(len(traces), lanes)
    arrows = _arrows(traces, places)
    return {
        "traceEvents": names + sorted(slices + list(arrows), key=lambda entry: entry["ts"]),
        "displayTimeUnit": "ms",
        "otherData": {"clock": clock, "world_size": len(traces)},
    }


def save_chrome_trace(
    path: Path | str, traces: Sequence[Sequence[Event]], clock: Literal["wall", "logical"] = "wall"
) -> Path:
    """
    Write one trace of all ranks to a file that Perfetto opens, and return its path.

    Args:
        path: Where to write; an existing file is replaced.
        traces: One list of events a rank.
        clock: "wall" or "logical".

    Lesson: 05_replicas.
    """
    path = Path(path)
    path.write_text(json.dumps(chrome_trace(traces, clock)))
    return path


def _track(it, end, lanes):
    if it.event.kind in (MARK, SPAN):
        return 0
    if it.event.kind == GRADIENT:
        return 1
    # Slices of one track must not overlap in part: take the first lane that is free.
    busy = lanes.setdefault(it.event.rank, [])
    for lane, busy_until in enumerate(busy):
        if busy_until <= it.start:
            busy[lane] = end
            return len(_TRACKS) - 1 + lane
    busy.append(end)
    return len(_TRACKS) - 2 + len(busy)


def _slice(it, end, track):
    event = it.event
    entry = {
        "name": event.name, "cat": event.kind, "pid": event.rank, "tid": track, "ts": it.start,
        "args": _details(event),
    }  # fmt: skip
    if event.kind in (MARK, GRADIENT):
        return {**entry, "ph": "i", "s": "t"}
    if it.end is None:
        entry["args"] = {**entry["args"], "finished": False}
    return {**entry, "ph": "X", "dur": max(0, end - it.start)}


def _details(event):
    fields = ("index", "backward", "group", "sequence", "peer", "tag", "dtype", "reduce_op")
    details = {name: getattr(event, name) for name in fields}
    if event.kind in (COLLECTIVE, MESSAGE):
        details |= {
            "input_bytes": event.input_bytes,
            "output_bytes": event.output_bytes,
            "ranks": list(event.ranks),
        }
    return {name: value for name, value in details.items() if value is not None}


def _names(world_size, lanes):
    entries = []
    for rank in range(world_size):
        entries.append(_name("process_name", rank, 0, {"name": f"rank {rank}"}))
        entries.append(_name("process_sort_index", rank, 0, {"sort_index": rank}))
        num_lanes = max(1, len(lanes.get(rank, ())))
        tracks = [*_TRACKS, *(f"{_TRACKS[-1]} {lane}" for lane in range(2, num_lanes + 1))]
        for track, name in enumerate(tracks):
            entries.append(_name("thread_name", rank, track, {"name": name}))
    return entries


def _name(name, rank, track, args):
    return {"name": name, "ph": "M", "pid": rank, "tid": track, "ts": 0, "args": args}


def _arrows(traces, places):
    messages = [met for met in match(traces) if len(met) == 2 and _is_message(met)]
    for number, met in enumerate(messages):
        send, receive = sorted(met.values(), key=lambda event: not event.is_send)
        keys = [(event.rank, event.index) for event in (send, receive)]
        if all(key in places for key in keys):
            (send_track, start, _), (receive_track, _, end) = (places[key] for key in keys)
            common = {"name": "message", "cat": MESSAGE, "id": number}
            yield {**common, "ph": "s", "pid": send.rank, "tid": send_track, "ts": start}
            yield {
                **common, "ph": "f", "bp": "e", "pid": receive.rank, "tid": receive_track,
                "ts": max(start, end),
            }  # fmt: skip


def _is_message(met):
    return all(event.kind == MESSAGE for event in met.values())
