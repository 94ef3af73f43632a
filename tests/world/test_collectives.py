"""
The collectives made of messages between two ranks, compared with torch's.
"""

import pytest
import torch
import torch.distributed as dist
from collective_values import ALGORITHMS, DTYPES, SHAPES, WIDER, WORLD_SIZES, bits, values
from torch_features import IS_OLD
from worlds import run_world

from ddp_lessons.collectives import naive
from ddp_lessons.errors import BadInput


def _all_calls(calls, rank, w, shape, dtype):
    """
    Return the results on this rank of every collective without an operation, under torch's names.
    """
    root = w - 1
    mine = values(shape, dtype, rank)
    row = [values(shape, dtype, rank, salt=1 + other) for other in range(w)]
    seen = {}
    tensor = mine.clone()
    calls.broadcast(tensor, root)
    seen["broadcast"] = [tensor]
    tensor = torch.empty_like(mine)
    calls.scatter(tensor, row if rank == root else None, root)
    seen["scatter"] = [tensor]
    parts = [torch.empty_like(mine) for _ in range(w)] if rank == root else None
    calls.gather(mine, parts, root)
    seen["gather"] = parts or []
    parts = [torch.empty_like(mine) for _ in range(w)]
    calls.all_gather(parts, mine)
    seen["all_gather"] = parts
    if not IS_OLD:
        parts = [torch.empty_like(mine) for _ in range(w)]
        calls.all_to_all(parts, row)
        seen["all_to_all"] = parts
    calls.barrier()
    return {name: [bits(one) for one in tensors] for name, tensors in seen.items()}


def _compare_with_torch(rank, w):
    differing = []
    for dtype in DTYPES:
        if dtype.is_complex:  # torch's Gloo has no gather of complex numbers
            continue
        for shape in SHAPES:
            expected = _all_calls(dist, rank, w, shape, dtype)
            for calls in ALGORITHMS:
                if _all_calls(calls, rank, w, shape, dtype) != expected:
                    differing.append((repr(calls), dtype, shape))
    return differing


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_collectives_that_move_are_torchs(world_size):
    """
    For every dtype and shape, a collective that moves data puts the same bits where torch's puts
    them.
    """
    assert run_world(world_size, _compare_with_torch) == [[]] * world_size


def _in_odd_memory(rank, w):
    """
    Run collectives on awkward tensors.

        Their memory is every second number, transposed, expanded or conjugated; one is a leaf that
        requires grad.
    """
    seen = []
    for calls in ALGORITHMS:
        behind = torch.zeros(10)
        behind[::2] = rank + 1.0
        calls.all_reduce(behind[::2])
        square = torch.arange(6.0).view(2, 3).t() * (rank + 1)
        square = square.contiguous().t().contiguous().t()  # (3, 2), strides (1, 3)
        assert not square.is_contiguous()
        calls.all_reduce(square)
        parts = [torch.zeros(3, 2).t() for _ in range(w)]
        calls.all_gather(parts, torch.full((2, 3), float(rank)))
        expanded = torch.zeros(1)
        if rank == 0:
            expanded = torch.tensor([7.0]).expand(4)
        else:
            expanded = torch.zeros(4)
        calls.broadcast(expanded, 0)
        conjugate = torch.tensor([1 + 2j]).conj()
        calls.broadcast(conjugate, 0)
        received = torch.zeros(1, dtype=torch.complex64) if rank else torch.tensor([1 + 2j]).conj()
        calls.broadcast(received, 0)
        weight = torch.nn.Parameter(torch.ones(3))
        calls.all_reduce(weight)
        seen.append(
            (
                behind.tolist(),
                square.tolist(),
                [part.tolist() for part in parts],
                expanded.tolist(),
                received.tolist(),
                weight.tolist(),
                weight.requires_grad and weight.is_leaf,
            )
        )
    return seen


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_collectives_write_through_any_strides(world_size):
    """
    A result in place is written to the caller's own memory, whatever its strides.
    """
    w = world_size
    expected = (
        [w * (w + 1) / 2 if i % 2 == 0 else 0.0 for i in range(10)],
        (torch.arange(6.0).view(2, 3).t() * (w * (w + 1) / 2)).tolist(),
        [[[float(r)] * 3] * 2 for r in range(w)],
        [7.0] * 4,
        [1 - 2j],
        [float(w)] * 3,
        True,
    )
    assert run_world(world_size, _in_odd_memory) == [[expected] * len(ALGORITHMS)] * world_size


