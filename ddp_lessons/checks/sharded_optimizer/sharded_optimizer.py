"""
Task 13.2: a sharded optimizer for any class.

On each rank: `_act`, `_step`, `_groups_seen`. In the kernel: the rest.
"""

from dataclasses import replace

import torch

from ddp_lessons.checks.kit import VALUES, Case, Expected, Mistake, Task, equal, words
from ddp_lessons.checks.kit.shared.warm_up import first_step
from ddp_lessons.checks.sharded_optimizer.mistaken_runs import goes_by, stays_behind, takes_no_mean
from ddp_lessons.checks.sharded_optimizer.optimizer_counts import OptimizerCounts
from ddp_lessons.checks.sharded_optimizer.plain_runs import (
    LATER_MOMENTUM,
    backward,
    freeze,
    groups_of,
    load_weights,
    most_off,
    params_of,
    plain_run,
)
from ddp_lessons.pictures import holdings_picture

_SHAPES = [(16, 8), (16,), (4, 16), (4,), (6,)]


def _cases(draw):
    momentum = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
    yield _case(4, "SGD", momentum, ["step", "step"], _SHAPES, seed=0, dtype="float32")
    settings = {"lr": 0.05, "betas": [0.5, 0.8], "weight_decay": 0.1}
    yield _case(3, "AdamW", settings, ["step", "load", "step", "step"], _drawn(draw))
    script, groups = ["step", "rate", "step"], [(2, 0.3), (3, None)]
    settings = {"lr": 0.1, "momentum": 0.5}
    yield _case(2, "SGD", settings, script, _drawn(draw), groups=groups)
    script = ["step", "closure", "closure"]
    yield _case(4, "RMSprop", {"lr": 0.05, "alpha": 0.7}, script, _drawn(draw))
    script, settings = ["step", "add", "step", "step"], {"lr": 0.2, "weight_decay": 0.1}
    yield _case(3, "Adamax", settings, script, _drawn(draw), frozen=draw.randint(0, 3))
    script, later = ["step", "freeze", "step"], draw.randint(0, 3)
    yield _case(3, "SGD", momentum, script, _drawn(draw), later=later)
    yield _case(4, "Adam", {"lr": 0.1}, ["step", "step"], [(3,), ()])
    # One small parameter a group: an answer that restarts at rank 0 in each group puts all there.
    settings, num = {"lr": 0.1, "momentum": 0.5}, draw.randint(10, 12)
    shapes, groups = [(draw.randint(3, 4),) for _ in range(num)], [(1, None)] * num
    yield _case(3, "SGD", settings, ["step"], shapes, groups=groups)
    # Weights and biases alternate: if parameters are dealt out in turn, rank 0 gets all weights.
    width = draw.randint(6, 9)
    yield _case(2, "SGD", settings, ["step"], [(width, width), (2,)] * 4)
    yield _case(1, "SGD", momentum, ["step", "step"], _drawn(draw)[:2])


def _case(world_size, name, settings, script, shapes, seed=None, dtype="float64", **more):
    data = {"class": name, "settings": settings, "script": script}
    shapes = [list(shape) for shape in shapes]
    return Case(world_size, data | {"shapes": shapes, "dtype": dtype} | more, seed=seed)


def _drawn(draw):
    widths = [draw.randint(2, 7) for _ in range(3)]
    return [
        (widths[0], widths[1]),
        (widths[0],),
        (5, widths[2]),
        (widths[2],),
        (draw.randint(3, 9),),
    ]


def _act(context, ShardedOptimizer):
    case, made = context.case, OptimizerCounts(context["class"])
    params = params_of(case, context.device)
    given, added = groups_of(case, params)
    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in case["settings"].items()}
    optimizer = context.call(ShardedOptimizer, given, made.kind, **settings)
    kept: dict = {"params": [], "closures": [], "left": 0, "groups": None}
    step = 0
    for entry in case["script"]:
        if entry == "add":
            context.call(optimizer.add_param_group, added)
        elif entry == "rate":
            kept["groups"] = _groups_seen(optimizer, params)
            if kept["groups"]:
                optimizer.param_groups[0]["lr"] /= 2
                optimizer.param_groups[0]["momentum"] = LATER_MOMENTUM
        elif entry == "load":
            load_weights(case, params)
        elif entry == "freeze":
            freeze(case, params)
        else:
            context.call(optimizer.zero_grad)
            kept["left"] += sum(p.grad is not None and bool(p.grad.any()) for p in params)
            for parameter in params:
                parameter.grad = None
            kept["closures"] += _step(context, optimizer, params, step, entry)
            step += 1
        kept["params"].append([p.detach().clone() for p in params])
    made.count()
    return kept | {"num_made": made.num_made, "state": made.most}


