"""
Task 13.2: a sharded optimizer for any class.
"""

import torch

from ddp_lessons.checks.kit import Case, Task, equal
from ddp_lessons.checks.kit.material.warm_up import first_step
from ddp_lessons.checks.sharded_optimizer.made import Made
from ddp_lessons.checks.sharded_optimizer.plain_runs import (
    LATER_MOMENTUM,
    backward,
    freeze,
    frozen_at,
    groups_of,
    is_near,
    load_weights,
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
    # Each group may be one small parameter: who begins anew with each gives them all to rank 0.
    settings, num = {"lr": 0.1, "momentum": 0.5}, draw.randint(10, 12)
    shapes, groups = [(draw.randint(3, 4),) for _ in range(num)], [(1, None)] * num
    yield _case(3, "SGD", settings, ["step"], shapes, groups=groups)
    # Weights and biases in turn: if whole parameters are dealt in turn, rank 0 gets all weights.
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


def _act(here, ShardedOptimizer):
    case, made = here.case, Made(here["class"])
    params = params_of(case, here.device)
    given, added = groups_of(case, params)
    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in case["settings"].items()}
    optimizer = here.call(ShardedOptimizer, given, made.kind, **settings)
    kept: dict = {"params": [], "closures": [], "left": 0, "groups": None}
    step = 0
    for entry in case["script"]:
        if entry == "add":
            here.call(optimizer.add_param_group, added)
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
            here.call(optimizer.zero_grad)
            kept["left"] += sum(p.grad is not None and bool(p.grad.any()) for p in params)
            for parameter in params:
                parameter.grad = None
            kept["closures"] += _step(here, optimizer, params, step, entry)
            step += 1
        kept["params"].append([p.detach().clone() for p in params])
    made.count()
    return kept | {"num_made": made.num_made, "state": made.most}


def _step(here, optimizer, params, step, entry):
    if entry == "step":
        backward(here.case, params, step, here.rank)
        here.call(optimizer.step)
        return []
    losses = []

    def closure():
        for parameter in params:
            parameter.grad = None
        losses.append(backward(here.case, params, step, here.rank))
        return losses[-1]

    result = here.call(optimizer.step, closure)
    return [(len(losses), losses[-1] if losses else None, result)]


def _groups_seen(optimizer, params):
    groups = getattr(optimizer, "param_groups", None)
    try:
        seen = [id(parameter) for group in groups for parameter in group["params"]]
        are_rates = all(isinstance(group["lr"], float) for group in groups)
    except (TypeError, KeyError):
        return False
    return are_rates and seen == [id(parameter) for parameter in params]


def _judge(played):
    case, right = played.case, plain_run(played.case)
    for seen in played.seen:
        _judge_made(played, seen)
    for number, entry in enumerate(case["script"]):
        for seen in played.seen:
            if not is_near(seen.kept["params"][number], right[number], number + 1):
                raise _refusal(played, seen, number, entry, right)
    for seen in played.seen:
        for number, params in enumerate(seen.kept["params"]):
            if not equal(params, played.seen[0].kept["params"][number]):
                fact = f"After entry {number + 1} of the script, rank 0 has other bits."
                raise played.wrong("not-equal", seen.rank, fact=fact)
        _judge_state(played, seen)


def _judge_made(played, seen):
    rank, kept = seen.rank, seen.kept
    if not kept["num_made"]:
        fact = "No optimizer of the class that was given was made."
        raise played.wrong("hard-wired", rank, fact=fact)
    if kept["left"]:
        fact = f"After zero_grad, {kept['left']} parameters still had a gradient."
        raise played.wrong("left-gradient", rank, fact=fact)
    if kept["groups"] is False:
        fact = "param_groups is no list of all groups, each with all of its parameters and an lr."
        raise played.wrong("no-groups", rank, fact=fact)
    for num_calls, loss, result in kept["closures"]:
        if num_calls != 1:
            fact = f"The closure was called {num_calls} times."
            raise played.wrong("closure", rank, fact=fact)
        if not (isinstance(result, torch.Tensor | float) and float(result) == float(loss)):
            both = {"got": result, "expected": loss}
            fact = "step(closure) returns something else than the closure."
            raise played.wrong("closure-result", rank, **both, fact=fact)


def state_of_one(case):
    """
    Return how many numbers one optimizer would keep, and the most that a rank may keep.
    """
    per_number = {"SGD": 1, "AdamW": 2, "Adam": 2, "RMSprop": 1, "Adamax": 2}[case["class"]]
    frozen = case.data.get("frozen")
    sizes = [
        torch.Size(shape).numel() for place, shape in enumerate(case["shapes"]) if place != frozen
    ]
    # Who cuts each parameter, or the parameters of each group, may round up each time.
    most = sum(sizes) / case.world_size + max(*sizes, len(sizes))
    return per_number * sum(sizes), per_number * most


def _judge_state(played, seen):
    whole, most = state_of_one(played.case)
    if seen.kept["state"] > most:
        fact = (
            f"One optimizer keeps {whole} numbers of state. Rank {seen.rank} keeps "
            f"{seen.kept['state']}; at most {int(most)} are its part."
        )
        raise played.wrong("whole-state", seen.rank, fact=fact)


