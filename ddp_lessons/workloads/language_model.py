"""
A transformer of one block that learns which character follows.

Shapes: N pieces of T characters, V different ones; C channels in H heads.
"""

import torch
from torch import nn
from torch.nn import functional

from ..errors import BadInput
from .seeds import seeded


class LanguageModel(nn.Module):
    """
    Guess at each place the next character from those up to it.

    Args:
        num_characters: V.
        max_length: The most characters of a piece.
        num_channels: C.
        num_heads: H, which divides C.

    Source: A. Vaswani et al., "Attention Is All You Need", 2017, section 3. Lesson:
    07_accumulation.
    """

    def __init__(
        self, num_characters: int, max_length: int = 32, num_channels: int = 32, num_heads: int = 2
    ) -> None:
        super().__init__()
        self.max_length, self.num_heads = max_length, num_heads
        self.characters = nn.Embedding(num_characters, num_channels)
        self.places = nn.Embedding(max_length, num_channels)
        self.norm_1 = nn.LayerNorm(num_channels)
        self.queries_keys_values = nn.Linear(num_channels, 3 * num_channels)
        self.mix = nn.Linear(num_channels, num_channels)
        self.norm_2 = nn.LayerNorm(num_channels)
        self.widen = nn.Linear(num_channels, 4 * num_channels)
        self.narrow = nn.Linear(4 * num_channels, num_channels)
        self.norm_3 = nn.LayerNorm(num_channels)
        self.logits = nn.Linear(num_channels, num_characters, bias=False)
        self.logits.weight = self.characters.weight  # tied, as language models often are
        for table in (self.characters, self.places):  # torch would start at 1, and drown the rest
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """
        Return logits (N, T, V) for the character after each of (N, T).

        Raises:
            BadInput: A piece is too long.
        """
        length = numbers.shape[1]
        if length > self.max_length:
            raise BadInput(
                f"Piece too long: expected at most {self.max_length} characters (got {length}). "
                "Cut it, or make a model with a larger max_length."
            )
        hidden = self.characters(numbers) + self.places.weight[:length]  # (N, T) -> (N, T, C)
        hidden = hidden + self.mix(self._attend(self.norm_1(hidden)))
        wide = functional.gelu(self.widen(self.norm_2(hidden)))  # (N, T, C) -> (N, T, 4 C)
        return self.logits(self.norm_3(hidden + self.narrow(wide)))

    def _attend(self, hidden):
        n, t, c = hidden.shape
        parts = self.queries_keys_values(hidden).view(n, t, 3, self.num_heads, c // self.num_heads)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)  # each (N, H, T, C / H)
        attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return attended.transpose(1, 2).reshape(n, t, c)  # (N, H, T, C / H) -> (N, T, C)


def language_model(num_characters: int, seed: int, **sizes: int) -> LanguageModel:
    """
    Make a LanguageModel whose first weights depend on the seed alone.

    Args:
        num_characters: V, as `len(text.characters)`.
        seed: Two models of one seed are equal. The global random state is left as it was.
        sizes: As LanguageModel's.

    Returns:
        LanguageModel: 15,808 parameters for the 63 characters of `load_text`.

    Lesson: 07_accumulation.
    """
    with seeded(seed):
        return LanguageModel(num_characters, **sizes)


def next_character_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """
    Return the mean cross-entropy of guesses, in nats; log(V) for a model that knows nothing.

    Args:
        logits: (N, T, V).
        targets: (N, T) int64.
    """
    return functional.cross_entropy(torch.flatten(logits, 0, 1), torch.flatten(targets))
