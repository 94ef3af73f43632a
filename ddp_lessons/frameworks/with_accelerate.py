"""
The run of `plain`, told by Accelerate.

Shapes: N samples; a batch of images (B, 64) and labels (B,).
"""

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


def train_with_accelerate(
    model: torch.nn.Module, dataset: Dataset[tuple[torch.Tensor, ...]], batch_size: int = 30
) -> list[float]:
    """
    Train for an epoch as `train_plain` does, with the same arguments and losses.

    The loader stays out of `prepare`, which would deal its batches to the ranks in turn.

    Collective: every rank must call it.

    Source: Accelerate's documentation, "Migrating your code to Accelerate". Lesson: 16_frameworks.
    """
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model, optimizer = accelerator.prepare(model, optimizer)
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size, sampler=sampler)
    losses = []
    for images, labels in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses
