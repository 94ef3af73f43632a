"""
A mesh has the groups of torch's DeviceMesh; its cost is predicted, and the fastest mesh is found.
"""

import itertools

import pytest
import torch
import torch.distributed as dist
from metric_shards import packed, run_packed
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from worlds import run_world

from ddp_lessons.beyond_ddp.mesh import (
    Job,
    Mesh,
    axis_lines,
    best_mesh,
    coordinate,
    held_bytes,
    is_possible,
    meshes,
    step_parts,
    step_s,
)
from ddp_lessons.beyond_ddp.tensor_parallel import ParallelMLP
from ddp_lessons.costs import Link, rank_costs, schedule
from ddp_lessons.errors import BadInput
from ddp_lessons.workloads.seeds import seeded

FAST, SLOW = Link(1e-6, 1e11), Link(1e-5, 1e10)
JOB = Job(
    num_ranks=16,
    ranks_per_host=4,
    memory_bytes=40e9,
    num_layers=24,
    num_heads=16,
    num_micro_batches=8,
    state_bytes=112e9,
    gradient_bytes=14e9,
    activation_bytes=4e8,
    alone_s=32.0,
    inside=FAST,
    between=SLOW,
)


def test_lines_and_places_of_a_mesh_are_those_of_a_table():
    """
    Ranks fill the mesh row by row, and each rank is on one line of each axis.
    """
    sizes = {"data": 2, "pipeline": 3, "tensor": 4}
    table = torch.arange(24).view(2, 3, 4)
    for rank in range(24):
        places = coordinate(rank, sizes)
        assert table[tuple(places.values())] == rank
        assert list(places) == list(sizes)
    for dim, axis in enumerate(sizes):
        right = table.movedim(dim, -1).reshape(-1, table.shape[dim]).tolist()
        assert axis_lines(sizes, axis) == right


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: coordinate(4, {"a": 2, "b": 2}), r"No such rank: .* 0 to 3 .*got 4"),
        (lambda: coordinate(0, {}), "No mesh"),
        (lambda: axis_lines({"a": 0}, "a"), "No mesh"),
        (lambda: axis_lines({"a": 2.0}, "a"), "No mesh"),
        (lambda: axis_lines({"a": 2}, "b"), "No such axis: one of a expected"),
        (lambda: Mesh(data=2), "does not fit: .* of 2 ranks .*no group"),
        (lambda: meshes(0), "No ranks"),
    ],
)
def test_what_is_no_mesh_is_refused(call, words):
    """
    A bad mesh is refused before any group is made, and the error names what was expected.
    """
    with pytest.raises(BadInput, match=words):
        call()


def test_a_mesh_needs_as_many_ranks_as_there_are(lone_group):
    """
    A rank that is on no line of the mesh would wait for ever.
    """
    with pytest.raises(BadInput, match=r"2 ranks expected \(got 1\)"):
        Mesh(data=1, tensor=2)
    mesh = Mesh(data=1, tensor=1)
    assert mesh.ranks("tensor") == [0]
    with pytest.raises(BadInput, match="No such axis"):
        mesh.group("pipeline")


def _groups(rank, world_size, sizes):
    mesh = Mesh(**sizes)
    theirs = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    for axis in sizes:
        assert mesh.ranks(axis) == dist.get_process_group_ranks(theirs.get_group(axis))
        assert mesh.place[axis] == theirs.get_local_rank(axis)
        total = torch.tensor([2.0**rank])
        dist.all_reduce(total, group=mesh.group(axis))
        assert total == sum(2.0**other for other in mesh.ranks(axis))
    return True


@pytest.mark.parametrize(
    "sizes",
    [
        {"data": 1},
        {"data": 2, "tensor": 1},
        {"data": 1, "tensor": 3},
        {"data": 2, "tensor": 2},
        {"data": 2, "pipeline": 1, "tensor": 2},
    ],
)
def test_groups_are_those_of_torchs_mesh(sizes):
    """
    The groups are those of `init_device_mesh`, and each group sums over its own line. A reader of
    our mesh can therefore read torch's.
    """
    world_size = 1
    for size in sizes.values():
        world_size *= size
    assert all(run_world(world_size, _groups, sizes))


