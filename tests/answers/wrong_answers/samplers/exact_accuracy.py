"""
Answers to task 04.2.
"""

from bank import Answer, changed

ACCURACY = """\
import torch
import torch.distributed as dist


def exact_accuracy(predict, inputs, labels):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine, labels_of_mine = inputs[rank::world_size], labels[rank::world_size]
    num_right = (predict(mine) == labels_of_mine).sum()
    dist.all_reduce(num_right)
    return num_right.item() / len(inputs)
"""

_SLICES = "inputs[rank::world_size], labels[rank::world_size]"

COUNT = "num_right = (predict(mine) == labels_of_mine).sum()"

REDUCE = "dist.all_reduce(num_right)"

_OWN_MEAN = ("labels_of_mine).sum()", "labels_of_mine).double().mean()")

_ACCURACY_OF_BLOCKS = """\
import torch
import torch.distributed as dist


def exact_accuracy(predict, inputs, labels):  # blocks, one by one, in float32, both counts gathered
    rank, world_size = dist.get_rank(), dist.get_world_size()
    begin, end = (len(inputs) * r // world_size for r in (rank, rank + 1))
    right = [bool(predict(inputs[i : i + 1]) == labels[i]) for i in range(begin, end)]
    counts = torch.tensor([sum(right), len(right)], dtype=torch.float32, device=inputs.device)
    of_all = torch.empty(world_size, 2, device=inputs.device)
    dist.all_gather_into_tensor(of_all, counts[None])
    num_right, num_seen = of_all.sum(0)
    return float(num_right / num_seen)
"""

_ACCURACY_BY_SAMPLER = """\
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler


def exact_accuracy(predict, inputs, labels):
    sampler = DistributedSampler(range(len(inputs)), shuffle=False)
    counts = torch.zeros(2, device=inputs.device)
    for batch in DataLoader(range(len(inputs)), batch_size=4, sampler=sampler):
        counts[0] += (predict(inputs[batch]) == labels[batch]).sum()
        counts[1] += len(batch)
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()
"""

_ACCURACY_OF_RANK_0 = """\
import torch
import torch.distributed as dist


def exact_accuracy(predict, inputs, labels):
    accuracy = torch.zeros((), dtype=torch.float64, device=inputs.device)
    if dist.get_rank() == 0:
        accuracy += (predict(inputs) == labels).double().mean()
    dist.broadcast(accuracy, src=0)
    return accuracy.item()
"""


def _counted(dtype):
    return changed(ACCURACY, ("labels_of_mine).sum()", f"labels_of_mine).sum(dtype=torch.{dtype})"))


_ROWS = [
    ("unusual: blocks, one by one, float32 counts", None, _ACCURACY_OF_BLOCKS),
    (
        "unusual: adds up shares of the whole, in float64",
        None,
        changed(
            ACCURACY,
            ("labels_of_mine).sum()", "labels_of_mine).double().sum() / len(inputs)"),
            (".item() / len(inputs)", ".item()"),
        ),
    ),
    (
        "averages the ranks' accuracies",
        "mean-of-means",
        changed(ACCURACY, _OWN_MEAN, ("len(inputs)", "world_size")),
    ),
    (
        "weighs the ranks' accuracies, of which one may be 0 / 0",
        "no-samples",
        changed(ACCURACY, ("labels_of_mine).sum()", "labels_of_mine).double().mean() * len(mine)")),
    ),
    ("evaluates what the sampler has padded", "padding", _ACCURACY_BY_SAMPLER),
    (
        "leaves the tail out",
        "lost",
        changed(
            ACCURACY,
            (
                _SLICES,
                "(x[rank::world_size][: len(x) // world_size] for x in (inputs, labels))",
            ),
        ),
    ),
    (
        "evaluates everything everywhere",
        "all-samples",
        changed(
            ACCURACY, (_SLICES, "inputs, labels"), ("/ len(inputs)", "/ world_size / len(inputs)")
        ),
    ),
    ("lets rank 0 do the work", "not-shared", _ACCURACY_OF_RANK_0),
    (
        "divides by its own samples",
        "own-count",
        changed(ACCURACY, ("len(inputs)", "max(1, len(mine))")),
    ),
    (
        "divides by its own samples and asks nobody",
        "alone",
        changed(ACCURACY, (REDUCE, ""), ("len(inputs)", "max(1, len(mine))")),
    ),
    (
        "reduces to rank 0 only",
        "not-everywhere",
        changed(ACCURACY, (REDUCE, "dist.reduce(num_right, dst=0)")),
    ),
    (
        "returns the count",
        "undivided",
        changed(ACCURACY, ("num_right.item() / len(inputs)", "float(num_right)")),
    ),
    (
        "counts in the dtype of the inputs",
        "rounded",
        changed(ACCURACY, ("labels_of_mine).sum()", "labels_of_mine).to(inputs.dtype).sum()")),
    ),
    (
        "lets a rank without samples go",
        "deadlock",
        changed(ACCURACY, (COUNT, f"if len(mine) == 0:\n        return 0.0\n    {COUNT}")),
    ),
    (
        "gathers every answer, as an object",
        "cost",
        changed(
            ACCURACY,
            (".sum()", ".tolist()"),
            (REDUCE, "parts = [None] * world_size\n    dist.all_gather_object(parts, num_right)"),
            ("num_right.item()", "sum(map(sum, parts))"),
        ),
    ),
    ("returns a tensor", "no-float", changed(ACCURACY, (".item()", ""))),
    ("prints the accuracy", "nothing", changed(ACCURACY, ("return ", "accuracy = "))),
    ("unusual: counts in int32", None, _counted("int32")),
    (
        "unusual: counts those that are wrong",
        None,
        changed(ACCURACY, ("==", "!="), ("return ", "return 1 - ")),
    ),
    ("returns percents", "percent", changed(ACCURACY, ("return ", "return 100 * "))),
    (
        "shares out otherwise in every second call",
        "kept",
        changed(
            ACCURACY,
            ("\n\n\ndef", "\n\nCALLS = []\n\n\ndef"),
            ("    mine", "    CALLS.append(0)\n    rank *= len(CALLS) % 2\n    mine"),
        ),
    ),
    ("counts in uint8", "overflow", _counted("uint8")),
    ("counts in int16", "raised", _counted("int16")),
    (
        "asks the model twice",
        "asked-again",
        changed(ACCURACY, (COUNT, f"predict(mine)\n    {COUNT}")),
    ),
    (
        "adds up in the store",
        "store",
        changed(
            ACCURACY,
            (
                REDUCE,
                "store = dist.distributed_c10d._get_default_store()\n"
                '    store.set(f"right {rank}", str(int(num_right)))\n    dist.barrier()\n'
                '    rights = [int(store.get(f"right {r}")) for r in range(world_size)]\n'
                "    num_right = torch.tensor(sum(rights))",
            ),
        ),
    ),
    (
        "rounds the inputs to float32",
        "other-inputs",
        """\
import torch
import torch.distributed as dist

def exact_accuracy(predict, inputs, labels):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    predicted = predict(inputs[rank::world_size].float())
    correct = (predicted == labels[rank::world_size]).sum()
    dist.all_reduce(correct)
    return correct.item() / len(labels)
""",
    ),
]

ANSWERS = [Answer("04.2", *row) for row in _ROWS]
