"""
A run in plain DDP, to be told again by frameworks.

Shapes: N samples; a batch of images (B, 64) and labels (B,).
"""

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


def train_plain(
    model: torch.nn.Module, dataset: Dataset[tuple[torch.Tensor, ...]], batch_size: int = 30
) -> list[float]:
    """
    Train for an epoch, and return the loss of each step.

    Collective: every rank must call it.

    Args:
        model: The same on every rank, changed in place.
        dataset: N pairs of an image and a label.
        batch_size: Samples of a step of this rank, B.

    Returns:
        list of float: This rank's losses, each before its step.

    Lesson: 16_frameworks.
    """
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size, sampler=sampler)
    losses = []
    for images, labels in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
