"""
Task 15.1: a linear layer whose weight is whole only during its forward and its backward.

Legend: w ranks; weight (O, I), cut into parts of at most ceil(O / w) rows, or as many numbers;
x (N, I); output (N, O).

On each rank: `_act`, `_train`; in both: `_num_bytes`, `_most_alive`. In the kernel: the rest.
"""

import math
from dataclasses import replace

import torch

from ddp_lessons.checks.beyond_ddp.linear_runs import (
    RATE,
    plain_run,
    samples_of,
    slack_of,
    weight_of,
)
from ddp_lessons.checks.beyond_ddp.live_tensors import MAX_LINGER_S, Alive
from ddp_lessons.checks.kit import VALUES, Case, Expected, Mistake, Task
from ddp_lessons.checks.kit.on_rank.snapshots import plain
from ddp_lessons.checks.kit.shared.warm_up import import_compiler
from ddp_lessons.pictures import holdings_picture

_GATHERS = ("all_gather", "all_gather_into_tensor")
_REDUCES = ("reduce_scatter", "reduce_scatter_tensor")


def _cases(draw):
    yield Case(4, {"out": 24, "in": 40, "steps": 2, "dtype": "float32"}, seed=0)
    out = 4 * draw.randint(5, 8) + draw.randint(1, 3)  # does not divide by 4
    yield Case(4, {"out": out, "in": draw.randint(30, 40), "steps": 2, "dtype": "float64"})
    out = 3 * draw.randint(6, 9) + 1
    yield Case(3, {"out": out, "in": 40, "steps": 3, "dtype": "float64", "first": True})
    sizes = {"out": draw.randint(20, 30), "in": 31}
    yield Case(2, sizes | {"steps": 3, "dtype": "float64", "adding": True})
    yield Case(1, {"out": 5, "in": 4, "steps": 2, "dtype": "float64"})


MOST_BUILT, MOST_ALIVE = 0.25, 0.75
"""
Shares of the whole weight's bytes that may be alive besides parts, samples and output: when the
layer is made; and later, when there may also be a spare part, and copies of samples and outputs.
"""


def _num_bytes(case, num_rows):
    return num_rows * case["in"] * getattr(torch, case["dtype"]).itemsize


def _most_alive(case, share):
    return share * _num_bytes(case, case["out"]) if case.world_size > 1 else math.inf


