"""
Both rings compared with torch's collectives, with float64, and with the fewest possible bytes.
"""

import pytest
import torch
import torch.distributed as dist
from collective_values import OPS, WORLD_SIZES, values
from counting import counted_sends
from worlds import RankFailed, run_world

from ddp_lessons.collectives import Peers
from ddp_lessons.ring import pipelined, segments, steps, textbook
from ddp_lessons.ring.spare import SpareRoom

RINGS = [textbook, pipelined]
LENGTHS = [0, 1, 3, 7, 301]


def _small_segments():
    """
    Set this process to segments of 64 bytes, and turn off the shortcuts for short tensors.

        With the real settings a test of the pipeline would need hundreds of MiB. Each rank is its
        own process, so nothing has to be restored.
    """
    segments.SEGMENT_BYTES = 64
    segments.SHORT_BYTES = segments.PAIR_BYTES = -1


def _three_calls(calls, rank, w, length, dtype, op):
    everywhere = values((length,), dtype, rank)
    row = [values((length,), dtype, rank, salt=1 + other) for other in range(w)]
    part = torch.empty_like(row[0])
    parts = [torch.empty_like(part) for _ in range(w)]
    calls.all_gather(parts, everywhere)
    calls.reduce_scatter(part, row, op=op)
    calls.all_reduce(everywhere, op=op)
    return [one.tolist() for one in (everywhere, part, *parts)]


def _compare_with_torch(rank, w, small):
    if small:
        _small_segments()
    differing = []
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.int64):
        for name in OPS:
            if name == "AVG" and not dtype.is_floating_point:
                continue
            op = getattr(dist.ReduceOp, name)
            for length in LENGTHS if name == "SUM" else (7,):
                expected = _three_calls(dist, rank, w, length, dtype, op)
                for calls in RINGS:
                    if _three_calls(calls, rank, w, length, dtype, op) != expected:
                        differing.append((repr(calls), dtype, name, length))
    return differing


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_rings_are_torchs_collectives(world_size, small):
    """
    For small whole numbers the sum does not depend on the order of additions, so the bits equal
    torch's. Some lengths are not divisible by the ranks, shorter than the ring, or 0.
    """
    assert run_world(world_size, _compare_with_torch, small) == [[]] * world_size


def _compare_halves_with_torch(rank, w):
    segments.WHOLE_BYTES = -1
    return _compare_with_torch(rank, w, small=False)


def test_two_ranks_that_add_up_in_halves_do_as_torch():
    """
    Both halves are added, in spare memory that may hold numbers of earlier calls.
    """
    assert run_world(2, _compare_halves_with_torch) == [[], []]


def _sum_floats(rank, w, dtype):
    _small_segments()
    generator = torch.Generator().manual_seed(rank)
    mine = torch.randn(1003, generator=generator).to(dtype)
    totals = []
    for calls in RINGS:
        total = mine.clone()
        calls.all_reduce(total)
        totals.append(total.double().tolist())
    return mine.double().tolist(), totals


@pytest.mark.bitwise
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("world_size", [3, 4])
def test_ring_sum_is_one_process_in_float64(world_size, dtype):
    """
    Each of w - 1 additions rounds once, by at most half an eps of a partial sum. All ranks hold the
    same bits, and so do both rings, because they add in the same order.
    """
    answers = run_world(world_size, _sum_floats, dtype)
    inputs = torch.tensor([mine for mine, _ in answers], dtype=torch.float64)  # (w, n)
    unit, num_roundings = torch.finfo(dtype).eps / 2, world_size - 1
    relative = num_roundings * unit / (1 - num_roundings * unit)
    # Below the normal numbers a rounding is half of the smallest step. float64 rounds, too.
    bound = (relative + world_size * 2**-53) * inputs.abs().sum(0)
    bound += num_roundings * torch.finfo(dtype).smallest_normal * unit
    results = [total for _, totals in answers for total in totals]
    assert all(result == results[0] for result in results)
    total = torch.tensor(results[0], dtype=torch.float64)
    assert ((total - inputs.sum(0)).abs() <= bound).all()


