"""
Wrong arguments to a collective are refused on each rank that passes them, before the first message.
"""

import pytest
import torch
import torch.distributed as dist
from counting import counted_sends
from worlds import run_world

from ddp_lessons.collectives import Peers, hub, log_rounds, naive
from ddp_lessons.errors import BadInput
from ddp_lessons.ring import pipelined


def _ones(*shape, dtype=None):
    return torch.ones(*shape, dtype=dtype)


def _wrong_calls(rank, w):
    """
    Return every wrong call with a part of its message.
    """
    two, three = [_ones(2) for _ in range(w)], [_ones(3) for _ in range(w)]
    op = dist.ReduceOp
    expanded = _ones(1).expand(4)
    return {
        "all_reduce of a list": (
            lambda calls: calls.all_reduce([_ones(2)]),
            "Cannot be sent: tensor must be made of dense tensors (got list, {here}).",
        ),
        "all_reduce of a sparse tensor": (
            lambda calls: calls.all_reduce(_ones(2).to_sparse()),
            "Cannot be sent: tensor must be made of dense tensors (got torch.sparse_coo, {here}).",
        ),
        "all_reduce into shared memory": (
            lambda calls: calls.all_reduce(expanded),
            "Cannot be written: the numbers of tensor must not share memory "
            "(got strides (0,), {here}). Call .clone() on it first.",
        ),
        "all_reduce by bits": (
            lambda calls: calls.all_reduce(_ones(2, dtype=torch.int32), op.BAND),
            "Unknown operation: op must be SUM, AVG, PRODUCT, MIN or MAX",
        ),
        "average of integers": (
            lambda calls: calls.all_reduce(_ones(2, dtype=torch.int32), op.AVG),
            "Wrong dtype: AVG has no meaning for these numbers (got torch.int32, {here}).",
        ),
        "order of complex numbers": (
            lambda calls: calls.reduce_scatter(
                _ones(2, dtype=torch.complex64), [_ones(2, dtype=torch.complex64)] * w, op.MAX
            ),
            "Wrong dtype: MAX has no meaning for these numbers (got torch.complex64, {here}).",
        ),
        "all_gather into a short list": (
            lambda calls: calls.all_gather(two[1:], two[0]),
            f"Wrong list: tensor_list must hold one tensor a rank, {w} in all (got {w - 1}, "
            "{here}). Make the list as long as the group is large.",
        ),
        "all_gather into a tensor": (
            lambda calls: calls.all_gather(_ones(w, 2), two[0]),
            "Wrong list: tensor_list must hold one tensor a rank, 2 in all (got Tensor, {here}).",
        ),
        "all_gather into other shapes": (
            lambda calls: calls.all_gather(three, two[0]),
            "Wrong shape: tensors of tensor_list must have shape (2,) (got (3,), {here}).",
        ),
        "all_gather into one tensor many times": (
            lambda calls: calls.all_gather([two[0]] * w, two[1]),
            "Cannot be written: each tensor of tensor_list needs memory of its own "
            "(got the same for 0 and 1, {here}). Make a new tensor for each rank.",
        ),
        "reduce_scatter of other dtypes": (
            lambda calls: calls.reduce_scatter(_ones(2, dtype=torch.float64), two),
            "Wrong dtype: tensors of input_list must be torch.float64 (got torch.float32, {here}).",
        ),
        "broadcast from nobody": (
            lambda calls: calls.broadcast(_ones(2), w),
            f"No such rank: src must be one of [0, 1] (got {w}, {{here}}).",
        ),
        "reduce to nobody": (
            lambda calls: calls.reduce(_ones(2), -1),
            "No such rank: dst must be one of [0, 1] (got -1, {here}).",
        ),
        "all_to_all of two dtypes": (
            lambda calls: calls.all_to_all(two, [_ones(2, dtype=torch.int32)] * w),
            "Wrong dtype: tensors of output_list must be torch.int32 (got torch.float32, {here}).",
        ),
        "all_gather_unequal of one number": (
            lambda calls: calls.all_gather_unequal(torch.tensor(1.0)),
            "No first dimension: tensor must have at least one (got none, {here}).",
        ),
    }


def _refuse_all(rank, w):
    here = f"rank {rank} of {w}"
    for what, (call, message) in _wrong_calls(rank, w).items():
        shared = ("all_reduce", "all_gather ", "reduce_scatter", "average", "order")
        for calls in (naive, log_rounds, *([pipelined] if what.startswith(shared) else [])):
            with counted_sends() as sent, pytest.raises(BadInput) as caught:
                call(calls)
            assert message.replace("{here}", here) in str(caught.value), what
            assert sent.num_messages == 0, what
    # All ranks can still make their next call together.
    total = _ones(1)
    log_rounds.all_reduce(total)
    return total.item()


def test_collectives_refuse_before_the_first_message():
    """
    A rank that raises after it has sent leaves its peers in the middle of a collective.
    """
    assert run_world(2, _refuse_all) == [2.0, 2.0]


def _refuse_lists_of_roots(rank, w):
    dist.barrier()  # a rank that leaves while others still connect would fail them
    messages = []
    parts = [_ones(2) for _ in range(w)]
    for calls in (naive, log_rounds):
        for call in (calls.scatter, calls.gather):
            with pytest.raises(BadInput) as caught:
                # The root passes no list, and the other rank passes one.
                call(_ones(2), None if rank == 1 else parts, 1)
            messages.append(str(caught.value))
    return messages


def test_scatter_and_gather_want_the_list_on_the_root_alone():
    """
    Only the root may pass a list; a list on another rank is a mistake that would pass unseen.
    """
    other, root = run_world(2, _refuse_lists_of_roots)
    for name, message in zip(["scatter_list", "gather_list"] * 2, root, strict=True):
        assert message.startswith(
            f"Wrong list: {name} must hold one tensor a rank, 2 in all (got N"
        )
    for name, message in zip(["scatter_list", "gather_list"] * 2, other, strict=True):
        assert message == (
            f"List on the wrong rank: {name} belongs to rank 1 of the group alone "
            "(got 2 tensors, rank 0 of 2). Give None on the other ranks."
        )


def _differ_between_ranks(rank, w):
    messages = []
    for calls in (naive, log_rounds):
        with pytest.raises(BadInput) as caught:
            calls.all_gather_unequal(_ones(2, 3 if rank == 1 else 4))
        messages.append(str(caught.value).partition(" (got")[0])
        # Rank 1 expects 5 numbers from rank 0, which sends 2.
        outputs = [_ones(5 if rank == 1 and s == 0 else 2) for s in range(w)]
        with pytest.raises(BadInput) as caught:
            calls.all_to_all(outputs, [_ones(2) for _ in range(w)])
        messages.append(str(caught.value).partition(", rank")[0])
    return messages


def test_what_ranks_must_agree_on_is_refused_on_all():
    """
    If the ranks exchange sizes first, every rank sees a disagreement and raises, and none is left
    waiting.
    """
    expected = [
        "Rows differ: only the first dimension may have another length on each rank",
        "Sizes differ: what rank 0 sends to rank 1 has 2 numbers (got room for 5",
    ] * 2
    assert run_world(3, _differ_between_ranks) == [expected] * 3


def _describe(rank, w):
    return repr(Peers()), repr(naive)


def test_peers_and_calls_describe_themselves():
    """
    A learner prints these objects. Their `repr` has no address, which would say nothing and change
    from run to run.
    """
    assert run_world(1, _describe) == [("Peers(rank 0 of 1)", f"Calls({hub.__name__})")]


def _exchange_in_a_batch(rank, w):
    """
    Exchange in one batch, as on a GPU with NCCL; Gloo also takes a batch.
    """
    peers = Peers()
    arrived = torch.zeros(3)
    there = torch.full((3,), float(rank))
    for work in peers._batch(there, (rank + 1) % w, arrived, (rank - 1) % w):
        work.wait()
    assert peers._batch(_ones(0), (rank + 1) % w, _ones(0), (rank - 1) % w) == []
    return arrived.tolist()


def test_peers_exchange_in_a_batch():
    """
    With NCCL a batch is the only way to send and receive at once.
    """
    assert run_world(3, _exchange_in_a_batch) == [[2.0] * 3, [0.0] * 3, [1.0] * 3]
