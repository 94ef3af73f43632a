"""
The toy model of the accumulation tests, and the gradient of one process on the whole batch.

The toy is linear, with whole numbers as weights, inputs and targets. So each sample's gradient is
exact, and only weighting and adding the gradients of N samples rounds.
"""

import torch
from torch import nn

from ddp_lessons.accumulation import Window

EPS = torch.finfo(torch.float64).eps


class Toy(nn.Module):
    """
    Two linear maps whose outputs are added. Whole numbers stay whole, and the parameters fill three
    buckets.
    """

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 2), nn.Linear(3, 2)
        self.double()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randint(-4, 5, parameter.shape, generator=generator))

    def forward(self, inputs):
        return self.one(inputs) + self.two(inputs)


def mean_loss(model, inputs, targets):
    return (model(inputs) - targets).square().sum(dim=1).mean()


def samples(num_samples):
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randint(-5, 6, (num_samples, 3), generator=generator).double()
    targets = torch.randint(-5, 6, (num_samples, 2), generator=generator).double()
    return inputs, targets


def gradients(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def oracle(num_samples):
    """
    Return the gradient of one process on the whole batch, and the largest difference that rounding
    may make.

    Each sample's gradient is exact. Every way to weight and add the gradients rounds each term at
    most once for each addition (N samples and w ranks) and four times for its weights.
    """
    inputs, targets = samples(num_samples)
    model = Toy()
    mean_loss(model, inputs, targets).backward()
    whole = gradients(model)
    size = torch.zeros_like(whole)
    for sample in range(num_samples):
        model.zero_grad()
        mean_loss(model, inputs[sample : sample + 1], targets[sample : sample + 1]).backward()
        size += gradients(model).abs() / num_samples
    # Twice, because the oracle rounds as well.
    return whole, 2 * (num_samples + 4 + 4) * EPS * size


def parts_of(rank, sizes_by_rank):
    """
    Return one rank's micro-batches. The ranks take their samples from the batch in rank order.
    """
    inputs, targets = samples(sum(map(sum, sizes_by_rank)))
    begin = sum(map(sum, sizes_by_rank[:rank]))
    end = begin + sum(sizes_by_rank[rank])
    return list(
        zip(
            inputs[begin:end].split(sizes_by_rank[rank]),
            targets[begin:end].split(sizes_by_rank[rank]),
            strict=True,
        )
    )


def run_window(model, parts, **options):
    model.zero_grad()
    with Window(model, parts, **options) as window:
        for inputs, targets in window:
            window.backward(mean_loss(model, inputs, targets))
    return gradients(model)


def sent(tensor):
    """
    Return a tensor as a list of numbers, which outlives the process that made it. float64 stays
    exact.
    """
    return tensor.tolist()


def exactly(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


SHARES = {
    # The sizes of each rank's micro-batches. A world of w ranks takes the first w lists.
    "equal": [[2, 2, 2]] * 4,
    "equal sums": [[3, 1, 2], [1, 1, 4], [5, 1], [2, 4]],
    "unequal": [[3, 1], [2, 2, 2], [7], [1, 1, 1, 1, 1]],
}


def sized(rank, case, world_size):
    """
    Return the micro-batch sizes of all ranks, and those of this rank.
    """
    everyone = SHARES[case][:world_size]
    return everyone, everyone[rank]
