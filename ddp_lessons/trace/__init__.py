"""
Record what ranks say to each other, and answer questions about it.

    with trace(model) as events:      # on this rank, whoever issues the communication
        loss(model(batch)).backward()
    traces = gather(events)           # of all ranks, on one clock
    bytes_sent(traces), collectives(events), overlaps_backward(events), waits(traces)
    save_chrome_trace("run.json", traces)

What torch.profiler wrote on each rank becomes one trace by `save_profiles`.
"""

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
from .clocks import clock_offsets_ns, gather
from .events import Event, from_plain, to_plain
from .export import chrome_trace, save_chrome_trace
from .merge import Placed, match, merge, unmatched
from .profiles import merge_profiles, save_profiles
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
