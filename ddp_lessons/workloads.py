"""
Small seeded models and real data that needs no download.

Shapes: N samples; a digit is an 8 x 8 picture, flattened to 64 numbers from 0 to 1; 10 classes.
"""

from dataclasses import dataclass

import torch

NUM_PIXELS = 64
NUM_CLASSES = 10
_HELD_OUT_EVERY = 5


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

    def to(self, device):
        """
        Return the same digits on a device.
        """
        return Digits(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))


def load_digits():
    """
    Load the 1,797 digits that scikit-learn ships. Every fifth one is held out.

    Returns:
        Digits: On the CPU; the same on every rank and every run.

    Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998, through
    `sklearn.datasets.load_digits`. Lesson: 00_ranks.
    """
    from sklearn.datasets import load_digits as load

    pixels, labels = load(return_X_y=True)
    images = torch.from_numpy(pixels).float() / 16  # pixels count from 0 to 16
    labels = torch.from_numpy(labels).long()
    # The file is sorted by writer, so every fifth sample has all writers and all classes in it.
    held_out = torch.arange(len(labels)) % _HELD_OUT_EVERY == 0
    return Digits(images[~held_out], labels[~held_out], images[held_out], labels[held_out])


def digits_model(seed):
    """
    Make a small classifier of digits whose first weights depend on the seed alone.

    Args:
        seed: Two models of one seed are equal. The global random state is left as it was.

    Returns:
        torch.nn.Sequential: (N, 64) -> (N, 10) logits; 4,810 parameters.

    Lesson: 00_ranks.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.nn.Sequential(
            torch.nn.Linear(NUM_PIXELS, 64), torch.nn.ReLU(), torch.nn.Linear(64, NUM_CLASSES)
        )


def accuracy(model, images, labels):
    """
    Return the share of samples that a model gets right, from 0 to 1.

    Args:
        model: Anything that maps `images` (N, 64) to logits (N, 10).
        images: (N, 64) float32.
        labels: (N,) int64.
    """
    with torch.no_grad():
        return (model(images).argmax(dim=1) == labels).float().mean().item()
