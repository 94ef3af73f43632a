"""
Task 15.2: a column- and a row-parallel layer with one all-reduce.

On each rank: `_act`, `_all_fit`, `_run`, `_backward`, `_parts_of`, `_are_parameters`; in both:
`_most_held`, `_fault_of`, `_wholes`. In the kernel: the rest.
"""

import torch
import torch.distributed as dist

from ddp_lessons.checks.beyond_ddp.live_tensors import MAX_LINGER_S, Alive
from ddp_lessons.checks.beyond_ddp.pairs import (
    MOST_OFF,
    NAMES,
    gradient_mistake,
    input_of,
    layers_of,
    line_of,
    near,
    one_process,
    part_of,
    share_bytes,
    upstream_of,
)
from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.checks.kit.on_rank.snapshots import plain
from ddp_lessons.checks.kit.shared.warm_up import import_compiler
from ddp_lessons.pictures import holdings_picture

NUM_RUNS = 2
SPARE_BYTES = 64
"""
Bytes of single numbers that a pair may keep. The smallest tensor that is cut has three times as
many.
"""


def _cases(draw):
    first = {"in": 4, "hidden": 16, "out": 4, "rows": 2, "dtype": "float32"}
    yield Case(4, first, seed=0)
    for world_size, dtype in ((2, "float32"), (3, "float64"), (1, "float32"), (4, "float64")):
        yield Case(world_size, _sizes(draw, world_size, dtype))
    partner = draw.randint(2, 3)  # of rank 0, other than rank 1
    others = [rank for rank in (1, 2, 3) if rank != partner]
    yield Case(4, _sizes(draw, 2, "float32") | {"groups": [[0, partner], others]})


def _sizes(draw, num_parts, dtype):
    sizes = draw.sample(range(2, 10), 3)
    names = ("in", "out", "rows")
    hidden = num_parts * draw.randint(17, 23)
    return {**dict(zip(names, sizes, strict=True)), "hidden": hidden, "dtype": dtype}


def _act(context, ParallelPair):
    case = context.case
    number, _ = line_of(case, context.rank)
    made = [dist.new_group(line) for line in case.data.get("groups", ())]
    dist.barrier()  # until here, ranks may add keys of their groups to the store
    group = made[number] if made else None
    alive = Alive(_most_held(case, context.rank))
    with alive:
        whole = [layer.to(context.device) for layer in layers_of(case, number)]
        pair = context.call(ParallelPair, *whole, group)
    del whole
    kept = {"held": alive.num_bytes(), "parts": plain(_parts_of(pair)), "runs": []}
    kept["trained"] = _are_parameters(pair)
    if _all_fit(context, kept["parts"]):
        kept["runs"] = [_run(context, pair, number, run) for run in range(NUM_RUNS)]
    dist.barrier()  # no rank leaves a group that another one still uses
    for one in made:
        dist.destroy_process_group(one)
    return kept


def _most_held(case, rank):
    _, line = line_of(case, rank)
    return share_bytes(case, len(line)) + SPARE_BYTES


def _all_fit(context, parts):
    # Either all ranks go on or none: others would wait for a rank whose wrong parts raise.
    fits = (
        torch.tensor([_fault_of(context.case, context.rank, parts) is None])
        .int()
        .to(context.device)
    )
    dist.all_reduce(fits, dist.ReduceOp.MIN)
    return bool(fits)


def _run(context, pair, number, run):
    x = input_of(context.case, number, run).detach().to(context.device).requires_grad_(run == 0)
    for part in _parts_of(pair).values():
        if part is not None:
            part.grad = None
    y = context.call(pair, x)
    found = {"forward": context.calls[-1].events, "y": y, "backward": [], "grads": {}}
    if isinstance(y, torch.Tensor) and y.requires_grad:
        context.call(_backward, y, upstream_of(context.case, number, run).to(context.device))
        grads = {name: part.grad for name, part in _parts_of(pair).items() if part is not None}
        found |= {"backward": context.calls[-1].events, "grads": grads | {"x.grad": x.grad}}
    for kind in ("forward", "backward"):
        calls = [event for event in found[kind] if event.is_communication]
        found[kind] = [(one.name, tuple(one.ranks), one.input_bytes) for one in calls]
    return plain(found)


def _backward(y, upstream):
    if y.shape == upstream.shape:
        y.backward(upstream)


def _parts_of(pair):
    found = {}
    for name in NAMES:
        layer, kind = name.split(".")
        part = getattr(getattr(pair, layer, None), kind, None)
        found[name] = part if isinstance(part, torch.Tensor) else None
    return found


def _are_parameters(pair):
    known = {id(one) for one in pair.parameters()} if isinstance(pair, torch.nn.Module) else set()
    return known == {id(part) for part in _parts_of(pair).values() if part is not None}


