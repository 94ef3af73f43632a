"""
Add up first, over batches and then over ranks, and divide last.

    what is wanted    sum over all samples / number of all samples
    what a rank adds  (sum over its samples, number of its samples): any split gives the same two

Sums are float64, in which whole numbers are exact up to 2**53; float32 cannot count beyond 2**24.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from .arguments import device_of, need_samples


class Mean:
    """
    Average over the samples of all ranks: a loss, the share of right answers, any mean.

    Attributes:
        total: The sum over this rank's samples so far.
        count: How many they are.

    Lesson: 12_metrics.
    """

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, values: torch.Tensor | Sequence[float] | float) -> None:
        """
        Add samples of this rank, without a message.

        Args:
            values: One number a sample, of any shape and dtype; may be empty.
        """
        values = torch.as_tensor(values)
        self.total += values.detach().double().sum().item()
        self.count += values.numel()

    def compute(self, group: dist.ProcessGroup | None = None) -> float:
        """
        Return the mean, with one all-reduce of two numbers. More samples may be added afterwards.

        Collective: every rank must call it, also one without samples.

        Args:
            group: The process group, or None for the default group.

        Returns:
            float: The same on every rank.

        Raises:
            BadInput: No rank has a sample.
        """
        both = torch.tensor([self.total, self.count], dtype=torch.float64, device=device_of(group))
        dist.all_reduce(both, group=group)
        total, count = both.tolist()
        need_samples(count, group)
        return total / count


class Perplexity(Mean):
    """
    Raise e to the mean loss of all tokens: as many choices as a language model is torn between.

    Add the cross-entropy of each token, with `reduction="none"`.

    Source: F. Jelinek et al., "Perplexity, a measure of the difficulty of speech recognition
    tasks", 1977. Lesson: 12_metrics.
    """

    def compute(self, group: dist.ProcessGroup | None = None) -> float:
        """
        Return the perplexity; infinite if the mean loss is too large. The rest as for a Mean.
        """
        mean = super().compute(group)
        return torch.tensor(mean, dtype=torch.float64).exp().item()
