"""
What an answer takes of a message before it has waited for it, and what does no harm before. That
all may be done after the wait, right answers show.
"""

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup

from ddp_lessons.checks.ring.early import Early

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


@pytest.fixture(autouse=True)
def _group_of_two():
    # torch's fake group: every call comes back at once.
    c10d, kind = dist.distributed_c10d, dist.ProcessGroup.BackendType.CUSTOM
    group = dist.ProcessGroup(dist.HashStore(), 0, 2)
    fake = FakeProcessGroup._create_internal(0, 2)
    group._register_backend(torch.device("cpu"), kind, fake)
    group._set_default_backend(kind)
    group._set_group_name("of two")
    c10d._update_default_pg(group)
    yield
    c10d._update_default_pg(None)


def taken_by(use):
    """
    Return what takes the first row of a tensor while a message comes into it.
    """
    room = torch.zeros(2, 4)
    with Early() as early:
        dist.irecv(room[0], src=1)
        use(room)
    return early.taken_by


@pytest.mark.parametrize("name", TAKES)
def test_what_takes_a_message_early_is_named(name):
    """
    The numbers may be right, if the message was fast.
    """
    assert taken_by(TAKES[name]) == name


@pytest.mark.parametrize("name", TAKES_NOTHING)
def test_what_takes_no_numbers_may_come_before_the_wait(name):
    """
    Whoever waits in time is right, whatever else is done meanwhile.
    """
    assert taken_by(TAKES_NOTHING[name]) is None