def _judge(case_result):
    for seen in case_result.seen:
        _judge_parts(case_result, seen)
    for run in range(NUM_RUNS):
        for seen in case_result.seen:
            _judge_calls(case_result, seen, run, "forward")
        for seen in case_result.seen:
            _judge_output(case_result, seen, run)
        for seen in case_result.seen:
            _judge_gradients(case_result, seen, run)
        for seen in case_result.seen:
            _judge_calls(case_result, seen, run, "backward")


def _judge_parts(case_result, seen):
    case, rank = case_result.case, seen.rank
    fault = _fault_of(case, rank, seen.output["parts"])
    if fault:
        mistake, fact, both = fault
        raise case_result.wrong(mistake, rank, fact=fact, **both)
    _, line = line_of(case, rank)
    if not seen.output["trained"]:
        fact = "Its parameters() are not these four: an optimizer would train something else."
        raise case_result.wrong("not-trained", rank, fact=fact)
    held, parts = seen.output["held"], share_bytes(case, len(line))
    if held > _most_held(case, rank):
        fact = (
            f"Its parts have {parts} bytes. It keeps {held} bytes of tensors alive, when first and "
            "second are gone."
        )
        raise case_result.wrong("held", rank, fact=fact)


def _fault_of(case, rank, parts):
    number, line = line_of(case, rank)
    for name, whole in _wholes(case, number).items():
        part = parts[name]
        right = part_of(name, whole, line.index(rank), len(line))
        if part is None:
            return "no-part", f"It has no tensor {name}.", {}
        if part.shape == whole.shape != right.shape and part.equal(whole):
            return "whole", f"{name} is the whole one, of shape {tuple(whole.shape)}.", {}
        if part.shape != right.shape or not part.equal(right):
            fact = f"{name} is not this rank's part of the weight or bias."
            return "other-part", fact, {"got": part, "expected": right}
    return None


def _wholes(case, number):
    layers = layers_of(case, number)
    params = [parameter.detach() for layer in layers for parameter in layer.parameters()]
    return dict(zip(NAMES, params, strict=True))


def _judge_calls(case_result, seen, run, kind):
    case, rank = case_result.case, seen.rank
    _, line = line_of(case, rank)
    calls = seen.output["runs"][run][kind]
    is_asked = kind == "forward" or run == 0
    if not calls and (not is_asked or len(line) == 1):
        return
    told = f"In its {kind} it calls {', '.join(name for name, *_ in calls) or 'nothing'}."
    if not is_asked:
        fact = f"{told} The input wants no gradient."
        raise case_result.wrong("needless", rank, fact=fact)
    if not calls:
        raise case_result.wrong("no-sum" if kind == "forward" else "input-partial", rank, fact=told)
    if len(calls) > 1 or calls[0][0] != "all_reduce":
        raise case_result.wrong(f"{kind}-calls", rank, fact=f"{told} One all_reduce will do.")
    (_, ranks, num_bytes) = calls[0]
    if sorted(ranks) != line:
        fact = f"{told} It is one of ranks {sorted(ranks)}, and the group has ranks {line}."
        raise case_result.wrong("other-group", rank, fact=fact)
    width = case["out"] if kind == "forward" else case["in"]
    rows = case["rows"] * (run + 1)
    right = rows * width * getattr(torch, case["dtype"]).itemsize
    if num_bytes != right:
        fact = f"{told} It reduces {num_bytes} bytes; {right} would do."
        raise case_result.wrong(f"{kind}-calls", rank, fact=fact)


def _judge_output(case_result, seen, run):
    case, rank = case_result.case, seen.rank
    number, line = line_of(case, rank)
    got, right = seen.output["runs"][run]["y"], one_process(case, number, run)["y"]
    mistake = "values"
    if isinstance(got, torch.Tensor) and got.shape == right.shape:
        bias = _wholes(case, number)["row.bias"]
        linear = one_process(case, number, run, relu=False)["y"]
        known = {"bias-never": right - bias, "no-relu": linear}
        if len(line) > 1:
            means = ((right - bias) / len(line) + bias, right / len(line))
            known |= {"bias-often": right + (len(line) - 1) * bias}
            known |= {"averaged": next((one for one in means if near(got, one)), means[0])}
        mistake = next((name for name, one in known.items() if near(got, one)), mistake)
    case_result.expect(rank, got, right, torch.full(right.shape, MOST_OFF), mistake=mistake)
    if not seen.output["runs"][run]["grads"]:
        fact = "Its output has no gradient function: no backward can go through it."
        raise case_result.wrong("no-gradient", rank, fact=fact)


