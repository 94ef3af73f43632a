"""
Six ways to average over hosts, compared with one process in float64 and with torch's DDP.
"""

from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from worlds import run_world

from ddp_lessons.costs import Link
from ddp_lessons.errors import BadInput
from ddp_lessons.many_machines import (
    WAYS,
    Road,
    crossing_bytes,
    even_layout,
    hierarchical,
    hierarchical_hook,
    leaders_all_reduce,
    make_way,
    split_hosts,
)
from ddp_lessons.many_machines.averages import TopK
from ddp_lessons.many_machines.example import random_gradient, train
from ddp_lessons.trace import trace
from ddp_lessons.workloads import load_digits

EVEN = [(1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (2, 2), (1, 4), (4, 1)]
UNEVEN = [((0, 1), (2,)), ((0, 1, 2), (3,)), ((0,), (1, 2, 3)), ((0, 3), (2, 1)), ((2,), (0, 1, 3))]
LENGTHS = (0, 1, 5, 1000)
EXACT = tuple(name for name in WAYS if name != "top-k")

every_layout = pytest.mark.parametrize(("num_hosts", "per_host"), EVEN)


def average_all(rank, world_size, layout, names=EXACT, lengths=LENGTHS):
    """
    Average gradients of several lengths with several methods, each twice.

        Return {(name, length): (both results, bytes that crossed hosts)}.
    """
    road, found = Road(split_hosts(layout)), {}
    for name in names:
        for length in lengths:
            way, _ = make_way(name)
            rows = [random_gradient(rank, length, seed) for seed in (0, 1)]
            with trace() as events:
                for gradient in rows:
                    way(gradient, road)
            found[name, length] = [row.tolist() for row in rows], crossing_bytes(events, layout)
    return found


def mean(world_size, length, seed=0):
    """
    Return the mean gradient of one process, in float64.
    """
    rows = [random_gradient(rank, length, seed).double() for rank in range(world_size)]
    return sum(rows) / world_size


def rounding(world_size, length, seed, dtype):
    """
    Return the largest rounding error of a sum in a dtype: one unit in the last place for each
    addition.
    """
    rows = [random_gradient(rank, length, seed).double().abs() for rank in range(world_size)]
    return (world_size + 1) * torch.finfo(dtype).eps * sum(rows) / world_size


@every_layout
def test_every_way_gives_the_mean_and_the_same_bits_everywhere(num_hosts, per_host):
    """
    Each method gives the mean, and the same bits on all ranks: replicas whose gradients differ in
    the last bit drift apart.
    """
    layout, w = even_layout(num_hosts, per_host), num_hosts * per_host
    first, *others = run_world(w, average_all, layout)
    for (name, length), (rows, _) in first.items():
        assert all(other[name, length][0] == rows for other in others)
        dtype = torch.float16 if name == "half" else torch.float32
        for seed, row in enumerate(rows):
            off = (torch.tensor(row, dtype=torch.float64) - mean(w, length, seed)).abs()
            assert (off <= rounding(w, length, seed, dtype)).all()


def test_top_k_sends_the_largest_and_the_rest_later():
    """
    Top-k keeps the numbers that it does not send for later. If all are sent, the result is the
    mean.
    """
    results = run_world(4, average_top_k, even_layout(2, 2))
    assert all(row == results[0] for row in results)
    for whole, first, second in [map(torch.tensor, results[0])]:
        off = (whole.double() - mean(4, 100)).abs()
        assert (off <= rounding(4, 100, 0, torch.float32)).all()
        assert first.count_nonzero() <= 4 * 10
        # The second gradient is zero, so only kept numbers are sent, the largest first.
        assert second.count_nonzero() <= 4 * 10
        assert not torch.equal(first, second)
    largest = sum(
        random_gradient(rank, 100).where(
            random_gradient(rank, 100).abs() >= random_gradient(rank, 100).abs().topk(10)[0][-1],
            0,
        )
        for rank in range(4)
    )
    assert torch.allclose(torch.tensor(results[0][1]), largest / 4)


def average_top_k(rank, world_size, layout):
    """
    Average a gradient completely, then a tenth of it, then a tenth of the remainder with a gradient
    of zeros.
    """
    road = Road(split_hosts(layout))
    whole, first = random_gradient(rank, 100), random_gradient(rank, 100)
    TopK(share=1)(whole, road)
    tenth, second = TopK(share=0.1), torch.zeros(100)
    tenth(first, road)
    tenth(second, road)
    return whole.tolist(), first.tolist(), second.tolist()


def test_bytes_that_cross_are_those_of_the_formula():
    """
    A host of two ranks sends 1.5 times the gradient in a flat ring, and once if its ranks add up
    first.
    """
    size, layout = 4000, even_layout(2, 2)
    expected = {"flat": 1.5, "hierarchical": 1.0, "half": 0.75, "top-k": 3 * 2 * 0.01}
    found = run_world(4, average_all, layout, tuple(expected), (1000,))
    for name, share in expected.items():
        crossed = [row[name, 1000][1] for row in found]
        for ranks in layout:
            assert sum(crossed[rank] for rank in ranks) == 2 * share * size  # two averages
    # In the hierarchical method all ranks send equally much; in a flat ring only one rank of each
    # host sends to another host.
    assert [row["flat", 1000][1] for row in found] == [0, 12000, 0, 12000]
    assert [row["hierarchical", 1000][1] for row in found] == [4000] * 4


@pytest.mark.parametrize("layout", [*UNEVEN, ((0, 1), (2, 3)), ((0, 1, 2, 3),), ((0,), (1,))])
def test_leaders_add_up_on_any_layout(layout):
    """
    The sum over leaders works on any layout; hosts of three ranks and one work as well as two and
    two.
    """
    w = sum(map(len, layout))
    results = run_world(w, add_up_by_leaders, layout)
    for total, _ in results:
        assert total == sum(torch.arange(7.0) * 2**rank for rank in range(w)).tolist()
    crossed = [sum(results[rank][1] for rank in ranks) for ranks in layout]
    expected = 2 * (len(layout) - 1) / len(layout) * 28
    assert all(abs(one - expected) <= len(layout) for one in crossed)  # chunks of whole bytes


def test_leaders_add_up_a_tensor_with_gaps_and_leave_what_lies_between():
    """
    Gloo takes a tensor for contiguous memory: it would add up the gaps, and raise no error.
    """
    for table in run_world(3, add_up_columns):
        assert table == [[row, 7 * row, 7 * row, row] for row in range(3)]


def add_up_columns(rank, world_size):
    """
    Sum two columns of a table over a host of two ranks and a host of one.
    """
    table = torch.arange(3.0)[:, None].repeat(1, 4)
    table[:, 1:3] *= 2**rank
    leaders_all_reduce(table[:, 1:3], split_hosts(((0, 1), (2,))))
    return table.tolist()


def add_up_by_leaders(rank, world_size, layout):
    """
    Sum whole numbers over leaders, and count the bytes that cross hosts.
    """
    hosts, tensor = split_hosts(layout), torch.arange(7.0) * 2**rank
    with trace() as events:
        leaders_all_reduce(tensor, hosts)
    return tensor.tolist(), crossing_bytes(events, layout)


def test_uneven_hosts_and_unknown_ways_are_refused():
    """
    Uneven hosts and unknown methods are refused on every rank, before any message.
    """
    assert all("got [2, 1]" in said for said in run_world(3, refusal, ((0, 1), (2,))))
    with pytest.raises(BadInput, match="got 'magic'"):
        make_way("magic")
    for share in (0, 1.5):
        with pytest.raises(BadInput, match="more than 0 and at most 1"):
            TopK(share)


def refusal(rank, world_size, layout):
    """
    Return the text of the error.
    """
    with pytest.raises(BadInput) as caught:
        hierarchical(torch.ones(3), Road(split_hosts(layout)))
    dist.barrier()  # a rank that leaves at once would close its sockets
    return str(caught.value)


def test_ddp_by_the_hook_has_the_gradients_of_ddp():
    """
    DDP with our hook has the gradients of plain DDP. They are whole numbers, so that no rounding
    can hide a difference.
    """
    for own, plain in run_world(4, both_ddps):
        assert own == plain


def both_ddps(rank, world_size):
    """
    Return the gradients of DDP with our hook, and those of plain DDP.
    """
    found = []
    road = Road(split_hosts(even_layout(2, 2)))
    for hook in (hierarchical_hook, None):
        layers = [torch.nn.Linear(8, 8), torch.nn.Linear(8, 3)]
        model = torch.nn.Sequential(*layers)
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, 1.0)
        ddp = DistributedDataParallel(model)
        if hook:
            ddp.register_comm_hook(road, hook)
        ddp(torch.full((2, 8), float(rank))).sum().backward()
        found.append({name: p.grad.tolist() for name, p in model.named_parameters()})
    return found


