"""
Task 05.2: average gradients.
"""

import torch

from ddp_lessons.checks.kit import Case, Task, equal
from ddp_lessons.checks.replicas.gradients import (
    agrees,
    cast_like,
    first_apart,
    gradients_of,
    inputs_of,
    weighted_sum,
)
from ddp_lessons.checks.replicas.layers import (
    Model,
    bytes_of,
    communications,
    first_number,
    foreign_dtypes,
    listed,
    random_layers,
    tensors_of,
)
from ddp_lessons.pictures import collective_picture
from ddp_lessons.ranks.diagnosis.telling import rank_names

FIRST_TOTAL = 8  # samples of the first case, which every check begins with
COUNT_BYTES = 8  # of a number of samples, in int64 or float64


def _layers(model):
    return [name for name, _ in model.named_children()]


def _trained(model):
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def _cases(draw):
    first = {"layers": [[2, 1], [2, 1]], "dtype": "float32"}
    yield Case(4, {**first, "samples": [4, 2, 1, 1], "without the head on": [3]}, seed=0)
    for world_size, dtype, without in ((1, "float32", []), (2, "float64", [0, 1])):
        samples = draw.sample(range(1, 9), world_size)
        data = {"layers": random_layers(draw, 3), "dtype": dtype, "samples": samples}
        yield Case(world_size, {**data, "without the head on": without})
    samples = draw.sample([0, draw.randint(1, 3), draw.randint(4, 9)], 3)
    data = {"layers": random_layers(draw, 3), "dtype": "float32", "samples": samples}
    yield Case(3, {**data, "without the head on": []})
    # No byte holds so many, and bfloat16 rounds. A single number that is sent is a count.
    samples = draw.sample([2 * draw.randint(150, 600) + 1, 2, 0], 3)
    data = {"layers": [[5, 2], [4, 3]], "dtype": "float64", "samples": samples}
    yield Case(3, {**data, "without the head on": [draw.randint(0, 2)]})
    # The gradient of what is not contiguous is not so either.
    layers = [*random_layers(draw, 2), [2 * draw.randint(3, 6), 2]]
    data = {"layers": layers, "dtype": "float32", "samples": draw.sample(range(1, 9), 2)}
    yield Case(2, {**data, "without the head on": [], "transposed": "layer2.weight"})
    # A nan of samples that there are is a fault, which nobody may hide.
    data = {"layers": random_layers(draw, 2), "dtype": "float32", "samples": [3, 5]}
    yield Case(2, {**data, "without the head on": [], "nan on rank": draw.randint(0, 1)})
    # So many numbers in so few bits that no order of adding them up gives what another does.
    layers = [[draw.randint(40, 60), 30], [draw.randint(40, 60), 30]]
    data = {"layers": layers, "dtype": "bfloat16", "samples": [5, 5, 5]}
    yield Case(3, {**data, "without the head on": [draw.randint(0, 2)]})


def _backward_once(case, rank, model):
    names = _layers(model)
    names = names[:-1] if rank in case["without the head on"] else names
    loss = model(inputs_of(case, rank, model), names)
    if not case["samples"][rank]:
        loss = loss * torch.nan  # a mean over nothing
    loss.backward()
    if rank == case.data.get("nan on rank"):
        model.head.bias.grad[0] = torch.nan
    return model


def _act(here, average_gradients):
    model = _backward_once(here.case, here.rank, Model(here.case).to(here.device))
    here.call(average_gradients, model, here["samples"][here.rank])
    return {"gradient": gradients_of(model), "weights": tensors_of(model)}


def _own_gradients(case):
    models = [Model(case, dtype=torch.float64) for _ in range(case.world_size)]
    tables = [gradients_of(_backward_once(case, rank, model)) for rank, model in enumerate(models)]
    return [
        table if num_samples else dict.fromkeys(table)
        for table, num_samples in zip(tables, case["samples"], strict=True)
    ]


