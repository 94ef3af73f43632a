"""
The collectives that are made of messages, against torch's own and against one process in float64.
"""

import math
import time

import pytest
import torch
import torch.distributed as dist
from counting import counted_sends
from worlds import RankFailed, run_world

from ddp_lessons.collectives import Peers, log_rounds, naive, reductions
from ddp_lessons.errors import BadInput

WORLD_SIZES = [1, 2, 3, 4]
WIDER = [*WORLD_SIZES, 5, 6]
ALGORITHMS = [naive, log_rounds]
OPS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX"]
DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
    torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool,
]  # fmt: skip
SHAPES = [(), (2, 0, 3), (3, 5)]


def _values(shape, dtype, rank, salt=0):
    """
    Small whole numbers that differ between ranks, so that every order of additions is exact.
    """
    generator = torch.Generator().manual_seed(100 * rank + salt)
    return torch.randint(0, 4, shape, generator=generator).to(dtype)


def _bits(tensor):
    """
    A tensor as plain data; equal data are equal numbers, dtypes and shapes.
    """
    return (str(tensor.dtype), tuple(tensor.shape), tensor.tolist())


def _all_calls(calls, rank, w, shape, dtype):
    """
    What every collective without an operation leaves behind on this rank, under torch's names.
    """
    root = w - 1
    mine = _values(shape, dtype, rank)
    row = [_values(shape, dtype, rank, salt=1 + other) for other in range(w)]
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
    parts = [torch.empty_like(mine) for _ in range(w)]
    calls.all_to_all(parts, row)
    seen["all_to_all"] = parts
    calls.barrier()
    return {name: [_bits(one) for one in tensors] for name, tensors in seen.items()}


def _reducing_calls(calls, rank, w, shape, dtype, op):
    """
    What every collective with an operation leaves behind on this rank.
    """
    root = w - 1
    mine = _values(shape, dtype, rank)
    row = [_values(shape, dtype, rank, salt=1 + other) for other in range(w)]
    everywhere, at_root, part = mine.clone(), mine.clone(), torch.empty_like(mine)
    calls.all_reduce(everywhere, op=op)
    calls.reduce(at_root, root, op=op)
    calls.reduce_scatter(part, row, op=op)
    # torch leaves what it likes on the other ranks after a reduce.
    return [_bits(one) for one in (everywhere, part, *([at_root] if rank == root else []))]


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


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_collectives_that_move_are_torchs(world_size):
    """
    Whatever the dtype and the shape, what moves arrives bit for bit where torch's own brings it.
    """
    assert run_world(world_size, _compare_with_torch) == [[]] * world_size


def _compare_reductions_with_torch(rank, w):
    differing, num_compared = [], 0
    for dtype in DTYPES:
        for name in OPS:
            op = getattr(dist.ReduceOp, name)
            if dtype not in reductions._OPS[op][1]:
                continue
            if dtype.is_complex and name == "AVG":  # see the test below
                continue
            for shape in SHAPES:
                expected = _reducing_calls(dist, rank, w, shape, dtype, op)
                for calls in ALGORITHMS:
                    num_compared += 1
                    if _reducing_calls(calls, rank, w, shape, dtype, op) != expected:
                        differing.append((repr(calls), dtype, name, shape))
    return differing, num_compared


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_collectives_that_reduce_are_torchs(world_size):
    """
    Of whole numbers every order of additions has one result, so torch's bits must come out.
    """
    for differing, num_compared in run_world(world_size, _compare_reductions_with_torch):
        assert differing == []
        # 9 real dtypes by 4 operations, complex sums, averages of 4 dtypes; 3 shapes, 2 algorithms.
        assert num_compared == (9 * 4 + 1 + 4) * 3 * 2


def _average_complex(rank, w):
    mine = _values((5,), torch.float32, rank) + 1j * _values((5,), torch.float32, rank, salt=1)
    seen = []
    for calls in ALGORITHMS:
        whole, parts = mine.clone(), torch.view_as_real(mine).clone()
        calls.all_reduce(whole, dist.ReduceOp.AVG)
        calls.all_reduce(parts, dist.ReduceOp.AVG)
        seen.append(torch.equal(torch.view_as_real(whole), parts))
    return seen


