"""
Merge what torch.profiler wrote on each rank into one trace that Perfetto opens.

Legend: a profile is what `export_chrome_trace` writes, as a dictionary. Its times are microseconds
from `baseTimeNanoseconds` on; a process of the merged picture is a rank.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_NAMES = ("process_name", "process_labels", "process_sort_index")


def merge_profiles(
    profiles: Sequence[Mapping[str, Any]], offsets_ns: Sequence[int] | None = None
) -> dict[str, object]:
    """
    Return one trace in Chrome's format, with a process for each rank and all times on one clock.

    Args:
        profiles: One profile a rank, in rank order.
        offsets_ns: What to add to each rank's clock to read rank 0's. Ranks of one machine share
            its clock: None.

    Returns:
        dict: What JSON is to hold. The earliest moment is 0.

    Source: "Trace Event Format", Google; torch.profiler documentation. Lesson: 11_speed.
    """
    offsets_ns = [0] * len(profiles) if offsets_ns is None else offsets_ns
    bases_ns = [
        profile.get("baseTimeNanoseconds", 0) + offset_ns
        for profile, offset_ns in zip(profiles, offsets_ns, strict=True)
    ]
    names, entries = [], []
    for rank, profile in enumerate(profiles):
        later_us = (bases_ns[rank] - bases_ns[0]) / 1000
        names.append(_name("process_name", rank, {"name": f"rank {rank}"}))
        names.append(_name("process_sort_index", rank, {"sort_index": rank}))
        for entry in profile["traceEvents"]:
            # Marks of the profile as a whole lie in processes that are none.
            if isinstance(entry.get("pid"), str) or entry.get("name") in _NAMES:
                continue
            moved = {**entry, "pid": rank}
            if "id" in entry and isinstance(entry["id"], int):
                moved["id"] = (rank << 32) + entry["id"]  # arrows of two ranks are two arrows
            if entry["ph"] == "M":
                names.append(moved)
            else:
                entries.append({**moved, "ts": entry["ts"] + later_us})
    first_us = min((entry["ts"] for entry in entries), default=0)
    entries = [{**entry, "ts": entry["ts"] - first_us} for entry in entries]
    return {
        "traceEvents": names + sorted(entries, key=lambda entry: entry["ts"]),
        "displayTimeUnit": "ms",
        "otherData": {"clock": "wall", "world_size": len(profiles)},
    }


def save_profiles(
    path: Path | str, profiles: Sequence[Mapping[str, Any]], offsets_ns: Sequence[int] | None = None
) -> Path:
    """
    Write one trace of all ranks' profiles to a file that Perfetto opens, and return its path.

    Args:
        path: Where to write; an existing file is replaced.
        profiles: One profile a rank, in rank order.
        offsets_ns: As for `merge_profiles`.

    Lesson: 11_speed.
    """
    path = Path(path)
    path.write_text(json.dumps(merge_profiles(profiles, offsets_ns)))
    return path


def _name(name, rank, args):
    return {"name": name, "ph": "M", "pid": rank, "tid": 0, "ts": 0, "args": args}