def _untouched(rank, w):
    for calls in ALGORITHMS:
        mine = torch.full((5,), float(rank))
        row = [torch.full((5,), float(rank * w + other)) for other in range(w)]
        calls.reduce(mine, 0)
        if rank:
            assert torch.equal(mine, torch.full((5,), float(rank))), calls
        part = torch.empty(5)
        calls.reduce_scatter(part, row)
        calls.all_to_all([torch.empty(5) for _ in range(w)], row)
        for other, one in enumerate(row):
            assert torch.equal(one, torch.full((5,), float(rank * w + other))), calls
        # As in torch, output and input may be one tensor.
        calls.reduce_scatter(row[rank], row)
        assert torch.equal(row[rank], part)
        parts = [torch.full((5,), float(rank)) for _ in range(w)]
        calls.all_gather(parts, parts[rank])
        assert [int(one[0]) for one in parts] == list(range(w))


@pytest.mark.parametrize("world_size", [2, 4, 5])
def test_collectives_leave_inputs_alone(world_size):
    """
    Inputs do not change; a collective writes only into tensors for results.
    """
    run_world(world_size, _untouched)


def _gather_unequal(rank, w, lengths, inner):
    tensor = torch.full((lengths[rank], *inner), rank, dtype=torch.int16)
    found = []
    for calls in ALGORITHMS:
        parts = calls.all_gather_unequal(tensor)
        found.append([bits(part) for part in parts])
    return found


@pytest.mark.parametrize(
    ("lengths", "inner"),
    [([3], ()), ([0, 2], (2,)), ([5, 0, 1], ()), ([1, 7, 0, 3], (2, 3)), ([4, 1, 0, 2, 3], (0,))],
)
def test_all_gather_unequal_keeps_every_length(lengths, inner):
    """
    The last batch of an epoch may have another length on each rank, and may be empty.
    `all_gather_unequal` gives each part its length.
    """
    expected = [
        bits(torch.full((length, *inner), rank, dtype=torch.int16))
        for rank, length in enumerate(lengths)
    ]
    answers = run_world(len(lengths), _gather_unequal, lengths, inner)
    assert answers == [[expected] * len(ALGORITHMS)] * len(lengths)


def _all_to_all_unequal(rank, w):
    row = [torch.full((rank * other % 4,), 10 * rank + other) for other in range(w)]
    found = []
    for calls in ALGORITHMS:
        parts = [torch.empty(rank * other % 4, dtype=torch.int64) for other in range(w)]
        calls.all_to_all(parts, row)
        found.append([part.tolist() for part in parts])
    return found


@pytest.mark.parametrize("world_size", WIDER)
def test_all_to_all_takes_unequal_sizes(world_size):
    """
    Every pair of ranks may exchange another length, also 0.
    """
    for rank, found in enumerate(run_world(world_size, _all_to_all_unequal)):
        expected = [[10 * s + rank] * (rank * s % 4) for s in range(world_size)]
        assert found == [expected] * len(ALGORITHMS)


def _in_a_subgroup(rank, w, members):
    group = dist.new_group(members)
    dist.barrier()  # a rank that leaves while others still connect would fail them
    if rank not in members:
        with pytest.raises(BadInput, match="Not in the group"):
            naive.barrier(group=group)
        return None
    seen = []
    for calls in ALGORITHMS:
        total = torch.tensor([float(rank)])
        calls.all_reduce(total, group=group)
        told = torch.tensor([float(rank)])
        calls.broadcast(told, members[-1], group=group)
        first = torch.tensor([float(rank)])
        calls.broadcast(first, group=group)
        parts = [torch.zeros(1) for _ in members] if rank == members[1] else None
        calls.gather(torch.tensor([float(rank)]), parts, members[1], group=group)
        row = [torch.tensor([float(m)]) for m in members] if rank == members[1] else None
        part = torch.zeros(1)
        calls.scatter(part, row, members[1], group=group)
        calls.barrier(group=group)
        outside = next(r for r in range(w) if r not in members)
        with pytest.raises(BadInput, match=rf"src must be one of .* \(got {outside}, rank"):
            calls.broadcast(told, outside, group=group)
        seen.append([total.item(), told.item(), first.item(), part.item()])
        seen.append([one.item() for one in parts or ()])
    return seen


@pytest.mark.parametrize("members", [[1, 2], [1, 2, 3]])
def test_collectives_in_a_subgroup_take_global_ranks(members):
    """
    `src=2` means rank 2 of all ranks, whatever its place in the subgroup, as in torch.
    """
    for rank, seen in enumerate(run_world(4, _in_a_subgroup, members)):
        if rank not in members:
            assert seen is None
            continue
        numbers = [sum(members), members[-1], members[0], rank]
        gathered = [float(m) for m in members] if rank == members[1] else []
        assert seen == [numbers, gathered] * len(ALGORITHMS)
