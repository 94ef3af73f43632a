"""
Task 05.4: an overlapped replica.

On each rank: `_act`, `_copy`. In the kernel: the rest.
"""

import torch

from ddp_lessons.checks.kit import Case, Mistake, Task, found_by
from ddp_lessons.checks.kit.shared.numbers import words_of_both
from ddp_lessons.checks.replicas.gradients import (
    agrees,
    cast_like,
    first_apart,
    gradients_of,
    inputs_of,
    weighted_sum,
)
from ddp_lessons.checks.replicas.layers import (
    HEAD_SIZE,
    Model,
    bytes_of,
    communications,
    listed,
    plan_of,
    random_layers,
)
from ddp_lessons.checks.replicas.steps import (
    step_gradients,
    those_of,
    ways_of,
    ways_to_be_wrong,
)
from ddp_lessons.pictures import timeline_picture, timeline_tracks
from ddp_lessons.trace import merge
from ddp_lessons.trace.events import GRADIENT


def _cases(draw):
    caps = {"cap_bytes": 40, "first_cap_bytes": 12, "dtype": "float32"}
    # One micro-batch: a fault that shows here cannot come from counting several of them.
    times = {"micro_batches": 1, "steps": 1}
    yield Case(4, {"layers": random_layers(draw, 3), **caps, **times})
    times = {"micro_batches": 2, "steps": 2}
    yield Case(4, {"layers": [[4, 2], [10, 2], [8, 2]], **caps, **times}, seed=0)
    times = {"micro_batches": 1, "steps": 2}
    yield Case(1, {"layers": random_layers(draw, 3), **caps, **times})
    # The buckets of layers 1 and 2 have the same size. So messages in another order are matched,
    # and the sums are wrong.
    num, caps = draw.randint(5, 9), {"first_cap_bytes": 8 * HEAD_SIZE, "dtype": "float64"}
    layers = [[draw.randint(2, 9), draw.randint(1, 3)], [num, 2], [num - 2, 2]]
    data = {"layers": layers, "cap_bytes": 8 * num, **caps}
    yield Case(3, {**data, **times, "other order on ranks": [draw.randint(0, 2)]})
    times = {"micro_batches": 1, "steps": 1}  # one step: in a second, Gloo may abort the process
    yield Case(2, {**data, **times, "without": ["layer2"], "on rank": draw.randint(0, 1)})
    times = {"micro_batches": 3, "steps": 2}
    yield Case(3, {**data, **times, "without": ["layer2"], "on rank": draw.randint(0, 2)})
    # On that rank neither the first nor the last bucket gets a gradient: the head's weight is
    # layer 0's.
    times, odd = {"micro_batches": 1, "steps": 2}, {"on rank": draw.randint(0, 1), "in step": 2}
    yield Case(2, {**data, **times, "without": ["layer0", "head"], **odd})
    times = {"micro_batches": 1, "steps": 3}
    yield Case(2, {**data, **times, "dtype": "bfloat16", "layer2": "in the second step only"})


def _act(context, make_replica):
    model = Model(context.case).to(context.device)
    replica = context.call(make_replica, model, plan_of(context.case, model))

    def step(number, model):
        ways = ways_of(context.case, context.rank, number)
        for place, way in enumerate(ways):
            replica.will_sync = place + 1 == len(ways)
            inputs = inputs_of(context.case, context.rank, model, number * len(ways) + place)
            model(inputs, way).backward()
        replica.wait_for_gradients()

    gradients = []
    for number in range(context["steps"]):
        context.call(step, number, model, watch=(model,))
        gradients.append({name: _copy(one) for name, one in gradients_of(model).items()})
        model.zero_grad()
    return gradients


def _copy(gradient):
    return None if gradient is None else gradient.clone()


def _how_sent(view):
    """
    Return (mistake, fact) for the messages of the first step that shows a mistake, or ("", "").
    """
    case = view.case
    model = Model(case)
    buckets = plan_of(case, model)
    for number in range(case["steps"] if case.world_size > 1 else 0):
        mistake, fact = _how_sent_in(view, number, model, buckets)
        if mistake:
            return mistake, f"Step {number + 1} of {case['steps']}: {fact}"
    return "", ""


