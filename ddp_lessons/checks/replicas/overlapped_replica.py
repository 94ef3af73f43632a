"""
Task 05.4: an overlapped replica.
"""

import torch

from ddp_lessons.checks.kit import Case, Task
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
    is_left_over,
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
    # A fault that shows in one micro-batch is no fault of counting several.
    times = {"micro_batches": 1, "steps": 1}
    yield Case(4, {"layers": random_layers(draw, 3), **caps, **times})
    times = {"micro_batches": 2, "steps": 2}
    yield Case(4, {"layers": [[4, 2], [10, 2], [8, 2]], **caps, **times}, seed=0)
    times = {"micro_batches": 1, "steps": 2}
    yield Case(1, {"layers": random_layers(draw, 3), **caps, **times})
    # Layers 1 and 2 make buckets of one size, so messages in another order meet, and add up wrong.
    num, caps = draw.randint(5, 9), {"first_cap_bytes": 8 * HEAD_SIZE, "dtype": "float64"}
    layers = [[draw.randint(2, 9), draw.randint(1, 3)], [num, 2], [num - 2, 2]]
    data = {"layers": layers, "cap_bytes": 8 * num, **caps}
    yield Case(3, {**data, **times, "other order on": [draw.randint(0, 2)]})
    times = {"micro_batches": 1, "steps": 1}  # in a second step Gloo may abort the process
    yield Case(2, {**data, **times, "without": ["layer2"], "on rank": draw.randint(0, 1)})
    times = {"micro_batches": 3, "steps": 2}
    yield Case(3, {**data, **times, "without": ["layer2"], "on rank": draw.randint(0, 2)})
    # Nothing of the first bucket is ready there, nor of the last: the head has a weight of layer 0.
    times, odd = {"micro_batches": 1, "steps": 2}, {"on rank": draw.randint(0, 1), "in step": 2}
    yield Case(2, {**data, **times, "without": ["layer0", "head"], **odd})
    times = {"micro_batches": 1, "steps": 3}
    yield Case(2, {**data, **times, "dtype": "bfloat16", "layer2": "in the second step only"})


def _act(here, make_replica):
    model = Model(here.case).to(here.device)
    replica = here.call(make_replica, model, plan_of(here.case, model))

    def step(number, model):
        ways = ways_of(here.case, here.rank, number)
        for place, way in enumerate(ways):
            replica.will_sync = place + 1 == len(ways)
            inputs = inputs_of(here.case, here.rank, model, number * len(ways) + place)
            model(inputs, way).backward()
        replica.wait_for_gradients()

    gradients = []
    for number in range(here["steps"]):
        here.call(step, number, model, watch=(model,))
        gradients.append({name: _copy(one) for name, one in gradients_of(model).items()})
        model.zero_grad()
    return gradients


def _copy(gradient):
    return None if gradient is None else gradient.clone()


def _judge(played):
    case = played.case
    model = Model(case)
    buckets = plan_of(case, model)
    for number in range(case["steps"]):
        if case.world_size > 1:
            for seen in played.seen:
                _judge_messages(played, seen, number, model, buckets)
        for seen in played.seen:
            _judge_mean(played, seen, number)


def _judge_messages(played, seen, number, model, buckets):
    rank, events = seen.rank, seen.calls[1 + number].events
    sent = communications(events)
    gradients = [event for event in events if event.kind == GRADIENT]
    last = max(event.backward for event in gradients)
    which = f"Step {number + 1} of {played.case['steps']}"
    if any(event.backward is not None and event.backward < last for event in sent):
        fact = f"{which}: it sends before the last micro-batch."
        raise played.wrong("each-micro-batch", rank, fact=fact)
    if len(sent) > len(buckets):
        fact = f"{which}: it makes {len(sent)} calls; there are {len(buckets)} buckets."
        raise played.wrong("once" if number else "cost", rank, fact=fact)
    sizes = [bytes_of(model, names) for names in buckets]
    if [event.input_bytes for event in sent] != sizes:
        fact = (
            f"{which}: bytes of its messages: {[event.input_bytes for event in sent]}; "
            f"of the buckets: {sizes}."
        )
        mistake = "once" if number else "other-plan"
        others = {event.dtype for event in sent} - {played.case["dtype"], None}
        if not number and others:
            mistake = "sent-dtype"
            fact = f"{which}: it sends {listed(others)}; gradients are {played.case['dtype']}."
        raise played.wrong(mistake, rank, fact=fact)
    index_of = {event.name: event.index for event in gradients if event.backward == last}
    _judge_times(played, rank, number, sent, buckets, index_of)
    if any(event.wait_index is None for event in sent):
        fact = f"{which}: wait_for_gradients returns while a message may still be under way."
        raise played.wrong("unwaited", rank, fact=fact)


