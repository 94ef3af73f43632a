"""
Record what ranks say to each other, and answer questions about it.

    with trace(model) as events:      # on this rank, whoever issues the communication
        loss(model(batch)).backward()
    traces = gather(events)           # of all ranks, on one clock
    bytes_sent(traces), collectives(events), overlaps_backward(events), waits(traces)
    save_chrome_trace("run.json", traces)

What torch.profiler wrote on each rank becomes one trace by `save_profiles`.

Recording needs torch, reading does not. So a notebook's kernel, which only reads, is spared the
second that it takes to import torch.
"""

import importlib
from typing import TYPE_CHECKING

from .answers import (
    Traffic,
    Wait,
    argument_bytes,
    bytes_received,
    bytes_sent,
    collectives,
    early_communications,
    overlaps_backward,
    traffic,
    waiting_s,
    waits,
)
from .events import Event, from_plain, to_plain
from .export import chrome_trace, save_chrome_trace
from .merge import Placed, match, merge, unmatched
from .profiles import merge_profiles, save_profiles

if TYPE_CHECKING:
    from .clock_offsets import clock_offsets_ns, gather
    from .recorder import Recorder, trace

__all__ = [
    "Event",
    "Placed",
    "Recorder",
    "Traffic",
    "Wait",
    "argument_bytes",
    "bytes_received",
    "bytes_sent",
    "chrome_trace",
    "clock_offsets_ns",
    "collectives",
    "early_communications",
    "from_plain",
    "gather",
    "match",
    "merge",
    "merge_profiles",
    "overlaps_backward",
    "save_chrome_trace",
    "save_profiles",
    "to_plain",
    "trace",
    "traffic",
    "unmatched",
    "waiting_s",
    "waits",
]

_NEED_TORCH = {
    "Recorder": "recorder",
    "clock_offsets_ns": "clock_offsets",
    "gather": "clock_offsets",
    "trace": "recorder",
}


def __getattr__(name: str) -> object:
    if name not in _NEED_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_NEED_TORCH[name]}", __name__), name)
