"""
Task 05.2: average gradients.

On each rank: `_act`. In the kernel: the rest.
"""

import torch

from ddp_lessons.checks.kit import Case, Mistake, Task, equal
from ddp_lessons.checks.replicas.gradients import agrees, gradients_of
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
from ddp_lessons.checks.replicas.weighed import (
    backward_once,
    fact_of_gradient,
    farthest_apart,
    is_sum,
    is_wrong,
    limits_of,
    own_gradients,
    own_of,
    shares_of,
    wrong_if,
)
from ddp_lessons.pictures import collective_picture
from ddp_lessons.ranks.diagnosis.wording import rank_names

COUNT_BYTES = 64
"""
Bytes in which ranks may count their samples: a number of each rank, or a small pickled object.
"""
COUNT_CALLS = 2
"""
Calls in which they may do so: `all_gather_object` sends the length of its object first.
"""


def _trained(model):
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def _cases(draw):
    first = {"layers": [[2, 1], [2, 1]], "dtype": "float32"}
    yield Case(4, {**first, "samples": [4, 2, 1, 1], "head unused on ranks": [3]}, seed=0)
    for world_size, dtype, without in ((1, "float32", []), (2, "float64", [0, 1])):
        samples = draw.sample(range(1, 9), world_size)
        data = {"layers": random_layers(draw, 3), "dtype": dtype, "samples": samples}
        yield Case(world_size, {**data, "head unused on ranks": without})
    samples = draw.sample([0, draw.randint(1, 3), draw.randint(4, 9)], 3)
    data = {"layers": random_layers(draw, 3), "dtype": "float32", "samples": samples}
    yield Case(3, {**data, "head unused on ranks": []})
    # One rank has more samples than uint8 can hold, an odd number that bfloat16 rounds. Every
    # parameter has several numbers here, so a message of one number is a count.
    samples = draw.sample([2 * draw.randint(150, 600) + 1, 2, 0], 3)
    data = {"layers": [[5, 2], [4, 3]], "dtype": "float64", "samples": samples}
    yield Case(3, {**data, "head unused on ranks": [draw.randint(0, 2)]})
    # The gradient of a parameter that is not contiguous is not contiguous either. The zeros of a
    # rank without samples must lie in memory as it does.
    layers = [*random_layers(draw, 2), [2 * draw.randint(3, 6), 2]]
    samples = draw.sample([0, draw.randint(1, 3), draw.randint(4, 9)], 3)
    data = {"layers": layers, "dtype": "float32", "samples": samples}
    yield Case(3, {**data, "head unused on ranks": [], "transposed": "layer2.weight"})
    # A nan in the gradient of a rank that has samples is a fault, which an answer must not hide.
    data = {"layers": random_layers(draw, 2), "dtype": "float32", "samples": [3, 5]}
    yield Case(2, {**data, "head unused on ranks": [], "nan on rank": draw.randint(0, 1)})
    # With so many numbers in bfloat16, each order of addition rounds some sum differently.
    layers = [[draw.randint(40, 60), 30], [draw.randint(40, 60), 30]]
    data = {"layers": layers, "dtype": "bfloat16", "samples": [5, 5, 5]}
    yield Case(3, {**data, "head unused on ranks": [draw.randint(0, 2)]})


def _act(context, average_gradients):
    model = backward_once(context.case, context.rank, Model(context.case).to(context.device))
    context.call(average_gradients, model, context["samples"][context.rank])
    return {"gradient": gradients_of(model), "weights": tensors_of(model)}


def _gives_frozen_ones(view):
    if view.output["gradient"]["layer1.bias"] is None:
        return ""
    return "layer1.bias is frozen, and has a gradient now."


def _hides_nan(view):
    _, got, total = farthest_apart(view)
    return bool(total.isnan().any()) and (got is None or not got.isnan().any())


def _counts_nothing(view):
    _, got, _ = farthest_apart(view)
    return 0 in view.case["samples"] and got is not None and bool(got.isnan().any())