@pytest.mark.ranks
def test_all_reduce_averages_complex_numbers_by_parts():
    """
    Each part is rounded once; a complex division may round more often.
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


@pytest.mark.ranks
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("world_size", [3, 6])
def test_all_reduce_sum_is_one_process_in_float64(world_size, dtype):
    """
    Each of w - 1 additions rounds once, by half an eps of a partial sum that is no larger than the
    sum of absolute values grown by those roundings; and all ranks hold the same bits.
    """
    answers = run_world(world_size, _sum_of_floats, dtype)
    inputs = torch.tensor([mine for mine, _ in answers], dtype=torch.float64)  # (w, n)
    unit = torch.finfo(dtype).eps / 2
    num_roundings = world_size - 1
    relative = num_roundings * unit / (1 - num_roundings * unit)
    # Below the normal numbers a rounding is half of the smallest step; float64 itself rounds too.
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


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_all_reduce_gives_all_ranks_the_same_bits(world_size):
    """
    0.0 and -0.0 are equal and yet differ: replicas that keep different ones are not replicas.
    """
    answers = run_world(world_size, _awkward_numbers)
    assert all(answer == answers[0] for answer in answers)


def _in_odd_memory(rank, w):
    """
    Every second number, transposed, expanded, conjugated, of a leaf that requires grad.
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


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_collectives_write_through_any_strides(world_size):
    """
    In place means in the caller's own memory, however that is laid out.
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
        # Output and input may be one tensor, as in torch.
        calls.reduce_scatter(row[rank], row)
        assert torch.equal(row[rank], part)
        parts = [torch.full((5,), float(rank)) for _ in range(w)]
        calls.all_gather(parts, parts[rank])
        assert [int(one[0]) for one in parts] == list(range(w))


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", [2, 4, 5])
def test_collectives_leave_inputs_alone(world_size):
    """
    Only what the caller hands over for the result is written.
    """
    run_world(world_size, _untouched)


def _gather_unequal(rank, w, lengths, inner):
    tensor = torch.full((lengths[rank], *inner), rank, dtype=torch.int16)
    found = []
    for calls in ALGORITHMS:
        parts = calls.all_gather_unequal(tensor)
        found.append([_bits(part) for part in parts])
    return found


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("lengths", "inner"),
    [([3], ()), ([0, 2], (2,)), ([5, 0, 1], ()), ([1, 7, 0, 3], (2, 3)), ([4, 1, 0, 2, 3], (0,))],
)
def test_all_gather_unequal_keeps_every_length(lengths, inner):
    """
    The last batch of an epoch has another length on each rank, and may be empty.
    """
    expected = [
        _bits(torch.full((length, *inner), rank, dtype=torch.int16))
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


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", WIDER)
def test_all_to_all_takes_unequal_sizes(world_size):
    """
    Every pair of ranks may have a length of its own, 0 too.
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


@pytest.mark.ranks
@pytest.mark.parametrize("members", [[1, 2], [1, 2, 3]])
def test_collectives_in_a_subgroup_take_global_ranks(members):
    """
    `src=2` means rank 2 of all, wherever it stands in the subgroup, as in torch.
    """
    for rank, seen in enumerate(run_world(4, _in_a_subgroup, members)):
        if rank not in members:
            assert seen is None
            continue
        numbers = [sum(members), members[-1], members[0], rank]
        gathered = [float(m) for m in members] if rank == members[1] else []
        assert seen == [numbers, gathered] * len(ALGORITHMS)


