"""
Flight records: calls of the ranks, their first difference, and files that torch's own tool reads.
"""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch_features import IS_OLD
from worlds import run_world

from ddp_lessons.hangs import (
    Record,
    first_differences,
    flight_record,
    load_record,
    save_record,
)
from ddp_lessons.hangs import records as module


def record(number, name="all_reduce", size=3, group="0"):
    """
    Return a Record without a line of code.
    """
    return Record(group, number, name, ((size,),), ("Float",))


def test_first_differences_finds_the_first_of_each_group():
    """
    Only the first difference of each group is reported, because all later records are shifted.
    """
    same = [record(1), record(2)]
    assert first_differences({0: same, 1: same}) == []
    assert first_differences({0: [], 1: []}) == []
    zero = [*same, record(1, group="7"), record(3, "reduce"), record(4)]
    one = [*same, record(1, group="7", size=4), record(3)]
    seven, whole = first_differences({0: zero, 1: one})
    assert (seven.group, seven.number) == ("7", 1)
    assert (whole.group, whole.number) == ("0", 3)
    assert str(whole) == (
        "group 0, collective 3:\n  rank 0: reduce float[3]\n  rank 1: all_reduce float[3]"
    )
    (missing,) = first_differences({0: same, 1: same[:1]})
    assert str(missing).endswith("rank 1: has not called it")


def _called(rank, world_size, folder):
    dist.all_reduce(torch.ones(2))
    if rank == world_size - 1:
        dist.all_gather_into_tensor(torch.zeros(world_size), torch.ones(1))
    else:
        dist.all_gather_into_tensor(torch.zeros(world_size), torch.ones(1))
        dist.barrier(group=dist.distributed_c10d._get_default_group(), async_op=True)
    save_record(f"{folder}/record_{rank}")
    return flight_record()


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_records_of_ranks_hold_names_sizes_and_lines(world_size, tmp_path):
    """
    Records have names, sizes and lines. The last rank has not called the barrier, which its record
    shows, and the other records hold the line of the call.
    """
    records = dict(enumerate(run_world(world_size, _called, str(tmp_path))))
    for rank, those in records.items():
        assert load_record(tmp_path / f"record_{rank}") == those
        first = those[0]
        assert (first.number, first.name, first.sizes, first.dtypes) == (
            1,
            "all_reduce",
            ((2,),),
            ("Float",),
        )
        assert str(first).startswith("all_reduce float[2], test_hangs_records.py:")
        assert str(first).endswith(" in _called")
    (difference,) = first_differences(records)
    assert difference.records[world_size - 1] is None
    assert {r.name for r in difference.records.values() if r} == {"barrier"}


def test_record_without_a_frame_and_messages_are_told_apart(monkeypatch):
    """
    A record without a frame is printed without a line. A message between two ranks is no
    collective, and has no number.
    """
    entry = {
        "is_p2p": False,
        "frames": [],
        "process_group": ("", "undefined"),
        "collective_seq_id": 1,
        "profiling_name": "gloo:broadcast",
        "input_sizes": [[2, 3]],
        "input_dtypes": ["Double"],
    }
    monkeypatch.setattr(module, "_dump", lambda: {"entries": [entry, {**entry, "is_p2p": True}]})
    (only,) = flight_record()
    assert str(only) == "broadcast double[2, 3]"
    assert only.frame is None


def _mismatched(rank, world_size, folder):
    store = dist.FileStore(f"{folder}/store", world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    # This uses the default group, as torchfrtrace needs it, and does not wait for its end.
    for step in range(3):
        if rank == 1 and step == 2:
            dist.broadcast(torch.ones(7), 0, async_op=True)
        else:
            dist.all_reduce(torch.ones(3), async_op=step == 2)
    save_record(f"{folder}/record_{rank}")


@pytest.mark.skipif(IS_OLD, reason="this torch's tool takes records of NCCL only")
def test_torchfrtrace_reads_saved_records(tmp_path):
    """
    torch's own tool reads the saved records and finds the same fault.
    """
    run_world(2, _mismatched, str(tmp_path), join=False)
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace"]
    done = subprocess.run(
        [*command, "--prefix", "record_", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    said = done.stdout + done.stderr
    assert "COLLECTIVE_TYPE_MISMATCH" in said, said
