"""
Exercise 05: how replicas stay equal.

Legend: w ranks; m micro-batches in a step. A gradient is kept as a table: name of a parameter ->
tensor or None, in the order of `named_parameters`.
"""

from itertools import chain, zip_longest

import torch
from torch import nn

from ddp_lessons.checks.kit import Case, Task, equal, whole_numbers
from ddp_lessons.pictures import (
    buckets_picture,
    collective_picture,
    timeline_picture,
    timeline_tracks,
)
from ddp_lessons.ranks.diagnosis.telling import rank_names
from ddp_lessons.trace import merge
from ddp_lessons.trace.events import GRADIENT, MESSAGE

HEAD_SIZE = 3
MOST_COUNT = 9999  # more than bfloat16 can tell apart
COUNT_BYTES = 8  # of a number of samples, in int64 or float64


class _Layer(nn.Module):
    """
    A weight and a bias, filled with whole numbers.
    """

    def __init__(self, numbers, num_weights):
        super().__init__()
        self.weight = nn.Parameter(numbers[None, :num_weights].clone())  # (1, num_weights)
        self.bias = nn.Parameter(numbers[num_weights:].clone())


class _Model(nn.Module):
    """
    Layers and a head. The head's weight is layer 0's; the bias of layer 1 is frozen.

    The gradient of each parameter is the input that meets it: whole numbers, known beforehand.

    Args:
        case: The Case; `case["layers"]` holds the numbers of weights and biases of each layer.
        rank: Whose first weights; None: the same on all ranks.
        dtype: Another dtype than the case's, for an oracle.
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
        self.head.weight = self.layer0.weight
        self.layer1.bias.requires_grad = False
        count = whole_numbers(case, rank, [], torch.int64, most=MOST_COUNT).abs()
        self.register_buffer("mean", rest[:2].clone())
        self.register_buffer("count", count)
        self.register_buffer("mask", rest[2:].clone(), persistent=False)

    def forward(self, inputs, names):
        """
        Return a loss; `inputs` are by name of a parameter, `names` the layers to go through.
        """
        loss = inputs["layer0.weight"].new_zeros(())
        for name in names:
            layer = getattr(self, name)
            loss = loss + (layer.weight * inputs[f"{name}.weight"]).sum()
            loss = loss + (layer.bias * inputs[f"{name}.bias"]).sum()
        return loss


def _inputs(case, rank, model, batch=0):
    """
    Return the inputs of one batch of a rank, by name; a tied weight has one for each name.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    sizes = [parameter.numel() for parameter in named.values()]
    # Rows of one draw: they differ.
    numbers = whole_numbers(case, rank, [batch + 1, sum(sizes)])[batch]
    first = next(iter(named.values()))
    parts = numbers.to(first.device, first.dtype).split(sizes)
    pairs = zip(named.items(), parts, strict=True)
    return {name: part.view_as(parameter) for (name, parameter), part in pairs}


def _layers(model):
    return [name for name, _ in model.named_children()]


def _gradient(model):
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def _trained(model):
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def _bytes(model, names):
    named = dict(model.named_parameters())
    return sum(named[name].numel() * named[name].element_size() for name in names)


def _weighted(gradients, weights):
    """
    Return the weighted sum of gradients, and the sum of its absolute terms, as float64 tables.
    """
    total, size = {}, {}
    for name in gradients[0]:
        terms = [
            torch.zeros((), dtype=torch.float64) if gradient[name] is None else gradient[name]
            for gradient in gradients
        ]
        pairs = list(zip(weights, terms, strict=True))
        total[name] = sum(weight * term.double() for weight, term in pairs)
        size[name] = sum(abs(weight) * term.double().abs() for weight, term in pairs)
    return total, size


def _zeros_for_none(got, like):
    return torch.zeros(like.shape, dtype=torch.float64) if got is None else got.double()


def _agrees(got, gradients, weights, num_roundings, unit):
    """
    Tell whether a table is the weighted sum, if no term goes through more roundings than that.
    """
    total, size = _weighted(gradients, weights)
    share = num_roundings * unit / (1 - num_roundings * unit)
    return all(
        bool(_is_near(_zeros_for_none(got[name], one), one, share * size[name]).all())
        for name, one in total.items()
    )


def _is_near(got, right, error):
    return ((got - right).abs() <= error) | (got.isnan() & right.isnan())


def _first_apart(got, total):
    """
    Return the name of the first parameter that is farthest from a table, by its largest number.
    """

    def distance(name):
        one = _zeros_for_none(got[name], total[name])
        apart = (one - total[name]).abs().nan_to_num(torch.inf)
        return float(apart.where(~_is_near(one, total[name], 0.0), 0.0).max())

    return max(total, key=distance)


def _moved(events):
    return [event for event in events if event.is_communication]


def _other_dtypes(events, known):
    """
    Return the dtypes, other than those known, of calls that send more than one number.
    """
    return sorted(
        {
            event.dtype
            for event in _moved(events)
            if event.dtype and event.dtype not in known
            if event.input_bytes > getattr(torch, event.dtype).itemsize
        }
    )


# ---- 05.1 start equal ----


def _start_cases(draw):
    yield Case(4, {"layers": [[2, 1], [2, 1]], "dtype": "float32"}, seed=0)
    for world_size, dtype in ((1, "float32"), (2, "bfloat16"), (3, "float64"), (2, "float32")):
        data = {"layers": _random_layers(draw, 2), "dtype": dtype, "numbers": "of many digits"}
        yield Case(world_size, data)
    data = {"layers": _random_layers(draw, 2), "dtype": "float32", "channels last": "mask"}
    yield Case(2, {**data, "special numbers": "-0.0 and -inf", "slice": "mean"})


def _start_model(case, rank):
    model = _Model(case, rank)
    if "numbers" in case.data:
        with torch.no_grad():
            for tensor in _tensors(model).values():
                if tensor.is_floating_point():
                    tensor.mul_(1e6).div_(7)  # more than float16 can hold
                else:
                    tensor.mul_(2).add_(2**53 + 1)  # odd, so float64 lacks it
    if "channels last" in case.data:
        whole = whole_numbers(case, rank, [1, 2, 3, 2])
        model.mask = whole.contiguous(memory_format=torch.channels_last)
    if "slice" in case.data:
        model.mean = torch.cat([model.mean] * 3)[2:4]  # type: ignore[list-item]
    if "special numbers" in case.data:
        with torch.no_grad():
            _tensors(model)["mask"][0, 0, 0, 1] = -torch.inf  # 0 times that is nan
            for tensor in _tensors(model).values():
                tensor[(0,) * tensor.dim()] = -0.0  # plus 0.0 it is 0.0
    return model


def _random_layers(draw, num_layers):
    return [[draw.randint(4, 12), draw.randint(1, 4)] for _ in range(num_layers)]


