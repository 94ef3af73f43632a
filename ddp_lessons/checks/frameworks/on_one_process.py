"""
The loop of task 16.1 in one process, for all ranks at once: the results of a right port, and of one
with a mistake.

Legend: w ranks; a window of k micro-batches, of 2 samples each.
"""

import copy
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from ddp_lessons.checks.frameworks.material import Samples, classifier

BATCH_SIZE, NUM_EPOCHS, SAMPLER_SEED = 2, 2, 3
LR, MOMENTUM, MAX_NORM = 0.3, 0.9, 0.5
STEPS_A_RATE, FACTOR = 2, 0.5


@dataclass
class Loop:
    """
    The results of the loop.

    Args:
        losses: A list for each rank: its losses, in order.
        fetched: A list for each rank: the indices of the samples that it fetches, in order.
        weights: The state_dict of each rank's model, in rank order.
        num_windows: Number of windows, and so of optimizer steps.
    """

    losses: list
    fetched: list
    weights: list
    num_windows: int


def loop_of(
    case,
    *,
    divisor=None,
    clips=True,
    averages=True,
    schedule_steps=1,
    sets_epoch=True,
    sampler_seed=SAMPLER_SEED,
):
    """
    Run the loop, and return its Loop.

    Args:
        case: The Case, with its number of "samples" and its length of a window, "every".
        divisor: The number that losses are divided by. Default: the length of a window.
        clips: Whether gradients are clipped at the end of a window. "each": also after each
            micro-batch.
        averages: Whether gradients are averaged over ranks.
        schedule_steps: Steps of the schedule for each step of the optimizer.
        sets_epoch: Whether each epoch has its own order of samples.
        sampler_seed: The seed of the sampler.
    """
    world_size, every = case.world_size, case["every"]
    models = [_trained(case) for _ in range(world_size)]
    data = [Samples(case, case["samples"], torch.float64) for _ in range(world_size)]
    loaders = [_loader(one, world_size, rank, sampler_seed) for rank, one in enumerate(data)]
    losses: list = [[] for _ in range(world_size)]
    num_windows = 0
    for epoch in range(NUM_EPOCHS):
        for loader in loaders:
            loader.sampler.set_epoch(epoch if sets_epoch else 0)
        for number, batches in enumerate(zip(*loaders, strict=True), start=1):
            for rank, (x, y) in enumerate(batches):
                loss = cross_entropy(models[rank][0](x), y)
                (loss / (divisor or every)).backward()
                losses[rank].append(loss.item())
                if clips == "each" and number % every:
                    torch.nn.utils.clip_grad_norm_(models[rank][0].parameters(), MAX_NORM)
            if number % every == 0:
                _step(models, averages, clips, schedule_steps)
                num_windows += 1
    weights = [copy.deepcopy(model.state_dict()) for model, _, _ in models]
    return Loop(losses, [one.fetched for one in data], weights, num_windows)


def _trained(case):
    model = classifier(case, torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), LR, MOMENTUM)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, STEPS_A_RATE, FACTOR)


def _loader(dataset, world_size, rank, seed):
    sampler = DistributedSampler(dataset, world_size, rank, seed=seed)
    return DataLoader(dataset, BATCH_SIZE, sampler=sampler)


def _step(models, averages, clips, schedule_steps):
    if averages:
        for parameters in zip(*(model.parameters() for model, _, _ in models), strict=True):
            mean = sum(parameter.grad for parameter in parameters) / len(parameters)
            for parameter in parameters:
                parameter.grad = mean.clone()
    for model, optimizer, schedule in models:
        if clips:
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        for _ in range(schedule_steps):
            schedule.step()
