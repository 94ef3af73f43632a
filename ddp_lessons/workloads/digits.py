"""
Real data that needs no download, and classifiers of it in three sizes.

Shapes: N samples; a digit is an 8 x 8 picture, flattened to 64 numbers from 0 to 1; 10 classes.
"""

import gzip
import importlib.util
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch

from ..errors import BadInput
from .seeds import rank_generator, seeded

NUM_PIXELS = 64
NUM_CLASSES = 10
DIGITS_WIDTHS = {"small": (64,), "medium": (256, 256), "large": (1024, 1024)}
"""
Widths of the hidden layers of `digits_model`, by size.
"""

_HELD_OUT_EVERY = 5
_DIGITS_IN_PACKAGE = ("datasets", "data", "digits.csv.gz")


@dataclass(frozen=True)
class Digits:
    """
    Handwritten digits, split once and for all into training and held-out samples.

    Args:
        train_images: (1437, 64) float32.
        train_labels: (1437,) int64.
        test_images: (360, 64) float32, never trained on.
        test_labels: (360,) int64.
    """

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor

    def to(self, device: torch.device | str) -> "Digits":
        """
        Return the same digits on a device.
        """
        return Digits(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))


def load_digits() -> Digits:
    """
    Load the 1,797 digits that scikit-learn ships. Every fifth one is held out.

    Returns:
        Digits: On the CPU; the same on every rank and every run.

    Raises:
        BadInput: scikit-learn is not installed, or keeps its digits elsewhere.

    Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998: the file
    that `sklearn.datasets.load_digits` reads. Lesson: 00_ranks.
    """
    with gzip.open(_digits_file(), "rt") as lines:
        # (1797, 65) whole numbers: 64 pixels, which count from 0 to 16, and the label.
        table = torch.from_numpy(numpy.loadtxt(lines, dtype=numpy.uint8, delimiter=","))
    images, labels = table[:, :NUM_PIXELS].float() / 16, table[:, NUM_PIXELS].long()
    # The file is sorted by writer, so every fifth sample has all writers and all classes in it.
    held_out = torch.arange(len(labels)) % _HELD_OUT_EVERY == 0
    return Digits(images[~held_out], labels[~held_out], images[held_out], labels[held_out])


def _digits_file():
    # Importing scikit-learn would cost each rank a second and 70 MiB, all for this one file.
    package = importlib.util.find_spec("sklearn")
    folders = [] if package is None else package.submodule_search_locations or []
    for folder in folders:
        file = Path(folder, *_DIGITS_IN_PACKAGE)
        if file.is_file():
            return file
    raise BadInput(
        f"The digits are not here: scikit-learn with its file {'/'.join(_DIGITS_IN_PACKAGE)} "
        f"expected (got {', '.join(folders) or 'no scikit-learn'}). Install scikit-learn, "
        "1.6 or newer."
    )


def digits_batch(
    digits: Digits, num_samples: int, seed: int = 0, rank: int = 0, step: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Draw training samples at random, different ones on each rank.

    Ranks draw on their own, so that two may draw the same sample: a sampler is what divides.

    Args:
        digits: A Digits.
        num_samples: Number of samples, N, at most as many as there are.
        seed: The same on every rank.
        rank: This rank.
        step: Number of the step: a resumed run draws the samples that it would have drawn.

    Returns:
        tuple: images (N, 64) float32 and labels (N,) int64; no sample is in them twice.

    Lesson: 05_replicas, 07_accumulation.
    """
    order = torch.randperm(len(digits.train_labels), generator=rank_generator(seed, rank, step))
    chosen = order[:num_samples].to(digits.train_labels.device)
    return digits.train_images[chosen], digits.train_labels[chosen]


def digits_model(seed: int, size: str = "small") -> torch.nn.Sequential:
    """
    Make a classifier of digits whose first weights depend on the seed alone.

    Args:
        seed: Two models of one seed are equal. The global random state is left as it was.
        size: "small", 4,810 parameters; "medium", 85,002; "large", 1,126,410, which are 4.3 MiB
            in float32, more than DDP puts into its first bucket.

    Returns:
        torch.nn.Sequential: (N, 64) -> (N, 10) logits.

    Raises:
        BadInput: There is no such size.

    Lesson: 00_ranks, 05_replicas, 06_ddp.
    """
    if size not in DIGITS_WIDTHS:
        raise BadInput(
            f"Unknown size: expected one of {', '.join(DIGITS_WIDTHS)} (got {size!r}). "
            "Choose one of them."
        )
    widths = (NUM_PIXELS, *DIGITS_WIDTHS[size], NUM_CLASSES)
    with seeded(seed):
        layers = [
            layer
            for num_in, num_out in itertools.pairwise(widths)
            for layer in (torch.nn.Linear(num_in, num_out), torch.nn.ReLU())
        ]
    return torch.nn.Sequential(*layers[:-1])  # logits may be negative


def accuracy(
    model: Callable[[torch.Tensor], torch.Tensor], images: torch.Tensor, labels: torch.Tensor
) -> float:
    """
    Return the share of samples that a model gets right, from 0 to 1.

    Args:
        model: Anything that maps `images` (N, 64) to logits (N, 10).
        images: (N, 64) float32.
        labels: (N,) int64.
    """
    with torch.no_grad():
        return (model(images).argmax(dim=1) == labels).float().mean().item()