def _sends_other_dtype(view):
    moved = communications(view.events)
    names = _trained(Model(view.case))
    most = bytes_of(Model(view.case), names) + COUNT_BYTES
    others = foreign_dtypes(moved, {view.case["dtype"], "int64", "uint8"})
    number, short = max(view.case["samples"]), _too_small_for(max(view.case["samples"]), moved)
    if short and is_wrong(view):
        return (
            f"It sends one number as {short}, which cannot hold {number}. {fact_of_gradient(view)}"
        )
    if others and (is_wrong(view) or sum(event.input_bytes for event in moved) > most):
        return f"It sends {listed(others)}; the gradients are {view.case['dtype']}."
    return ""


def _keeps_its_own(view):
    w, rank = view.case.world_size, view.rank
    own = [float(place == rank) for place in range(w)]
    weighed = [share * is_own for share, is_own in zip(shares_of(view.case), own, strict=True)]
    return is_sum(view, own, weighed)


def _counts_ranks(view):
    w = view.case.world_size
    return all(is_sum(view, [1 / w] * w, rank=rank) for rank in range(w))


def _lacks_the_transposed(view):
    return farthest_apart(view)[0] == view.case.data.get("transposed")


def _has_other_shares(view):
    w, samples = view.case.world_size, view.case["samples"]
    long = [1.0] * w, samples, [num / w for num in samples]
    short = [1 / w**2] * w, [share / w for share in shares_of(view.case)]
    return is_sum(view, *long, *short)


def _leaves_out_users(view):
    used, limits = _samples_of_users(view.case), limits_of(view.case)
    if not sum(used) or used == view.case["samples"]:
        return False
    tables = [view.output["gradient"], *own_of(view)]
    parts = [{"head.bias": table["head.bias"]} for table in tables]
    return agrees(parts[0], parts[1:], [num / sum(used) for num in used], **limits)


def _is_right_elsewhere(view):
    ranks = range(view.case.world_size)
    return any(is_sum(view, shares_of(view.case), rank=rank) for rank in ranks)


def _has_zeros_of_another_layout(view):
    has_zeros = view.case["samples"][view.rank] == 0
    return has_zeros and _lacks_the_transposed(view) and _is_right_elsewhere(view)


def _differs_in_bits(view):
    if equal(view.output["gradient"], view.case_result.seen[0].output["gradient"]):
        return ""
    return f"Its gradient and that of rank 0 differ by rounding ({rank_names([view.rank])})."


def _costs(view):
    moved, names = communications(view.events), _trained(Model(view.case))
    most = bytes_of(Model(view.case), names) + COUNT_BYTES
    num_bytes = sum(event.input_bytes for event in moved)
    if num_bytes > most:
        return f"{num_bytes} bytes go into its calls; {most} are enough."
    if len(moved) > len(names) + COUNT_CALLS:
        most = len(names) + COUNT_CALLS
        return (
            f"It makes {len(moved)} calls; for {len(names)} trained parameters {most} are enough."
        )
    return ""


def _samples_of_users(case):
    left_out = case["head unused on ranks"]
    return [num * (rank not in left_out) for rank, num in enumerate(case["samples"])]


def _too_small_for(number, events):
    """
    Return a dtype in which a single number was sent and which cannot hold `number`, or None.
    """
    for event in communications(events):
        dtype = getattr(torch, event.dtype or "int64")
        if event.input_bytes == dtype.itemsize and torch.tensor(number).to(dtype).item() != number:
            return event.dtype
    return None


def _draw(case_result):
    case = case_result.case
    rows = []
    for gradients in (
        own_gradients(case),
        [seen.output["gradient"] for seen in case_result.seen],
    ):
        names = _trained(Model(case))
        firsts = [[gradient[name] for name in names] for gradient in gradients]
        rows.append([[None if g is None else first_number(g) for g in row] for row in firsts])
    return collective_picture("average_gradients", *rows)