def _pair():
    with seeded(4):
        return nn.Linear(6, 8).double(), nn.Linear(8, 3).double()


def _batch():
    rng = torch.Generator().manual_seed(1)
    return torch.randn(8, 6, generator=rng, dtype=torch.float64)


def _train_on_a_mesh(rank, world_size):
    mesh = Mesh(data=2, tensor=2)
    block = ParallelMLP(*_pair(), group=mesh.group("tensor"))
    model = DistributedDataParallel(block, process_group=mesh.group("data"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(_batch().chunk(2)[mesh.place["data"]]).square().mean().backward()
        optimizer.step()
    return packed((mesh.place["tensor"], [p.detach() for p in block.parameters()]))


def test_three_steps_on_two_by_two_ranks_are_those_of_one_process():
    """
    Samples are split over one axis and layers over the other. The bound is u times 100 terms of
    size 1, as for the layers.
    """
    first, second = _pair()
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        second(nn.functional.gelu(first(_batch()))).square().mean().backward()
        optimizer.step()
    for place, params in run_packed(4, _train_on_a_mesh):
        rows = slice(4 * place, 4 * place + 4)
        right = first.weight[rows], first.bias[rows], second.weight[:, rows], second.bias
        for got, wanted in zip(params, right, strict=True):
            assert (got - wanted).abs().max() <= 1e-13


def test_meshes_are_all_products():
    """
    `meshes` lists every product: a mesh that is left out might be the fastest.
    """
    assert sorted(meshes(6)) == sorted(
        sizes
        for sizes in itertools.product(range(1, 7), repeat=3)
        if sizes[0] * sizes[1] * sizes[2] == 6
    )
    assert len(meshes(1024)) == 66


def test_parts_of_a_step_are_those_of_the_schedules():
    """
    `step_parts` uses formulas; the reference counts each message of each ring in `costs`.
    """
    parts = step_parts(JOB, data=2, tensor=4, pipeline=2)
    micro_bytes, gradient_bytes = 4e8 / 2 / 8, 14e9 / 8
    calls = 4 * 12 * 8
    ring = {
        "tensor": (4, micro_bytes, FAST, calls),
        "data": (2, gradient_bytes, SLOW, 1),
    }
    for axis, (size, num_bytes, link, times) in ring.items():
        plan = schedule("all_reduce", "ring", size, int(num_bytes) // 4)
        one_s = max(cost.finish_s for cost in rank_costs(plan, 4, link))
        assert parts[axis] == pytest.approx(times * one_s, rel=1e-9)
    assert parts["pipeline"] == pytest.approx(16 * (1e-5 + micro_bytes / 1e10))
    assert parts["compute"] == pytest.approx(32 / 16 * 9 / 8)
    assert step_s(JOB, 2, 4, 2) == pytest.approx(sum(parts.values()))


def test_an_axis_of_one_sends_nothing():
    """
    An axis of one rank costs nothing: a formula that divides by d, t or p must not invent messages.
    """
    parts = step_parts(JOB, data=16, tensor=1, pipeline=1)
    assert parts["tensor"] == parts["pipeline"] == 0
    assert parts["compute"] == 2.0
    assert held_bytes(JOB, 16, 1, 1) == 112e9


def test_the_best_mesh_is_possible_and_no_other_is_faster():
    """
    The best mesh has enough memory, and its sizes divide heads and layers; no possible mesh is
    faster. If none is possible, the result is None.
    """
    best = best_mesh(JOB)
    assert held_bytes(JOB, *best) <= JOB.memory_bytes
    possible = [sizes for sizes in meshes(16) if is_possible(JOB, *sizes)]
    assert all(step_s(JOB, *best) <= step_s(JOB, *sizes) for sizes in possible)
    assert (1, 1, 16) not in possible  # 24 layers
    assert (1, 16, 1) in possible
    tiny = Job(**{**vars(JOB), "memory_bytes": 1e9})
    assert best_mesh(tiny) is None
