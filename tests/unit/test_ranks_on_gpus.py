"""
The parts of ranks that serve GPUs, tested without one: fakes replace NCCL and CUDA.
"""

import os
import pickle
from types import SimpleNamespace

import torch
from torch._C import _distributed_c10d

from ddp_lessons.private import process_groups
from ddp_lessons.private.nccl_abort import abort_nccl
from ddp_lessons.ranks.rank.stack_snapshot import recorded_collectives
from ddp_lessons.ranks.supervisor import supervisor


class FakeGroup:
    """
    A group of NCCL's that records the calls on it.
    """

    def __init__(self, name, said):
        self.name, self.said = name, said

    def _get_backend(self, device):
        assert device.type == "cuda"
        return self

    def _group_start(self):
        self.said.append("start")

    def _group_end(self):
        self.said.append("end")

    def abort(self):
        self.said.append(f"abort {self.name}")


def fake_world(monkeypatch, said, **configs):
    """
    Replace this process's groups by fake ones.

    Args:
        monkeypatch: pytest's MonkeyPatch.
        said: The list in which the groups record calls.
        configs: {group name: its backend for each kind of device}.
    """
    groups = {FakeGroup(name, said): config for name, config in configs.items()}
    world = SimpleNamespace(
        pg_map=dict.fromkeys(groups, ("undefined", None)),
        pg_names={group: group.name for group in groups},
        pg_backend_config=groups,
    )
    monkeypatch.setattr(process_groups, "group_tables", lambda: world)


def test_abort_of_several_groups_is_one(monkeypatch):
    """
    Several groups are aborted in one NCCL group call, because communicators that are aborted one by
    one can wait for each other's peers.
    """
    said = []
    fake_world(monkeypatch, said, a="cuda:nccl", b="cpu:gloo,cuda:nccl", c="cpu:gloo,cuda:gloo")
    abort_nccl()
    assert said == ["start", "abort b", "abort a", "end"]


def test_abort_of_one_group_and_of_none(monkeypatch):
    """
    One group is aborted without a group call. Gloo's groups are not aborted, because that releases
    no rank.
    """
    said = []
    fake_world(monkeypatch, said, a="cuda:nccl")
    abort_nccl()
    assert said == ["abort a"]
    fake_world(monkeypatch, said, a="cpu:gloo,cuda:gloo")
    abort_nccl()
    assert said == ["abort a"]


def test_gpus_are_counted_in_a_child(monkeypatch):
    """
    GPUs are counted in a child process, because a supervisor that has initialised CUDA could not
    fork a rank that uses it.
    """
    here = os.getpid()
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 99 if os.getpid() == here else 3)
    assert supervisor.count_gpus() == 3
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    assert supervisor.count_gpus() == 0


def entry(name, record_id, created_ns):
    """
    Return an entry in the form of a flight recorder's dump.
    """
    return {
        "profiling_name": name, "record_id": record_id, "time_created_ns": created_ns,
        "collective_seq_id": record_id + 1, "process_group": ["0", "default_pg"],
        "input_sizes": [[4]], "input_dtypes": ["Float"], "timeout_ms": 1000, "is_p2p": False,
    }  # fmt: skip


def test_collectives_of_nccl_are_read_from_its_own_recorder(monkeypatch):
    """
    NCCL's collectives are read from its own flight recorder, because no other holds them, and a
    table without them would name no culprit.
    """

    def recorder(*entries):
        return lambda *options: pickle.dumps({"entries": entries})

    gloo, nccl = entry("gloo:broadcast", 0, 20), entry("nccl:all_reduce", 0, 10)
    monkeypatch.setattr(_distributed_c10d, "_dump_fr_trace", recorder(gloo))
    monkeypatch.setattr(_distributed_c10d, "_dump_nccl_trace", recorder(nccl), raising=False)
    assert [found.name for found in recorded_collectives()] == ["all_reduce", "broadcast"]
    assert [found.name for found in recorded_collectives(since_ns=15)] == ["broadcast"]
    # One recorder under both names must not list each call twice.
    monkeypatch.setattr(_distributed_c10d, "_dump_fr_trace", recorder(nccl))
    assert len(recorded_collectives()) == 1