def _tensors(model):
    return dict([*model.named_parameters(), *model.named_buffers()])


def _start_act(here, start_equal):
    model = _start_model(here.case, here.rank).to(here.device)
    before = _tensors(model)
    memory = {name: one.detach() for name, one in before.items()}  # kept, so not given anew
    here.call(start_equal, model)
    after = _tensors(model)
    both = [name for name in before if name in after]
    return {
        "tensors": after,
        "replaced": [name for name in both if after[name] is not before[name]],
        "moved": [name for name in both if after[name].data_ptr() != memory[name].data_ptr()],
    }


def _start_judge(played):
    case = played.case
    before = [_tensors(_start_model(case, rank)) for rank in range(case.world_size)]
    for seen in played.seen:
        _judge_start(played, seen.rank, seen.kept["tensors"], before)
    for seen in played.seen:
        for name in seen.kept["replaced"]:
            fact = f"{name} is another tensor object than before."
            raise played.wrong("replaced", seen.rank, fact=fact)
        for name in seen.kept["moved"]:
            fact = f"{name} lies in other memory than before."
            raise played.wrong("replaced", seen.rank, fact=fact)
    _judge_start_cost(played, before[0])


def _judge_start_cost(played, tensors):
    most_bytes = sum(tensor.nbytes for tensor in tensors.values())
    for rank, events in enumerate(played.traces):
        moved = _moved(events)
        num_bytes = sum(event.input_bytes for event in moved)
        fact = f"{num_bytes} bytes go into its calls; the model has {most_bytes}."
        if num_bytes > most_bytes and any(event.dtype == "uint8" for event in moved):
            fact = f"Some go as uint8, as pickled objects do. {fact}"
            raise played.wrong("objects", rank, fact=fact)
        if len(moved) > len(tensors):
            mistake = "one-peer" if all(event.kind == MESSAGE for event in moved) else "cost"
            fact = f"It makes {len(moved)} calls; {len(tensors)} tensors need no more than that."
            raise played.wrong(mistake, rank, fact=fact)
        if num_bytes > most_bytes:
            others = _other_dtypes(events, {_dtype(one) for one in tensors.values()})
            raise played.wrong("sent-dtype" if others else "cost", rank, fact=fact)


def _dtype(tensor):
    return str(tensor.dtype).removeprefix("torch.")


def _judge_start(played, rank, got, before):
    expected, own = before[0], before[rank]
    wrong = [name for name in expected if not equal(got.get(name), expected[name].detach())]
    if not wrong:
        return
    name, kept = wrong[0], played.seen[0].kept["tensors"]
    both = {"got": got.get(name), "expected": expected[name].detach()}
    fact = f"{name} is not that of rank 0." if rank else f"{name} of rank 0 has changed."
    is_own = all(equal(got.get(one), own[one].detach()) for one in wrong)
    known = {_dtype(one) for one in expected.values()}
    sent = {event.dtype for event in _moved(played.traces[rank])} - {"uint8", None}
    is_other = sent - known or (sent and not is_own and _dtype(expected[name]) not in sent)
    if is_other and _is_nearly(both["got"], both["expected"]):
        fact = f"{fact} It sends {_listed(sent - known or sent)}; the model has {_listed(known)}."
        raise played.wrong("sent-dtype", rank, **both, fact=fact)
    if _is_sum_of(both["got"], both["expected"]):
        raise played.wrong("added", rank, **both, fact=fact)
    if rank == 0:
        others = [tensors[name].detach() for tensors in before[1:]]
        came = any(equal(both["got"], other) for other in others)
        raise played.wrong("other-root" if came else "not-rank-0", rank, **both, fact=fact)
    if is_own and wrong == list(expected):
        raise played.wrong("unchanged", rank, **both, fact="Nothing has changed on this rank.")
    if is_own and wrong == ["mask"]:
        is_copied = "channels last" in played.case.data
        raise played.wrong("copied" if is_copied else "not-saved", rank, **both, fact=fact)
    if is_own and set(wrong) <= {"mean", "count", "mask"}:
        raise played.wrong("buffers", rank, **both, fact=fact)
    if is_own and wrong == ["layer1.bias"]:
        raise played.wrong("frozen", rank, **both, fact=fact)
    if equal(both["got"], kept[name]):
        raise played.wrong("not-rank-0", rank, **both, fact=fact)
    raise played.wrong("values", rank, **both, fact=fact)


def _is_nearly(got, expected):
    """
    Tell whether a tensor differs by so little that digits may have been lost, or is too large.
    """
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return False
    got, expected = got.double(), expected.double()
    return bool((((got - expected).abs() <= 0.01 * expected.abs()) | got.isinf()).all())


def _is_sum_of(got, expected):
    """
    Tell whether a tensor has lost what a sum with zeros loses: the sign of a 0, or an inf to a nan.
    """
    if not isinstance(got, torch.Tensor) or _alike(got) != _alike(expected):
        return False
    return bool(((got == expected) | (got.isnan() & expected.isinf())).all())


def _alike(tensor):
    return tensor.dtype, tensor.shape


def _listed(names):
    return " and ".join(sorted(names))


def _start_draw(played):
    before = [_tensors(_start_model(played.case, rank)) for rank in range(played.case.world_size)]
    rows = [
        [[_first_number(one) for one in table.values()] for table in tables]
        for tables in (before, [seen.kept["tensors"] for seen in played.seen])
    ]
    return collective_picture("start_equal", *rows)


def _first_number(tensor):
    return f"{tensor.reshape(-1)[0].item():g}"


start_equal = Task(
    number="05.1",
    name="start_equal",
    may_change=("weights", "buffers"),
    cases=_start_cases,
    act=_start_act,
    judge=_start_judge,
    ok="all parameters and buffers are rank 0's, one call a tensor at most",
    draw=_start_draw,
    hints=(
        "One rank's model must come to all. Which collective does that, and what is in a model "
        "beside what is trained?",
        "model.parameters() names each parameter once, frozen ones too. model.buffers() has the "
        "rest.",
        "dist.broadcast writes into the tensor that it is given, on every rank but src. "
        "Give it tensor.detach(), which shares its memory.",
        "for tensor in [*model.parameters(), *model.buffers()]: one call, with src=0.",
    ),
    mistakes={
        "unchanged": "What was received must land in the model's own tensors.",
        "frozen": "A frozen parameter takes part in every forward. It must be equal, too.",
        "buffers": "A model holds more than parameters: numbers that no step changes are in its "
        "buffers.",
        "not-saved": "A state_dict leaves out buffers that are not to be saved. The model has "
        "another list of them.",
        "not-rank-0": "The replicas may all start from one model, but it is to be rank 0's, and "
        "rank 0's stays as it is.",
        "other-root": "Let rank 0 send, and all others receive.",
        "copied": "Some calls give a view where they can, and a copy of what is not contiguous. "
        "What was received must land in the model's own tensors.",
        "replaced": "Write into the tensors that are there. An optimizer or a view that was made "
        "before holds those.",
        "left-changed": "Only numbers may change. A frozen parameter stays frozen: detach() gives "
        "a tensor with the same memory that calls may write into.",
        "objects": "Send the numbers themselves: one broadcast for a tensor.",
        "sent-dtype": "Send each tensor in its own dtype: a smaller one loses digits, a larger one "
        "costs bytes.",
        "added": "A sum is no copy: -0.0 + 0.0 is 0.0, and 0 times inf is nan. Hand out the bits "
        "that rank 0 has.",
        "one-peer": "A send reaches one rank. One call can hand a tensor to all of them.",
        "cost": "Send each tensor once, and nothing else. A tied weight has two names, and is one "
        "tensor.",
        "values": "Compare this tensor on rank 0 and on this rank: every number of it must come "
        "over, to the last bit.",
    },
    returns=False,
)