def _judge_times(played, rank, step, sent, buckets, index_of):
    """
    Refuse a message that leaves too early, too late, or that holds backward up.
    """
    case, which = played.case, f"Step {step + 1} of {played.case['steps']}"
    is_odd = rank in [*case.data.get("other order on", ()), case.data.get("on rank")]
    is_miscounted = case["micro_batches"] > 1
    # A step like the first one, or like those of other cases, which went well: something is left.
    is_left = step and "in step" not in case.data
    ready = 0.0
    for number, (event, names) in enumerate(zip(sent, buckets, strict=True)):
        ready = max([ready, *(index_of.get(name, float("inf")) for name in names)])
        following = min([index for index in index_of.values() if index > ready], default=None)
        if event.index < min(ready, max(index_of.values())):
            fact = f"{which}: message {number} leaves before bucket {number} is complete."
            mistake = "order" if is_odd else "earlier-parts" if is_miscounted else "too-early"
            raise played.wrong("once" if is_left else mistake, rank, fact=fact)
        if following is None:
            continue
        if event.index > following:
            fact = (
                f"{which}: bucket {number} is complete before the last gradient, and leaves late."
            )
            mistake = "behind" if is_odd else "earlier-parts" if is_miscounted else "late"
            raise played.wrong("once" if is_left else mistake, rank, fact=fact)
        if event.wait_index is not None and event.wait_index < max(index_of.values()):
            fact = (
                f"{which}: before the last gradient is ready, it has waited for message {number}, "
                "or has looked and found it complete."
            )
            raise played.wrong("blocks", rank, fact=fact)


def _judge_mean(played, seen, number):
    case, rank, got = played.case, seen.rank, seen.kept[number]
    own, w = step_gradients(case, number), case.world_size
    # Whole numbers add up exactly. Divided before, each term is rounded, and w - 1 sums of them.
    judged = {"num_roundings": w + 1, "unit": torch.finfo(getattr(torch, case["dtype"])).eps / 2}
    mean = [1 / w] * w
    wrong = [
        name
        for name in own[0]
        if not agrees(those_of([name], got), [those_of([name], one) for one in own], mean, **judged)
    ]
    if not wrong:
        return
    found = [
        mistake
        for mistake, tables, row in ways_to_be_wrong(case, rank, number, own)
        if agrees(got, tables, row, **judged)
    ]
    these, own_of_these = those_of(wrong, got), [those_of(wrong, one) for one in own]
    if number and is_left_over(case, number, these, own_of_these, judged):
        found.append("stale")
    if agrees(these, own_of_these, [float(r == rank) / w for r in range(w)], **judged):
        found.append("early")
    total, _ = weighted_sum(own, mean)
    apart = first_apart(got, total)
    fact = f"Step {number + 1}: the gradient of {apart} is not the mean over ranks."
    if any(got[name] is None for name in wrong):
        apart = next(name for name in wrong if got[name] is None)
        fact = f"Step {number + 1}: {apart}.grad is None, and the mean over ranks is not 0."
        found = ["none"]
    both = {
        "got": got[apart],
        "expected": cast_like(total[apart], dict(_parameters(case))[apart]),
    }
    raise played.wrong(next(iter(found), "values"), rank, **both, fact=fact)


def _parameters(case):
    return Model(case).named_parameters()