def _messages_of_each(rank, w, num_bytes):
    tensor = torch.zeros(num_bytes, dtype=torch.uint8)
    parts = [torch.zeros_like(tensor) for _ in range(w)]
    outputs = [torch.zeros_like(tensor) for _ in range(w)]
    root = rank == 0
    counts = {}
    for name, calls in (("naive", naive), ("log_rounds", log_rounds)):
        for call, args in (
            ("broadcast", (tensor,)),
            ("scatter", (tensor, parts if root else None)),
            ("gather", (tensor, parts if root else None)),
            ("reduce", (tensor,)),
            ("all_reduce", (tensor,)),
            ("all_gather", (parts, tensor)),
            ("reduce_scatter", (tensor, parts)),
            ("barrier", ()),
        ):
            with counted_sends() as sent:
                getattr(calls, call)(*args)
            counts[name, call] = (sent.num_messages, sent.num_bytes)
    with counted_sends() as sent:
        log_rounds.all_to_all(outputs, parts)
    counts["log_rounds", "all_to_all"] = (sent.num_messages, sent.num_bytes)
    return counts


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", WIDER)
def test_collectives_send_what_their_algorithms_say(world_size):
    """
    A hub's traffic grows with the ranks; rounds need about log2(w) messages of each rank.
    """
    w, size = world_size, 12
    counts = run_world(world_size, _messages_of_each, size)
    rounds = math.ceil(math.log2(w))
    hub, leaf = counts[0], counts[-1]
    for call in ("broadcast", "scatter", "all_reduce"):
        assert hub["naive", call] == (w - 1, (w - 1) * size)
    assert hub["naive", "all_gather"] == (w - 1, (w - 1) * w * size)
    for call, sent_bytes in (("gather", size), ("reduce", size), ("reduce_scatter", w * size)):
        assert leaf["naive", call] == ((1, sent_bytes) if w > 1 else (0, 0))
    assert hub["log_rounds", "broadcast"] == (rounds, rounds * size)
    assert hub["log_rounds", "scatter"] == (rounds, (w - 1) * size)
    for call in ("broadcast", "reduce"):  # a tree has w - 1 branches
        assert sum(of_rank["log_rounds", call][0] for of_rank in counts) == w - 1
    for of_rank in counts:
        assert of_rank["log_rounds", "reduce"][0] <= 1
        assert of_rank["log_rounds", "all_gather"] == (rounds, (w - 1) * size)
        assert of_rank["log_rounds", "reduce_scatter"] == (rounds, (w - 1) * size)
        assert of_rank["log_rounds", "barrier"] == (rounds, rounds)
        # Part j travels as often as j has ones in binary; the table of sizes, 2 w integers of 8
        # bytes, goes first.
        hops = sum(j.bit_count() for j in range(w))
        table_bytes = (w - 1) * 2 * w * 8
        assert of_rank["log_rounds", "all_to_all"] == (2 * rounds, hops * size + table_bytes)
    paired = 1 << (w.bit_length() - 1)
    for rank, of_rank in enumerate(counts):
        if rank >= paired:
            num_messages = 1
        else:
            num_messages = int(math.log2(paired)) + (rank + paired < w)
        assert of_rank["log_rounds", "all_reduce"] == (num_messages, num_messages * size)


def _large_both_ways(rank, w, num_bytes):
    tensor = torch.full((num_bytes // 4,), rank, dtype=torch.int32)
    peers = Peers()
    arrived = torch.empty_like(tensor)
    peers.exchange(tensor, (rank + 1) % w, arrived, (rank - 1) % w)
    assert (arrived == (rank - 1) % w).all()
    for calls in ALGORITHMS:
        total = tensor.clone()
        calls.all_reduce(total)
        assert (total == w * (w - 1) // 2).all()
        rows = list(tensor.clone().tensor_split(w))
        parts = [torch.empty_like(rows[rank]) for _ in range(w)]
        calls.all_to_all(parts, rows)
        assert all((part == other).all() for other, part in enumerate(parts))


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_exchange_of_large_messages_ends(world_size):
    """
    Several MiB both ways fit in no socket's buffer: only who receives while it sends gets done.
    """
    run_world(world_size, _large_both_ways, 12 * 4 * 171_000)


def _send_first(rank, w, num_bytes):
    tensor = torch.zeros(num_bytes, dtype=torch.uint8)
    dist.send(tensor, (rank + 1) % w)
    dist.recv(tensor, (rank - 1) % w)


@pytest.mark.ranks
def test_exchange_by_blocking_sends_never_ends():
    """
    The wrong answer that the exchange is there for: all send, and nobody is left to receive.
    """
    with pytest.raises(RankFailed, match=r"ranks \[0, 1\] of 2 were not done in time"):
        run_world(2, _send_first, 8 << 20, timeout_s=2.0)


def _own_messages(rank, w):
    mine = torch.tensor([100 + rank])
    arrived = torch.zeros(1, dtype=torch.int64)
    works = [dist.irecv(arrived, (rank - 1) % w), dist.isend(mine, (rank + 1) % w)]
    total = torch.ones(1)
    log_rounds.all_reduce(total)
    for work in works:
        work.wait()
    return arrived.item(), total.item()


@pytest.mark.ranks
def test_collectives_leave_the_callers_messages_alone():
    """
    A message that is under way when a collective starts must not be taken for one of its own.
    """
    assert run_world(3, _own_messages) == [(102, 3.0), (100, 3.0), (101, 3.0)]


def _barrier_times(rank, w, name):
    calls = naive if name == "naive" else log_rounds
    calls.barrier()
    if rank == w - 1:
        time.sleep(0.2)  # the late one; it is no synchronisation but what is measured
    came = time.monotonic()
    calls.barrier()
    return came, time.monotonic()


@pytest.mark.ranks
@pytest.mark.parametrize("name", ["naive", "log_rounds"])
def test_barrier_waits_for_the_last(name):
    """
    Nobody leaves before everybody has come. One machine, so one clock.
    """
    times = run_world(4, _barrier_times, name)
    assert min(left for _, left in times) >= max(came for came, _ in times)