def _large(rank, w, length):
    pattern = torch.arange(length, dtype=torch.int32) % 1009
    expected = pattern * (w * (w + 1) // 2)
    for calls in RINGS:
        total = pattern * (rank + 1)
        calls.all_reduce(total)
        assert torch.equal(total, expected), calls
    part, row = (
        torch.empty(length // w, dtype=torch.int32),
        list(pattern[: length // w * w].chunk(w)),
    )
    pipelined.reduce_scatter(part, row)
    assert torch.equal(part, row[rank] * w)
    assert torch.equal(torch.cat(row), pattern[: length // w * w])  # the inputs do not change
    parts = [torch.empty_like(part) for _ in range(w)]
    pipelined.all_gather(parts, row[rank])
    assert torch.equal(torch.cat(parts), torch.cat(row))


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_rings_do_not_deadlock_on_large_messages(world_size):
    """
    20 MiB a rank are more than sockets buffer and several segments a chunk, at the real settings.
    No ring deadlocks.
    """
    run_world(world_size, _large, 5 * (1 << 20) + 5)


def _blocking_ring(rank, w, length):
    """
    Run a ring with a pitfall: every rank makes a blocking send before its receive.
    """
    chunks = torch.zeros(length).tensor_split(w)
    arrived = torch.empty(max(len(chunk) for chunk in chunks))
    for step in range(w - 1):
        dist.send(chunks[(rank - 1 - step) % w], (rank + 1) % w)
        growing = chunks[(rank - 2 - step) % w]
        dist.recv(arrived[: len(growing)], (rank - 1) % w)
        growing += arrived[: len(growing)]


def test_ring_of_blocking_sends_never_ends():
    """
    With 12 MiB a ring that sends first and then receives hangs: every rank waits.
    """
    with pytest.raises(RankFailed, match=r"ranks \[0, 1\] of 2 were not done in time"):
        run_world(2, _blocking_ring, 3 * (1 << 20) + 5, timeout_s=2.0)


def _pass_everything(tensor, rank, w):
    """
    Sum with a pitfall: pass the whole tensor to the next rank w - 1 times, and add.
    """
    peers, leaving = Peers(), tensor.clone()
    for _ in range(w - 1):
        arriving = torch.empty_like(leaving)
        peers.exchange(leaving, (rank + 1) % w, arriving, (rank - 1) % w)
        tensor += arriving
        leaving = arriving


def _count_all_reduce(rank, w, length):
    segments.SHORT_BYTES = segments.PAIR_BYTES = -1
    counts = {}
    for name, call in (
        ("textbook", textbook.all_reduce),
        ("pipelined", pipelined.all_reduce),
        ("whole", lambda tensor: _pass_everything(tensor, rank, w)),
    ):
        tensor = torch.full((length,), rank + 1.0)
        with counted_sends() as sent:
            call(tensor)
        assert (tensor == w * (w + 1) / 2).all()
        counts[name] = (sent.num_messages, sent.num_bytes)
    return counts


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_ring_all_reduce_sends_the_fewest_bytes(world_size):
    """
    A rank sends 2 (w - 1) / w of the tensor, in 2 (w - 1) messages. Passing the whole tensor gives
    the same sum with w / 2 times the bytes.
    """
    w, length = world_size, 12 * 100
    num_bytes = 4 * length
    for counts in run_world(w, _count_all_reduce, length):
        fewest = (2 * (w - 1), 2 * (w - 1) * num_bytes // w)
        assert counts["textbook"] == fewest
        assert counts["pipelined"] == fewest
        assert counts["whole"] == (w - 1, (w - 1) * num_bytes)
        assert w < 3 or counts["whole"][1] > fewest[1]


def _count_halves(rank, w, length):
    counts = []
    for calls in RINGS:
        part = torch.ones(length)
        with counted_sends() as sent:
            calls.reduce_scatter(part, [torch.ones(length)] * w)
        assert (part == w).all()
        counts.append((sent.num_messages, sent.num_bytes))
        with counted_sends() as sent:
            calls.all_gather([torch.empty(length) for _ in range(w)], part)
        counts.append((sent.num_messages, sent.num_bytes))
    return counts


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_ring_halves_send_one_part_a_step(world_size):
    """
    Reduce-scatter and all-gather each have half of the all-reduce's messages.
    """
    w, length = world_size, 50
    for counts in run_world(w, _count_halves, length):
        assert counts == [(w - 1, (w - 1) * 4 * length)] * 4


def _count_uneven(rank, w, length):
    _small_segments()
    counts = []
    for calls in RINGS:
        with counted_sends() as sent:
            calls.all_reduce(torch.ones(length))
        counts.append((sent.num_messages, sent.num_bytes))
    return counts


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_segments_move_the_bytes_of_the_textbook(world_size):
    """
    Segments move only the bytes of their chunk, also where neither the ranks nor the segments
    divide.
    """
    w, length = world_size, 1003
    lengths = [len(chunk) for chunk in torch.zeros(length).tensor_split(w)]
    num_segments = -(-4 * lengths[0] // 64)
    num_messages = 2 * (w - 1) * num_segments
    for rank, (plain, cut) in enumerate(run_world(w, _count_uneven, length)):
        # A rank sends each chunk twice, but its own and the next one only once.
        num_bytes = 4 * (2 * length - lengths[rank] - lengths[(rank + 1) % w])
        assert plain == (2 * (w - 1), num_bytes)
        assert cut == (num_messages, num_bytes)


def _count_short(rank, w, num_bytes):
    with counted_sends() as sent:
        pipelined.all_reduce(torch.ones(num_bytes, dtype=torch.uint8))
    return sent.num_messages


def test_short_tensors_go_by_a_tree():
    """
    For 1 KiB latency dominates, so the tree is used: 6 messages in all instead of 6 for each rank.
    Longer tensors take the ring.
    """
    short_bytes = segments.SHORT_BYTES * 4
    assert run_world(4, _count_short, 1024) == [2, 2, 1, 1]
    assert run_world(4, _count_short, short_bytes) == [2, 2, 1, 1]
    assert run_world(4, _count_short, short_bytes + 1) == [6] * 4


def test_room_is_kept_and_lent_again():
    """
    Spare memory is reused for any dtype, but never for two calls at once.
    """
    spare = SpareRoom(64, most=1)
    like = torch.ones(2, dtype=torch.float64)
    one, other = spare.take(like), spare.take(like)
    assert one.dtype == torch.float64
    assert len(one) == 8
    assert one.data_ptr() != other.data_ptr()
    spare.give_back(one)
    spare.give_back(other)  # the spare room keeps one tensor
    again = spare.take(torch.ones(1, dtype=torch.bool))
    assert again.data_ptr() == other.data_ptr()
    assert len(again) == 64
    assert spare.take(like).data_ptr() != other.data_ptr()


def test_two_ranks_take_the_tree_for_longer():
    """
    For two ranks the tree has two messages in all. Above a limit one half is added while the other
    arrives, with three messages. For chunks of more than one segment each rank adds one half and
    sends it back.
    """
    assert run_world(2, _count_short, segments.WHOLE_BYTES) == [1, 1]
    assert run_world(2, _count_short, segments.WHOLE_BYTES + 1) == [1, 2]
    num_bytes = segments.PAIR_BYTES * 2
    assert run_world(2, _count_short, num_bytes) == [1, 2]
    num_segments = -(-(num_bytes // 2 + 1) // segments.SEGMENT_BYTES)
    assert run_world(2, _count_short, num_bytes + 2) == [2 * num_segments] * 2


def _note_order(rank, w):
    order = []
    for name in ("isend", "irecv"):
        call = getattr(dist, name)

        def noting(*args, call=call, name=name, **kwargs):
            order.append(name)
            return call(*args, **kwargs)

        setattr(dist, name, noting)
    pipelined.all_reduce(torch.ones(segments.PAIR_BYTES * w + 1, dtype=torch.uint8))
    return order


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_every_rank_is_ready_to_receive_before_it_sends(world_size):
    """
    Receives are posted before sends, since Gloo sends nothing before the other side is ready.
    """
    for order in run_world(world_size, _note_order):
        first_send = order.index("isend")
        assert order[:first_send] == ["irecv"] * segments.NUM_AHEAD
        assert order.count("isend") == order.count("irecv")


def _in_a_subgroup(rank, w):
    _small_segments()
    members = [1, 3]
    group = dist.new_group(members)
    dist.barrier()  # a rank that leaves while others still connect would fail them
    if rank not in members:
        return None
    seen = []
    for calls in RINGS:
        behind = torch.zeros(2, 40)
        behind[:, ::2] = rank
        calls.all_reduce(behind[:, ::2], group=group)
        assert behind[:, 1::2].count_nonzero() == 0
        assert (behind[:, ::2] == sum(members)).all()
        parts = [torch.zeros(3, 2).t() for _ in members]
        calls.all_gather(parts, torch.full((2, 3), float(rank)), group=group)
        seen.append([part.unique().item() for part in parts])
    return seen


def test_rings_in_a_subgroup_write_through_any_strides():
    """
    In a subgroup the neighbours are those of the group, and results are written to the caller's own
    memory.
    """
    assert run_world(4, _in_a_subgroup) == [None, [[1.0, 3.0]] * 2, None, [[1.0, 3.0]] * 2]


def _chunks_alone(rank, w):
    peers = Peers()
    chunks = [torch.full((2,), float(10 * rank + i)) for i in range(w)]
    steps.reduce_scatter_chunks(chunks, dist.ReduceOp.SUM, peers)
    own = chunks[rank].tolist()
    steps.all_gather_chunks(chunks, peers)
    return own, [chunk[0].item() for chunk in chunks]


def test_reduce_scatter_chunks_finishes_chunk_r_on_rank_r():
    """
    The lesson runs the two halves separately: reduce-scatter finishes chunk r on rank r, where
    all-gather begins.
    """
    expected = [30.0 + 3 * i for i in range(3)]
    for rank, (own, everything) in enumerate(run_world(3, _chunks_alone)):
        assert own == [expected[rank]] * 2
        assert everything == expected


@pytest.mark.gpu
def test_ring_on_a_gpu_through_gloo():
    """
    Gloo sends only from the CPU, so a GPU's numbers are copied there and back automatically.
    """
    assert run_world(2, _on_gpu) == [[3.0, 3.0]] * 2


def _on_gpu(rank, w):
    totals = []
    for calls in RINGS:
        total = torch.full((100_000,), rank + 1.0, device="cuda")
        calls.all_reduce(total)
        totals.append(total.unique().item())
    return totals