def _step(context, optimizer, params, step, entry):
    if entry == "step":
        backward(context.case, params, step, context.rank)
        context.call(optimizer.step)
        return []
    losses = []

    def closure():
        for parameter in params:
            parameter.grad = None
        losses.append(backward(context.case, params, step, context.rank))
        return losses[-1]

    result = context.call(optimizer.step, closure)
    return [(len(losses), losses[-1] if losses else None, result)]


def _groups_seen(optimizer, params):
    groups = getattr(optimizer, "param_groups", None)
    try:
        seen = [id(parameter) for group in groups for parameter in group["params"]]
        are_rates = all(isinstance(group["lr"], float) for group in groups)
    except (TypeError, KeyError):
        return False
    return are_rates and seen == [id(parameter) for parameter in params]


def _by_entries(case, what_of):
    return {
        f"entry {number + 1} of the script, {entry!r}": what_of(number)
        for number, entry in enumerate(case["script"])
    }


def _interface_fault(view):
    if view.output["left"]:
        return f"After zero_grad, {view.output['left']} parameters still had a gradient."
    return view.output["groups"] is False and (
        "param_groups is no list of all groups, each with all of its parameters and an lr."
    )


def _closure_fault(view):
    for num_calls, loss, result in view.output["closures"]:
        if num_calls != 1:
            return f"The closure was called {num_calls} times."
        if not (isinstance(result, torch.Tensor | float) and float(result) == float(loss)):
            return f"step(closure) returns {words(result)}, and the closure {words(loss)}."
    return ""


def state_of_one(case):
    """
    Return how many numbers of state one optimizer would keep, and the most that a rank may keep.
    """
    per_number = {"SGD": 1, "AdamW": 2, "Adam": 2, "RMSprop": 1, "Adamax": 2}[case["class"]]
    frozen = case.data.get("frozen")
    sizes = [
        torch.Size(shape).numel() for place, shape in enumerate(case["shapes"]) if place != frozen
    ]
    # An answer that cuts each parameter, or each group's parameters, may round up each time.
    most = sum(sizes) / case.world_size + max(*sizes, len(sizes))
    return per_number * sum(sizes), per_number * most


def _keeps_too_much(view):
    whole, most = state_of_one(view.case)
    return view.output["state"] > most and (
        f"One optimizer keeps {whole} numbers of state. This rank keeps {view.output['state']}; at "
        f"most {int(most)} are its part."
    )


def _gave_at(case_result, rank):
    return _by_entries(case_result.case, case_result.seen[rank].output["params"].__getitem__)


def _is_unlike(view):
    first = _gave_at(view.case_result, 0)
    odd = [name for name, params in view.got.items() if not equal(params, first[name])]
    return odd and f"After {odd[0]}, rank 0 has other bits."


def _draw(case_result):
    whole, _ = state_of_one(case_result.case)
    names = ["state of this rank", "of one optimizer"]
    rows = [
        dict(zip(names, (str(seen.output["state"]), str(whole)), strict=True))
        for seen in case_result.seen
    ]
    return holdings_picture(names, rows)