def _judge(played):
    case = played.case
    own, samples = _own_gradients(case), case["samples"]
    model = Model(case)
    for seen in played.seen:
        _judge_untouched(played, seen, model)
    right = [num / sum(samples) for num in samples]
    # A share and its product, at most w - 1 sums, and a division before or after: 3 + (w - 1).
    # An answer that first makes an average and then weighs it anew takes two more.
    judged = {
        "num_roundings": case.world_size + 4,
        "unit": torch.finfo(getattr(torch, case["dtype"])).eps / 2,
    }
    fits = [agrees(seen.kept["gradient"], own, right, **judged) for seen in played.seen]
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
    gradient, first = seen.kept["gradient"], tensors_of(model)
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
        return all(agrees(one, own, row_of(r), **judged) for r, one in enumerate(tables))

    def only(other, weight=1.0):
        return [weight * (place == other) for place in range(w)]

    names = [
        ("mean-of-means", [1 / w] * w),
        ("summed", [1.0] * w),
        ("twice", [1 / w**2] * w),
        ("twice", [share / w for share in shares]),
        ("undivided", samples),
        ("undivided", [num / w for num in samples]),
        ("kept", [num / FIRST_TOTAL for num in samples]),
        ("own", only(rank)),
        ("own", only(rank, shares[rank])),
    ]
    found = next((name for name, row in names if agrees(got, own, row, **judged)), "values")
    total, _ = weighted_sum(own, shares)
    apart = first_apart(got, total)
    head, used = {"head.bias"}, _samples_of_users(case)
    parts = [{name: table[name] for name in head} for table in (got, *own)]
    by_users = [num / max(sum(used), 1) for num in used]
    is_by_users = sum(used) and used != samples  # else it is what is right
    if found == "values" and is_by_users and agrees(parts[0], parts[1:], by_users, **judged):
        found, apart = "only-users", "head.bias"
    fact = f"The gradient of {apart} is not that of the whole batch."
    one_number = _too_small_for(max(samples), played.traces[rank])
    other_dtypes = foreign_dtypes(played.traces[rank], {dtype, "int64"})
    if one_number:
        found = "count"
        fact = f"{fact} It sends one number as {one_number}, which cannot hold {max(samples)}."
    elif found == "values" and other_dtypes:
        found, fact = (
            "sent-dtype",
            f"{fact} It sends {listed(other_dtypes)}; they are {dtype}.",
        )
    elif any(fits):
        found = "one-rank"
    elif apart == case.data.get("transposed"):
        found = "copied"
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
    both = {
        "got": got[apart],
        "expected": cast_like(total[apart], seen.kept["weights"][apart]),
    }
    return played.wrong(found, rank, **both, fact=fact)


def _samples_of_users(case):
    left_out = case["without the head on"]
    return [num * (rank not in left_out) for rank, num in enumerate(case["samples"])]


def _too_small_for(number, events):
    """
    Return a dtype that a single number was sent in and that cannot hold this one, or None.
    """
    for event in communications(events):
        dtype = getattr(torch, event.dtype or "int64")
        if event.input_bytes == dtype.itemsize and torch.tensor(number).to(dtype).item() != number:
            return event.dtype
    return None


def _judge_average_cost(played, model):
    names = _trained(model)
    most_bytes = bytes_of(model, names) + COUNT_BYTES
    for rank, events in enumerate(played.traces):
        moved = communications(events)
        num_bytes = sum(event.input_bytes for event in moved)
        fact = f"{num_bytes} bytes go into its calls; {most_bytes} are enough."
        if num_bytes > most_bytes and any(event.dtype == "uint8" for event in moved):
            fact = f"Some go as uint8, as pickled objects do. {fact}"
            raise played.wrong("objects", rank, fact=fact)
        if len(moved) > len(names) + 1:
            calls = f"It makes {len(moved)} calls; {len(names)} trained parameters need one more."
            raise played.wrong("cost", rank, fact=calls)
        if num_bytes > most_bytes:
            others = foreign_dtypes(events, {played.case["dtype"], "int64"})
            raise played.wrong("sent-dtype" if others else "cost", rank, fact=fact)


def _draw(played):
    case = played.case
    rows = []
    for gradients in (_own_gradients(case), [seen.kept["gradient"] for seen in played.seen]):
        names = _trained(Model(case))
        firsts = [[gradient[name] for name in names] for gradient in gradients]
        rows.append([[None if g is None else first_number(g) for g in row] for row in firsts])
    return collective_picture("average_gradients", *rows)


average_gradients = Task(
    number="05.2",
    name="average_gradients",
    may_change=("grad",),
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="every .grad is that of the whole batch, one call a parameter and one more at most",
    draw=_draw,
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
        "copied": "reshape and flatten give a view where they can, and a copy of what is not "
        "contiguous. What came of the messages must be in .grad.",
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
        "one-rank": "Every rank needs the average, for every rank makes a step.",
        "frozen": "A frozen parameter has no gradient, on any rank: leave it alone.",
        "deadlock": "A rank that has no samples, or no gradient for a parameter, must make the "
        "same calls as the others.",
        "raised": "Look at the line that is named, if one is. A rank may have no gradient for a "
        "parameter: its .grad is None. A number of samples may be 0.",
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
