"""
Foretell the time of a step on w ranks, from compute that was measured and the model of lesson 03.

Legend: w ranks, a model in buckets of B_k bytes; backward comes in as many parts, and bucket k may
be sent when part k is through. One bucket is under way at a time, round a ring of w ranks:

    all-reduce of B bytes     2 (w - 1) latencies + 2 (w - 1) / w * B / bandwidth
    bucket k is through       that much after part k, or after bucket k - 1 if that is later
    step                      forward, backward or the last bucket (the later one), optimizer
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate

from ..costs import Fit, Link, collective_s, critical_path, fit, overlapped_finish_s
from ..errors import BadInput


def naive_step_s(
    forward_s: float,
    backward_s: Iterable[float],
    all_reduces_s: Iterable[float],
    optimizer_s: float = 0.0,
) -> float:
    """
    Return the seconds of a step if nothing overlaps: all parts, one after the other.

    Args:
        forward_s: Seconds of the forward pass.
        backward_s: Seconds of each part of the backward pass.
        all_reduces_s: Seconds of each bucket's all-reduce.
        optimizer_s: Seconds of the optimizer's step.

    Lesson: 11_speed, beside `predict_step_s`.
    """
    return forward_s + sum(backward_s) + sum(all_reduces_s) + optimizer_s


def predict_step_s(
    world_size: int,
    forward_s: float,
    backward_s: Sequence[float],
    bucket_bytes: Sequence[int],
    link: Link,
    optimizer_s: float = 0.0,
) -> float:
    """
    Return the seconds of a step whose buckets are sent while backward goes on.

    Args:
        world_size: Number of ranks, w. One rank sends nothing.
        forward_s: Seconds of the forward pass.
        backward_s: Seconds of each part of the backward pass.
        bucket_bytes: For each part the bytes of the bucket that is ready after it.
        link: A `costs.Link`.
        optimizer_s: Seconds of the optimizer's step.

    Raises:
        BadInput: There are not as many buckets as parts of backward.

    Source: Li et al., "PyTorch Distributed", VLDB 2020. Lesson: 11_speed.
    """
    if len(backward_s) != len(bucket_bytes):
        raise BadInput(
            f"Bad buckets: expected one for each of {len(backward_s)} parts of backward (got "
            f"{len(bucket_bytes)}). Leave no part without."
        )
    seconds = [
        collective_s("all_reduce", "ring", world_size, num_bytes, link)
        for num_bytes in bucket_bytes
    ]
    finish_s = overlapped_finish_s(list(accumulate(backward_s)), seconds)
    return forward_s + max(sum(backward_s), finish_s) + optimizer_s


def bytes_in_s(seconds: float, world_size: int, link: Link) -> int:
    """
    Return how many bytes an all-reduce round a ring moves in some seconds: float32 in even chunks.

    Args:
        seconds: At most; less by what is missing to a whole number in each chunk.
        world_size: Number of ranks, w, from 2.
        link: A `costs.Link`.

    Raises:
        BadInput: The latencies alone take longer.

    Lesson: 11_speed.
    """
    latencies_s = collective_s("all_reduce", "ring", world_size, 0, link)
    left_s = seconds - latencies_s
    chunk_bytes = left_s * link.bandwidth_bytes_per_s / (2 * (world_size - 1))
    num_bytes = int(chunk_bytes / 4 + 1e-6) * 4 * world_size
    if num_bytes <= 0:
        raise BadInput(
            f"Too short: expected more than the {latencies_s:g} s that {world_size} ranks wait for "
            f"latencies (got {seconds:g} s). Take a link that is faster, or fewer ranks."
        )
    return num_bytes


def fit_all_reduce(times: Iterable[tuple[int, float]], world_size: int) -> Fit:
    """
    Fit latency and bandwidth to measured all-reduces of w ranks, as rounds of a ring.

    Args:
        times: Pairs (bytes, seconds), at least three, of at least two sizes.
        world_size: Number of ranks, w, at least 2.

    Returns:
        Fit: Its link foretells other sizes, and other numbers of ranks if they share the link.

    Lesson: 11_speed; `costs.fit` is from 03_ring.
    """
    return fit(times, *critical_path("all_reduce", "ring", world_size))


def error_share(predicted_s: float, measured_s: float) -> float:
    """
    Return how far a prediction is off, as a share of what was measured.

    Lesson: 11_speed.
    """
    return abs(predicted_s - measured_s) / measured_s
