"""
Profiles of several ranks merged into one trace, with one process a rank and one clock.
"""

import subprocess
import sys

import pytest

from ddp_lessons import trace
from ddp_lessons.trace import merge_profiles


def profile(base_ns, *entries):
    """
    Return a profile in Chrome's format.
    """
    return {"baseTimeNanoseconds": base_ns, "traceEvents": list(entries)}


def entry(name, ts, pid=77, **more):
    """
    Return an event of 1 microsecond.
    """
    return {"name": name, "ph": "X", "pid": pid, "tid": 5, "ts": ts, "dur": 1.0, **more}


def test_merged_profiles_are_on_one_clock_with_a_process_a_rank():
    """
    Merged profiles have one clock, although each counts microseconds from its own start, and one
    process a rank.
    """
    first = profile(5_000_000, entry("a", 10.0), entry("b", 12.0))
    second = profile(5_004_000, entry("a", 7.0))
    merged = merge_profiles([first, second])
    found = [(e["name"], e["pid"], e["ts"]) for e in merged["traceEvents"] if e["ph"] == "X"]
    assert found == [("a", 0, 0.0), ("a", 1, 1.0), ("b", 0, 2.0)]
    assert merged["otherData"] == {"clock": "wall", "world_size": 2}
    moved = merge_profiles([first, second], offsets_ns=[0, 2000])
    assert [e["ts"] for e in moved["traceEvents"] if e["pid"] == 1 and e["ph"] == "X"] == [3.0]


def test_merged_profiles_keep_names_of_threads_and_tell_arrows_apart():
    """
    Names of threads are kept, and arrows get different ids. Each profile numbers its arrows from 1,
    so they would otherwise connect ranks.
    """
    own = [
        entry("a", 1.0),
        {"name": "fwdbwd", "ph": "s", "id": 1, "pid": 77, "tid": 5, "ts": 1.0},
        {"name": "thread_name", "ph": "M", "pid": 77, "tid": 5, "args": {"name": "main"}},
        {"name": "process_name", "ph": "M", "pid": 77, "tid": 0, "args": {"name": "python"}},
        {"name": "PyTorch Profiler (0)", "ph": "X", "pid": "Spans", "tid": "x", "ts": 0, "dur": 9},
    ]
    merged = merge_profiles([profile(0, *own), profile(0, *own)])["traceEvents"]
    assert len({e["id"] for e in merged if e["ph"] == "s"}) == 2
    names = [(e["pid"], e["args"]["name"]) for e in merged if e["name"] == "process_name"]
    assert names == [(0, "rank 0"), (1, "rank 1")]
    assert sum(e["name"] == "thread_name" for e in merged) == 2
    assert not any(e["name"].startswith("PyTorch Profiler") for e in merged)
    assert merge_profiles([])["traceEvents"] == []


def test_traces_are_read_without_torch():
    """
    Traces are merged and drawn without torch, because importing it in a notebook's kernel takes a
    second.
    """
    source = "import sys; from ddp_lessons.trace import merge; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert ran.stdout == "False\n", ran.stderr


def test_trace_has_every_name_that_it_lists():
    """
    The package has every name that it lists. Those that need torch are imported on demand.
    """
    assert all(callable(getattr(trace, name)) for name in trace.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'tracer'"):
        _ = trace.tracer
