"""
Task 15.1: a linear layer whose weight is whole only while it computes.

Legend: w ranks; weight (O, I), cut into parts of at most ceil(O / w) rows, or as many numbers;
x (N, I); output (N, O).
"""

import math

import torch

from ddp_lessons.checks.beyond_ddp.alive import MAX_LINGER_S, Alive
from ddp_lessons.checks.beyond_ddp.linear_runs import (
    RATE,
    is_near,
    mistake_of,
    plain_run,
    samples_of,
    weight_of,
)
from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.checks.kit.material.warm_up import import_compiler
from ddp_lessons.pictures import holdings_picture

_GATHERS = ("all_gather", "all_gather_into_tensor")
_REDUCES = ("reduce_scatter", "reduce_scatter_tensor")


def _cases(draw):
    yield Case(4, {"out": 24, "in": 40, "steps": 2, "dtype": "float32"}, seed=0)
    out = 4 * draw.randint(5, 8) + draw.randint(1, 3)  # does not divide
    yield Case(4, {"out": out, "in": draw.randint(30, 40), "steps": 2, "dtype": "float64"})
    out = 3 * draw.randint(6, 9) + 1
    yield Case(3, {"out": out, "in": 40, "steps": 3, "dtype": "float64", "first": True})
    sizes = {"out": draw.randint(20, 30), "in": 31}
    yield Case(2, sizes | {"steps": 3, "dtype": "float64", "adding": True})
    yield Case(1, {"out": 5, "in": 4, "steps": 2, "dtype": "float64"})


MOST_BUILT, MOST_ALIVE = 0.25, 0.75
"""
How much of the whole weight's bytes may be alive besides parts, samples and output: when the layer
is made; later, when there may be a spare part, and copies of samples and outputs.
"""


def most_alive(case, share=MOST_ALIVE):
    """
    Return how many bytes may be alive besides parts, samples and output.
    """
    whole = case["out"] * case["in"] * getattr(torch, case["dtype"]).itemsize
    return share * whole if case.world_size > 1 else math.inf


def _act(here, ShardedLinear):
    case, alive = here.case, Alive(most_alive(here.case))

    def build():
        with alive:
            return ShardedLinear(weight_of(case).to(here.device))

    layer = here.call(build)
    parameters = list(layer.parameters())
    kept = {
        "sizes": [(p.numel(), p.dtype, p.requires_grad) for p in parameters],
        "built": alive.num_bytes(parameters),
        "steps": [],
    }
    if not parameters:
        return kept
    optimizer = torch.optim.SGD(parameters, lr=RATE)
    for step in range(case["steps"]):
        kept["steps"].append(_one_step(here, layer, optimizer, alive, step))
    return kept


def _one_step(here, layer, optimizer, alive, step):
    x, gradient = (t.to(here.device) for t in samples_of(here.case, here.rank, step))
    x.requires_grad_("first" not in here.case.data)

    def forward():
        with alive:
            return layer(x)

    def backward(output):
        with alive:
            output.backward(gradient)
        return True

    parameters = list(layer.parameters())
    if "adding" not in here.case.data:
        optimizer.zero_grad()
    output = here.call(forward)
    found: dict = {"output": None, "grad_x": None, "backward": False}
    if not isinstance(output, torch.Tensor):
        return found
    found["output"] = output.detach().clone()
    found["between"] = alive.num_bytes([*parameters, x, output])
    if output.requires_grad and output.shape == gradient.shape:
        here.call(lambda: backward(output))
        found["backward"] = True
        del output
        known = [*parameters, *(p.grad for p in parameters), x, x.grad]
        found["after"] = alive.num_bytes(known)
        found["grad_x"] = x.grad
        found["has_grad"] = all(p.grad is not None for p in parameters)
        optimizer.step()
    return found


def _judge(played):
    case = played.case
    for seen in played.seen:
        _judge_parts(played, seen)
    right = plain_run(case)
    for step in range(case["steps"]):
        for seen in played.seen:
            _judge_output(played, seen, step, right)
        for seen in played.seen:
            _judge_backward(played, seen, step, right)
    for seen in played.seen:
        _judge_messages(played, seen)


