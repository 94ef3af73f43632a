"""
Private names of torch's process groups: each behaves as the course relies on.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from waiting import HANGS_AFTER_S

from ddp_lessons.errors import PrivateNameGone
from ddp_lessons.private import nccl_abort, process_groups


@pytest.fixture
def lone_world(tmp_path):
    """
    Join a default group of this process alone, and destroy it after the test.
    """
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield dist.group.WORLD
    if dist.is_initialized():
        dist.destroy_process_group()


def test_the_table_of_groups(lone_world):
    """
    The table lists each group with its store, backend and ranks until the group is destroyed.
    """
    pair = dist.new_group([0])
    assert process_groups.all_groups() == [lone_world, pair]
    assert process_groups.default_group() is process_groups.group_tables().default_pg is lone_world
    assert process_groups.backend_name(pair) == "gloo"
    assert process_groups.ranks_of(pair) == [0]
    process_groups.store_of(lone_world).set("key", "value")
    assert process_groups.default_store().get("key") == b"value"
    dist.destroy_process_group(pair)
    assert not process_groups.is_alive(pair)
    assert process_groups.ranks_of(pair) is None


def test_the_count_by_which_groups_are_named(lone_world):
    """
    The count that names new groups can be set. Ranks meet under a group's name, so counts that
    differ between ranks would separate them.
    """
    process_groups.set_group_count(70)
    assert dist.new_group([0]).group_name == "70"
    assert process_groups.group_count() == 71


def test_another_default_group_and_store(lone_world):
    """
    The default group and a group's store can be replaced: a check gives an answer a smaller world,
    and a store without keys.
    """
    pair, store = dist.new_group([0]), dist.HashStore()
    process_groups.set_default_group(pair)
    assert dist.group.WORLD is pair
    process_groups.set_store(pair, store)
    assert process_groups.store_of(pair) is store
    process_groups.set_default_group(lone_world)
    dist.destroy_process_group(pair)
    process_groups.set_store(pair, store)
    assert pair not in process_groups.all_groups()


def test_all_groups_can_be_forgotten(lone_world):
    """
    All groups can be forgotten, as after an interrupt in the middle of `destroy_process_group`.
    """
    process_groups.forget_all_groups()
    assert process_groups.all_groups() == []
    assert not process_groups.has_named_groups()
    process_groups.set_default_group(None)
    assert not dist.is_initialized()


def test_the_number_of_a_group_s_last_collective(lone_world):
    """
    The sequence number grows by one for each collective, whatever its kind.
    """
    before = process_groups.sequence_number(lone_world)
    dist.barrier()
    dist.all_reduce(torch.ones(1))
    assert process_groups.sequence_number(lone_world) == before + 2


def test_the_operation_of_a_handle(lone_world):
    """
    Handles of two kinds of calls have different operation numbers.
    """
    numbers = {
        process_groups.operation_number(dist.all_reduce(torch.ones(1), async_op=True)),
        process_groups.operation_number(dist.broadcast(torch.ones(1), src=0, async_op=True)),
    }
    assert len(numbers) == 2


def test_the_flight_recorder_can_be_gone(monkeypatch):
    """
    A missing flight recorder raises PrivateNameGone, and does not look like an empty record.
    """
    bindings = sys.modules["torch._C"]._distributed_c10d
    monkeypatch.delattr(bindings, "_dump_fr_trace")
    monkeypatch.delattr(bindings, "_dump_nccl_trace", raising=False)
    with pytest.raises(PrivateNameGone, match="_dump_fr_trace"):
        process_groups.dump_flight_recorders(with_stacks=False)


def test_a_group_of_no_backend_moves_nothing(lone_world):
    """
    The calls of a group that `make_fake` has set up return at once, in a world of any size, and
    torch's functions take the group.
    """
    group = dist.ProcessGroup(dist.HashStore(), 1, 8)
    process_groups.make_fake(group, 1, 8, [torch.device("cpu")], "made up")
    process_groups.add_group(group, "gloo", dist.HashStore())
    value = torch.ones(2)
    dist.all_reduce(value, group=group)
    assert (group.group_name, dist.get_world_size(group), value.tolist()) == ("made up", 8, [1, 1])
    process_groups.remove_group(group)
    assert process_groups.all_groups() == [lone_world]


def test_the_source_of_a_message_from_any_rank():
    """
    The handle of a finished `recv` from any rank knows the sender.
    """
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(
            lambda rank: dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=HANGS_AFTER_S)),
            range(2),
        )
    work = first.recv_anysource([torch.zeros(1)], 0)
    second.send([torch.ones(1)], 0, 0).wait()
    work.wait()
    assert process_groups.source_rank(work) == 1


def test_only_nccl_is_aborted(lone_world):
    """
    Without an NCCL group nothing is aborted, and the groups of other backends still work.
    """
    nccl_abort.abort_nccl()
    dist.barrier()


def test_each_flight_recorder_is_read(lone_world):
    """
    Each recorder returns bytes. That they hold a rank's calls is shown on ranks, where the recorder
    is on.
    """
    dumps = process_groups.dump_flight_recorders(with_stacks=False, only_active=True)
    assert dumps
    assert {type(dump) for dump in dumps} == {bytes}
