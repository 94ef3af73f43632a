"""
The run of `plain`, told by Lightning Fabric.

Shapes: N samples; a batch of images (B, 64) and labels (B,).
"""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset


def train_with_fabric(
    model: torch.nn.Module, dataset: Dataset[tuple[torch.Tensor, ...]], batch_size: int = 30
) -> list[float]:
    """
    Train for an epoch as `train_plain` does, with the same arguments and losses.

    Fabric gives the loader the sampler that plain DDP needs.

    Collective: every rank must call it.

    Source: Lightning's documentation, "Convert PyTorch code to Fabric". Lesson: 16_frameworks.
    """
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy="ddp")
    fabric.launch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(dataset, batch_size))
    losses = []
    for images, labels in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        fabric.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses
