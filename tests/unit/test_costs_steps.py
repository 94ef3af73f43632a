"""
The model of a whole training step, and the inputs that `costs` refuses.
"""

import math

import pytest

from ddp_lessons.costs import (
    Link,
    StepModel,
    amdahl_speedup,
    chunk_lengths,
    fit,
    overlapped_finish_s,
    rank_costs,
    schedule,
)
from ddp_lessons.errors import BadInput


def test_more_ranks_do_not_help_beyond_the_serial_share():
    """
    Amdahl's law: if a tenth of the work is serial, the speed-up stays below ten.
    """
    assert amdahl_speedup(0.0, 8) == 8
    assert amdahl_speedup(1.0, 8) == 1
    assert amdahl_speedup(0.1, 10**9) == pytest.approx(10, rel=1e-7)  # short by 9e-8 of itself


def test_step_model_hides_no_more_than_backward_lasts():
    """
    Communication that is longer than the backward pass is not fully hidden, however well it
    overlaps.
    """
    slow = StepModel(1.0, 2.0, 0.5, communication_s=5.0, overlap_share=1.0)
    assert (slow.hidden_s, slow.step_s) == (2.0, 6.5)
    assert slow.speedup(4) == pytest.approx(4 * 3.5 / 6.5, rel=1e-15)
    half = StepModel(1.0, 2.0, 0.5, communication_s=1.0, overlap_share=0.5)
    assert (half.compute_s, half.hidden_s, half.step_s) == (3.5, 0.5, 4.0)
    assert StepModel(1.0, 2.0, 0.5, 1.0).step_s == 4.5
    with pytest.raises(BadInput, match="Nothing to do"):
        StepModel(0, 0, 0, 0).speedup(2)


def test_overlapped_finish_waits_for_gradients_and_for_the_link():
    """
    A bucket is sent when its gradients are ready and the buckets before it are sent.
    """
    assert overlapped_finish_s([], []) == 0
    assert overlapped_finish_s([1, 2, 3], [0.5, 0.5, 0.5]) == 3.5  # the link waits for gradients
    assert overlapped_finish_s([1, 2, 3], [4, 4, 4]) == 13  # gradients wait for the link
    assert overlapped_finish_s([3], [1.5]) == 4.5  # one bucket: nothing overlaps


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: chunk_lengths(-1, 2), "Bad num_elements"),
        (lambda: chunk_lengths(1, 0), "Bad num_chunks"),
        (lambda: chunk_lengths(1.0, 2), "Bad num_elements"),
        (lambda: chunk_lengths(True, 2), "Bad num_elements"),
        (lambda: schedule("all_reduze", "ring", 2), "No such collective: expected one of broadc"),
        (lambda: schedule("all_reduce", "star", 2), "No such algorithm for all_reduce: .*ring"),
        (lambda: schedule("all_reduce", "ring", 0), "Bad world_size"),
        (lambda: schedule("all_reduce", "hub", 2, 4, root=2), "No such root: .* from 0 to 1"),
        (lambda: rank_costs(schedule("all_reduce", "ring", 2), 0), "Bad element_bytes"),
        (lambda: Link(-1.0, 1.0), "Bad latency_s"),
        (lambda: Link(math.nan, 1.0), "Bad latency_s"),
        (lambda: Link(1.0, 0.0), "Bad bandwidth"),
        (lambda: Link(1.0, 1.0, -1.0), "Bad add_s_per_byte"),
        (lambda: fit([(1, 1.0), (2, 2.0)]), "Too few measurements"),
        (lambda: fit([(1, 1.0)] * 5), "Too few measurements: .*got 5, of 1"),
        (lambda: fit([(1, 1.0), (2, 0.0), (3, 1.0)]), "Bad measurement"),
        (lambda: fit([(1, 3.0), (10**6, 2.0), (10**7, 1.0)]), "No bandwidth to be told"),
        (lambda: fit([(10**9, 1.0), (10**9 + 1, 1.1), (10**9, 1.2)]), "Sizes too alike"),
        (lambda: fit([(1, 1.0), (2, 2.0), (3, 3.0)], 0, 0), "Nothing was sent"),
        (lambda: fit([(1, 1.0), (2, 2.0), (3, 3.0)], confidence=95), "Bad confidence"),
        (lambda: amdahl_speedup(1.5, 2), "Bad serial_share"),
        (lambda: amdahl_speedup(0.5, 0), "Bad world_size"),
        (lambda: StepModel(1, 1, 1, -1), "Bad communication_s"),
        (lambda: StepModel(1, 1, 1, 1, overlap_share=2), "Bad overlap_share"),
        (lambda: overlapped_finish_s([1], []), "Lists differ"),
    ],
)
def test_costs_refuse_what_cannot_be(call, message):
    """
    Impossible inputs are refused, because they would give wrong costs without a sign of it.
    """
    with pytest.raises(BadInput, match=message):
        call()
