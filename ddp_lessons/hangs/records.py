"""
Read torch's flight recorder: what each rank has called, and where their calls first differ.

Legend: a record is one collective of one rank. Numbers count the collectives of a group, from 1.
"""

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ddp_lessons.hangs.stacks import Frame, is_of_a_library
from ddp_lessons.private import process_groups

_NAMELESS = {"": "0"}
"""
How torchfrtrace wants to find the default group. Gloo's recorder leaves its name out.
"""


@dataclass(frozen=True)
class Record:
    """
    Hold one collective that a rank has called.

    Args:
        group: The group's name.
        number: Which of that group's collectives it is, from 1.
        name: Such as "all_reduce".
        sizes: For each tensor its sizes.
        dtypes: For each tensor its dtype, as torch writes it, such as "Float".
        frame: The innermost line that is no library's: who called it. None if there is none.
    """

    group: str
    number: int
    name: str
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    frame: Frame | None = None

    @property
    def call(self) -> tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]]:
        """
        What must be equal on all ranks.
        """
        return self.name, self.sizes, self.dtypes

    def __str__(self) -> str:
        tensors = zip(self.sizes, self.dtypes, strict=False)
        told = " ".join(f"{dtype.lower()}{list(size)}" for size, dtype in tensors)
        return f"{self.name} {told}".strip() + (f", {self.frame}" if self.frame else "")


@dataclass(frozen=True)
class Difference:
    """
    Hold the first place at which the records of ranks differ.

    Args:
        group: The group's name.
        number: The number of the collective.
        records: {rank: its Record, or None if it has not called that many}.
    """

    group: str
    number: int
    records: dict[int, Record | None]

    def __str__(self) -> str:
        lines = [f"group {self.group or 0}, collective {self.number}:"]
        for rank, record in sorted(self.records.items()):
            lines.append(f"  rank {rank}: {record or 'has not called it'}")
        return "\n".join(lines)


def flight_record() -> list[Record]:
    """
    Return what this rank has called, oldest first: the collectives that torch still remembers.

    Returns:
        list: A Record a collective. Messages between two ranks are not in it.

    Source: torch/csrc/distributed/c10d/FlightRecorder.hpp. Lesson: 10_hangs.
    """
    return _records(_dump())


def save_record(path: Path | str) -> None:
    """
    Write what this rank has called into a file that `load_record` and torchfrtrace read.

    Args:
        path: The file. For torchfrtrace one folder holds those of all ranks, and their names end in
            the rank: "record_0", "record_1".

    Lesson: 10_hangs.
    """
    dump = _dump()
    config = dump.get("pg_config", {})
    dump["pg_config"] = {
        _NAMELESS.get(name, name): {
            **group,
            "name": _NAMELESS.get(group["name"], group["name"]),
            "desc": group["desc"] if name else "default_pg",
        }
        for name, group in config.items()
    }
    Path(path).write_bytes(pickle.dumps(dump))


def load_record(path: Path | str) -> list[Record]:
    """
    Return what `save_record` wrote. It is a pickle: take it only from ranks that you trust.

    Returns:
        list: As `flight_record`.
    """
    return _records(pickle.loads(Path(path).read_bytes()))


def first_differences(records: Mapping[int, Iterable[Record]]) -> list[Difference]:
    """
    Find in each group the first collective that not all ranks called, or not all called alike.

    All that comes after it in its group is shifted, and says nothing.

    Args:
        records: {rank: its list of Record}.

    Returns:
        list: A Difference for each group that has one, in the order in which they were used.

    Lesson: 10_hangs.
    """
    called = {
        rank: {(record.group, record.number): record for record in those}
        for rank, those in records.items()
    }
    first: dict = {}
    for group, number in dict.fromkeys(place for those in called.values() for place in those):
        found = {rank: those.get((group, number)) for rank, those in called.items()}
        if len({record and record.call for record in found.values()}) > 1:
            first.setdefault(group, Difference(group, number, found))
    return list(first.values())


def _dump():
    # With a GPU there are two, and the one of the backend that talks is longer.
    dumps = process_groups.dump_flight_recorders(with_stacks=True)
    return max(map(pickle.loads, dumps), key=lambda dump: len(dump.get("entries", ())))


def _records(dump):
    records = []
    for entry in dump.get("entries", ()):
        frames = [
            Frame(frame["filename"], frame["line"], frame["name"])
            for frame in entry.get("frames", ())
        ]
        if not entry["is_p2p"]:
            record = Record(
                entry["process_group"][0],
                entry["collective_seq_id"],
                entry["profiling_name"].partition(":")[2],
                tuple(map(tuple, entry["input_sizes"])),
                tuple(entry["input_dtypes"]),
                next((frame for frame in frames if not is_of_a_library(frame.file)), None),
            )
            records.append(record)
    return records
