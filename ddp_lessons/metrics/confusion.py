"""
Count which class was taken for which. Accuracy and F1 follow from the counts of all ranks.

Shapes: C classes; counts (C, C) int64, a row for each label, a column for each prediction.

F1 of a class is 2 TP / (2 TP + FP + FN). It is no mean over samples, so no weights make the mean of
ranks' own F1 right. The counts are sums over samples, so any split gives them.
"""

import torch
import torch.distributed as dist

from ..errors import BadInput
from .arguments import device_of, need_samples


class Confusion:
    """
    Count labels and predictions of this rank, and add the counts up over ranks.

    Args:
        num_classes: Number of classes, C.

    Attributes:
        counts: (C, C) int64, those of this rank so far.

    Lesson: 12_metrics.
    """

    def __init__(self, num_classes: int) -> None:
        self.counts = torch.zeros(num_classes, num_classes, dtype=torch.int64)

    def add(self, predicted: torch.Tensor, labels: torch.Tensor) -> None:
        """
        Add samples of this rank, without a message.

        Args:
            predicted: (N,) whole numbers from 0 to C - 1; N may be 0.
            labels: (N,) the same.

        Raises:
            BadInput: A class is none of 0 to C - 1.
        """
        num_classes = len(self.counts)
        predicted, labels = predicted.detach().cpu().long(), labels.cpu().long()
        for name, classes in (("prediction", predicted), ("label", labels)):
            if len(classes) and not 0 <= classes.min() <= classes.max() < num_classes:
                raise BadInput(
                    f"Bad class: expected a {name} from 0 to {num_classes - 1} (got "
                    f"{classes.min()} to {classes.max()}). Give the number of classes that there "
                    "are."
                )
        places = labels * num_classes + predicted
        self.counts += places.bincount(minlength=num_classes**2).view(num_classes, num_classes)

    def compute(self, group: dist.ProcessGroup | None = None) -> torch.Tensor:
        """
        Return the counts of all ranks, exactly, with one all-reduce of int64.

        Collective: every rank must call it, also one without samples.

        Args:
            group: The process group, or None for the default group.

        Returns:
            torch.Tensor: (C, C) int64 on the CPU, the same on every rank.

        Raises:
            BadInput: No rank has a sample.
        """
        counts = self.counts.to(device_of(group), copy=True)
        dist.all_reduce(counts, group=group)
        need_samples(counts.sum().item(), group)
        return counts.cpu()


def accuracy_of(counts: torch.Tensor) -> float:
    """
    Return the share of samples whose prediction is their label.

    Args:
        counts: (C, C) int64, with a sample at least.
    """
    return counts.trace().item() / counts.sum().item()


def macro_f1(counts: torch.Tensor) -> float:
    """
    Return the mean F1 of the classes, each weighing alike.

    Classes that no label and no prediction names are left out, as torchmetrics does.

    Args:
        counts: (C, C) int64, with a sample at least.

    Source: torchmetrics documentation, `F1Score`. Lesson: 12_metrics.
    """
    right = 2 * counts.diagonal()
    named = counts.sum(0) + counts.sum(1)  # 2 TP + FP + FN
    occurs = named > 0
    return (right[occurs].double() / named[occurs]).mean().item()
