"""
A play as characters, for a language model that is small enough to train in a lesson.

Shapes: N pieces of T characters, each a number below V; a target is the character that follows.
"""

from dataclasses import dataclass
from importlib.resources import files

import torch

from ..errors import BadInput
from .seeds import rank_generator

_FILE = "as_you_like_it.txt"
_HELD_OUT_SHARE = 0.1


@dataclass(frozen=True)
class Text:
    """
    A text as numbers, its end held out.

    Args:
        characters: The V different characters, sorted; a character's number is its place.
        train: (45699,) int64, the beginning.
        held_out: (5078,) int64, never trained on.
    """

    characters: str
    train: torch.Tensor
    held_out: torch.Tensor

    def encode(self, written: str) -> torch.Tensor:
        """
        Return the numbers of characters, (T,) int64.

        Raises:
            BadInput: A character is not in this text.
        """
        strange = sorted(set(written) - set(self.characters))
        if strange:
            raise BadInput(
                f"Unknown character: expected those of the text (got {strange[0]!r}). "
                "See `characters`."
            )
        return torch.tensor([self.characters.index(c) for c in written], dtype=torch.int64)

    def decode(self, numbers: torch.Tensor) -> str:
        """
        Return the characters of numbers (T,), as a string.
        """
        return "".join(self.characters[number] for number in numbers.tolist())


def load_text() -> Text:
    """
    Load acts I and II of "As You Like It", which come with this package.

    Returns:
        Text: On the CPU; the same on every rank and every run. 50,777 characters, V = 63.

    Source: W. Shakespeare, "As You Like It", 1623, in the public domain; as_you_like_it.md beside
    the file says where it is from. Lesson: 07_accumulation.
    """
    written = files(__package__).joinpath(_FILE).read_text(encoding="ascii")
    characters = "".join(sorted(set(written)))
    number_of = {character: number for number, character in enumerate(characters)}
    numbers = torch.tensor([number_of[character] for character in written])
    num_held_out = round(_HELD_OUT_SHARE * len(numbers))
    return Text(characters, numbers[:-num_held_out], numbers[-num_held_out:])


def text_batch(
    numbers: torch.Tensor,
    num_samples: int,
    length: int,
    seed: int = 0,
    rank: int = 0,
    step: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Draw pieces of a text, and for each the same piece one character later.

    Args:
        numbers: (L,) int64, as `Text.train`.
        num_samples: Number of pieces, N.
        length: Characters of each, T, below L.
        seed: The same on every rank.
        rank: This rank: others draw other pieces.
        step: Number of the step: a resumed run draws the pieces that it would have drawn.

    Returns:
        tuple: inputs and targets, both (N, T) int64.

    Raises:
        BadInput: The text is too short for a piece and the character after it.

    Lesson: 07_accumulation.
    """
    num_starts = len(numbers) - length
    if num_starts < 1:
        raise BadInput(
            f"Text too short: expected more than {length} characters (got {len(numbers)}). "
            "Ask for shorter pieces."
        )
    starts = torch.randint(num_starts, (num_samples, 1), generator=rank_generator(seed, rank, step))
    places = starts + torch.arange(length)  # (N, 1) + (T,) -> (N, T)
    places = places.to(numbers.device)
    return numbers[places], numbers[places + 1]
