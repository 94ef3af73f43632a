"""
Task 13.4: predict the bytes that a rank holds and receives.

On each rank: `_act`, `_counted`. In the kernel: the rest.
"""

import torch
import torch.distributed as dist
from torch import nn

from ddp_lessons.checks.kit import Case, Task, words
from ddp_lessons.checks.kit.shared.warm_up import first_step
from ddp_lessons.pictures import holdings_picture
from ddp_lessons.sharded_optimizer import (
    Zero1Optimizer,
    Zero2Optimizer,
    foretold_bytes,
    held_bytes,
)
from ddp_lessons.trace import trace

KINDS = ("parameters", "gradients", "optimizer", "received")
_OPTIMIZERS = {
    0: (torch.optim.SGD, {"lr": 0.1}),
    1: (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    2: (torch.optim.Adam, {}),
}
_SHARDED = {1: Zero1Optimizer, 2: Zero2Optimizer}


def _cases(draw):
    yield Case(4, {"sizes": [12, 3, 9, 1], "num_states": 2, "stage": 1}, seed=0)
    for world_size, stage, num_states in ((2, 2, 1), (3, 1, 0), (4, 2, 2), (3, 0, 2), (1, 2, 2)):
        sizes = [draw.randint(2, 60) for _ in range(draw.randint(2, 4))]
        sizes += [world_size * draw.randint(2, 9) + 1, 1]
        yield Case(world_size, {"sizes": sizes, "num_states": num_states, "stage": stage})
    sizes = [draw.randint(10**8, 10**9) for _ in range(3)] + [draw.randint(10**3, 10**4)]
    # Over 1,024 ranks this leaves a tiny fraction, which is rounded up to a whole number.
    sizes += [1024 * draw.randint(1, 9) + 1]
    yield Case(1, {"sizes": sizes, "num_states": 2, "stage": 2, "of": 1024})


def _act(context, foretell):
    sizes, num_states, stage = (context[name] for name in ("sizes", "num_states", "stage"))
    world_size = context.case.data.get("of", context.world_size)
    context.call(foretell, list(sizes), num_states, stage, world_size)
    if world_size > context.world_size:  # too many ranks to run: compute without them
        return foretold_bytes(sizes, world_size, stage, num_states)
    return _counted(context, sizes, num_states, stage)


def _counted(context, sizes, num_states, stage):
    make, settings = _OPTIMIZERS[num_states]
    model = nn.ParameterList([nn.Parameter(torch.ones(size)) for size in sizes]).to(context.device)
    if stage:
        optimizer = _SHARDED[stage](model.parameters(), make, **settings)
    else:
        optimizer = make(model.parameters(), **settings)
    with trace() as events:
        sum(parameter.sum() for parameter in model).backward()
        held = held_bytes(model, optimizer)
        if not stage:
            for parameter in model:
                dist.all_reduce(parameter.grad)
        optimizer.step()
    held["optimizer"] = held_bytes(model, optimizer)["optimizer"]
    held["received"] = sum(event.output_bytes for event in events if event.is_communication)
    return held


def _judge(case_result):
    right = [case_result.seen[0].output[kind] for kind in KINDS]
    for rank, result in enumerate(case_result.results):
        got = _numbers(case_result, rank, result)
        if got != right:
            raise _refusal(case_result, rank, got, right)


def _numbers(case_result, rank, result):
    if hasattr(result, "tolist"):
        result = result.tolist()
    is_row = isinstance(result, list | tuple) and len(result) == len(KINDS)
    is_number = is_row and all(
        isinstance(one, int | float) and not isinstance(one, bool) for one in result
    )
    if not is_number:
        fact = "It must return four numbers, in a tuple or list."
        raise case_result.wrong("no-numbers", rank, got=result, fact=fact)
    return list(result)


def _refusal(case_result, rank, got, right):
    place = next(at for at in range(len(KINDS)) if got[at] != right[at])
    told = ("parameters", "gradients", "state", "messages")[place]
    both = {"got": got[place], "expected": right[place]}
    fact = f"The bytes of its {told}, number {place + 1} of the four, are not those counted."
    return case_result.wrong(_name(case_result.case, got, place), rank, **both, fact=fact)


def _name(case, got, place):
    sizes, stage, num_states = case["sizes"], case["stage"], case["num_states"]
    w = case.data.get("of", case.world_size)
    if w > case.world_size and got == _reckoned(sizes, num_states, stage, case.world_size):
        return "asked"
    whole = sum(sizes)
    cuts = {
        "padding": sum(-(-size // w) for size in sizes),
        "together": -(-whole // w),
        "floor": sum(size // w for size in sizes),
        "fraction": whole / w,
    }
    if got[place] * 4 == _reckoned(sizes, num_states, stage, w)[place]:
        return "numbers"
    value = got[place] / 4
    known = []
    if place == 0:
        known = [("parameters-cut", cut) for cut in cuts.values()]
    elif place == 1:
        known = [("gradients-whole" if stage == 2 else "gradients-kept", whole)]
        known += [("gradients-kept", cut) for cut in cuts.values()] if stage < 2 else []
        known += list(cuts.items())
    elif place == 2:
        known = [("state-whole", num_states * whole)] if stage else []
        known += [("state-kept", num_states * cut) for cut in cuts.values()] if not stage else []
        if num_states != 2:
            known += [("state-of-adam", 2 * cut) for cut in (*cuts.values(), whole)]
        known += [(name, num_states * cut) for name, cut in cuts.items()]
        steps = (1, len(sizes))
        known += [("steps", num_states * cuts["padding"] + one) for one in steps if stage]
        known += [("steps", num_states * whole + one) for one in steps if not stage]
    else:
        row = cuts["padding"]
        known = [("one-call", row), ("one-call", w * row), ("one-call", whole)] if stage else []
        if stage and w * row != whole:
            known += [("all-reduced", whole + w * row)]
        known += [("sent", row * (w + 1) - row), ("sent", 2 * w * row), ("sent", 2 * whole)]
        known += [("sent", 2 * row * (w - 1))]
        known += [(name, cut + whole) for name, cut in cuts.items()]
        known += [(name, cut + w * cut) for name, cut in cuts.items()]
    times = {1: stage == 2, 2: bool(stage) * num_states}.get(place, 0)
    # Some parameters are rounded up, but not all.
    is_short = times * cuts["floor"] < value < times * cuts["padding"]
    other = "floor" if is_short else "values"
    return next((name for name, number in known if number == value), other)


def _reckoned(sizes, num_states, stage, world_size):
    held = foretold_bytes(sizes, world_size, stage, num_states)
    return [held[kind] for kind in KINDS]


def _draw(case_result):
    counted = case_result.seen[0].output
    rows = []
    for result, row in zip(case_result.results[:1], [counted], strict=True):
        told = _numbers(case_result, 0, result)
        rows.append({kind: f"{words(got)} of {row[kind]} B" for kind, got in _pairs(told)})
    return holdings_picture(list(KINDS), rows)


def _pairs(numbers):
    return zip(KINDS, numbers, strict=True)


foretell = Task(
    number="13.4",
    name="foretell",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="to the byte, as counted on real ranks, also of 1,024",
    draw=_draw,
    twice=True,
    hints=(
        "Say for each of the four, at each stage: is it whole on every rank, or cut?",
        "At stage 1 only the state is cut; at stage 2 gradients are, too. Parameters are whole "
        "in both.",
        "Each parameter is cut by itself, and rounded up by itself. In a message all pieces have "
        "the rounded length. A reduce-scatter writes one piece of each, an all-gather all w.",
        "cut = 4 * sum(-(-n // world_size) for n in sizes): state is num_states * cut, and "
        "messages are cut + world_size * cut.",
    ),
    mistakes={
        "no-numbers": "Return parameters, gradients, state and messages, in this order.",
        "numbers": "These are numbers of float32. Each has 4 bytes.",
        "parameters-cut": "Stages 1 and 2 leave the parameters whole on every rank: forward needs "
        "them.",
        "gradients-whole": "At stage 2 a rank keeps the gradients of its pieces only.",
        "gradients-kept": "Only stage 2 cuts the gradients. Before that, backward leaves all of "
        "them.",
        "state-whole": "From stage 1 on, a rank keeps the state of its pieces only.",
        "state-kept": "At stage 0 nothing is cut, and each rank keeps all of the state.",
        "state-of-adam": "Not every optimizer is Adam: num_states says how many numbers are kept "
        "for each.",
        "steps": "The count of steps is left out: it is a number or a few, however large the "
        "model.",
        "together": "Each parameter is cut and rounded up by itself, not all of them together.",
        "floor": "Round up: what is left over must lie somewhere, and rank 0 has a full piece.",
        "fraction": "There are no parts of a number: round up, for each parameter.",
        "padding": "In a message all pieces are equally long, also those that are padded.",
        "one-call": "A step makes two collectives from stage 1 on: what does each of them write?",
        "all-reduced": "From stage 1 on a rank needs the mean of its own pieces only: a "
        "reduce-scatter leaves it that, and writes less than an all-reduce.",
        "sent": "What a rank sends is another matter. Add up what is written into its tensors: "
        "by an all-reduce once the whole; by a reduce-scatter a part, by an all-gather a whole.",
        "asked": "You are asked about ranks that do not run: take world_size from the arguments.",
        "raised": "The line that is named is yours. Some parameters have fewer numbers than there "
        "are ranks, and num_states may be 0.",
        "forbidden": "Foretell it: compute the bytes, and send nothing.",
        "values": "Take one parameter of 5 numbers and 4 ranks, and write down what rank 0 holds.",
    },
    allowed=(),
    warm_up=first_step,
)