# ---- 05.2 average gradients ----


def _average_cases(draw):
    first = {"layers": [[2, 1], [2, 1]], "dtype": "float32"}
    yield Case(4, {**first, "samples": [4, 2, 1, 1], "without the head on": [3]}, seed=0)
    for world_size, dtype, without in ((1, "float32", []), (2, "float64", [0, 1])):
        samples = draw.sample(range(1, 9), world_size)
        data = {"layers": _random_layers(draw, 3), "dtype": dtype, "samples": samples}
        yield Case(world_size, {**data, "without the head on": without})
    samples = draw.sample([0, draw.randint(1, 3), draw.randint(4, 9)], 3)
    data = {"layers": _random_layers(draw, 3), "dtype": "float32", "samples": samples}
    yield Case(3, {**data, "without the head on": []})
    # No float32 holds so many. No tensor has one number, so a single one that is sent is a count.
    samples = draw.sample([2**24 + 1, 2, 0], 3)
    data = {"layers": [[5, 2], [4, 3]], "dtype": "float64", "samples": samples}
    yield Case(3, {**data, "without the head on": [draw.randint(0, 2)]})
    # float16 holds no such number, and little of what was divided by one.
    samples = [2 * draw.randint(2_300_000, 2_900_000) + 1 for _ in range(2)]
    data = {"layers": [[5, 2], [4, 3]], "dtype": "float16", "samples": samples}
    yield Case(2, {**data, "without the head on": []})
    # A nan of samples that there are is a fault, which nobody may hide.
    data = {"layers": _random_layers(draw, 2), "dtype": "float32", "samples": [3, 5]}
    yield Case(2, {**data, "without the head on": [], "nan on rank": draw.randint(0, 1)})
    # So many numbers in so few bits that no order of adding them up gives what another does.
    layers = [[draw.randint(40, 60), 30], [draw.randint(40, 60), 30]]
    data = {"layers": layers, "dtype": "bfloat16", "samples": [5, 5, 5]}
    yield Case(3, {**data, "without the head on": [draw.randint(0, 2)]})


def _backward_once(case, rank, model):
    names = _layers(model)
    names = names[:-1] if rank in case["without the head on"] else names
    loss = model(_inputs(case, rank, model), names)
    if not case["samples"][rank]:
        loss = loss * torch.nan  # a mean over nothing
    loss.backward()
    if rank == case.data.get("nan on rank"):
        model.head.bias.grad[0] = torch.nan
    return model


def _average_act(here, average_gradients):
    model = _backward_once(here.case, here.rank, _Model(here.case).to(here.device))
    here.call(average_gradients, model, here["samples"][here.rank])
    return {"gradient": _gradient(model), "weights": _tensors(model)}


def _own_gradients(case):
    models = [_Model(case, dtype=torch.float64) for _ in range(case.world_size)]
    tables = [_gradient(_backward_once(case, rank, model)) for rank, model in enumerate(models)]
    return [
        table if num_samples else dict.fromkeys(table)
        for table, num_samples in zip(tables, case["samples"], strict=True)
    ]


def _average_judge(played):
    case = played.case
    own, samples = _own_gradients(case), case["samples"]
    model = _Model(case)
    for seen in played.seen:
        _judge_untouched(played, seen, model)
    right = [num / sum(samples) for num in samples]
    # A share and its product, at most w - 1 sums, and a division before or after: 3 + (w - 1),
    # and two more for whoever first makes an average and then weighs it anew.
    judged = {
        "num_roundings": case.world_size + 4,
        "unit": torch.finfo(getattr(torch, case["dtype"])).eps / 2,
    }
    fits = [_agrees(seen.kept["gradient"], own, right, **judged) for seen in played.seen]
    for seen, is_right in zip(played.seen, fits, strict=True):
        if not is_right:
            raise _average_mistake(played, seen, own, fits, judged)
    _judge_average_cost(played, model)
    for seen in played.seen:
        if not equal(seen.kept["gradient"], played.seen[0].kept["gradient"]):
            fact = (
                f"Its gradient and that of rank 0 differ by rounding ({rank_names([seen.rank])})."
            )
            raise played.wrong("apart", seen.rank, fact=fact)


def _judge_untouched(played, seen, model):
    gradient, first = seen.kept["gradient"], _tensors(model)
    changed = [
        name for name, one in first.items() if not equal(seen.kept["weights"][name], one.detach())
    ]
    if changed:
        fact = f"{changed[0]} itself has changed."
        raise played.wrong("own", seen.rank, fact=fact)
    if gradient["layer1.bias"] is not None:
        fact = "layer1.bias is frozen, and has a gradient now."
        raise played.wrong("frozen", seen.rank, got=gradient["layer1.bias"], fact=fact)
    for name in _trained(model):
        if gradient[name] is not None and gradient[name].dtype != first[name].dtype:
            fact = f"The gradient of {name} has another dtype than the parameter."
            raise played.wrong("dtype", seen.rank, got=gradient[name], fact=fact)