def _judge_gradients(case_result, seen, run):
    case, rank = case_result.case, seen.rank
    number, line = line_of(case, rank)
    whole = one_process(case, number, run)
    for name in (*NAMES, "x.grad"):
        got, right = seen.output["runs"][run]["grads"][name], whole[name]
        if name == "x.grad" and run > 0:
            continue
        told = "The input's gradient" if name == "x.grad" else f"The gradient of {name}"
        if got is None and (name != "row.bias" or len(line) == 1):
            raise case_result.wrong("no-gradient", rank, fact=f"{told} is None.")
        if name != "x.grad":
            right = part_of(name, right, line.index(rank), len(line))
        if got is None or got.shape != right.shape or not near(got, right):
            tables = [one.output["runs"][run]["grads"] for one in case_result.seen]
            mistake = gradient_mistake(case, tables, rank, name, right, whole[name])
            both = {"got": got, "expected": right}
            fact = f"{told} is not that of one process."
            raise case_result.wrong(mistake, rank, **both, fact=fact)


def _draw(case_result):
    names = ["column.weight", "row.weight", "bytes held", "of both layers"]
    whole = sum(part.nbytes for part in _wholes(case_result.case, 0).values())
    rows = []
    for seen in case_result.seen:
        shapes = [str(tuple(seen.output["parts"][name].shape)) for name in names[:2]]
        rows.append(dict(zip(names, [*shapes, seen.output["held"], whole], strict=True)))
    return holdings_picture(names, rows)


ParallelPair = Task(
    number="15.2",
    extra_time_s=MAX_LINGER_S,
    name="ParallelPair",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="one all-reduce each way, none that is needless, a part of each weight",
    draw=_draw,
    hints=(
        "Follow one hidden number. Which row of first's weight makes it, and which numbers of "
        "second's weight does it meet? Only one rank needs those.",
        "What a rank makes of its hidden numbers has the output's shape, and is a part of a sum. "
        "So is, in backward, what it makes of the input's gradient.",
        "Two torch.autograd.Functions do it: one leaves the tensor as it is in forward and sums "
        "in backward, the other sums in forward and hands the gradient on as it is.",
        "In forward, with the two functions as Enter and Leave: part = (row.weight times relu of "
        "column of Enter.apply(x)), then Leave.apply(part), then the bias.",
    ),
    mistakes={
        "no-part": "Name the two layers column and row, each with a weight and a bias, as "
        "nn.Linear has them.",
        "whole": "This is to be cut: each rank has its part only.",
        "other-part": "Weights are (outputs, inputs). The first is cut by outputs, the second by "
        "inputs. Which part is a rank's follows from its number in the group.",
        "not-trained": "Each of the four is an nn.Parameter of the module, and nothing else is.",
        "held": "A slice is a view, and keeps the whole in memory; and so does an attribute that "
        "holds the layer.",
        "no-sum": "A rank has met its own hidden numbers only. What has it, and what is wanted?",
        "forward-calls": "Relu looks at each hidden number alone, so nobody needs the hidden "
        "numbers of others. What has the output's shape can be summed once, at the end.",
        "backward-calls": "One sum is needed in backward, of what has the input's shape. What "
        "comes in from behind the sum is the same on all ranks already.",
        "needless": "Sum in backward where the input's gradient is made, so that nothing is sent "
        "if nobody wants it.",
        "other-group": "Pass the group to each call.",
        "bias-often": "second's bias is in the output once for each rank. Where do you add it?",
        "bias-gradient": "Each rank has the whole bias, and needs its whole gradient: add it in "
        "full, on all ranks, behind the sum.",
        "averaged": "Parts are to be added up, not averaged: here and in backward.",
        "bias-never": "second's bias is missing in the output.",
        "no-relu": "There is a relu between the two layers.",
        "no-gradient": "Autograd must see what happens between the input and the output: no "
        "detach, no .data and no torch.no_grad there.",
        "input-partial": "A rank has only what its own hidden numbers add to the input's "
        "gradient. The forward's first function needs a backward that sums.",
        "times": "This gradient is as many times too long as there are ranks. The loss is the "
        "same on all ranks: behind the sum its gradient must be handed on as it is, not summed.",
        "weights-summed": "Ranks have different parts of the weights. Their gradients are not to "
        "be summed over ranks, or averaged.",
        "gradient": "Write down for one hidden number what backward does with it, on its rank.",
        "raised": "The line that is named is yours. A rank's number in the group need not be its "
        "number among all; and inputs may have three dimensions.",
        "nothing": "forward must return the output.",
        "values": "Take two hidden numbers, two ranks and one output, and go through it with a "
        "pencil.",
    },
    must_return=False,
    warm_up=import_compiler,
)