def _part(case):
    return -(-case["out"] // case.world_size) * case["in"]


def _judge_parts(played, seen):
    case, kept = played.case, seen.kept
    if not any(trained for *_, trained in kept["sizes"]):
        fact = "parameters() has nothing that an optimizer could train."
        raise played.wrong("no-parameters", seen.rank, fact=fact)
    num, most = sum(size for size, *_ in kept["sizes"]), _part(case)
    if num > most:
        fact = f"parameters() have {num} numbers; a part is {most} at most."
        raise played.wrong("whole-parameters", seen.rank, fact=fact)
    _judge_alive(played, seen, kept["built"], "built", "When the layer is made", MOST_BUILT)


def _judge_alive(played, seen, num_bytes, mistake, when, share=MOST_ALIVE):
    case = played.case
    if num_bytes > most_alive(case, share):
        whole = case["out"] * case["in"] * getattr(torch, case["dtype"]).itemsize
        fact = (
            f"{when}, {num_bytes} bytes are alive besides parts, samples and output. "
            f"The whole weight has {whole}."
        )
        raise played.wrong(mistake, seen.rank, fact=fact)


def _judge_output(played, seen, step, right):
    found, expected = seen.kept["steps"][step], right[step][seen.rank][0]
    got = found["output"]
    when = f"In step {step + 1}"
    if got is None or got.shape != expected.shape or got.dtype != expected.dtype:
        fact = f"{when}, the output is no tensor of the shape and dtype of x @ weight.T."
        raise played.wrong("output", seen.rank, got=got, expected=expected, fact=fact)
    if not is_near(got, expected):
        name = mistake_of(played.case, seen.rank, step, got, 0)
        fact = f"{when}, the output is not that of one process."
        raise played.wrong(name, seen.rank, got=got, expected=expected, fact=fact)
    _judge_alive(played, seen, found["between"], "not-freed", f"{when}, after forward")
    if not found["backward"]:
        fact = f"{when}, the output has no way back to the parameters."
        raise played.wrong("no-backward", seen.rank, fact=fact)


def _judge_backward(played, seen, step, right):
    found, expected = seen.kept["steps"][step], right[step][seen.rank][1]
    when = f"In step {step + 1}"
    if not found["has_grad"]:
        fact = f"{when}, a parameter has no .grad after backward."
        raise played.wrong("no-gradient", seen.rank, fact=fact)
    if "first" not in played.case.data:
        got = found["grad_x"]
        if got is None or not is_near(got, expected):
            fact = f"{when}, the gradient of x is not that of one process."
            both = {"got": got, "expected": expected}
            raise played.wrong("input-gradient", seen.rank, **both, fact=fact)
    _judge_alive(played, seen, found["after"], "left-over", f"{when}, after backward")


def _judge_messages(played, seen):
    case = played.case
    if case.world_size == 1:
        return
    itemsize = getattr(torch, case["dtype"]).itemsize
    table = case.world_size * _part(case) * itemsize
    # the calls were: build, and then forward and backward by turns
    for number, call in enumerate(seen.calls[1:]):
        events = [event for event in call.events if event.is_communication]
        gathered = sum(e.output_bytes for e in events if e.name in _GATHERS)
        reduced = sum(e.input_bytes for e in events if e.name in _REDUCES)
        where = "backward" if number % 2 else "forward"
        if gathered > table:
            fact = f"All-gathers of a {where} write {gathered} bytes; a whole has {table} at most."
            raise played.wrong("gathers-more", seen.rank, fact=fact)
        if reduced > table:
            fact = f"Reduce-scatters of a {where} read {reduced} bytes; {table} at most are needed."
            raise played.wrong("reduces-more", seen.rank, fact=fact)


def _draw(played):
    case = played.case
    size = getattr(torch, case["dtype"]).itemsize
    rows = []
    for seen in played.seen:
        step = seen.kept["steps"][0]
        kept = sum(num for num, *_ in seen.kept["sizes"])
        rows.append(
            {
                "kept": f"{kept} of {case['out'] * case['in']}",
                "more after forward": str(step["between"] // size),
                "more after backward": str(step["after"] // size),
            }
        )
    return holdings_picture(list(rows[0]), rows)


ShardedLinear = Task(
    number="15.1",
    waits_s=MAX_LINGER_S,
    name="ShardedLinear",
    cases=_cases,
    act=_act,
    judge=_judge,
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
    mistakes={
        "no-parameters": "Keep this rank's part as a torch.nn.Parameter of the module.",
        "whole-parameters": "A rank keeps one part of the weight, and the optimizer sees no more.",
        "built": "Something still holds all numbers of the weight. A slice is a view: it keeps "
        "the memory of the whole. Copy what is yours.",
        "not-freed": "Whatever forward has gathered must be gone when it returns. Autograd holds "
        "what operations have saved: look at what yours saves.",
        "left-over": "What backward gathers and computes must be gone when it returns, but for "
        "the gradient of the part.",
        "output": "The output is x @ weight.T of the whole weight, without its padding.",
        "no-backward": "Autograd must find a way from the output to the part: by operations that "
        "it knows, or by a torch.autograd.Function.",
        "no-gradient": "Backward must leave a gradient for the part, also where x needs none: as "
        "what the Function returns for it.",
        "input-gradient": "The layer before needs the gradient of x: that of the output times the "
        "whole weight, of this rank's samples alone.",
        "summed": "The part's gradient is the mean over ranks; this is the sum.",
        "divided": "The mean is divided once by the number of ranks, not twice.",
        "not-added": "A backward adds to the .grad that is there. Leave that to autograd, by what "
        "your backward returns, or add.",
        "stale": "The weight does not move. Forward must gather what the parameters hold now, and "
        "their gradients must reach the optimizer.",
        "not-averaged": "Each part goes by the gradient of its owner's samples. All ranks have "
        "one for each part: a reduce-scatter brings them together.",
        "gathers-more": "One all-gather of the parts is enough, in forward and in backward.",
        "reduces-more": "One reduce-scatter of the whole gradient is enough.",
        "forbidden": "An all-reduce would leave the whole gradient on every rank. All-gathers and "
        "reduce-scatters do.",
        "raised": "The line that is named is yours. The number of rows need not divide by the "
        "ranks, x may need no gradient, and there may be one rank.",
        "deadlock": "All ranks make the same calls, whatever their part.",
        "unwaited": "Wait for a gather before you use what it writes.",
        "values": "Round the size of a part up, so that all parts together hold the whole weight; "
        "the last rank then has less, and its part is padded. Take two ranks and a weight of 3 "
        "rows and 1 column, and lay out who has what.",
    },
    allowed=(*_GATHERS, *_REDUCES),
    in_place=True,
    warm_up=import_compiler,
)