def _average_mistake(played, seen, own, fits, judged):
    case, rank = played.case, seen.rank
    samples, w = case["samples"], case.world_size
    shares = [num / sum(samples) for num in samples]
    tables = [one.kept["gradient"] for one in played.seen]
    got, dtype = tables[rank], case["dtype"]

    def agree(row_of):
        return all(_agrees(one, own, row_of(r), **judged) for r, one in enumerate(tables))

    def only(other, weight=1.0):
        return [weight * (place == other) for place in range(w)]

    names = [
        ("mean-of-means", [1 / w] * w),
        ("summed", [1.0] * w),
        ("twice", [1 / w**2] * w),
        ("twice", [share / w for share in shares]),
        ("undivided", samples),
        ("undivided", [num / w for num in samples]),
        ("own", only(rank)),
        ("own", only(rank, shares[rank])),
    ]
    found = next((name for name, row in names if _agrees(got, own, row, **judged)), "values")
    total, _ = _weighted(own, shares)
    apart = _first_apart(got, total)
    head, used = {"head.bias"}, _samples_of_users(case)
    parts = [{name: table[name] for name in head} for table in (got, *own)]
    by_users = [num / max(sum(used), 1) for num in used]
    if found == "values" and sum(used) and _agrees(parts[0], parts[1:], by_users, **judged):
        found, apart = "only-users", "head.bias"
    fact = f"The gradient of {apart} is not that of the whole batch."
    one_number = _too_small_for(max(samples), played.traces[rank])
    other_dtypes = _other_dtypes(played.traces[rank], {dtype, "int64"})
    if one_number:
        found = "count"
        fact = f"{fact} It sends one number as {one_number}, which cannot hold {max(samples)}."
    elif found == "values" and other_dtypes:
        found, fact = "sent-dtype", f"{fact} It sends {_listed(other_dtypes)}; they are {dtype}."
    elif found == "values" and dtype == "float16":
        found = "range"
    elif any(fits):
        found = "one-rank"
    elif w > 1 and agree(lambda r: [shares[r]] * w):
        found = "weighed-late"
    elif any(agree(lambda _, n=n, k=k: only(n, k)) for n in range(w) for k in (1.0, shares[n])):
        found, fact = "handed-out", f"{fact} All ranks have the same one, which is a single rank's."
    if got[apart] is not None and bool(got[apart].isnan().any()) and 0 in samples:
        found = "no-samples"
    if total[apart].isnan().any() and got[apart] is not None and not got[apart].isnan().any():
        found, fact = "hidden", f"{fact} A rank that has samples found nan there."
    if got[apart] is None:
        fact = f"{fact} It is None."
    both = {"got": got[apart], "expected": _as(total[apart], seen.kept["weights"][apart])}
    return played.wrong(found, rank, **both, fact=fact)


def _samples_of_users(case):
    left_out = case["without the head on"]
    return [num * (rank not in left_out) for rank, num in enumerate(case["samples"])]


def _as(total, parameter):
    return total.expand(parameter.shape).to(parameter.dtype)


def _too_small_for(number, events):
    """
    Return a dtype that a single number was sent in and that cannot hold this one, or None.
    """
    for event in _moved(events):
        dtype = getattr(torch, event.dtype or "int64")
        if event.input_bytes == dtype.itemsize and torch.tensor(number).to(dtype).item() != number:
            return event.dtype
    return None


def _judge_average_cost(played, model):
    names = _trained(model)
    most_bytes = _bytes(model, names) + COUNT_BYTES
    for rank, events in enumerate(played.traces):
        moved = _moved(events)
        num_bytes = sum(event.input_bytes for event in moved)
        fact = f"{num_bytes} bytes go into its calls; {most_bytes} are enough."
        if num_bytes > most_bytes and any(event.dtype == "uint8" for event in moved):
            fact = f"Some go as uint8, as pickled objects do. {fact}"
            raise played.wrong("objects", rank, fact=fact)
        if len(moved) > len(names) + 1:
            calls = f"It makes {len(moved)} calls; {len(names)} trained parameters need one more."
            raise played.wrong("cost", rank, fact=calls)
        if num_bytes > most_bytes:
            others = _other_dtypes(events, {played.case["dtype"], "int64"})
            raise played.wrong("sent-dtype" if others else "cost", rank, fact=fact)


def _average_draw(played):
    case = played.case
    rows = []
    for gradients in (_own_gradients(case), [seen.kept["gradient"] for seen in played.seen]):
        names = _trained(_Model(case))
        firsts = [[gradient[name] for name in names] for gradient in gradients]
        rows.append([[None if g is None else _first_number(g) for g in row] for row in firsts])
    return collective_picture("average_gradients", *rows)


average_gradients = Task(
    number="05.2",
    name="average_gradients",
    may_change=("grad",),
    cases=_average_cases,
    act=_average_act,
    judge=_average_judge,
    ok="every .grad is that of the whole batch, one call a parameter and one more at most",
    draw=_average_draw,
    hints=(
        "The mean over all samples is a sum over ranks, in which each rank's mean counts with its "
        "share of the samples.",
        "A rank's share is num_samples by the sum of all ranks' num_samples. That sum takes one "
        "call. Then it is one all-reduce for each trained parameter.",
        "What is sent may depend on the model, never on a rank's data: a rank whose .grad is None, "
        "or that has no samples, sends zeros.",
        "For each parameter that requires a gradient: if grad is None or num_samples is 0, make it "
        "zeros_like; multiply it by num_samples / total; all_reduce it.",
    ),
    mistakes={
        "summed": "A sum over ranks is several times too long. A mean is wanted.",
        "twice": "Something was divided once too often: the shares of all ranks must add up to 1.",
        "mean-of-means": "Ranks have unequally many samples: each sample must count the same, not "
        "each rank.",
        "undivided": "A share is a part of all samples. Find out how many there are in all.",
        "only-users": "A sample that did not use a parameter has a gradient of zero for it, and "
        "counts.",
        "own": "What came of the messages must be in .grad. The weights stay as they are.",
        "handed-out": "Every rank's gradient must count, not that of a single one.",
        "weighed-late": "A rank's share belongs to its own gradient: weigh that one before ranks "
        "are added up.",
        "hidden": "Only a rank without samples is left out. Any other nan is a fault of the run: "
        "whoever hides it trains on.",
        "no-samples": "A mean over no samples is not a number, and 0 times that is not 0. Such a "
        "rank must send numbers that change nothing.",
        "count": "Count samples in a dtype that holds every whole number: there are 8 bytes for "
        "it.",
        "sent-dtype": "Send gradients in the dtype that they have: a smaller one loses digits, a "
        "larger one costs bytes.",
        "range": "float16 ends at 65,504, and has few digits far below 1. A number of samples does "
        "not fit into it, nor what is multiplied or divided by one. A share does.",
        "one-rank": "Every rank needs the average, for every rank makes a step.",
        "frozen": "A frozen parameter has no gradient, on any rank: leave it alone.",
        "deadlock": "A rank that has no samples, or no gradient for a parameter, must make the "
        "same calls as the others.",
        "raised": "Look at the line that is named, if one is. A rank may have no gradient for a "
        "parameter: its .grad is None. A number of samples may be large, or 0.",
        "objects": "Send the numbers themselves, as tensors.",
        "cost": "One call a trained parameter, and one for the number of samples. A tied weight "
        "has two names, and one gradient.",
        "values": "Write down for two ranks, of 3 samples and of 1, what each sends. Each sample "
        "must count with one fourth.",
        "apart": "Ranks that add the same numbers in another order round otherwise. Then replicas "
        "drift apart: all must add up in one order.",
    },
    returns=False,
)

