"""
Chrome's format: the fields that Perfetto needs to open a trace of all ranks.
"""

import json

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from worlds import run_world

from ddp_lessons.trace import Event, chrome_trace, gather, save_chrome_trace, trace

NEEDED = {
    "M": {"name", "ph", "pid", "tid", "args"},
    "X": {"name", "cat", "ph", "pid", "tid", "ts", "dur", "args"},
    "i": {"name", "cat", "ph", "pid", "tid", "ts", "s", "args"},
    "s": {"name", "cat", "ph", "pid", "tid", "ts", "id"},
    "f": {"name", "cat", "ph", "pid", "tid", "ts", "id", "bp"},
}
"""
Fields that the Trace Event Format requires, by phase.
"""


def faults(document):
    """
    Return the faults of a trace in Chrome's format, as sentences.
    """
    wrong, arrows, last_ts, busy_until, named = [], {}, 0, {}, set()
    for entry in document["traceEvents"]:
        phase = entry.get("ph")
        if phase not in NEEDED or NEEDED[phase] - entry.keys():
            wrong.append(f"{entry} lacks a field or has a foreign phase")
            continue
        if not all(isinstance(entry[name], int) for name in ("pid", "tid")):
            wrong.append(f"{entry} has a pid or a tid that is no whole number")
        track = (entry["pid"], entry["tid"])
        if phase == "M":
            named.add((*track, entry["name"]))
            continue
        if (*track, "thread_name") not in named or (track[0], 0, "process_name") not in named:
            wrong.append(f"{entry} lies on a track without a name")
        if entry["ts"] < last_ts:
            wrong.append(f"{entry} is out of order")
        last_ts = entry["ts"]
        if phase == "X" and entry["dur"] < 0:
            wrong.append(f"{entry} ends before it starts")
        if phase == "X" and entry["cat"] in ("collective", "message"):
            if entry["ts"] < busy_until.get(track, 0):
                wrong.append(f"{entry} overlaps another on its track")
            busy_until[track] = entry["ts"] + entry["dur"]
        if phase in "sf":
            arrows.setdefault(entry["id"], []).append(phase)
    wrong += [f"arrow {number} is {ends}" for number, ends in arrows.items() if ends != ["s", "f"]]
    return wrong


def _everything(rank, world_size):
    ddp = DistributedDataParallel(torch.nn.Linear(16, 16))
    with trace(ddp) as events:
        with events.span("step"):
            ddp(torch.ones(2, 16)).sum().backward()
        handles = [dist.all_reduce(torch.ones(4096), async_op=True) for _ in range(3)]
        send = dist.P2POp(dist.isend, torch.ones(1), (rank + 1) % world_size)
        receive = dist.P2POp(dist.irecv, torch.ones(1), (rank - 1) % world_size)
        # If a send's handle is dropped before the send has finished, the connection is closed.
        for handle in [*dist.batch_isend_irecv([send, receive]), *handles]:
            handle.wait()
        events.mark("done")
    return gather(events)


@pytest.mark.parametrize("clock", ["wall", "logical"])
def test_chrome_trace_of_ranks_keeps_to_the_format(tmp_path, clock):
    """
    The export keeps to the format, because a viewer drops entries that it does not understand
    without a message.
    """
    traces = run_world(2, _everything)[0]
    path = save_chrome_trace(tmp_path / "trace.json", traces, clock)
    document = json.loads(path.read_text())
    assert document == chrome_trace(traces, clock)
    assert faults(document) == []
    entries = document["traceEvents"]
    names = {(e["pid"], e["args"]["name"]) for e in entries if e["name"] == "process_name"}
    assert names == {(0, "rank 0"), (1, "rank 1")}
    assert sum(entry["ph"] == "s" for entry in entries) == 2
    shown = [entry for entry in entries if entry["ph"] in "Xi"]
    assert len(shown) == sum(map(len, traces))
    assert document["otherData"] == {"clock": clock, "world_size": 2}


def test_chrome_trace_counts_microseconds_and_gives_calls_under_way_tracks_of_their_own():
    """
    Slices that overlap in part on one track are drawn wrongly, so they get more tracks. A call
    without an end is drawn to the end of its rank's trace and marked as unfinished.
    """

    def call(index, start_ns, end_ns):
        return Event("collective", "all_reduce", 0, index, start_ns, end_ns, group="0", ranks=(0,))

    events = [call(0, 1_000, 4_000), call(1, 2_000, 6_000), call(2, 4_500, None),
              Event("mark", "end", 0, 3, 9_000, 9_000)]  # fmt: skip
    document = chrome_trace([events])
    assert faults(document) == []
    shown = [entry for entry in document["traceEvents"] if entry["ph"] == "X"]
    assert [(entry["tid"], entry["ts"], entry["dur"]) for entry in shown] == [
        (2, 0.0, 3.0), (3, 1.0, 4.0), (2, 3.5, 4.5),
    ]  # fmt: skip
    assert [entry["args"].get("finished") for entry in shown] == [None, None, False]
    tracks = [e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"]
    assert tracks == ["marks and spans", "gradients", "communication", "communication 2"]


@pytest.mark.parametrize(
    "broken",
    [
        {"ph": "Q"},
        {"ts": -1.0},
        {"dur": -1.0},
        {"tid": 9},
        {"tid": 0.5},
        {"ph": "s", "id": 1},
    ],
)
def test_faults_finds_what_a_viewer_would_drop(broken):
    """
    The test's validator finds each fault: a validator that never complains proves nothing.
    """
    document = chrome_trace([[Event("collective", "barrier", 0, 0, 0, 5, sequence=0)]])
    document["traceEvents"][-1] |= broken
    assert faults(document) != []
