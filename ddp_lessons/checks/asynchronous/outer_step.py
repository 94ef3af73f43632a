"""
Task 14.3: DiLoCo's outer step.

On each rank: `_parameters`, `_act`, `_train_alone`, `_flat`, `_momentum`. In the kernel: the rest.
"""

import torch

from ddp_lessons.checks.asynchronous.meetings import (
    NUM_FEATURES,
    dtype_of,
    is_rounded,
    is_within,
    judge_price,
    mean_of,
    model_of,
)
from ddp_lessons.checks.kit import Case, Task, normal_numbers
from ddp_lessons.checks.kit.shared.regression import trained
from ddp_lessons.checks.kit.shared.warm_up import first_ddp
from ddp_lessons.pictures import holdings_picture

NUM_ROUNDS = 4
PARTS = (slice(0, NUM_FEATURES), slice(NUM_FEATURES, None))  # the weight's numbers, the bias's


def _cases(draw):
    yield Case(4, {"rate": 0.7, "momentum": 0.9, "dtype": "float32"}, seed=0)
    for world_size in (1, 2, 3):
        rate, momentum = round(draw.uniform(0.4, 0.8), 2), round(draw.uniform(0.5, 0.9), 2)
        more = {"eval": "linear"} if world_size == 2 else {}
        data = {"rate": rate, "momentum": momentum, "dtype": "float64"}
        yield Case(world_size, data | more)


def _parameters(model):
    return [p for p in model.parameters() if p.requires_grad]


def _act(context, outer_step):
    model, dtype = model_of(context), dtype_of(context.case)
    common = [p.detach().clone().requires_grad_() for p in _parameters(model)]
    outer = torch.optim.SGD(common, lr=context["rate"], momentum=context["momentum"], nesterov=True)
    kept, steps = [], []
    outer.register_step_post_hook(lambda *_: steps.append(1))
    for number in range(NUM_ROUNDS):
        steps.clear()
        moved = normal_numbers(context.case, (context.rank, number), trained(model).shape, dtype)
        _train_alone(model, moved.to(context.device))
        note = {"common": _flat(common), "momentum": _momentum(outer, common)}
        note |= {"local": trained(model), "inner": _flat([p.grad for p in _parameters(model)])}
        context.call(outer_step, model, outer)
        note |= {"common after": _flat(common), "momentum after": _momentum(outer, common)}
        kept.append(note | {"weights": trained(model), "num steps": len(steps)})
    return kept


def _train_alone(model, moved):
    # Do what inner steps would: move the weights, and leave the last gradients in .grad.
    parts = moved.split([p.numel() for p in _parameters(model)])
    with torch.no_grad():
        for p, part in zip(_parameters(model), parts, strict=True):
            p += part.view_as(p)
            p.grad = (part.view_as(p) * 3 + 1).clone()


def _flat(tensors):
    return torch.cat([one.detach().flatten() for one in tensors])


def _momentum(outer, common):
    kept = [outer.state.get(p, {}).get("momentum_buffer") for p in common]
    return None if any(one is None for one in kept) else _flat(kept)


def _judge(case_result):
    for number in range(NUM_ROUNDS):
        notes = [seen.output[number] for seen in case_result.seen]
        for rank, seen in enumerate(case_result.seen):
            before = seen.output[number - 1]["common after"] if number else notes[rank]["common"]
            if not torch.equal(notes[rank]["common"], before):
                fact = f"While ranks trained alone before round {number + 1}, the outer "
                fact += "parameters moved, too."
                raise case_result.wrong("shared-memory", rank, fact=fact)
        for rank in range(len(notes)):
            _judge_round(case_result, number, rank, notes)
        if any(not torch.equal(note["weights"], notes[0]["weights"]) for note in notes):
            fact = f"After round {number + 1} ranks have nearly equal weights, not equal ones."
            raise case_result.wrong("not-alike", fact=fact)
        for rank, seen in enumerate(case_result.seen):
            events, num_bytes = seen.calls[number].events, notes[rank]["weights"].nbytes
            judge_price(case_result, rank, events, 1, num_bytes, "The weights are")


