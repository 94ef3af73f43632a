"""
Layouts, their groups, bytes that cross hosts, and the ports on which a process listens.
"""

import socket

import psutil
import pytest
import torch
import torch.distributed as dist
from worlds import run_world

from ddp_lessons.errors import BadInput
from ddp_lessons.many_machines import (
    crossing_bytes,
    even_layout,
    host_of,
    listening,
    split_hosts,
)
from ddp_lessons.trace import trace
from ddp_lessons.trace.events import Event

TWO = ((0, 1), (2, 3))


def test_even_layouts_have_ranks_in_a_row():
    """
    An even layout numbers the ranks host by host, as torchrun does.
    """
    assert even_layout(2, 2) == TWO
    assert even_layout(3, 1) == ((0,), (1,), (2,))
    assert [host_of(TWO, rank) for rank in range(4)] == [0, 0, 1, 1]
    for numbers in ((0, 2), (2, 0)):
        with pytest.raises(BadInput, match="1 host and 1 rank or more"):
            even_layout(*numbers)
    with pytest.raises(BadInput, match="got 4"):
        host_of(TWO, 4)


@pytest.mark.parametrize("layout", [TWO, ((0, 3), (2, 1)), ((0, 1, 2), (3,)), ((0, 1, 2, 3),)])
def test_groups_follow_from_the_layout(layout):
    """
    Each rank is in its host's group, and a leader also in that of the leaders. Twins exist where
    hosts are even.
    """
    is_even = len({len(ranks) for ranks in layout}) == 1
    for rank, (local, leader, leaders, twins) in enumerate(run_world(4, groups, layout)):
        ranks = layout[host_of(layout, rank)]
        assert local == sorted(ranks)
        assert leader == ranks[0]
        firsts = sorted(ranks[0] for ranks in layout)
        assert leaders == (firsts if rank in firsts else None)
        place = ranks.index(rank)
        same_place = sorted(others[place] for others in layout) if is_even else None
        assert twins == same_place


def groups(rank, world_size, layout):
    """
    Return the ranks of each group of this rank, and its leader.
    """
    hosts = split_hosts(layout)
    found = [
        None if group is None else sorted(dist.get_process_group_ranks(group))
        for group in (hosts.local, hosts.leaders, hosts.twins)
    ]
    return found[0], hosts.leader, *found[1:]


def test_a_layout_without_a_rank_is_refused():
    """
    A layout that leaves out a rank is refused on every rank, before any group is made.
    """
    assert all("got 1" in said for said in run_world(2, refusal))


def refusal(rank, world_size):
    """
    Return the text of the error.
    """
    with pytest.raises(BadInput) as caught:
        split_hosts([[0]])
    return str(caught.value)


def of(name, ranks=(0, 1, 2, 3), rank=1, **facts):
    """
    Return a collective as an event of a trace.
    """
    return Event("collective", name, rank, 0, 0, ranks=ranks, **facts)


@pytest.mark.parametrize(
    ("name", "facts", "expected"),
    [
        ("all_reduce", {"input_bytes": 400, "output_bytes": 400}, 600),
        ("allreduce_coalesced", {"input_bytes": 400, "output_bytes": 400}, 600),
        ("all_gather", {"input_bytes": 100, "output_bytes": 400}, 300),
        ("reduce_scatter_tensor", {"input_bytes": 400, "output_bytes": 100}, 300),
        ("gather", {"input_bytes": 100, "rank": 2, "peer": 0}, 100),
        ("gather", {"input_bytes": 100, "rank": 1, "peer": 0}, 0),
        ("scatter", {"output_bytes": 100, "rank": 0, "peer": 0}, 200),
        ("broadcast", {"input_bytes": 100, "rank": 0, "peer": 0}, 100),
        ("all_reduce", {"input_bytes": 400, "ranks": (0, 1)}, 0),
        ("barrier", {}, 0),
    ],
)
def test_collectives_are_counted_by_their_plan(name, facts, expected):
    """
    A trace does not show the messages of torch's own collectives. Their bytes are counted by the
    plan of each collective.
    """
    event = of(name, **facts)
    assert crossing_bytes([event], TWO) == expected


def test_a_reduce_within_hosts_crosses_nothing():
    """
    A reduce within hosts sends nothing across, and a reduce over all hosts does.
    """
    for within, across in run_world(4, reduced):
        assert within == 0
        assert across in (0, 12)
    assert sum(across for _, across in run_world(4, reduced)) > 0


def reduced(rank, world_size):
    """
    Count the bytes that cross hosts in a reduce within the host, and in one over all ranks.
    """
    hosts, counts = split_hosts(TWO), []
    for group, root in ((hosts.local, hosts.leader), (None, 3)):
        with trace() as events:
            dist.reduce(torch.ones(3), root, group=group)
        counts.append(crossing_bytes(events, TWO))
    return counts


def test_doors_say_who_can_reach_them():
    """
    `listening` finds a port on the loopback and one that is open to all networks. A client's port
    is not listed.
    """
    with socket.create_server(("127.0.0.1", 0)) as own, socket.create_server(("", 0)) as public:
        expected = {
            ("this machine", own.getsockname()[1]),
            ("any network", public.getsockname()[1]),
        }
        with socket.create_connection(own.getsockname()) as client:
            found = set(listening(psutil.Process()))
            assert client.getsockname()[1] not in {port for _, port in found}
    assert expected <= found
    assert not expected & set(listening())