def _most_rows(case):
    return -(-case["out"] // case.world_size)


def _act(context, ShardedLinear):
    alive = Alive(_most_alive(context.case, MOST_ALIVE))

    def build():
        with alive:
            return ShardedLinear(weight_of(context.case).to(context.device))

    layer = context.call(build)
    parameters = list(layer.parameters())
    kept = {
        "sizes": [(p.numel(), p.requires_grad) for p in parameters],
        "built": {"When the layer is made": alive.num_bytes(parameters)},
        "alive": {},
        "values": {},
    }
    if parameters:
        optimizer = torch.optim.SGD(parameters, lr=RATE)
        for step in range(context["steps"]):
            _train(context, layer, optimizer, alive, step, kept)
    return kept


def _train(context, layer, optimizer, alive, step, kept):
    x, gradient = (t.to(context.device) for t in samples_of(context.case, context.rank, step))
    x.requires_grad_("first" not in context.case.data)
    parameters, when = list(layer.parameters()), f"step {step + 1}"
    if "adding" not in context.case.data:
        optimizer.zero_grad()

    def forward():
        with alive:
            return layer(x)

    def backward():
        with alive:
            output.backward(gradient)
        return True

    output = context.call(forward)
    kept["values"][f"the output of {when}"] = plain(output)
    if isinstance(output, torch.Tensor):
        kept["alive"][f"In {when}, after forward"] = alive.num_bytes([*parameters, x, output])
        if not output.requires_grad:
            kept.setdefault("lacks", f"In {when}, the output has no way to the parameters.")
        elif output.shape == gradient.shape:
            context.call(backward)
            del output
            known = [*parameters, *(p.grad for p in parameters), x, x.grad]
            kept["alive"][f"In {when}, after backward"] = alive.num_bytes(known)
            if any(p.grad is None for p in parameters):
                kept.setdefault("lacks", f"In {when}, a parameter has no .grad after backward.")
            optimizer.step()
    if x.requires_grad:
        found = torch.zeros_like(x) if x.grad is None else x.grad
        kept["values"][f"x.grad of {when}"] = plain(found)


def _gives(*ways):
    return lambda case, rank: [plain_run(case, rank, way) for way in ways]


def _keeps_more(view):
    num, most = (
        sum(size for size, _ in view.output["sizes"]),
        _most_rows(view.case) * view.case["in"],
    )
    return num > most and f"parameters() have {num} numbers; a part is {most} at most."


def _holds(what, share):
    def shows(view):
        for when, num_bytes in view.output[what].items():
            if num_bytes > _most_alive(view.case, share):
                fact = f"{when}, {num_bytes} bytes are alive besides parts, samples and output. "
                return f"{fact}The whole weight has {_num_bytes(view.case, view.case['out'])}."
        return ""

    return shows


def _costs(view):
    most = _num_bytes(view.case, view.case.world_size * _most_rows(view.case))
    # The first call is `build`. Forward and backward follow in turns.
    for number, call in enumerate(view.seen.calls[1:]):
        gathered = sum(e.output_bytes for e in call.events if e.name in _GATHERS)
        reduced = sum(e.input_bytes for e in call.events if e.name in _REDUCES)
        if max(gathered, reduced) > most:
            where = "backward" if number % 2 else "forward"
            return f"A {where} gathers {gathered} bytes, and reduces {reduced}; {most} will do."
    return ""


def _draw(case_result):
    case, names, rows = case_result.case, ("more after forward", "more after backward"), []
    for kept in (seen.output for seen in case_result.seen):
        own = sum(num for num, _ in kept["sizes"])
        more = [num_bytes // _num_bytes(case, 1) for num_bytes in kept["alive"].values()]
        rows.append({"kept": f"{own} of {case['out'] * case['in']}"})
        rows[-1] |= dict(zip(names, map(str, more[:2]), strict=True))
    return holdings_picture(list(rows[0]), rows)


ShardedLinear = Task(
    number="15.1",
    extra_time_s=MAX_LINGER_S,
    name="ShardedLinear",
    cases=_cases,
    act=_act,
    ok="a part is kept; two gathers and a reduce-scatter a step",
    draw=_draw,
    hints=(
        "Say for each of three moments what a rank needs: in forward, between, in backward.",
        "Autograd keeps what an operation needs for its backward, here the whole weight. A "
        "torch.autograd.Function of your own says itself what is kept: x and the part.",
        "In its backward: gather the weight again; the gradient of x is g @ weight, that of the "
        "weight g.T @ x. Lay the latter out as the weight is cut, padded, and reduce-scatter it.",
        "forward: ctx.save_for_backward(x, part), ctx.shape = shape, x @ whole(part, shape).T. "
        "backward, with g for gradient: reduce_scatter(row, padded), and return "
        "g @ whole(part, ctx.shape), row / w, None.",
    ),
    expected=Expected(
        plain_run, lambda case, rank: slack_of(case), gave=lambda view: view.output["values"]
    ),
    mistakes=(
        Mistake(
            "no-parameters",
            "Keep this rank's part as a torch.nn.Parameter of the module.",
            "parameters() has nothing that an optimizer could train.",
            shows=lambda view: not any(trained for _, trained in view.output["sizes"]),
        ),
        Mistake(
            "whole-parameters",
            "A rank keeps one part of the weight, and the optimizer sees no more.",
            shows=_keeps_more,
        ),
        Mistake(
            "built",
            "Something still holds all numbers of the weight. A slice is a view: it keeps the "
            "memory of the whole. Copy what is yours.",
            shows=_holds("built", MOST_BUILT),
        ),
        Mistake(
            "no-gradient",
            "Autograd must find a way from the output to the part, by operations that it knows or "
            "by a torch.autograd.Function, and backward must leave a gradient there, also where x "
            "needs none.",
            shows=lambda view: view.output.get("lacks"),
        ),
        Mistake(
            "input-gradient",
            "The layer before needs the gradient of x: that of the output times the whole weight, "
            "of this rank's samples alone.",
            "The gradient of x is not that of one process.",
            shows=lambda view: view.is_off and view.difference.where.startswith("x.grad"),
        ),
        Mistake(
            "summed",
            "The part's gradient is the mean over ranks; this is the sum.",
            gives=_gives("sum"),
        ),
        Mistake(
            "not-added",
            "A backward adds to the .grad that is there. Leave that to autograd, by what your "
            "backward returns, or add.",
            gives=_gives("last"),
        ),
        Mistake(
            "not-averaged",
            "Each part goes by the gradient of its owner's samples. All ranks have one for each "
            "part: a reduce-scatter brings them together.",
            gives=_gives("own flat", "own rows"),
        ),
        replace(
            VALUES,
            hint="Step 1 shows how the weight is cut: round the size of a part up, so that all "
            "parts together hold the whole weight; the last rank then has less, and its part is "
            "padded. Take two ranks and a weight of 3 rows and 1 column. Later steps show the "
            "part's gradient, divided once by the number of ranks, and whether forward gathers "
            "what the parameters hold now.",
            symptom="An output is not that of one process.",
        ),
        Mistake("shape", "The output is x @ weight.T of the whole weight, without its padding."),
        Mistake(
            "not-freed",
            "What forward or backward has gathered, and the whole gradient, must be gone when it "
            "returns. Autograd holds what operations have saved: look at what yours saves.",
            shows=_holds("alive", MOST_ALIVE),
        ),
        Mistake(
            "cost",
            "One all-gather of the parts is enough in forward, and one in backward, with one "
            "reduce-scatter of the whole gradient.",
            shows=_costs,
        ),
        Mistake(
            "forbidden",
            "An all-reduce would leave the whole gradient on every rank. All-gathers and "
            "reduce-scatters do.",
        ),
        Mistake(
            "raised",
            "The line that is named is yours. The number of rows need not divide by the ranks, x "
            "may need no gradient, and there may be one rank.",
        ),
    ),
    allowed=(*_GATHERS, *_REDUCES),
    in_place=True,
    warm_up=import_compiler,
)