def _how_sent_in(view, number, model, buckets):
    events = view.seen.calls[1 + number].events
    sent = communications(events)
    gradients = [event for event in events if event.kind == GRADIENT]
    last = max(event.backward for event in gradients)
    if any(event.backward is not None and event.backward < last for event in sent):
        return "each-micro-batch", "it sends before the last micro-batch."
    sizes, got = [bytes_of(model, names) for names in buckets], [e.input_bytes for e in sent]
    if got != sizes:
        types = listed({event.dtype for event in sent} - {None})
        fact = f"its calls have {got} bytes, in {types}, and the buckets have {sizes}."
        return "once" if number else "other-plan", fact
    index_of = {event.name: event.index for event in gradients if event.backward == last}
    mistake, fact = _when_sent(view, sent, buckets, index_of)
    # A step that is like the first one, or like a step of another case, goes wrong although those
    # went well. So the first step has left something behind.
    is_left = number and "in step" not in view.case.data and mistake not in ("", "blocks")
    if not mistake and any(event.wait_index is None for event in sent):
        fact = "wait_for_gradients returns while a call may still be under way."
        return "unwaited", fact
    return "once" if is_left else mistake, fact


def _when_sent(view, sent, buckets, index_of):
    """
    Return (mistake, fact) for a message that leaves too early or too late, or that blocks backward.

    Without such a message, return ("", "").
    """
    case, latest = view.case, max(index_of.values())
    is_odd = view.rank in [*case.data.get("other order on ranks", ()), case.data.get("on rank")]
    counted = "order" if is_odd else "earlier-parts" if case["micro_batches"] > 1 else ""
    ready = 0.0
    for number, (event, names) in enumerate(zip(sent, buckets, strict=True)):
        ready = max([ready, *(index_of.get(name, float("inf")) for name in names)])
        following = min([index for index in index_of.values() if index > ready], default=None)
        if event.index < min(ready, latest):
            fact = f"call {number} starts before bucket {number} is complete."
            return counted or "too-early", fact
        if following is None:
            continue
        if event.index > following:
            fact = f"bucket {number} is complete before the last gradient, but starts late."
            return counted or "late", fact
        if event.wait_index is not None and event.wait_index < latest:
            fact = f"before the last gradient is ready, the replica waits for call {number}, "
            return "blocks", fact + "or asks whether that call is finished."
    return "", ""


def _how_averaged(view):
    """
    Return (mistake, fact) for the mean of the first step that shows a mistake, or ("", "").
    """
    return next(
        filter(any, (_how_averaged_in(view, n) for n in range(view.case["steps"]))), ("", "")
    )


def _how_averaged_in(view, number):
    case, got = view.case, view.output[number]
    own, w = step_gradients(case, number), case.world_size
    # Sums of whole numbers are exact. An answer that divides first rounds each term and w - 1 sums.
    judged = {"num_roundings": w + 1, "unit": torch.finfo(getattr(torch, case["dtype"])).eps / 2}
    mean = [1 / w] * w
    wrong = [
        name
        for name in own[0]
        if not agrees(those_of([name], got), [those_of([name], one) for one in own], mean, **judged)
    ]
    if not wrong:
        return "", ""
    missing = [name for name in wrong if got[name] is None]
    if missing:
        return "none", f"Step {number + 1}: {missing[0]}.grad is None, and the mean is not 0."
    total, _ = weighted_sum(own, mean)
    apart = first_apart(got, total)
    right = cast_like(total[apart], dict(Model(case).named_parameters())[apart])
    told, mean_told = words_of_both(got[apart], right)
    fact = f"Step {number + 1}: the gradient of {apart} is {told}; the mean is {mean_told}."
    ways = ways_to_be_wrong(case, view.rank, number, own)
    found = (name for name, tables, row in ways if agrees(got, tables, row, **judged))
    return next(found, "mean"), fact


def _draw(case_result):
    steps = [seen.calls[1].events for seen in case_result.seen]
    return timeline_picture(timeline_tracks(merge(steps)), "events, in order")


