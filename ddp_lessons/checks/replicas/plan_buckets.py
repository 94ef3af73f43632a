"""
Task 05.3: plan buckets.
"""

from itertools import zip_longest

import torch

from ddp_lessons.checks.kit import Case, Task
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
    # All in one bucket, which the last parameter fills exactly.
    layers = random_layers(draw, 3)
    num_trained = sum(map(sum, layers)) - layers[1][1] + HEAD_SIZE
    caps = {"cap_bytes": 10**6, "first_cap_bytes": 4 * num_trained}
    yield Case(2, {"layers": layers, "dtype": "float32", **caps})
    # The second bucket is above its cap. All others are filled exactly, the last one too.
    num = draw.randint(6, 9)
    layers = [[num - 3, 2], [1, 1], [num - 3, 3], [num + 2, 1]]
    caps = {"cap_bytes": 4 * num, "first_cap_bytes": 4 * HEAD_SIZE}
    yield Case(2, {"layers": layers, "dtype": "float32", **caps})
    # The first cap may be the larger one, and parameters may be slices of larger tensors.
    layers = [[num, 2], [num + 3, 1], [num - 3, 3], [num, 1]]
    caps = {"cap_bytes": 8 * num, "first_cap_bytes": 24 * num}
    yield Case(2, {"layers": layers, "dtype": "float64", "in memory": "as slices", **caps})
    # Any parameter with numbers fills a bucket of 4 bytes; one parameter has none.
    layers = [[num, 2], [num, 1], [0, 2], [num, 0]]
    caps = {"cap_bytes": 4, "first_cap_bytes": 4 * num}
    yield Case(2, {"layers": layers, "dtype": "float32", **caps})
    # So many names in one bucket that no set has them in this order.
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

_PLAN_MISTAKES = {
    "four-bytes": "numbers",
    "order": "order",
    "frozen": "frozen",
    "frozen-bytes": "frozen",
    "tied": "tied",
    "numbers": "numbers",
    "rows": "rows",
    "storage": "storage",
    "smaller-first": "first-cap",
    "not-reset": "not-reset",
    "above-cap": "not-reset",
    "less-above-cap": "not-reset",
    "one-late": "one-late",
    "first-late": "one-late",
    "later-late": "one-late",
    "under-cap": "under-cap",
    "lost": "lost",
    "first-cap": "first-cap",
    "always-first": "first-cap",
    "first-twice": "first-cap",
    "swapped": "first-cap",
    "each-alone": "each-alone",
}
"""
What a plan may be made by -> the mistake that it is.
"""


def _act(here, plan_buckets):
    model = _plan_model(here.case).to(here.device)
    here.call(plan_buckets, model, here["cap_bytes"], here["first_cap_bytes"])
    here.call(plan_buckets, model, *_OTHER_CAPS.values())
    _trains_no_more(model)
    here.call(plan_buckets, model, here["cap_bytes"], here["first_cap_bytes"])


def _trains_no_more(model):
    # Between two calls somebody freezes a layer.
    model.head.bias.requires_grad = False
    return model


def _judge(played):
    model = _plan_model(played.case)
    plans = [seen.calls[0].result for seen in played.seen]
    expected = plan_of(played.case, model)
    for rank, got in enumerate(plans):
        _judge_buckets(played, rank, got, expected, model)
    for rank, got in enumerate(plans):
        for one, other in zip(got, plans[0], strict=True):
            if list(one) != list(other):
                fact = f"Where rank 0 has the bucket {other}, this rank has {one}."
                raise played.wrong("ranks-differ", rank, fact=fact)
    for rank, got in enumerate(plans):
        for one, right in zip(got, expected, strict=True):
            if list(one) != right:
                fact = "A bucket has the right names in another order."
                raise played.wrong("inside", rank, got=one, expected=right, fact=fact)
    _judge_other_caps(played, model)
    expected = plan_of(played.case, _trains_no_more(model))
    for seen in played.seen:
        got = seen.calls[2].result
        if any("head.bias" in bucket for bucket in got):
            both = {"got": got, "expected": expected}
            fact = "In another call, with the same model and caps, head.bias is frozen as well."
            raise played.wrong("kept", seen.rank, **both, fact=fact)


def _judge_other_caps(played, model):
    expected = plan_of({**played.case.data, **_OTHER_CAPS}, model)
    for seen in played.seen:
        first, got = (call.result for call in seen.calls[:2])
        if not _is_plan(got) or [list(one) for one in got] != expected:
            fact = (
                "In another call, with the same model and caps of 1,000,000 bytes, it is not right."
            )
            is_longer = _is_plan(got) and got[: len(first)] == first
            mistake = "kept" if is_longer or _is_kept(seen.calls[0]) else "values"
            if _is_plan(got) and list(map(sorted, got)) == list(map(sorted, expected)):
                mistake = "inside"  # the buckets of the first call may be in order by chance
            raise played.wrong(mistake, seen.rank, got=got, expected=expected, fact=fact)


def _is_kept(call):
    """
    Tell whether a second call with the same arguments named more parameters, or fewer.
    """
    plans = [call.result, call.again and call.again.result]
    return all(map(_is_plan, plans)) and sum(map(len, plans[0])) != sum(map(len, plans[1]))


