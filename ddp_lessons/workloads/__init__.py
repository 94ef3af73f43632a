"""
Small seeded models, real data that needs no download, and toys whose sums are exact.

Read the files in this order:

- `digits` is what most lessons train on: handwritten digits and classifiers of three sizes.
- `models` has classifiers with one peculiarity each: BatchNorm, a tied weight, an unused branch.
- `toys` has whole numbers: what float32 adds up without rounding, so that results are equal.
- `text` is two acts of a play, as batches of characters, and `language_model` learns them.
- `training` is a loop of gradient descent, for lessons that are about something else.
- `seeds` makes random numbers that depend on seed, rank and step, and on nothing else.

Nothing here reads or changes the global random state.
"""

from .digits import (
    DIGITS_WIDTHS,
    NUM_CLASSES,
    NUM_PIXELS,
    Digits,
    accuracy,
    digits_batch,
    digits_model,
    load_digits,
)
from .language_model import LanguageModel, language_model, next_character_loss
from .models import BranchedModel, TiedModel, batch_norm_model, branched_model, tied_model
from .seeds import rank_generator
from .text import Text, load_text, text_batch
from .toys import (
    LinearToy,
    half_squares,
    linear_toy,
    tally,
    tally_of,
    whole_numbers,
)
from .training import train

__all__ = [
    "DIGITS_WIDTHS",
    "NUM_CLASSES",
    "NUM_PIXELS",
    "BranchedModel",
    "Digits",
    "LanguageModel",
    "LinearToy",
    "Text",
    "TiedModel",
    "accuracy",
    "batch_norm_model",
    "branched_model",
    "digits_batch",
    "digits_model",
    "half_squares",
    "language_model",
    "linear_toy",
    "load_digits",
    "load_text",
    "next_character_loss",
    "rank_generator",
    "tally",
    "tally_of",
    "text_batch",
    "tied_model",
    "train",
    "whole_numbers",
]