OverlappedReplica = Task(
    number="05.4",
    name="OverlappedReplica",
    may_mutate=("grad", "hooks"),
    cases=_cases,
    act=_act,
    ok="one all-reduce a bucket, each under way before the next gradient is ready",
    draw=_draw,
    draws_case=1,
    hints=(
        "A bucket may leave in the hook of its last gradient. So count, for each bucket, how many "
        "gradients are ready.",
        "Send in the order of the plan: as long as the next bucket to be sent is full, send it. "
        "wait_for_gradients sends the buckets that are left when backward is over.",
        "all_reduce with async_op=True returns a handle at once. Keep it and the flat tensor "
        "until wait_for_gradients.",
        "In the hook: if self.will_sync, count; while len(self.sent) < len(self.buckets) and the "
        "bucket at len(self.sent) is full, self.send_next(). It flattens .grad or zeros, divides "
        "by the world size, starts the all_reduce, and appends to self.sent.",
    ),
    mistakes=(
        Mistake(
            "each-micro-batch",
            "Gradients add up in .grad over all micro-batches. Send only while will_sync is True.",
            shows=found_by(_how_sent, "each-micro-batch"),
        ),
        Mistake(
            "other-plan",
            "Call k holds the gradients of bucket k, in one flat tensor of their dtype, and "
            "nothing else: one all-reduce a bucket.",
            shows=found_by(_how_sent, "other-plan"),
        ),
        Mistake(
            "once",
            "At the end of a step the replica must be as it was at the start: set the counts to 0, "
            "and drop the handles and flat tensors.",
            shows=found_by(_how_sent, "once"),
        ),
        Mistake(
            "too-early",
            "A bucket is complete when all of its gradients are ready, and not only the first "
            "gradient.",
            shows=found_by(_how_sent, "too-early"),
        ),
        Mistake(
            "earlier-parts",
            "Count the gradients of the last micro-batch only. will_sync says whether this "
            "micro-batch is the last.",
            shows=found_by(_how_sent, "earlier-parts"),
        ),
        Mistake(
            "order",
            "Ranks may reach layers in another order, or not at all. A full bucket waits until all "
            "buckets before it have been sent. After that, send also the full buckets behind it.",
            shows=found_by(_how_sent, "order"),
        ),
        Mistake(
            "late",
            "Start a bucket's all-reduce in the hook of its last gradient, so that backward "
            "continues meanwhile.",
            shows=found_by(_how_sent, "late"),
        ),
        Mistake(
            "blocks",
            "A hook must not wait: start the all-reduce, and wait when backward is over.",
            shows=found_by(_how_sent, "blocks"),
        ),
        Mistake(
            "unwaited",
            "wait_for_gradients waits for every handle before it reads a flat tensor.",
            shows=found_by(_how_sent, "unwaited"),
        ),
        Mistake(
            "none",
            "wait_for_gradients must give every parameter of the plan the mean, also a parameter "
            "without a gradient on this rank.",
            shows=found_by(_how_averaged, "none"),
        ),
        Mistake(
            "summed",
            "Every .grad must be the mean over ranks, not the sum.",
            shows=found_by(_how_averaged, "summed"),
        ),
        Mistake(
            "twice",
            "Divide once by the number of ranks, before or after the sum.",
            shows=found_by(_how_averaged, "twice"),
        ),
        Mistake(
            "last-only",
            ".grad holds the gradient of all micro-batches. A hook on the tensor gets only the "
            "gradient of the last micro-batch.",
            shows=found_by(_how_averaged, "last-only"),
        ),
        Mistake(
            "mean",
            "Replace .grad by the mean over ranks of all that the micro-batches have added to it. "
            "Divide all numbers of a bucket once, by the number of ranks. Each bucket has its own "
            "flat tensor, which is filled anew in each step and read after its wait.",
            shows=found_by(_how_averaged, "mean"),
        ),
        Mistake(
            "left-changed",
            "A replica registers hooks and changes .grad. Everything else in the model stays as it "
            "is.",
        ),
        Mistake(
            "raised",
            "If the message names a line, it is a line of your function. A .grad may be None: this "
            "rank did not use the parameter, or backward has not reached it yet. Each part of a "
            "flat tensor needs the size, shape and dtype of its parameter.",
        ),
        Mistake(
            "deadlock",
            "Every rank must send every bucket, with zeros in place of gradients that it does not "
            "have.",
        ),
    ),
    in_place=True,
    must_return=False,
)
