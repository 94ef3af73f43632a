"""
Task 05.3: plan buckets.

On each rank: `_act`; in both: `_plan_model`, `_trains_no_more`. In the kernel: the rest.
"""

from dataclasses import replace

import torch

from ddp_lessons.checks.kit import VALUES, Case, Expected, Mistake, Task
from ddp_lessons.checks.replicas.layers import HEAD_SIZE, Model, bytes_of, plan_of, random_layers
from ddp_lessons.pictures import buckets_picture


def _cases(draw):
    layers = [[1, 3], [5, 5], [10, 2], [4, 1], [5, 1]]
    caps = {"cap_bytes": 40, "first_cap_bytes": 16}
    yield Case(4, {"layers": layers, "dtype": "float32", **caps}, seed=0)
    for world_size, dtype, size in ((1, "bfloat16", 2), (2, "float64", 8), (3, "float32", 4)):
        layers = random_layers(draw, draw.randint(4, 6))
        caps = {"cap_bytes": size * draw.randint(12, 20), "first_cap_bytes": size * HEAD_SIZE}
        yield Case(world_size, {"layers": layers, "dtype": dtype, **caps})
    # All parameters fit into one bucket, which the last parameter fills exactly.
    layers = random_layers(draw, 3)
    num_trained = sum(map(sum, layers)) - layers[1][1] + HEAD_SIZE
    caps = {"cap_bytes": 10**6, "first_cap_bytes": 4 * num_trained}
    yield Case(2, {"layers": layers, "dtype": "float32", **caps})
    # The second bucket exceeds its cap. All others, the last one included, are filled exactly.
    num = draw.randint(6, 9)
    layers = [[num - 3, 2], [1, 1], [num - 3, 3], [num + 2, 1]]
    caps = {"cap_bytes": 4 * num, "first_cap_bytes": 4 * HEAD_SIZE}
    yield Case(2, {"layers": layers, "dtype": "float32", **caps})
    # The first cap may be the larger one, and parameters may be slices of larger tensors.
    layers = [[num, 2], [num + 3, 1], [num - 3, 3], [num, 1]]
    caps = {"cap_bytes": 8 * num, "first_cap_bytes": 24 * num}
    yield Case(2, {"layers": layers, "dtype": "float64", "in memory": "as slices", **caps})
    # Any parameter that is not empty fills a bucket of 4 bytes; two parameters are empty.
    layers = [[num, 2], [num, 1], [0, 2], [num, 0]]
    caps = {"cap_bytes": 4, "first_cap_bytes": 4 * num}
    yield Case(2, {"layers": layers, "dtype": "float32", **caps})
    # One bucket holds so many names that a set would hardly ever give them in this order.
    caps = {"cap_bytes": 10**6, "first_cap_bytes": 10**6}
    yield Case(2, {"layers": [[2, 1]] * 12, "dtype": "float64", **caps})
    yield Case(2, {"layers": [[2, 1]] * 2, "dtype": "float32", "frozen": "everything", **caps})


def _plan_model(case):
    model = Model(case).requires_grad_("frozen" not in case.data)
    model.layer1.bias.requires_grad = False
    for parameter in model.parameters() if "in memory" in case.data else ():
        parameter.data = torch.cat([parameter.data] * 3)[: len(parameter)]
    return model


_OTHER_CAPS = {"cap_bytes": 10**6, "first_cap_bytes": 10**6}


def _act(context, plan_buckets):
    model = _plan_model(context.case).to(context.device)
    context.call(plan_buckets, model, context["cap_bytes"], context["first_cap_bytes"])
    context.call(plan_buckets, model, *_OTHER_CAPS.values())
    _trains_no_more(model)
    context.call(plan_buckets, model, context["cap_bytes"], context["first_cap_bytes"])


def _trains_no_more(model):
    # A user may freeze a parameter between two calls.
    model.head.bias.requires_grad = False
    return model


def _plain(got):
    """
    Return a plan as a list of lists of names, or None if the value is not a plan.
    """
    is_plan = isinstance(got, list) and all(
        isinstance(one, list | tuple) and all(isinstance(name, str) for name in one) for one in got
    )
    return [list(one) for one in got] if is_plan else None


def _plans(view):
    """
    Return (returned plan, right plan) for each of the three calls.

    The second call has other caps. Before the third call a parameter is frozen.
    """
    case, model = view.case, _plan_model(view.case)
    right = [plan_of(case, model), plan_of({**case.data, **_OTHER_CAPS}, model)]
    right.append(plan_of(case, _trains_no_more(model)))
    return list(zip([_plain(call.result) for call in view.seen.calls], right, strict=True))


def _gives(*made_by):
    """
    Return a function (case, rank) that returns a plan for each of these mistakes of `plan_of`.
    """
    return lambda case, rank: [plan_of(case, _plan_model(case), way) for way in made_by]


def _has_other_order(view):
    for got, right in _plans(view):
        if got is not None and got != right and list(map(sorted, got)) == list(map(sorted, right)):
            return True
    return False


def _ends_badly(view):
    # Look at every call: which parameters are frozen decides what the last bucket holds.
    wrong = [(got or [], right) for got, right in _plans(view) if got != right]
    return any(got == right[:-1] or [] in got for got, right in wrong)


def _is_kept(view):
    other_caps, less = _plans(view)[1:]
    if other_caps[0] != other_caps[1]:
        return (
            "In another call, with the same model and caps of 1,000,000 bytes, the plan is not "
            "right."
        )
    if less[0] != less[1]:
        return "In another call, for which head.bias was frozen, the plan is not right."
    return ""


def _draw(case_result):
    named = dict(Model(case_result.case).named_parameters())
    sizes = [(name, bytes_of(Model(case_result.case), [name])) for name in named]
    return buckets_picture(sizes, [list(one) for one in case_result.seen[0].calls[0].result])


plan_buckets = Task(
    number="05.3",
    name="plan_buckets",
    may_mutate=(),
    twice=True,
    cases=_cases,
    act=_act,
    ok="one plan on every rank, first ready first, each trained parameter once",
    draw=_draw,
    hints=(
        "backward goes from the loss to the input. So the parameters that were made last have "
        "their gradients first.",
        "Keep one open bucket and count its bytes. After each parameter that you put in, ask "
        "whether it is full; if so, close it, and open a new one.",
        "A parameter has numel() * element_size() bytes. named_parameters() names a tied parameter "
        "once, and requires_grad of a parameter is False if it is frozen.",
        "if num_bytes >= (cap_bytes if buckets else first_cap_bytes): append the open bucket to "
        "buckets, and start again from [] and 0. The bucket that is open at the end belongs to the "
        "plan, too.",
    ),
    expected=Expected(
        lambda case, rank: plan_of(case, _plan_model(case)),
        gave=lambda view: _plain(view.seen.calls[0].result),
    ),
    mistakes=(
        Mistake(
            "no-list",
            "Return a list of buckets. A bucket is a list of names.",
            "It must return a list of lists of names.",
            shows=lambda view: view.got is None,
        ),
        Mistake(
            "by-grad",
            "No backward has been run yet, so no parameter has a gradient. Which attribute says "
            "whether a parameter will have one?",
            "The plan has no bucket, but there are parameters to train.",
            shows=lambda view: view.is_off and view.got == [],
        ),
        Mistake(
            "order",
            "Which gradient is ready first in backward? Its bucket comes first in the plan.",
            "The plan begins with the parameters that were made first, or ends with its first "
            "bucket.",
            gives=lambda case, rank: [
                plan_of(case, _plan_model(case), "order"),
                plan_of(case, _plan_model(case))[::-1],
            ],
        ),
        Mistake(
            "frozen",
            "A frozen parameter has no gradient, so nothing of it is sent.",
            "A frozen parameter is in the plan, or its bytes are counted.",
            gives=_gives("frozen", "frozen-bytes"),
        ),
        Mistake(
            "tied",
            "A tied parameter has two names, but one gradient: plan it once, under its first name.",
            "A tied parameter is in the plan under both names.",
            gives=_gives("tied"),
        ),
        Mistake(
            "bytes",
            "The caps are in bytes. A parameter has numel() * element_size() bytes, whatever its "
            "dtype, its rows and columns, or the tensor of which it is a slice.",
            "This is the plan for parameters of other sizes.",
            gives=_gives("four-bytes", "numbers", "rows", "storage"),
        ),
        Mistake(
            "first-cap",
            "The cap of the first bucket is first_cap_bytes, and that of each later bucket is "
            "cap_bytes.",
            "This is the plan for other caps.",
            gives=_gives("smaller-first", "first-cap", "always-first", "first-twice", "swapped"),
        ),
        Mistake(
            "not-reset",
            "A new bucket holds 0 bytes.",
            "Bytes of a closed bucket are counted in the next bucket.",
            gives=_gives("not-reset", "above-cap", "less-above-cap"),
        ),
        Mistake(
            "closing",
            "A bucket closes after the parameter that brings it to its cap, exactly or beyond.",
            "A bucket closes too early or too late.",
            gives=_gives("one-late", "first-late", "later-late", "under-cap"),
        ),
        Mistake(
            "end",
            "The bucket that is open at the end must be in the plan, if it has a parameter. If the "
            "last parameter fills its bucket, no bucket follows.",
            "The last bucket is missing, or there is an empty one.",
            shows=_ends_badly,
        ),
        Mistake(
            "inside",
            "On every rank, the names in a bucket stand in the order in which you reach the "
            "parameters. The order of a set may differ from run to run.",
            "A bucket has the right names in another order.",
            shows=_has_other_order,
        ),
        replace(
            VALUES,
            hint="Go through the parameters from the last to the first, and write down the bytes "
            "of the open bucket. No trained parameter is left out, and none is in two buckets.",
            symptom="The plan is not the one expected.",
        ),
        Mistake(
            "kept",
            "The plan must depend only on the model and the caps of this call, not on earlier "
            "calls or on fixed names. Any parameter may be frozen.",
            shows=_is_kept,
        ),
        Mistake(
            "forbidden", "Every rank has the same model, so each rank can plan alone: send nothing."
        ),
        Mistake(
            "store",
            "Every rank has the same model, so each rank can plan alone: write nothing to the "
            "store.",
        ),
    ),
    allowed=(),
)