average_gradients = Task(
    number="05.2",
    name="average_gradients",
    may_mutate=("grad",),
    cases=_cases,
    act=_act,
    ok="every .grad is that of the whole batch, one call a parameter and two more at most",
    draw=_draw,
    hints=(
        "The mean over all samples is a sum over ranks, in which each rank's mean is weighted by "
        "its share of the samples.",
        "A rank's share is its num_samples, divided by the sum of num_samples over all ranks. That "
        "sum takes one call. Then each trained parameter takes one all-reduce.",
        "The calls of a rank may depend on the model, but never on its data: a rank whose .grad is "
        "None, or which has no samples, sends zeros.",
        "For each parameter that requires a gradient: if .grad is None or num_samples is 0, set "
        ".grad to zeros_like(parameter); multiply .grad by num_samples / total; all_reduce .grad.",
    ),
    mistakes=(
        Mistake(
            "frozen",
            "A frozen parameter has no gradient on any rank: leave its .grad as it is.",
            shows=_gives_frozen_ones,
        ),
        Mistake(
            "hidden",
            "Leave out only the gradient of a rank without samples. Any other nan is a fault of "
            "the run, and must stay nan: a run that hides it trains on with wrong gradients.",
            shows=wrong_if(_hides_nan),
        ),
        Mistake(
            "no-samples",
            "A mean over no samples is nan, and 0 times nan is nan. A rank without samples must "
            "send numbers that do not change the sum.",
            shows=wrong_if(_counts_nothing),
        ),
        Mistake(
            "only-users",
            "A sample that does not use a parameter has a gradient of zero for it, and counts.",
            shows=wrong_if(_leaves_out_users),
        ),
        Mistake(
            "sent-dtype",
            "Send gradients in their own dtype, and count samples in a dtype that holds every "
            "whole number, such as int64.",
            shows=_sends_other_dtype,
        ),
        Mistake(
            "mean-of-means",
            "Ranks have different numbers of samples: give each sample the same weight, and not "
            "each rank.",
            shows=wrong_if(_counts_ranks),
        ),
        Mistake(
            "own",
            "The result of the calls must be in .grad, and the gradient of every rank must count. "
            "The weights stay as they are.",
            shows=wrong_if(_keeps_its_own),
        ),
        Mistake(
            "shares",
            "The shares of all ranks must add up to 1. A rank's share is its number of samples, "
            "divided once by the number of samples of all ranks.",
            shows=wrong_if(_has_other_shares),
        ),
        Mistake(
            "layout",
            "An all-reduce adds numbers in the order in which they are in memory. So the zeros "
            "must have the memory layout of the parameter: use torch.zeros_like.",
            shows=wrong_if(_has_zeros_of_another_layout),
        ),
        Mistake(
            "one-rank",
            "Every rank needs the average, because every rank makes a step.",
            shows=wrong_if(_is_right_elsewhere),
        ),
        Mistake(
            "copied",
            "reshape and flatten return a view of a contiguous tensor, and may return a copy of "
            "another tensor. The result of the calls must be in .grad.",
            shows=wrong_if(_lacks_the_transposed),
        ),
        Mistake(
            "gradient",
            "Take two ranks, one with 3 samples and one with 1, and write down what each rank "
            "sends in this call. Each sample must have the weight one fourth.",
            shows=wrong_if(lambda view: True),
        ),
        Mistake(
            "cost",
            "One call for each trained parameter, and at most two calls for the number of samples, "
            "are enough. A tied weight has two names, and one gradient.",
            shows=_costs,
        ),
        Mistake(
            "apart",
            "Ranks that add the same numbers in different orders round differently, and their "
            "replicas drift apart. All ranks must add in the same order.",
            shows=_differs_in_bits,
        ),
        Mistake(
            "deadlock",
            "A rank that has no samples, or no gradient for a parameter, must make the same calls "
            "as the others.",
        ),
        Mistake(
            "raised",
            "If the message names a line, it is a line of your function. A rank may have no "
            "gradient for a parameter: its .grad is None. A number of samples may be 0.",
        ),
    ),
    must_return=False,
)