ShardedOptimizer = Task(
    number="13.2",
    name="ShardedOptimizer",
    cases=_cases,
    act=_act,
    ok="the steps of one optimizer, each rank its part of the state",
    draw=_draw,
    hints=(
        "An optimizer keeps state for the tensors that it is given. So give each rank's optimizer "
        "other tensors, and less of them.",
        "Either give whole parameters to owners, or give each rank a piece of each parameter. "
        "Make the inner optimizer from a list of groups that have your tensors in place of the "
        "parameters, and all of the group's settings.",
        "A step has four parts: the closure; each tensor's mean gradient to who needs it; the "
        "inner step, with settings as param_groups has them now; and what has changed to all.",
        "dist.all_reduce(p.grad), divided by w; for each own tensor its part of that as .grad; "
        "self.inner.step(); then dist.broadcast from each owner, or dist.all_gather of pieces.",
    ),
    expected=Expected(
        lambda case, _: _by_entries(case, plain_run(case).__getitem__),
        most_off=lambda case, _: _by_entries(case, lambda number: most_off(case, number + 1)),
        gave=lambda view: _gave_at(view.case_result, view.rank),
    ),
    mistakes=(
        Mistake(
            "hard-wired",
            "Make the inner optimizer from optimizer_class, whatever it is.",
            "No optimizer of the class that was given was made.",
            shows=lambda view: not view.output["num_made"],
        ),
        Mistake(
            "interface",
            "zero_grad must reach the parameters that the model has. Keep a list `param_groups`, "
            "as torch's optimizers do, of the whole parameters, with each group's settings, the "
            "class's defaults among them.",
            shows=_interface_fault,
        ),
        Mistake(
            "closure",
            "Call the closure once, before anything else: it makes the gradients of this step. "
            "step(closure) returns what it returned.",
            shows=_closure_fault,
        ),
        Mistake(
            "no-mean",
            "The mean over ranks is wanted: not the sum, nor a rank's own gradient. Find it after "
            "the closure, which makes new gradients.",
            shows=takes_no_mean,
        ),
        Mistake(
            "settings",
            "These are steps with other settings. Hand all of `settings` to the class.",
            shows=goes_by({"lost": ("settings",)}, {"lost": ("all but lr",)}),
        ),
        Mistake(
            "groups",
            "Each group has settings of its own, those that add_param_group brings, too: hand them "
            "on, and give the inner optimizer as many groups.",
            shows=goes_by(
                {"lost": ("groups",)}, {"lost": ("settings", "groups")}, {"lost": ("added",)}
            ),
        ),
        Mistake(
            "rate",
            "What is set in param_groups, an lr or another setting, must reach the inner optimizer "
            "before its next step.",
            shows=goes_by({"lost": ("rate",)}, {"lost": ("momentum",)}),
        ),
        Mistake(
            "old-weights",
            "Weights were loaded into the parameters between two steps, and your step begins with "
            "older ones. Let the inner optimizer step what is in the parameters then.",
            shows=goes_by({"lost": ("load",)}),
        ),
        Mistake(
            "state",
            "What the optimizer has noted is gone in the next step. Make it once, and keep it, and "
            "the tensors that it knows.",
            shows=goes_by({"lost": ("state",)}),
        ),
        Mistake(
            "not-gathered",
            "Some numbers are as before the step, or right on some ranks only: those of other "
            "ranks' parts. After the inner step they must come from there, to every rank.",
            shows=stays_behind,
        ),
        replace(
            VALUES,
            hint="Take one parameter of 2 numbers, SGD, and two ranks, and go through the entries "
            "of the script with a pencil. A frozen parameter stays, and has no gradient; if it was "
            "frozen between two steps, the inner optimizer must have none left for it.",
        ),
        Mistake(
            "not-equal",
            "Ranks have to end with the same bits: send what one rank has computed, rather than "
            "compute it twice.",
            shows=_is_unlike,
        ),
        Mistake(
            "whole-state",
            "This rank's optimizer has been given too much. It keeps state for all that it is "
            "given and that has a gradient. If you deal parameters out, count their numbers: dealt "
            "out in turn, one rank may get all weights, and another all biases.",
            shows=_keeps_too_much,
        ),
        Mistake(
            "raised",
            "The line that is named is yours. There may be fewer parameters than ranks, ones that "
            "are frozen, from the start or between two steps, and have no gradient, and params may "
            "be dictionaries. A closure runs backward, so it needs gradients switched on.",
        ),
        Mistake(
            "deadlock",
            "Every rank makes the same calls in the same order, whatever is its part.",
        ),
    ),
    in_place=True,
    must_return=False,
    uses_store=True,
    warm_up=first_step,
)
