"""
The message that every algorithm is made of.
"""

from typing import NamedTuple


class Transfer(NamedTuple):
    """
    One message.

    Args:
        sender: Rank that sends it.
        receiver: Rank that receives it.
        chunks: The chunks in it.
        adds: Whether the receiver adds them to its own (else it keeps them as they are).
    """

    sender: int
    receiver: int
    chunks: tuple[int, ...]
    adds: bool = False


def power_of_two_below(number: int) -> int:
    """
    Return the largest power of two that is at most `number`.
    """
    return 1 << (number.bit_length() - 1)


def distances(world_size: int) -> list[int]:
    """
    Return 1, 2, 4, ... below `world_size`: one number a round.
    """
    return [1 << k for k in range((world_size - 1).bit_length())]
