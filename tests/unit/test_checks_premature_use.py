"""
The uses of a message's tensor before its wait that a check reports, and those that are harmless.

The right answers of the bank show that all uses after the wait are accepted.
"""

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup

from ddp_lessons.checks.kit.on_rank.premature_use import PrematureUse
from ddp_lessons.private import process_groups

TAKES = {
    "add": lambda room: room[0] + 1,
    "add_": lambda room: room[0, 1:].add_(1),
    "clone": lambda room: room.clone(),
    "cat": lambda room: torch.cat([torch.ones(4), room.view(-1)]),
    "send": lambda room: dist.isend(room[0], dst=1),
}
TAKES_NOTHING = {
    "a view": lambda room: room.view(-1).tensor_split(3)[0],
    "a tensor like it": lambda room: (torch.zeros_like(room), room[0].new_empty(2)),
    "what lies beside it": lambda room: room[1].mul_(2).clone(),
}
WRITES = {
    "add_": lambda room: room.view(-1)[1:3].add_(1),
    "add": lambda room: torch.add(room, 1, out=room),
    "copy_": lambda room: room[:].copy_(torch.ones(2, 4)),
    "recv_": lambda room: dist.irecv(room[0], src=1),
}
WRITES_NOTHING = {
    "reads": lambda room: room[0] + room[1].clone(),
    "another message from there": lambda room: dist.isend(room[0], dst=1),
    "what lies beside it": lambda room: room[1].zero_(),
}


@pytest.fixture(autouse=True)
def _group_of_two():
    # torch's fake group: every call returns at once.
    kind = dist.ProcessGroup.BackendType.CUSTOM
    group = dist.ProcessGroup(dist.HashStore(), 0, 2)
    fake = FakeProcessGroup._create_internal(0, 2)
    group._register_backend(torch.device("cpu"), kind, fake)
    group._set_default_backend(kind)
    group._set_group_name("of two")
    process_groups.set_default_group(group)
    yield
    process_groups.set_default_group(None)


def early_use(message, use):
    """
    Return the PrematureUse of a message of a tensor's first row.

    Args:
        message: `dist.irecv` or `dist.isend`.
        use: Function that is called with the tensor before the wait.
    """
    room = torch.zeros(2, 4)
    with PrematureUse() as early:
        message(room[0], 1)
        use(room)
    return early


@pytest.mark.parametrize("name", TAKES)
def test_what_takes_a_message_early_is_named(name):
    """
    An operation that reads a received tensor before the wait is named, because its values are right
    only if the message was fast.
    """
    assert early_use(dist.irecv, TAKES[name]).taken_by == name


@pytest.mark.parametrize("name", TAKES_NOTHING)
def test_what_takes_no_numbers_may_come_before_the_wait(name):
    """
    Operations that read no values may come before the wait.
    """
    assert early_use(dist.irecv, TAKES_NOTHING[name]).taken_by is None


@pytest.mark.parametrize("name", WRITES)
def test_what_writes_into_a_message_early_is_named(name):
    """
    An operation that writes into a sent tensor before the wait is named, because the message is
    right only if it had left.
    """
    assert early_use(dist.isend, WRITES[name]).written_by == name


@pytest.mark.parametrize("name", WRITES_NOTHING)
def test_what_does_not_write_may_come_before_the_wait(name):
    """
    Operations that do not write may come before the wait: a tensor may be sent to several ranks at
    a time, and be read.
    """
    assert early_use(dist.isend, WRITES_NOTHING[name]).written_by is None