# ---- 05.3 plan buckets ----


def _plan_cases(draw):
    layers = [[1, 3], [5, 5], [10, 2], [4, 1], [5, 1]]
    caps = {"cap_bytes": 40, "first_cap_bytes": 16}
    yield Case(4, {"layers": layers, "dtype": "float32", **caps}, seed=0)
    for world_size, dtype, size in ((1, "bfloat16", 2), (2, "float64", 8), (3, "float32", 4)):
        layers = _random_layers(draw, draw.randint(4, 6))
        caps = {"cap_bytes": size * draw.randint(12, 20), "first_cap_bytes": size * HEAD_SIZE}
        yield Case(world_size, {"layers": layers, "dtype": dtype, **caps})
    # All in one bucket, which the last parameter fills exactly.
    layers = _random_layers(draw, 3)
    num_trained = sum(map(sum, layers)) - layers[1][1] + HEAD_SIZE
    caps = {"cap_bytes": 10**6, "first_cap_bytes": 4 * num_trained}
    yield Case(2, {"layers": layers, "dtype": "float32", **caps})
    # The second bucket is above its cap. All others are filled exactly, the last one too.
    num = draw.randint(6, 9)
    layers = [[num - 3, 2], [1, 1], [num - 3, 3], [num + 2, 1]]
    caps = {"cap_bytes": 4 * num, "first_cap_bytes": 4 * HEAD_SIZE}
    yield Case(2, {"layers": layers, "dtype": "float32", **caps})
    # The first cap may be the larger one, and parameters may be slices of larger tensors.
    layers = [[num, 2], [num + 3, 1], [num - 3, 3], [num, 1]]
    caps = {"cap_bytes": 8 * num, "first_cap_bytes": 24 * num}
    yield Case(2, {"layers": layers, "dtype": "float64", "in memory": "as slices", **caps})
    # So many names in one bucket that no set has them in this order.
    caps = {"cap_bytes": 10**6, "first_cap_bytes": 10**6}
    yield Case(2, {"layers": [[2, 1]] * 12, "dtype": "float64", **caps})
    yield Case(2, {"layers": [[2, 1]] * 2, "dtype": "float32", "frozen": "everything", **caps})


def _plan_model(case):
    model = _Model(case).requires_grad_("frozen" not in case.data)
    model.layer1.bias.requires_grad = False
    for parameter in model.parameters() if "in memory" in case.data else ():
        parameter.data = torch.cat([parameter.data] * 3)[: len(parameter)]
    return model


_OTHER_CAPS = {"cap_bytes": 10**6, "first_cap_bytes": 10**6}


