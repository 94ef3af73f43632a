"""
Profile steps with torch.profiler on every rank, and read spans off what it wrote.

Legend: a profile is what `torch.profiler` exports in Chrome's format, as a dictionary; its times
are microseconds from a moment that it names. A track is the list of one rank's spans, in seconds.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from ..errors import BadInput
from .intervals import union
from .splitting import COMMUNICATION, COMPUTE

if TYPE_CHECKING:
    from .splitting import Span

_TALKS = re.compile(r"(gloo|nccl|mpi|ucc):")
_CALLS = re.compile(r"c10d::")
_SILENT = "6"
_COPY = "gpu_user_annotation"
"""
The category of a span that was noted on the CPU and is listed for the GPU once more.
"""


def profile_steps(
    step: Callable[[], object],
    num_steps: int = 3,
    num_warm_up: int = 2,
    group: dist.ProcessGroup | None = None,
) -> dict[str, Any]:
    """
    Profile some steps on this rank, after some that are not profiled.

    Collective: every rank of the group must call it.

    Args:
        step: Function without arguments that makes one step.
        num_steps: How many are profiled.
        num_warm_up: How many before them are not.
        group: The process group, or None for the default group.

    Returns:
        dict: The profile: what `export_chrome_trace` writes.

    Source: torch.profiler documentation. Lesson: 11_speed.
    """
    # The profiler's library reads this once; it would write the time of each start to the screen.
    os.environ.setdefault("KINETO_LOG_LEVEL", _SILENT)
    for _ in range(num_warm_up):
        step()
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    # torch 2.11 warns that it clears events between cycles, though this is the only one.
    with profile(activities=activities, acc_events=True) as profiler:
        dist.barrier(group)
        for _ in range(num_steps):
            with record_function("step"):
                step()
    with tempfile.TemporaryDirectory(prefix="profile-") as folder:
        path = Path(folder, "profile.json")
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_text())


def gather_profiles(
    own: dict[str, Any], group: dist.ProcessGroup | None = None
) -> list[dict[str, Any]] | None:
    """
    Bring the profiles of all ranks to the first one, for `trace.save_profiles`.

    Collective: every rank of the group must call it.

    Args:
        own: This rank's profile.
        group: The process group, or None for the default group.

    Returns:
        list: The profiles in rank order on the group's first rank; None on the others.

    Lesson: 11_speed.
    """
    is_first = dist.get_rank(group) == 0
    everyone: list | None = [None] * dist.get_world_size(group) if is_first else None
    dist.gather_object(own, everyone, group=group, group_dst=0)
    return everyone


def profile_track(document: Mapping[str, Any]) -> list[Span]:
    """
    Return what a profile says of one rank: when it computed, and when calls were under way.

    A call to a collective is under way from when it is made to when it is complete, so waiting for
    others is in it: see `split_steps`. Operations inside of one another become one span.

    Args:
        document: A profile, of steps that `profile_steps` has marked.

    Returns:
        list: Spans (kind, start_s, end_s), by the machine's clock; from the first step on.

    Raises:
        BadInput: It has no step.

    Lesson: 11_speed.
    """
    base_ns = document.get("baseTimeNanoseconds", 0)
    events = [
        event
        for event in document["traceEvents"]
        if event.get("ph") == "X" and event.get("cat") != _COPY
    ]
    steps = [event["ts"] for event in events if event["name"] == "step"]
    if not steps:
        raise BadInput(
            "No steps in this profile: expected one that profile_steps made (got none). Mark each "
            "step with record_function('step')."
        )
    events = [event for event in events if event["ts"] >= min(steps)]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    # What a GPU does tells more than what was asked of it.
    talks = [event for event in kernels if _is_communication(event["name"])]
    talks = talks or [event for event in events if _TALKS.match(event["name"])]
    works = kernels or [event for event in events if event.get("cat") == "cpu_op"]
    works = [event for event in works if not _is_communication(event["name"])]
    spans = [(COMPUTE, *pair) for pair in union(map(_interval, works))]
    spans += [(COMMUNICATION, *pair) for pair in sorted(map(_interval, talks))]
    return [(kind, *_seconds(base_ns, pair)) for kind, *pair in spans]


def _is_communication(name):
    return bool(_TALKS.match(name) or _CALLS.match(name) or name.lower().startswith("nccl"))


def _interval(event):
    return event["ts"], event["ts"] + event["dur"]


def _seconds(base_ns, pair):
    return [base_ns / 1e9 + moment_us / 1e6 for moment_us in pair]
