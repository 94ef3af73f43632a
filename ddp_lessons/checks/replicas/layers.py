"""
Models of random layers for the tasks of exercise 05, and helpers that describe their tensors.
"""

import torch
from torch import nn

from ddp_lessons.checks.kit import whole_numbers

HEAD_SIZE = 3

MOST_COUNT = 9999  # bfloat16 cannot hold every whole number up to this one


class _Layer(nn.Module):
    """
    A weight and a bias, filled with whole numbers.
    """

    def __init__(self, numbers, num_weights):
        super().__init__()
        self.weight = nn.Parameter(numbers[None, :num_weights].clone())  # (1, num_weights)
        self.bias = nn.Parameter(numbers[num_weights:].clone())


class Model(nn.Module):
    """
    Layers and a head. The head's weight is layer 0's; the bias of layer 1 is frozen.

    The gradient of a parameter is its input; that of the tied weight is the sum of its two inputs.
    So gradients are whole numbers that are known beforehand.

    Args:
        case: The Case; `case["layers"]` holds the numbers of weights and biases of each layer.
            With "transposed" in it, the weight of layer 2 has two columns, and is not contiguous.
        rank: The rank whose initial weights the model gets. None: the same weights on all ranks.
        dtype: The dtype of the model that computes the right values. None: the case's dtype.
    """

    def __init__(self, case, rank=None, dtype=None):
        super().__init__()
        dtype = dtype or getattr(torch, case["dtype"])
        sizes = [*case["layers"], [case["layers"][0][0], HEAD_SIZE]]
        own = [sum(size) for size in sizes]
        *parts, rest = whole_numbers(case, rank, [sum(own) + 5], dtype).split([*own, 5])
        names = [*(f"layer{number}" for number in range(len(case["layers"]))), "head"]
        for name, (num_weights, _), part in zip(names, sizes, parts, strict=True):
            self.add_module(name, _Layer(part, num_weights))
        if "transposed" in case.data:
            layer = self.get_submodule("layer2")
            layer.weight = nn.Parameter(layer.get_parameter("weight").detach().view(2, -1).t())
        self.head.weight = self.layer0.weight
        self.layer1.bias.requires_grad = False
        count = whole_numbers(case, rank, [], torch.int64, most=MOST_COUNT).abs()
        self.register_buffer("mean", rest[:2].clone())
        self.register_buffer("count", count)
        self.register_buffer("mask", rest[2:].clone(), persistent=False)

    def forward(self, inputs, names):
        """
        Return the loss of a forward pass through some layers.

        Args:
            inputs: {name of a parameter: its input}.
            names: Names of the layers to go through, in order.
        """
        loss = inputs["layer0.weight"].new_zeros(())
        for name in names:
            layer = getattr(self, name)
            loss = loss + (layer.weight * inputs[f"{name}.weight"]).sum()
            loss = loss + (layer.bias * inputs[f"{name}.bias"]).sum()
        return loss


def bytes_of(model, names):
    """
    Return how many bytes the parameters with these names have together.
    """
    named = dict(model.named_parameters())
    return sum(named[name].numel() * named[name].element_size() for name in names)


def communications(events):
    """
    Return the events that are communication.
    """
    return [event for event in events if event.is_communication]


def foreign_dtypes(events, known):
    """
    Return the dtypes of calls that send more than one number, without the dtypes in `known`.
    """
    return sorted(
        {
            event.dtype
            for event in communications(events)
            if event.dtype and event.dtype not in known
            if event.input_bytes > getattr(torch, event.dtype).itemsize
        }
    )


def random_layers(draw, num_layers):
    """
    Draw the numbers of weights and biases of some layers.
    """
    return [[draw.randint(4, 12), draw.randint(1, 4)] for _ in range(num_layers)]


def tensors_of(model):
    """
    Return {name: parameter or buffer} of a model.
    """
    return dict([*model.named_parameters(), *model.named_buffers()])


def listed(names):
    """
    Return names as one phrase, sorted.
    """
    return " and ".join(sorted(names))


def first_number(tensor):
    """
    Return the first number of a tensor, as text.
    """
    return f"{tensor.reshape(-1)[0].item():g}"


def plan_of(case, model, mistake=None):
    """
    Return the right plan of buckets, or the plan of an answer with a mistake.
    """
    cap = case["cap_bytes"]
    first = cap if mistake == "first-cap" else case["first_cap_bytes"]
    named = list(model.named_parameters(remove_duplicate=mistake != "tied"))
    num_first = {"always-first": len(named), "first-twice": 1}.get(mistake, 0)
    buckets, bucket, num_bytes = [], [], 0
    for name, parameter in named if mistake == "order" else named[::-1]:
        if not parameter.requires_grad and mistake != "frozen":
            num_bytes += parameter.nbytes * (mistake == "frozen-bytes")
            continue
        now = cap if len(buckets) > num_first else first
        if mistake == "smaller-first":
            now = min(now, cap)
        if mistake == "swapped":
            now = first if buckets else cap
        size = {"numbers": 1, "four-bytes": 4}.get(mistake, parameter.element_size())
        if mistake == "storage" and parameter.nbytes:
            size *= parameter.untyped_storage().nbytes() / parameter.nbytes
        own = (len(parameter) if mistake == "rows" else parameter.numel()) * size
        if mistake == "under-cap" and bucket and num_bytes + own > now:
            buckets.append(bucket)
            bucket, num_bytes = [], 0
        bucket = [*bucket, name]
        num_bytes += own
        is_late = mistake in ("one-late", "later-late" if buckets else "first-late")
        is_full = num_bytes > now if is_late else num_bytes >= now
        if is_full and mistake != "under-cap":
            buckets.append(bucket)
            above = num_bytes - now
            rest = {"not-reset": num_bytes, "above-cap": above, "less-above-cap": -above}
            bucket, num_bytes = [], rest.get(mistake, 0)
    return [*buckets, bucket] if bucket else buckets
