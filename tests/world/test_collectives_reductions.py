"""
Collectives that reduce, compared with torch and with one process in float64. All ranks have the
same bits.
"""

import math

import pytest
import torch
import torch.distributed as dist
from collective_values import ALGORITHMS, DTYPES, OPS, SHAPES, WORLD_SIZES, bits, values
from worlds import run_world

from ddp_lessons.collectives import reductions


def _reducing_calls(calls, rank, w, shape, dtype, op):
    """
    Return the results on this rank of every collective with an operation.
    """
    root = w - 1
    mine = values(shape, dtype, rank)
    row = [values(shape, dtype, rank, salt=1 + other) for other in range(w)]
    everywhere, at_root, part = mine.clone(), mine.clone(), torch.empty_like(mine)
    calls.all_reduce(everywhere, op=op)
    calls.reduce(at_root, root, op=op)
    calls.reduce_scatter(part, row, op=op)
    # After a reduce, torch leaves unspecified values on the other ranks.
    return [bits(one) for one in (everywhere, part, *([at_root] if rank == root else []))]


def _compare_reductions_with_torch(rank, w):
    differing, num_compared = [], 0
    for dtype in DTYPES:
        for name in OPS:
            op = getattr(dist.ReduceOp, name)
            if dtype not in reductions._OPS[op][1]:
                continue
            if dtype.is_complex and name == "AVG":  # tested below
                continue
            for shape in SHAPES:
                expected = _reducing_calls(dist, rank, w, shape, dtype, op)
                for calls in ALGORITHMS:
                    num_compared += 1
                    if _reducing_calls(calls, rank, w, shape, dtype, op) != expected:
                        differing.append((repr(calls), dtype, name, shape))
    return differing, num_compared


@pytest.mark.bitwise
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_collectives_that_reduce_are_torchs(world_size):
    """
    For whole numbers the sum does not depend on the order of additions, so the bits equal torch's.
    """
    for differing, num_compared in run_world(world_size, _compare_reductions_with_torch):
        assert differing == []
        # 9 real dtypes by 4 operations, complex sums, averages of 4 dtypes; 3 shapes, 2 algorithms.
        assert num_compared == (9 * 4 + 1 + 4) * 3 * 2


def _average_complex(rank, w):
    mine = values((5,), torch.float32, rank) + 1j * values((5,), torch.float32, rank, salt=1)
    seen = []
    for calls in ALGORITHMS:
        whole, parts = mine.clone(), torch.view_as_real(mine).clone()
        calls.all_reduce(whole, dist.ReduceOp.AVG)
        calls.all_reduce(parts, dist.ReduceOp.AVG)
        seen.append(torch.equal(torch.view_as_real(whole), parts))
    return seen


@pytest.mark.bitwise
def test_all_reduce_averages_complex_numbers_by_parts():
    """
    Averages of complex numbers round each part once; a complex division may round more often.
    """
    assert run_world(3, _average_complex) == [[True, True]] * 3


def _sum_of_floats(rank, w, dtype):
    generator = torch.Generator().manual_seed(rank)
    mine = torch.randn(1001, generator=generator).to(dtype)
    results = []
    for calls in ALGORITHMS:
        total = mine.clone()
        calls.all_reduce(total)
        results.append(total.double().tolist())
    return mine.double().tolist(), results


@pytest.mark.bitwise
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("world_size", [3, 6])
def test_all_reduce_sum_is_one_process_in_float64(world_size, dtype):
    """
    Each of w - 1 additions rounds once, by at most half an eps of a partial sum. The partial sum is
    no larger than the sum of absolute values with those roundings. All ranks hold the same bits.
    """
    answers = run_world(world_size, _sum_of_floats, dtype)
    inputs = torch.tensor([mine for mine, _ in answers], dtype=torch.float64)  # (w, n)
    unit = torch.finfo(dtype).eps / 2
    num_roundings = world_size - 1
    relative = num_roundings * unit / (1 - num_roundings * unit)
    # Below the normal numbers a rounding is half of the smallest step. float64 rounds, too.
    bound = (relative + world_size * 2**-53) * inputs.abs().sum(0)
    bound += num_roundings * torch.finfo(dtype).smallest_normal * unit
    for algorithm in range(len(ALGORITHMS)):
        results = [rank_results[algorithm] for _, rank_results in answers]
        assert all(result == results[0] for result in results)
        total = torch.tensor(results[0], dtype=torch.float64)
        assert ((total - inputs.sum(0)).abs() <= bound).all()


def _awkward_numbers(rank, w):
    mine = torch.tensor([0.0, -0.0, math.nan, 1.0, math.inf])
    mine = mine if rank % 2 else mine.flip(0)
    results = []
    for calls in ALGORITHMS:
        for op in (dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.SUM):
            result = mine.clone()
            calls.all_reduce(result, op)
            results.append(result.view(torch.int32).tolist())
    return results


@pytest.mark.bitwise
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_all_reduce_gives_all_ranks_the_same_bits(world_size):
    """
    0.0 equals -0.0 but has other bits. Replicas with different bits are not replicas.
    """
    answers = run_world(world_size, _awkward_numbers)
    assert all(answer == answers[0] for answer in answers)