def _refusal(played, seen, number, entry, right):
    case, rank = played.case, seen.rank
    got = seen.kept["params"][number]
    before = seen.kept["params"][number - 1] if number else params_of(case)
    for place in frozen_at(case, number):
        if not is_near([got[place]], [right[number][place]], number + 1):
            return played.wrong("frozen", rank, fact="A parameter that is frozen has moved.")
    mistake = _name(case, number, entry, got, before, right[number])
    if mistake in ("not-gathered", "values") and any(
        is_near(other.kept["params"][number], right[number], number + 1) for other in played.seen
    ):
        mistake = "not-everywhere"
    flat = [torch.cat([one.flatten() for one in params]) for params in (got, right[number])]
    fact = f"After entry {number + 1} of the script, {entry!r}, parameters are not those expected."
    return played.wrong(mistake, rank, got=flat[0], expected=flat[1], fact=fact)


def _name(case, number, entry, got, before, right):
    ways: list = [("summed", {"mean": "sum"})]
    ways += [("not-averaged", {"mean": rank}) for rank in range(case.world_size)]
    ways += [(name, {"lost": (name,)}) for name in ("settings", "groups", "rate", "added", "state")]
    ways += [("rate", {"lost": ("momentum",)}), ("old-weights", {"lost": ("load",)})]
    ways += [
        ("settings", {"lost": ("all but lr",)}),
        ("settings", {"lost": ("settings", "groups")}),
    ]
    ranks = range(case.world_size)
    ways += [("not-averaged", {"mean": rank, "only": "closure"}) for rank in ranks]
    if entry == "closure":
        ways.append(("closure", {"lost": ("closure",)}))
    own: dict = {}  # by which steps go wrong: what each rank's gradients give
    for name, how in ways:
        other = plain_run(case, **how)[number]
        if name == "not-averaged":
            own.setdefault(how.get("only"), []).append(other)
        # In some cases a mistake changes nothing: there it is not the one that was made.
        if is_near(got, other, number + 1) and not is_near(other, right, number + 1):
            return name
    if _each_number_is_of(got, [before, right], number):
        return "not-gathered"
    is_own = any(_each_number_is_of(got, others, number) for others in own.values())
    return "not-averaged" if is_own else "values"


def _each_number_is_of(got, others, number):
    for place, one in enumerate(got):
        fits = torch.zeros(one.shape, dtype=torch.bool)
        for other in others:
            slack = 64 * 32 * (number + 1) * torch.finfo(one.dtype).eps / 2
            fits |= (one - other[place]).abs() <= slack
        if not bool(fits.all()):
            return False
    return True


def _draw(played):
    whole, _ = state_of_one(played.case)
    names = ["state of this rank", "of one optimizer"]
    rows = [
        dict(zip(names, (str(seen.kept["state"]), str(whole)), strict=True)) for seen in played.seen
    ]
    return holdings_picture(names, rows)


ShardedOptimizer = Task(
    number="13.2",
    name="ShardedOptimizer",
    cases=_cases,
    act=_act,
    judge=_judge,
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
    mistakes={
        "hard-wired": "Make the inner optimizer from optimizer_class, whatever it is.",
        "whole-state": "This rank's optimizer has been given too much. It keeps state for all that "
        "it is given and that has a gradient. If you deal parameters out, count their numbers: "
        "dealt out in turn, one rank may get all weights, and another all biases.",
        "settings": "These are steps with other settings. Hand all of `settings` to the class, "
        "and each group's own.",
        "groups": "Each group has settings of its own: hand them on, and give the inner optimizer "
        "as many groups.",
        "rate": "What is set in param_groups, an lr or another setting, must reach the inner "
        "optimizer before its next step.",
        "old-weights": "Weights were loaded into the parameters between two steps, and your step "
        "begins with older ones. Let the inner optimizer step what is in the parameters then.",
        "added": "All groups must be stepped, those that add_param_group brings, too: shared out "
        "as the first, and known to the inner optimizer.",
        "state": "What the optimizer has noted is gone in the next step. Make it once, and keep "
        "it, and the tensors that it knows.",
        "summed": "The mean over ranks is wanted, not the sum.",
        "not-averaged": "The step goes by a rank's own gradient. Find the mean over ranks first, "
        "and after the closure, which makes new gradients.",
        "not-gathered": "Some numbers are as before the step: those of other ranks' parts. They "
        "must come from there after the inner step.",
        "not-everywhere": "Some ranks are right, others are not. All must end with all parts.",
        "not-equal": "Ranks have to end with the same bits: send what one rank has computed, "
        "rather than compute it twice.",
        "frozen": "What has requires_grad False stays as it is, and has no gradient. It may be "
        "frozen between two steps: then the inner optimizer must have none left for it.",
        "left-gradient": "zero_grad must reach the parameters that the model has.",
        "no-groups": "Keep a list `param_groups`, as torch's optimizers do, of the whole "
        "parameters, with each group's settings, the class's defaults among them.",
        "closure": "Call the closure once, before anything else: it makes the gradients of this "
        "step.",
        "closure-result": "step(closure) returns what the closure returned.",
        "raised": "The line that is named is yours. There may be fewer parameters than ranks, "
        "ones that are frozen, from the start or between two steps, and have no gradient, and "
        "params may be dictionaries. A closure runs backward, "
        "so it needs gradients switched on.",
        "deadlock": "Every rank makes the same calls in the same order, whatever is its part.",
        "values": "Take one parameter of 2 numbers, SGD, and two ranks, and go through a step "
        "with a pencil.",
    },
    in_place=True,
    returns=False,
    uses_store=True,
    warm_up=first_step,
)
