"""
Foretell what a pair of cut layers sends and holds.

Legend: n rows of the input (samples, or places of all pieces), in and out numbers a row, h between
the layers; w ranks; b bytes a number.

    forward    an all-reduce of n out b bytes
    backward   an all-reduce of n in b bytes, if the input wants a gradient
    held       2 layers' weights and the first one's bias, each 1 / w; the second one's bias
"""

from collections.abc import Iterable

from ...costs import sent_bytes


def pair_bytes(
    num_rows: int,
    in_features: int,
    out_features: int,
    element_bytes: int = 4,
    input_wants_grad: bool = True,
) -> tuple[int, ...]:
    """
    Foretell the all-reduces of a column- and a row-parallel layer, by how many bytes each reads.

    They depend on the batch and on what goes in and comes out: not on the width between, nor on w.

    Args:
        num_rows: Rows of the input, all dimensions but the last together.
        in_features: Numbers of a row that goes in.
        out_features: Numbers of a row that comes out.
        element_bytes: Bytes of a number.
        input_wants_grad: Whether the input needs a gradient, as that of any later layer does.

    Returns:
        tuple: Bytes of each all-reduce of forward, then of backward.

    Lesson: 15_beyond_ddp.
    """
    forward = (num_rows * out_features * element_bytes,)
    backward = (num_rows * in_features * element_bytes,) if input_wants_grad else ()
    return forward + backward


def sent_by_ring(num_bytes: Iterable[int], world_size: int, element_bytes: int = 4) -> int:
    """
    Return the bytes that the busiest rank sends for all-reduces made by rings.

    Args:
        num_bytes: Bytes of each all-reduce, as `pair_bytes` returns them.
        world_size: Number of ranks.
        element_bytes: Bytes of a number.

    Lesson: 15_beyond_ddp.
    """
    return sum(
        max(sent_bytes("all_reduce", "ring", world_size, one // element_bytes, element_bytes))
        for one in num_bytes
    )


def held_numbers(in_features: int, hidden_features: int, out_features: int, world_size: int) -> int:
    """
    Return how many numbers of two cut layers a rank holds.

    Args:
        in_features: Inputs of the first layer.
        hidden_features: Outputs of the first one, inputs of the second; a multiple of w.
        out_features: Outputs of the second.
        world_size: Number of ranks, w.

    Lesson: 15_beyond_ddp.
    """
    return hidden_features // world_size * (in_features + 1 + out_features) + out_features
