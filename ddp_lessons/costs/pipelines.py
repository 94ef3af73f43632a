"""
The cost of a pipeline: the ticks in which a rank idles, and the bytes that go from rank to rank.

Legend: w ranks, M microbatches, v parts of the model on each rank: v w stages.
"""

from ddp_lessons.costs.chunks import need_count


def bubble_share(num_ranks: int, num_microbatches: int, num_parts: int = 1) -> float:
    """
    Return the share of all ranks' time in which a pipeline's ranks do nothing.

    It holds for GPipe, 1F1B and interleaved 1F1B, if stages take equally long, and messages no
    time. How long a backward takes beside a forward does not matter.

    Args:
        num_ranks: w.
        num_microbatches: M; for several parts a multiple of w.
        num_parts: v.

    Returns:
        float: (w - 1) / (v M + w - 1).

    Raises:
        BadInput: One of them is below 1.

    Source: D. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters
    Using Megatron-LM", SC 2021, section 2.2, which divides by the busy time. Lesson: 15_beyond_ddp.
    """
    _need_pipeline(num_ranks, num_microbatches, num_parts)
    return (num_ranks - 1) / (num_parts * num_microbatches + num_ranks - 1)


def pipeline_sent_bytes(
    num_ranks: int, num_microbatches: int, activation_bytes: int, num_parts: int = 1
) -> list[int]:
    """
    Return what each rank of a pipeline sends in a step, if all stages hand over as much.

    Each stage but the last sends what it made forward, each but the first what it made backward.

    Args:
        num_ranks: w.
        num_microbatches: M.
        activation_bytes: Bytes that a stage hands over for a microbatch; its gradient has as many.
        num_parts: v.

    Returns:
        list of int: Bytes, in rank order.

    Raises:
        BadInput: A count is below 1, or the bytes below 0.

    Lesson: 15_beyond_ddp.
    """
    _need_pipeline(num_ranks, num_microbatches, num_parts)
    need_count("activation_bytes", activation_bytes)
    if num_ranks == 1:
        return [0]
    num_handed = [2 * num_parts - (rank in (0, num_ranks - 1)) for rank in range(num_ranks)]
    return [num * num_microbatches * activation_bytes for num in num_handed]


def _need_pipeline(num_ranks, num_microbatches, num_parts):
    need_count("num_ranks", num_ranks, at_least=1)
    need_count("num_microbatches", num_microbatches, at_least=1)
    need_count("num_parts", num_parts, at_least=1)
