"""
Classifiers of digits with one peculiarity each, on which a data-parallel wrapper shows its care.

Shapes: N samples; images (N, 64) -> logits (N, 10), as `digits_model`.
"""

from torch import Tensor, nn

from .digits import NUM_CLASSES, NUM_PIXELS
from .seeds import seeded


class TiedModel(nn.Module):
    """
    Use one weight in two layers: its gradient is the sum of both uses.

    Backward reaches the weight twice and the parameter is one, so that a wrapper that sends when
    the first part is ready sends half of it. `parameters()` names it once.

    Lesson: 05_replicas.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(NUM_PIXELS, NUM_PIXELS)
        self.second = nn.Linear(NUM_PIXELS, NUM_PIXELS)
        self.second.weight = self.first.weight
        self.head = nn.Linear(NUM_PIXELS, NUM_CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """
        Return logits (N, 10) of images (N, 64).
        """
        hidden = self.first(images).relu()
        return self.head(self.second(hidden).relu())


class BranchedModel(nn.Module):
    """
    Have two heads, of which a forward uses one or both: parameters that get no gradient.

    Lesson: 06_ddp.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(NUM_PIXELS, 64)
        self.head = nn.Linear(64, NUM_CLASSES)
        self.spare = nn.Linear(64, NUM_CLASSES)

    def forward(self, images: Tensor, use_spare: bool = False) -> Tensor:
        """
        Return logits (N, 10) of images (N, 64).

        Args:
            images: (N, 64) float32.
            use_spare: Whether the spare head adds its logits. If not, it has no part in the loss.
        """
        hidden = self.trunk(images).relu()
        logits = self.head(hidden)
        return logits + self.spare(hidden) if use_spare else logits


def tied_model(seed: int) -> TiedModel:
    """
    Make a TiedModel whose first weights depend on the seed alone; 4,874 parameters.

    Lesson: 05_replicas.
    """
    with seeded(seed):
        return TiedModel()


def branched_model(seed: int) -> BranchedModel:
    """
    Make a BranchedModel whose first weights depend on the seed alone; 5,460 parameters.

    Lesson: 06_ddp.
    """
    with seeded(seed):
        return BranchedModel()


def batch_norm_model(seed: int) -> nn.Sequential:
    """
    Make a classifier with BatchNorm, whose statistics are those of the samples that a rank has.

    Args:
        seed: Two models of one seed are equal. The global random state is left as it was.

    Returns:
        torch.nn.Sequential: (N, 64) -> (N, 10) logits, N at least 2 in training; 4,938 parameters
        and three buffers: a mean and a variance of 64 numbers, and a count.

    Lesson: 06_ddp.
    """
    with seeded(seed):
        return nn.Sequential(
            nn.Linear(NUM_PIXELS, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, NUM_CLASSES)
        )