def _judge_round(case_result, number, rank, notes):
    note = notes[rank]
    rows = [one["common"] - one["local"] for one in notes]
    mean, error = _mean_difference(notes)
    momentum = note["momentum"]
    expected, slack = _stepped(case_result.case, note["common"], momentum, mean, error)
    got = note["common after"]
    both = {"got": got, "expected": expected.to(got.dtype)}
    if not is_within(got, expected, slack):
        fact = (
            f"In round {number + 1} the outer parameters end elsewhere than the outer optimizer's "
        )
        fact += "step leads."
        mistake = _name_step(case_result, number, rank, notes, rows)
        raise case_result.wrong(mistake, rank, **both, fact=fact)
    if not _is_momentum_right(case_result.case, note, mean, error):
        fact = f"After round {number + 1} the outer optimizer remembers another momentum."
        is_own = _is_momentum_right(case_result.case, note, rows[rank].double(), 2 * error)
        raise case_result.wrong("own" if is_own else "momentum-lost", rank, fact=fact)
    if note["num steps"] != 1:
        fact = f"In round {number + 1} the outer optimizer's own step was called "
        fact += f"{note['num steps']} times."
        raise case_result.wrong("by-hand", rank, fact=fact)
    if not torch.equal(note["weights"], got):
        fact = f"After round {number + 1} the model has other weights than the outer parameters."
        both = {"got": note["weights"], "expected": got}
        raise case_result.wrong("not-written", rank, **both, fact=fact)


def _mean_difference(notes):
    # Return the mean of (common - local) and its error, whether differences or weights are
    # averaged.
    mean, error = mean_of([note["local"] for note in notes])
    common = notes[0]["common"].double()
    unit = torch.finfo(notes[0]["common"].dtype).eps / 2
    sizes = sum(note["local"].double().abs() for note in notes) / len(notes) + common.abs()
    return common - mean, error + (len(notes) + 4) * unit * sizes


def _stepped(case, common, momentum, gradient, error, looks_ahead=True):
    # Return the result of one step of SGD with Nesterov's momentum, and how far another order of
    # rounding may be off. Without `looks_ahead` it is the older, heavy-ball momentum.
    rate, share = case["rate"], case["momentum"]
    before = 0 if momentum is None else momentum.double()
    kept = gradient if momentum is None else share * before + gradient
    along = gradient + share * kept if looks_ahead else kept
    after = common.double() - rate * along
    unit = torch.finfo(common.dtype).eps / 2
    sizes = common.double().abs() + rate * (1 + 2 * share) * (gradient.abs() + abs(before))
    return after, rate * (1 + share) * error + 8 * unit * sizes


def _is_momentum_right(case, note, gradient, error):
    got, before = note["momentum after"], note["momentum"]
    if got is None:
        return False
    share = case["momentum"]
    expected = gradient if before is None else share * before.double() + gradient
    unit = torch.finfo(got.dtype).eps / 2
    return is_within(got, expected, error + 4 * unit * (expected.abs() + gradient.abs()))


def _name_step(case_result, number, rank, notes, rows):
    case, note = case_result.case, notes[rank]
    common, momentum, got = note["common"], note["momentum"], note["common after"]
    mean, error = _mean_difference(notes)
    inner = torch.stack([one["inner"] for one in notes]).double().mean(dim=0)
    size = len(rows)
    tried = [
        ("sign", -mean, momentum),
        ("sum", size * mean, momentum),
        ("sign", -size * mean, momentum),
        ("own", rows[rank].double(), momentum),
        ("own", -rows[rank].double(), momentum),
        ("inner-gradient", inner, momentum),
        ("inner-gradient", note["inner"].double(), momentum),
        ("momentum-lost", mean, None),
        ("weights-for-gradient", common.double() - mean, momentum),
    ]
    if number:
        before = [seen.output[number - 1] for seen in case_result.seen]
        tried.append(("added-up", mean + _mean_difference(before)[0], momentum))
    plain, slack = _stepped(case, common, momentum, mean, 2 * error, looks_ahead=False)
    if is_within(got, plain, slack):
        return "heavy-ball"
    right, slack = _stepped(case, common, momentum, mean, error)
    if any(torch.equal(got[part], common[part]) for part in PARTS) and any(
        is_within(got[part], right[part], slack[part]) for part in PARTS
    ):
        return "some-weights"
    for name, gradient, kept in tried:
        after, slack = _stepped(case, common, kept, gradient, 2 * size * error)
        right, _ = _stepped(case, common, momentum, mean, error)
        if is_within(got, after, slack) and not is_within(after, right, slack):
            return name
    if torch.equal(got, common):
        return "no-step"
    local_mean, slack = mean_of([one["local"] for one in notes])
    if is_within(got, local_mean, 4 * slack):
        return "plain-mean"
    right, slack = _stepped(case, common, momentum, mean, error)
    if any(is_within(one["common after"], right, slack) for one in notes):
        return "not-everywhere"
    if is_rounded(got, right, torch.stack(rows).double().abs().amax(dim=0)):
        return "rounded"
    return "values"