def _draw(played):
    steps = [seen.calls[1].events for seen in played.seen]
    return timeline_picture(timeline_tracks(merge(steps)), "events, in order")


OverlappedReplica = Task(
    number="05.4",
    name="OverlappedReplica",
    may_change=("grad", "hooks"),
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="one message a bucket, each under way before the next gradient is ready",
    draw=_draw,
    draws_case=1,
    hints=(
        "A bucket may leave in the hook of its last gradient. So count, for each bucket, how many "
        "gradients are ready.",
        "Send in the order of the plan: as long as the next bucket to be sent is full, send it. "
        "What is still missing when backward is over goes out in wait_for_gradients.",
        "all_reduce with async_op=True returns a handle at once. Keep it and the flat tensor "
        "until wait_for_gradients.",
        "In the hook: if self.will_sync, count; while len(self.sent) < len(self.buckets) and the "
        "bucket at len(self.sent) is full, self.send_next(). It flattens .grad or zeros, divides "
        "by the world size, starts the all_reduce, and appends to self.sent.",
    ),
    mistakes={
        "each-micro-batch": "Gradients add up in .grad. Send only while will_sync is True.",
        "cost": "All gradients of a bucket travel in one flat tensor: one message a bucket.",
        "other-plan": "Message k holds the gradients of bucket k, and nothing else.",
        "once": "A step must leave the replica as it was at the start: empty what you counted and "
        "kept.",
        "too-early": "A bucket is complete when all of its gradients are ready, not the first.",
        "earlier-parts": "Count the gradients of the last micro-batch only. will_sync says which "
        "micro-batch that is.",
        "order": "Ranks may reach layers in another order, or not at all. A bucket that is full "
        "waits until all before it have been sent.",
        "behind": "Layers may come in another order. When a bucket has left, those after it may "
        "have been full for long, and can leave now.",
        "late": "Start a bucket's message in the hook of its last gradient: backward goes on "
        "meanwhile.",
        "blocks": "In a hook nobody may wait: start the message, and wait when backward is over.",
        "unwaited": "wait_for_gradients waits for every handle before it reads a flat tensor.",
        "summed": "A mean over ranks is wanted, not a sum.",
        "twice": "Divide once by the number of ranks, before or after the sum.",
        "local": "What the hook gets is the parameter. Its gradient is in .grad, and there the "
        "mean must be in the end.",
        "left-changed": "A replica hangs up its hooks and changes .grad. All else of the model "
        "stays as it is.",
        "none": "wait_for_gradients gives every parameter of the plan the mean, also one that had "
        "no gradient on this rank.",
        "added": "The mean takes the place of .grad. It has this rank's part in it already.",
        "each-divided": "Gradients of earlier micro-batches are in .grad, and are divided once "
        "more in each hook. Divide once a step.",
        "some-divided": "A parameter may have no hook called, or no gradient, and still be in the "
        "bucket. All numbers of a message must be divided alike.",
        "by-micro-batches": "What the micro-batches of a step add up to is averaged over ranks. "
        "Divide by the number of ranks alone.",
        "other-size": "Divide by the number of ranks that there are now. Another group may have "
        "another one.",
        "stale": "What a step did not fill in a flat tensor still holds what the last step left.",
        "early": "Until its wait is over, a flat tensor holds this rank's own numbers, or anything "
        "else.",
        "sent-dtype": "A flat tensor has the dtype of the gradients in it.",
        "last-only": "The gradient of all micro-batches is in .grad. A hook on the tensor sees "
        "only what the last one adds.",
        "zeros": "A parameter that the last micro-batch did not use may have a gradient from an "
        "earlier one.",
        "raised": "Look at the line that is named, if one is. A .grad may be None: this rank did "
        "not use the parameter, or backward has not come to it yet. Each part of a flat tensor "
        "needs the size, shape and dtype of its parameter.",
        "values": "Look where a flat tensor is made, and where it is read: may two buckets share "
        "one, and is it read after its wait? Do its parts go back in the order in which they came?",
        "deadlock": "Every rank sends every bucket, also if no gradient of its own is in it.",
    },
    in_place=True,
    returns=False,
)
