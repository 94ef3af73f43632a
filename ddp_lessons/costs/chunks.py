"""
How a tensor is cut into chunks that ranks pass on: as evenly as torch.tensor_split cuts it.
"""

from itertools import accumulate

from ddp_lessons.errors import BadInput
from ddp_lessons.whole import whole_number


def chunk_lengths(num_elements: int, num_chunks: int) -> tuple[int, ...]:
    """
    Return the length of each chunk: the first `num_elements % num_chunks` are one longer.

    Args:
        num_elements: Elements to divide, 0 or more.
        num_chunks: Chunks to divide them into, at least 1. Some are empty if elements are fewer.

    Returns:
        tuple of int: One length a chunk, in elements.

    Raises:
        BadInput: A count is negative or no whole number, or there is no chunk.

    Source: torch.tensor_split documentation. Lesson: 03_ring.
    """
    need_count("num_elements", num_elements)
    need_count("num_chunks", num_chunks, at_least=1)
    length, num_longer = divmod(num_elements, num_chunks)
    return tuple(length + (chunk < num_longer) for chunk in range(num_chunks))


def chunk_bounds(num_elements: int, num_chunks: int) -> tuple[tuple[int, int], ...]:
    """
    Return where each chunk starts and stops.

    Args:
        num_elements: Elements to divide, 0 or more.
        num_chunks: Chunks to divide them into, at least 1.

    Returns:
        tuple of (int, int): Start and stop of each chunk, in elements.

    Raises:
        BadInput: A count is negative or no whole number, or there is no chunk.

    Lesson: 03_ring.
    """
    lengths = chunk_lengths(num_elements, num_chunks)
    stops = tuple(accumulate(lengths))
    return tuple((stop - length, stop) for length, stop in zip(lengths, stops, strict=True))


def need_count(name: str, value: object, at_least: int = 0) -> None:
    """
    Refuse what is no whole number, or too small a one.

    Args:
        name: Name of the argument, for the message.
        value: The value that the caller gave.
        at_least: Smallest number that will do.

    Raises:
        BadInput: It is not such a number.
    """
    whole = whole_number(value)
    if whole is None or whole < at_least:
        raise BadInput(
            f"Bad {name}: expected a whole number of at least {at_least} (got {value!r}). "
            f"Pass another {name}."
        )