def test_a_played_link_takes_its_time():
    """
    In the flat ring, ranks 1 and 3 send to another host, one number in each message, and the
    simulated link delays them. Messages within a host are not delayed.
    """
    link = Link(0.01, 4e6)
    seen = run_world(4, slowed, link)
    assert seen == [([], []), ([pytest.approx(0.010001)] * 6, [])] * 2


def slowed(rank, world_size, link):
    """
    Return the delays of this rank in a flat ring, and in a ring within its host, in seconds.
    """
    from ddp_lessons.ring import steps

    road, seconds = Road(split_hosts(even_layout(2, 2)), link), []
    for peers in (road.everyone, road.local):
        with mock.patch("ddp_lessons.many_machines.roads.time.sleep") as sleep:
            steps.all_reduce(torch.ones(4), dist.ReduceOp.SUM, peers)
        seconds.append([call.args[0] for call in sleep.call_args_list])
    return tuple(seconds)


def test_training_learns_by_every_way():
    """
    Training with each method lowers the loss. The hierarchical method gives the loss of the flat
    one, apart from rounding in another order.
    """
    results = run_world(4, train_all)
    assert all([loss for loss, _ in row] == [loss for loss, _ in results[0]] for row in results)
    losses = {name: row[0] for name, row in zip(WAYS, results[0], strict=True)}
    assert all(loss < 1.5 for loss in losses.values())
    assert abs(losses["flat"] - losses["hierarchical"]) < 1e-4
    assert losses["local SGD"] < losses["accumulate"]


def train_all(rank, world_size):
    """
    Train with each method. Return losses and bytes.
    """
    road, digits = Road(split_hosts(even_layout(2, 2))), load_digits()
    return [train(name, road, digits) for name in WAYS]