def _draw(case_result):
    names = ["start"]
    rows = [{"start": f"{seen.output[0]['common'][0]:.2f}"} for seen in case_result.seen]
    for number in range(NUM_ROUNDS):
        names += [f"alone {number + 1}", f"outer {number + 1}"]
        for row, seen in zip(rows, case_result.seen, strict=True):
            note = seen.output[number]
            row[f"alone {number + 1}"] = f"{note['local'][0]:.2f}"
            row[f"outer {number + 1}"] = f"{note['weights'][0]:.2f}"
    return holdings_picture(names, rows)


outer_step = Task(
    number="14.3",
    name="outer_step",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="one call a round, and the same outer step on all ranks",
    draw=_draw,
    hints=(
        "What ranks have moved together plays the part of a gradient. An optimizer does the rest: "
        "it needs that in the .grad of its own parameters.",
        "A gradient points uphill. Going against it must lead from where all began to where they "
        "are on average: so which of the two is taken from which?",
        "The outer parameters, outer.param_groups[0]['params'], stand in the order of the model's "
        "trained ones. Average the differences of all of them in one call.",
        "common.grad = mean over ranks of (common - p); outer.step(); then, under no_grad, "
        "p.copy_(common).",
    ),
    mistakes={
        "sign": "The step leads away from where ranks went. A step goes against its gradient.",
        "sum": "An all-reduce adds up: divide by the number of ranks.",
        "own": "Each rank steps by its own difference: the mean over all ranks is wanted.",
        "inner-gradient": "What the last backward left in the model's .grad says nothing of all "
        "the inner steps. Compare weights with outer parameters.",
        "heavy-ball": "Nesterov's momentum looks one step ahead. The outer optimizer's step does.",
        "some-weights": "All trained parameters take part, weights and biases.",
        "momentum-lost": "Step the optimizer that you were given, and leave what it remembers: its "
        "momentum goes on from round to round.",
        "weights-for-gradient": "A mean of weights is no gradient: it takes the difference between "
        "where all began and where they are.",
        "added-up": "Each round has a gradient of its own. Put it into .grad, and add nothing to "
        "what the last round has left there.",
        "no-step": "Let the outer optimizer step, once a round.",
        "not-everywhere": "All ranks need the mean, to make the same step: reduce gives its result "
        "to one of them.",
        "by-hand": "Call outer.step(), once a round: it knows all of its settings, also those that "
        "are not used here.",
        "plain-mean": "The mean of all weights would be local SGD. The outer optimizer decides how "
        "far to go along that way.",
        "rounded": "Bits are lost on the way: send differences in the dtype that they have.",
        "not-written": "All ranks go on from the outer parameters: copy them into the model.",
        "shared-memory": "Copy numbers. A parameter whose .data is another's moves with it.",
        "not-alike": "All ranks must hold the same bits: let all of them take the mean from one "
        "sum.",
        "cost": "Put the differences of all parameters into one tensor.",
        "bytes": "Only trained weights take part, once, in their own dtype.",
        "left-changed": "Copy numbers into the parameters that the model has, which an inner "
        "optimizer knows. What is frozen, the mode, train or eval, and the outer rate stay.",
        "raised": "The line that is named is yours. Some parameters of the model are frozen, and "
        "weights that autograd watches are changed under torch.no_grad().",
        "deadlock": "Every rank makes the same call, once a round.",
        "values": "Take one parameter of one number and two ranks, and go through a round with a "
        "pencil.",
    },
    must_return=False,
    in_place=True,
    may_mutate=("weights", "grad", "momentum"),
    warm_up=first_ddp,
)