def _plan(case, model, mistake=None):
    """
    Return the plan that is wanted, or the one that comes of a mistake.
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
        if mistake == "storage":
            size *= parameter.untyped_storage().nbytes() / parameter.nbytes
        own = (len(parameter) if mistake == "rows" else parameter.numel()) * size
        if mistake == "under-cap" and bucket and num_bytes + own > now:
            buckets.append(bucket)
            bucket, num_bytes = [], 0
        bucket = [*bucket, name]
        num_bytes += own
        is_late = mistake in ("one-late", "later-late" if buckets else "first-late")
        is_full = num_bytes > now if is_late else num_bytes >= now
        if mistake == "each-alone" or (is_full and mistake != "under-cap"):
            buckets.append(bucket)
            above = num_bytes - now
            rest = {"not-reset": num_bytes, "above-cap": above, "less-above-cap": -above}
            bucket, num_bytes = [], rest.get(mistake, 0)
    return buckets + [bucket] * (bool(bucket) and mistake != "lost")


_PLAN_MISTAKES = {
    "four-bytes": "numbers",
    "order": "order",
    "frozen": "frozen",
    "frozen-bytes": "frozen",
    "tied": "tied",
    "numbers": "numbers",
    "rows": "rows",
    "storage": "storage",
    "smaller-first": "first-cap",
    "not-reset": "not-reset",
    "above-cap": "not-reset",
    "less-above-cap": "not-reset",
    "one-late": "one-late",
    "first-late": "one-late",
    "later-late": "one-late",
    "under-cap": "under-cap",
    "lost": "lost",
    "first-cap": "first-cap",
    "always-first": "first-cap",
    "first-twice": "first-cap",
    "swapped": "first-cap",
    "each-alone": "each-alone",
}
"""
What a plan may be made by -> the mistake that it is.
"""


def _plan_act(here, plan_buckets):
    model = _plan_model(here.case).to(here.device)
    here.call(plan_buckets, model, here["cap_bytes"], here["first_cap_bytes"])
    here.call(plan_buckets, model, *_OTHER_CAPS.values())
    _trains_no_more(model)
    here.call(plan_buckets, model, here["cap_bytes"], here["first_cap_bytes"])


def _trains_no_more(model):
    # Between two calls somebody freezes a layer.
    model.head.bias.requires_grad = False
    return model


def _plan_judge(played):
    model = _plan_model(played.case)
    plans = [seen.calls[0].result for seen in played.seen]
    expected = _plan(played.case, model)
    for rank, got in enumerate(plans):
        _judge_buckets(played, rank, got, expected, model)
    for rank, got in enumerate(plans):
        for one, other in zip(got, plans[0], strict=True):
            if list(one) != list(other):
                fact = f"Where rank 0 has the bucket {other}, this rank has {one}."
                raise played.wrong("ranks-differ", rank, fact=fact)
    for rank, got in enumerate(plans):
        for one, right in zip(got, expected, strict=True):
            if list(one) != right:
                fact = "A bucket has the right names in another order."
                raise played.wrong("inside", rank, got=one, expected=right, fact=fact)
    _judge_other_caps(played, model)
    expected = _plan(played.case, _trains_no_more(model))
    for seen in played.seen:
        got = seen.calls[2].result
        if any("head.bias" in bucket for bucket in got):
            both = {"got": got, "expected": expected}
            fact = "In another call, with the same model and caps, head.bias is frozen as well."
            raise played.wrong("kept", seen.rank, **both, fact=fact)


def _judge_other_caps(played, model):
    expected = _plan({**played.case.data, **_OTHER_CAPS}, model)
    for seen in played.seen:
        first, got = (call.result for call in seen.calls[:2])
        if not _is_plan(got) or [list(one) for one in got] != expected:
            fact = (
                "In another call, with the same model and caps of 1,000,000 bytes, it is not right."
            )
            is_longer = _is_plan(got) and got[: len(first)] == first
            mistake = "kept" if is_longer or _is_kept(seen.calls[0]) else "values"
            if _is_plan(got) and list(map(sorted, got)) == list(map(sorted, expected)):
                mistake = "inside"  # the buckets of the first call may be in order by chance
            raise played.wrong(mistake, seen.rank, got=got, expected=expected, fact=fact)


def _is_kept(call):
    """
    Tell whether a second call with the same arguments named more parameters, or fewer.
    """
    plans = [call.result, call.again and call.again.result]
    return all(map(_is_plan, plans)) and sum(map(len, plans[0])) != sum(map(len, plans[1]))


def _is_plan(got):
    return isinstance(got, list) and all(
        isinstance(one, list | tuple) and all(isinstance(name, str) for name in one) for one in got
    )


def _judge_buckets(played, rank, got, expected, model):
    """
    Refuse a plan whose buckets do not have the names that they should, in whatever order.
    """
    if not _is_plan(got):
        fact = "It must return a list of lists of names."
        raise played.wrong("no-list", rank, got=got, fact=fact)
    buckets, rights = [sorted(one) for one in got], [sorted(one) for one in expected]
    if buckets == rights:
        return
    if [] in buckets:
        raise played.wrong("empty", rank, got=got, fact="A bucket is empty.")
    if not got:
        fact = "The plan has no bucket, but there are parameters to train."
        raise played.wrong("by-grad", rank, fact=fact)
    found = _plan_mistake(played.case, model, buckets, rights)
    if _is_kept(played.seen[rank].calls[0]):
        found = "kept"
    pairs = list(zip_longest(map(list, got), expected))
    place = next(
        n for n, (one, right) in enumerate(pairs) if sorted(one or ()) != sorted(right or ())
    )
    one, right = pairs[place]
    both = {"got": one or "no such bucket", "expected": right or "no such bucket"}
    fact = f"Bucket {place} of the plan, counted from 0, is not the one expected."
    raise played.wrong(found, rank, **both, fact=fact)


def _plan_mistake(case, model, buckets, rights):
    for made_by, mistake in _PLAN_MISTAKES.items():
        if buckets == [sorted(one) for one in _plan(case, model, made_by)]:
            return mistake
    if buckets == rights[::-1]:
        return "backwards"
    names = [name for one in buckets for name in one]
    if len(names) > len(set(names)):
        return "repeated"
    return "lost" if {name for one in rights for name in one} - {*names} else "values"


def _plan_draw(played):
    named = dict(_Model(played.case).named_parameters())
    sizes = [(name, _bytes(_Model(played.case), [name])) for name in named]
    return buckets_picture(sizes, [list(one) for one in played.seen[0].calls[0].result])


plan_buckets = Task(
    number="05.3",
    name="plan_buckets",
    may_change=(),
    twice=True,
    cases=_plan_cases,
    act=_plan_act,
    judge=_plan_judge,
    ok="one plan on every rank, first ready first, each trained parameter once",
    draw=_plan_draw,
    hints=(
        "backward goes from the loss to the input. So the parameters that were made last have "
        "their gradients first.",
        "Keep one open bucket and count its bytes. After each parameter that you put in, ask "
        "whether it is full; if so, close it, and open a new one.",
        "A parameter has numel() * element_size() bytes. named_parameters() names a tied one once, "
        "and its requires_grad tells whether it is frozen.",
        "if num_bytes >= (cap_bytes if buckets else first_cap_bytes): append the open bucket to "
        "buckets, and start again from [] and 0. What is open at the end is a bucket too.",
    ),
    mistakes={
        "no-list": "Return a list of buckets. A bucket is a list of names.",
        "order": "Which gradient is ready first in backward? Its bucket must be able to leave.",
        "frozen": "A frozen parameter has no gradient, so nothing of it is sent.",
        "tied": "A tied parameter has two names, but one gradient: plan it once, under its first "
        "name.",
        "backwards": "Which bucket is full first? It comes first in the plan.",
        "numbers": "The caps are bytes, not numbers of numbers, and each dtype has its own size.",
        "rows": "A weight has rows and columns. Its bytes are those of all its numbers.",
        "storage": "A parameter may be a part of a larger tensor. Only its own numbers are sent.",
        "one-late": "A bucket that holds exactly its cap is full.",
        "under-cap": "A bucket closes after the parameter that fills it, even if it is above the "
        "cap then.",
        "lost": "What is in the open bucket at the end must be sent too.",
        "empty": "Where the last parameter fills its bucket, no other follows; and a model that "
        "trains nothing has none.",
        "repeated": "No parameter is in two buckets. A list that is emptied is empty wherever it "
        "stands: open a new one.",
        "by-grad": "No backward has been run yet, so no parameter has a gradient. What tells "
        "whether it will have one?",
        "kept": "The plan depends on the model and the caps of this call, on nothing earlier.",
        "not-reset": "A new bucket holds 0 bytes.",
        "first-cap": "The first bucket has first_cap_bytes, and each later one cap_bytes.",
        "each-alone": "Each parameter has a message of its own here. Few large messages carry the "
        "same at less cost.",
        "inside": "Names in a bucket stand in the order in which you came to them. A set has an "
        "order that the next run need not share.",
        "ranks-differ": "Ranks add up bucket by bucket, number by number: all need the same plan "
        "in the same order.",
        "values": "Go through the parameters from the last to the first, and write down the open "
        "bucket's bytes.",
        "forbidden": "Every rank has the same model, so each can plan by itself: send nothing.",
        "store": "Every rank has the same model, so each can plan by itself: leave no note.",
    },
    allowed=(),
)

# ---- 05.4 an overlapped replica ----


def _replica_cases(draw):
    caps = {"cap_bytes": 40, "first_cap_bytes": 12, "dtype": "float32"}
    times = {"micro_batches": 2, "steps": 2}
    yield Case(4, {"layers": [[4, 2], [10, 2], [8, 2]], **caps, **times}, seed=0)
    times = {"micro_batches": 1, "steps": 2}
    yield Case(1, {"layers": _random_layers(draw, 3), **caps, **times})
    # Layers 1 and 2 make buckets of one size, so messages in another order meet, and add up wrong.
    num, caps = draw.randint(5, 9), {"first_cap_bytes": 8 * HEAD_SIZE, "dtype": "float64"}
    layers = [[draw.randint(2, 9), draw.randint(1, 3)], [num, 2], [num - 2, 2]]
    data = {"layers": layers, "cap_bytes": 8 * num, **caps}
    yield Case(3, {**data, **times, "other order on": [draw.randint(0, 2)]})
    times = {"micro_batches": 1, "steps": 1}  # in a second step Gloo may abort the process
    yield Case(2, {**data, **times, "without": ["layer2"], "on rank": draw.randint(0, 1)})
    times = {"micro_batches": 3, "steps": 2}
    yield Case(3, {**data, **times, "without": ["layer2"], "on rank": draw.randint(0, 2)})
    # Nothing of the first bucket is ready there, nor of the last: the head has a weight of layer 0.
    times, odd = {"micro_batches": 1, "steps": 2}, {"on rank": draw.randint(0, 1), "in step": 2}
    yield Case(2, {**data, **times, "without": ["layer0", "head"], **odd})
    times = {"micro_batches": 1, "steps": 3}
    yield Case(2, {**data, **times, "dtype": "bfloat16", "layer2": "in the second step only"})


def _ways(case, rank, number=0):
    """
    Return the layers that each micro-batch of a rank's step goes through, in order.
    """
    names = [*(f"layer{number}" for number in range(len(case["layers"]))), "head"]
    if number != 1 and "layer2" in case.data:
        names.remove("layer2")
    if rank in case.data.get("other order on", ()):
        names = ["layer0", "layer2", "layer1", "head"]
    ways = [names] * case["micro_batches"]
    if rank == case.data.get("on rank") and number + 1 >= case.data.get("in step", 1):
        ways = [*ways[:-1], [name for name in names if name not in case["without"]]]
    return ways


def _replica_act(here, make_replica):
    model = _Model(here.case).to(here.device)
    replica = here.call(make_replica, model, _plan(here.case, model))

    def step(number, model):
        ways = _ways(here.case, here.rank, number)
        for place, way in enumerate(ways):
            replica.will_sync = place + 1 == len(ways)
            inputs = _inputs(here.case, here.rank, model, number * len(ways) + place)
            model(inputs, way).backward()
        replica.wait_for_gradients()

    gradients = []
    for number in range(here["steps"]):
        here.call(step, number, model, watch=(model,))
        gradients.append({name: _copy(one) for name, one in _gradient(model).items()})
        model.zero_grad()
    return gradients


def _copy(gradient):
    return None if gradient is None else gradient.clone()


def _step_gradients(case, number, first=0, without=()):
    """
    Return each rank's gradient of one step, as it adds up from a micro-batch on.
    """
    tables = []
    for rank in range(case.world_size):
        model, ways = _Model(case, dtype=torch.float64), _ways(case, rank, number)
        for place, way in list(enumerate(ways))[first:]:
            batch = number * len(ways) + place
            model(_inputs(case, rank, model, batch), way).backward()
        table = _gradient(model)
        tables.append({name: None if name in without else one for name, one in table.items()})
        if rank != case.data.get("on rank"):
            tables[-1] = table
    return tables


def _replica_judge(played):
    case = played.case
    model = _Model(case)
    buckets = _plan(case, model)
    for number in range(case["steps"]):
        if case.world_size > 1:
            for seen in played.seen:
                _judge_messages(played, seen, number, model, buckets)
        for seen in played.seen:
            _judge_mean(played, seen, number)


def _judge_messages(played, seen, number, model, buckets):
    rank, events = seen.rank, seen.calls[1 + number].events
    sent = _moved(events)
    gradients = [event for event in events if event.kind == GRADIENT]
    last = max(event.backward for event in gradients)
    which = f"Step {number + 1} of {played.case['steps']}"
    if any(event.backward is not None and event.backward < last for event in sent):
        fact = f"{which}: it sends before the last micro-batch."
        raise played.wrong("each-micro-batch", rank, fact=fact)
    if len(sent) > len(buckets):
        fact = f"{which}: it makes {len(sent)} calls; there are {len(buckets)} buckets."
        raise played.wrong("once" if number else "cost", rank, fact=fact)
    sizes = [_bytes(model, names) for names in buckets]
    if [event.input_bytes for event in sent] != sizes:
        fact = (
            f"{which}: bytes of its messages: {[event.input_bytes for event in sent]}; "
            f"of the buckets: {sizes}."
        )
        mistake = "once" if number else "other-plan"
        others = {event.dtype for event in sent} - {played.case["dtype"], None}
        if not number and others:
            mistake = "sent-dtype"
            fact = f"{which}: it sends {_listed(others)}; gradients are {played.case['dtype']}."
        raise played.wrong(mistake, rank, fact=fact)
    index_of = {event.name: event.index for event in gradients if event.backward == last}
    _judge_times(played, rank, number, sent, buckets, index_of)
    if any(event.wait_index is None for event in sent):
        fact = f"{which}: wait_for_gradients returns while a message may still be under way."
        raise played.wrong("unwaited", rank, fact=fact)


def _judge_times(played, rank, step, sent, buckets, index_of):
    """
    Refuse a message that leaves too early, too late, or that holds backward up.
    """
    case, which = played.case, f"Step {step + 1} of {played.case['steps']}"
    is_odd = rank in [*case.data.get("other order on", ()), case.data.get("on rank")]
    # A step like the first one, or like those of other cases, which went well: something is left.
    is_left = step and "in step" not in case.data
    ready = 0.0
    for number, (event, names) in enumerate(zip(sent, buckets, strict=True)):
        ready = max([ready, *(index_of.get(name, float("inf")) for name in names)])
        following = min([index for index in index_of.values() if index > ready], default=None)
        if event.index < min(ready, max(index_of.values())):
            fact = f"{which}: message {number} leaves before bucket {number} is complete."
            mistake = "order" if is_odd else "too-early"
            raise played.wrong("once" if is_left else mistake, rank, fact=fact)
        if following is None:
            continue
        if event.index > following:
            fact = (
                f"{which}: bucket {number} is complete before the last gradient, and leaves late."
            )
            mistake = "behind" if is_odd else "late"
            raise played.wrong("once" if is_left else mistake, rank, fact=fact)
        if event.wait_index is not None and event.wait_index < max(index_of.values()):
            fact = (
                f"{which}: before the last gradient is ready, it has waited for message {number}, "
                "or has looked and found it complete."
            )
            raise played.wrong("blocks", rank, fact=fact)


def _judge_mean(played, seen, number):
    case, rank, got = played.case, seen.rank, seen.kept[number]
    own, w = _step_gradients(case, number), case.world_size
    # Whole numbers add up exactly. Divided before, each term is rounded, and w - 1 sums of them.
    judged = {"num_roundings": w + 1, "unit": torch.finfo(getattr(torch, case["dtype"])).eps / 2}
    mean = [1 / w] * w
    wrong = [
        name
        for name in own[0]
        if not _agrees(_of([name], got), [_of([name], one) for one in own], mean, **judged)
    ]
    if not wrong:
        return
    found = [
        mistake
        for mistake, tables, row in _ways_to_be_wrong(case, rank, number, own)
        if _agrees(got, tables, row, **judged)
    ]
    these, own_of_these = _of(wrong, got), [_of(wrong, one) for one in own]
    if number and _is_left_over(case, number, these, own_of_these, judged):
        found.append("stale")
    if _agrees(these, own_of_these, [float(r == rank) / w for r in range(w)], **judged):
        found.append("early")
    total, _ = _weighted(own, mean)
    apart = _first_apart(got, total)
    fact = f"Step {number + 1}: the gradient of {apart} is not the mean over ranks."
    if any(got[name] is None for name in wrong):
        apart = next(name for name in wrong if got[name] is None)
        fact = f"Step {number + 1}: {apart}.grad is None, and the mean over ranks is not 0."
        found = ["none"]
    both = {"got": got[apart], "expected": _as(total[apart], dict(_parameters(case))[apart])}
    raise played.wrong(next(iter(found), "values"), rank, **both, fact=fact)


def _parameters(case):
    return _Model(case).named_parameters()


def _of(names, table):
    return {name: table[name] for name in names}


def _ways_to_be_wrong(case, rank, number, own):
    """
    Return mistakes that give a gradient, each with the tables and the weights that it adds up.
    """
    w, m = case.world_size, case["micro_batches"]
    mean, is_own = [1 / w] * w, [float(other == rank) for other in range(w)]
    from_on = [_step_gradients(case, number, first=first) for first in range(m)]
    left_out = [name for name in own[0] if name.split(".")[0] in case.data.get("without", ())]
    last, zeros = from_on[-1], _step_gradients(case, number, without=left_out)
    # What came in micro-batch k, from 0, is divided m - k times.
    times = [w ** -(m - k) for k in range(m)]
    shares = [now - before for now, before in zip(times, [0.0, *times], strict=False)]
    odd = case.data.get("on rank")
    whole = [_scaled(own[r], left_out, w) if r == odd else own[r] for r in range(w)]
    here = [_scaled(table, left_out, w) for table in own] if rank == odd else own
    return [
        ("summed", own, [1.0] * w),
        ("twice", own, [1 / w**2] * w),
        ("local", own, is_own),
        ("last-only", last, mean),
        ("last-only", [own[rank], last[rank], *last], [1.0, -1.0, *mean]),
        ("zeros", zeros, mean),
        ("each-divided", list(chain(*from_on)), [share for share in shares for _ in range(w)]),
        ("some-divided", whole, mean),
        ("some-divided", here, mean),
        ("added", own, [one + 1 / w for one in is_own]),
        *(("other-size", own, [1 / size] * w) for size in range(2, 9)),
    ]


def _scaled(table, names, factor):
    return {
        name: one * factor if name in names and one is not None else one
        for name, one in table.items()
    }


def _is_left_over(case, number, got, own, judged):
    """
    Tell whether numbers hold the mean of the step before as well, once, or once for each rank.
    """
    w = case.world_size
    both = [*own, *(_of(got, table) for table in _step_gradients(case, number - 1))]
    rows = [[1 / w] * w + [share] * w for share in (1.0, 1 / w, 1 / w**2)]
    return any(_agrees(got, both, row, **judged) for row in rows)


def _replica_draw(played):
    steps = [seen.calls[1].events for seen in played.seen]
    return timeline_picture(timeline_tracks(merge(steps)), "events, in order")


OverlappedReplica = Task(
    number="05.4",
    name="OverlappedReplica",
    may_change=("grad", "hooks"),
    cases=_replica_cases,
    act=_replica_act,
    judge=_replica_judge,
    ok="one message a bucket, each under way before the next gradient is ready",
    draw=_replica_draw,
    hints=(
        "A bucket may leave in the hook of its last gradient. So count, for each bucket, how many "
        "gradients are ready.",
        "Send in the order of the plan: as long as the next bucket to be sent is full, send it. "
        "What is still missing when backward is over goes out in wait_for_gradients.",
        "all_reduce with async_op=True returns a handle at once. Keep it and the flat tensor "
        "until wait_for_gradients.",
        "In the hook: if self.will_sync, count; while len(self.sent) < len(self.buckets) and the "
        "bucket at len(self.sent) is full, self.send_next(). It flattens .grad or zeros, divides "
        "by the world size, starts the all_reduce, and appends to self.sent.",
    ),
    mistakes={
        "each-micro-batch": "Gradients add up in .grad. Send only while will_sync is True.",
        "cost": "All gradients of a bucket travel in one flat tensor: one message a bucket.",
        "other-plan": "Message k holds the gradients of bucket k, and nothing else.",
        "once": "A step must leave the replica as it was at the start: empty what you counted and "
        "kept.",
        "too-early": "A bucket is complete when all of its gradients are ready, not the first.",
        "order": "Ranks may reach layers in another order, or not at all. A bucket that is full "
        "waits until all before it have been sent.",
        "behind": "Layers may come in another order. When a bucket has left, those after it may "
        "have been full for long, and can leave now.",
        "late": "Start a bucket's message in the hook of its last gradient: backward goes on "
        "meanwhile.",
        "blocks": "In a hook nobody may wait: start the message, and wait when backward is over.",
        "unwaited": "wait_for_gradients waits for every handle before it reads a flat tensor.",
        "summed": "A mean over ranks is wanted, not a sum.",
        "twice": "Divide once by the number of ranks, before or after the sum.",
        "local": "What the hook gets is the parameter. Its gradient is in .grad, and there the "
        "mean must be in the end.",
        "left-changed": "A replica hangs up its hooks and changes .grad. All else of the model "
        "stays as it is.",
        "none": "wait_for_gradients gives every parameter of the plan the mean, also one that had "
        "no gradient on this rank.",
        "added": "The mean takes the place of .grad. It has this rank's part in it already.",
        "each-divided": "Gradients of earlier micro-batches are in .grad, and are divided once "
        "more in each hook. Divide once a step.",
        "some-divided": "A parameter may have no hook called, or no gradient, and still be in the "
        "bucket. All numbers of a message must be divided alike.",
        "other-size": "Divide by the number of ranks that there are now. Another group may have "
        "another one.",
        "stale": "What a step did not fill in a flat tensor still holds what the last step left.",
        "early": "Until its wait is over, a flat tensor holds this rank's own numbers, or anything "
        "else.",
        "sent-dtype": "A flat tensor has the dtype of the gradients in it.",
        "last-only": "The gradient of all micro-batches is in .grad. A hook on the tensor sees "
        "only what the last one adds.",
        "zeros": "A parameter that the last micro-batch did not use may have a gradient from an "
        "earlier one.",
        "raised": "Look at the line that is named, if one is. A .grad may be None: this rank did "
        "not use the parameter, or backward has not come to it yet. Each part of a flat tensor "
        "needs the size, shape and dtype of its parameter.",
        "values": "Look where a flat tensor is made, and where it is read: may two buckets share "
        "one, and is it read after its wait? Do its parts go back in the order in which they came?",
        "deadlock": "Every rank sends every bucket, also if no gradient of its own is in it.",
    },
    in_place=True,
    returns=False,
)
