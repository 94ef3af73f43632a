"""
Loss, perplexity, accuracy and F1 equal those of one process with all samples.
"""

import math

import pytest
import torch
from metric_shards import packed, part_of, run_packed, samples
from worlds import WORLD_SIZES, run_world

from ddp_lessons.errors import BadInput
from ddp_lessons.metrics import (
    Confusion,
    Mean,
    Perplexity,
    accuracy_of,
    macro_f1,
    mean_of_means,
    weighted_mean_of_means,
)
from ddp_lessons.trace import trace

EPS = torch.finfo(torch.float64).eps


def _of_a_rank(rank, world_size):
    predicted, labels, losses = (part_of(one, rank, world_size) for one in samples())
    mean, perplexity, confusion = Mean(), Perplexity(), Confusion(4)
    for start in range(0, len(labels), 5):  # batches; the last one is shorter
        batch = slice(start, start + 5)
        mean.add(losses[batch])
        perplexity.add(losses[batch])
        confusion.add(predicted[batch], labels[batch])
    with trace() as events:
        counts = confusion.compute()
        found = mean.compute(), perplexity.compute(), accuracy_of(counts), macro_f1(counts)
    again = mean.compute(), mean.compute()
    own = losses.mean().item() if len(losses) else math.nan
    sent = [(event.name, event.input_bytes) for event in events]
    naive = mean_of_means(own), weighted_mean_of_means(own, len(losses))
    return packed((found, again, counts, naive, sent))


@pytest.mark.bitwise
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_metrics_do_not_depend_on_the_split(world_size):
    """
    The value of a metric must not depend on the number of ranks that computed it.
    """
    predicted, labels, losses = samples()
    counts = torch.zeros(4, 4, dtype=torch.int64)
    for label, prediction in zip(labels, predicted, strict=True):
        counts[label, prediction] += 1
    accuracy = (predicted == labels).sum().item() / len(labels)
    f1 = []
    for name in range(3):  # class 3 occurs neither in predictions nor in labels
        right = ((predicted == name) & (labels == name)).sum().item()
        f1.append(2 * right / ((predicted == name).sum() + (labels == name).sum()).item())
    results = run_packed(world_size, _of_a_rank)
    for found, again, own_counts, (mean, weighted), sent in results:
        assert torch.equal(own_counts, counts)
        # The sums have 33 numbers below 1 in another order; exp turns the error into a relative
        # error.
        slack = 33 * EPS
        assert found[0] == pytest.approx(losses.mean().item(), rel=slack)
        assert found[1] == pytest.approx(losses.mean().exp().item(), rel=2 * slack)
        assert found[2] == accuracy
        assert found[3] == pytest.approx(sum(f1) / 3, rel=4 * EPS)
        assert found == results[0][0], "equal to the last bit"
        assert again == (found[0], found[0]), "computing adds nothing up"
        assert weighted == pytest.approx(found[0], rel=slack), "a loss is a mean over samples"
        assert sent == [("all_reduce", 128), ("all_reduce", 16), ("all_reduce", 16)]
        if world_size > 2:
            assert math.isnan(mean), "a rank without samples has no mean"
        elif world_size == 2:
            assert abs(mean - found[0]) > 1e-3


def _large(rank, world_size):
    mean, confusion = Mean(), Confusion(2)
    mean.total, mean.count = float(2**24 + 1), 2**24 + 1
    confusion.counts += torch.tensor([[2**24 + rank, 1], [0, 2**53]])
    counts = confusion.compute()
    confusion.compute()
    return packed((mean.compute(), counts, confusion.counts[0, 0].item()))


@pytest.mark.bitwise
def test_counts_beyond_float32_stay_exact():
    """
    float32 cannot distinguish 2**24 from 2**24 + 1. Two million pictures with 9 labels each exceed
    that.
    """
    for rank, (mean, counts, own) in enumerate(run_packed(3, _large)):
        assert mean == 1.0
        assert counts.tolist() == [[3 * 2**24 + 3, 3], [0, 3 * 2**53]]
        assert own == 2**24 + rank, "the rank's own counts stay its own"


def _not_numbers(rank, world_size):
    found = []
    for value in (math.nan, math.inf, 1000.0):
        perplexity = Perplexity()
        perplexity.add(torch.tensor([value if rank == 1 else 1.0], dtype=torch.bfloat16))
        found.append(perplexity.compute())
    return found


def test_what_is_not_a_number_reaches_every_rank():
    """
    A nan or infinity on one rank reaches all ranks, because a rank that alone sees it would stop
    alone.
    """
    for found in run_world(2, _not_numbers):
        assert math.isnan(found[0])
        assert found[1] == math.inf
        assert found[2] == pytest.approx(math.exp(500.5), rel=501 * EPS)


def test_no_samples_and_no_such_class(lone_group):
    """
    A metric without samples raises instead of dividing 0 by 0. A class that does not exist is
    refused, and not counted as another class.
    """
    for empty in (Mean(), Perplexity(), Confusion(3)):
        with pytest.raises(BadInput, match=r"No samples: expected 1 or more .*rank 0 of 1"):
            empty.compute()
    confusion = Confusion(3)
    with pytest.raises(BadInput, match=r"expected a prediction from 0 to 2 \(got 0 to 3\)"):
        confusion.add(torch.tensor([0, 3]), torch.tensor([0, 1]))
    with pytest.raises(BadInput, match=r"expected a label from 0 to 2 \(got -1 to 1\)"):
        confusion.add(torch.tensor([0, 1]), torch.tensor([-1, 1]))
    perplexity = Perplexity()
    perplexity.add(torch.tensor([1e6]))
    assert perplexity.compute() == math.inf


def _torchmetrics(rank, world_size):
    import torchmetrics

    predicted, labels, losses = (part_of(one, rank, world_size) for one in samples())
    options = {"task": "multiclass", "num_classes": 4}
    accuracy = torchmetrics.Accuracy(**options, average="micro")
    f1 = torchmetrics.F1Score(**options, average="macro")
    mean = torchmetrics.MeanMetric()
    if len(labels):  # its update raises for a shard without samples
        accuracy.update(predicted, labels)
        f1.update(predicted, labels)
        mean.update(losses)
    confusion, ours = Confusion(4), Mean()
    confusion.add(predicted, labels)
    ours.add(losses)
    counts = confusion.compute()
    return (
        (accuracy.compute().item(), accuracy_of(counts)),
        (f1.compute().item(), macro_f1(counts)),
        (mean.compute().item(), ours.compute()),
    )


@pytest.mark.filterwarnings("default")  # warnings of other packages are not ours to repair
def test_torchmetrics_finds_the_same():
    """
    torchmetrics finds the same numbers, so that a user of that library can compare. It sums in
    float32.
    """
    for pairs in run_world(2, _torchmetrics):
        for theirs, ours in pairs:
            assert theirs == pytest.approx(ours, rel=40 * torch.finfo(torch.float32).eps)