def _is_plan(got):
    return isinstance(got, list) and all(
        isinstance(one, list | tuple) and all(isinstance(name, str) for name in one) for one in got
    )


def _judge_buckets(played, rank, got, expected, model):
    """
    Refuse a plan whose buckets do not have the names that they should, in whatever order.
    """
    if not _is_plan(got):
        fact = "It must return a list of lists of names."
        raise played.wrong("no-list", rank, got=got, fact=fact)
    buckets, rights = [sorted(one) for one in got], [sorted(one) for one in expected]
    if buckets == rights:
        return
    if [] in buckets:
        raise played.wrong("empty", rank, got=got, fact="A bucket is empty.")
    if not got:
        fact = "The plan has no bucket, but there are parameters to train."
        raise played.wrong("by-grad", rank, fact=fact)
    found = _plan_mistake(played.case, model, buckets, rights)
    if _is_kept(played.seen[rank].calls[0]):
        found = "kept"
    pairs = list(zip_longest(map(list, got), expected))
    place = next(
        n for n, (one, right) in enumerate(pairs) if sorted(one or ()) != sorted(right or ())
    )
    one, right = pairs[place]
    both = {"got": one or "no such bucket", "expected": right or "no such bucket"}
    fact = f"Bucket {place} of the plan, counted from 0, is not the one expected."
    raise played.wrong(found, rank, **both, fact=fact)


def _plan_mistake(case, model, buckets, rights):
    for made_by, mistake in _PLAN_MISTAKES.items():
        if buckets == [sorted(one) for one in plan_of(case, model, made_by)]:
            return mistake
    if buckets == rights[::-1]:
        return "backwards"
    names = [name for one in buckets for name in one]
    if len(names) > len(set(names)):
        return "repeated"
    lost = {name for one in rights for name in one} - {*names}
    if lost and not bytes_of(model, lost):
        return "no-numbers"
    return "lost" if lost else "values"


def _draw(played):
    named = dict(Model(played.case).named_parameters())
    sizes = [(name, bytes_of(Model(played.case), [name])) for name in named]
    return buckets_picture(sizes, [list(one) for one in played.seen[0].calls[0].result])


plan_buckets = Task(
    number="05.3",
    name="plan_buckets",
    may_change=(),
    twice=True,
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="one plan on every rank, first ready first, each trained parameter once",
    draw=_draw,
    hints=(
        "backward goes from the loss to the input. So the parameters that were made last have "
        "their gradients first.",
        "Keep one open bucket and count its bytes. After each parameter that you put in, ask "
        "whether it is full; if so, close it, and open a new one.",
        "A parameter has numel() * element_size() bytes. named_parameters() names a tied one once, "
        "and its requires_grad tells whether it is frozen.",
        "if num_bytes >= (cap_bytes if buckets else first_cap_bytes): append the open bucket to "
        "buckets, and start again from [] and 0. What is open at the end is a bucket too.",
    ),
    mistakes={
        "no-list": "Return a list of buckets. A bucket is a list of names.",
        "order": "Which gradient is ready first in backward? Its bucket must be able to leave.",
        "frozen": "A frozen parameter has no gradient, so nothing of it is sent.",
        "tied": "A tied parameter has two names, but one gradient: plan it once, under its first "
        "name.",
        "backwards": "Which bucket is full first? It comes first in the plan.",
        "numbers": "The caps are bytes, not numbers of numbers, and each dtype has its own size.",
        "rows": "A weight has rows and columns. Its bytes are those of all its numbers.",
        "storage": "A parameter may be a part of a larger tensor. Only its own numbers are sent.",
        "one-late": "A bucket that holds exactly its cap is full.",
        "under-cap": "A bucket closes after the parameter that fills it, even if it is above the "
        "cap then.",
        "lost": "What is in the open bucket at the end must be sent too.",
        "empty": "Where the last parameter fills its bucket, no other follows; and a model that "
        "trains nothing has none.",
        "repeated": "No parameter is in two buckets. A list that is emptied is empty wherever it "
        "stands: open a new one.",
        "by-grad": "No backward has been run yet, so no parameter has a gradient. What tells "
        "whether it will have one?",
        "kept": "The plan depends on the model and the caps of this call: on nothing earlier, on "
        "no name that you know. Any parameter may be frozen.",
        "not-reset": "A new bucket holds 0 bytes.",
        "first-cap": "The first bucket has first_cap_bytes, and each later one cap_bytes.",
        "no-numbers": "A parameter without numbers is trained as well, if it requires a gradient. "
        "And all tensors without numbers have one address.",
        "each-alone": "Each parameter has a message of its own here. Few large messages carry the "
        "same at less cost.",
        "inside": "Names in a bucket stand in the order in which you came to them. A set has an "
        "order that the next run need not share.",
        "ranks-differ": "Ranks add up bucket by bucket, number by number: all need the same plan "
        "in the same order.",
        "values": "Go through the parameters from the last to the first, and write down the open "
        "bucket's bytes.",
        "forbidden": "Every rank has the same model, so each can plan by itself: send nothing.",
        "store": "Every rank has the same model, so each can plan by itself: leave no note.",
    },
    allowed=(),
)
