"""
Task 06.2: find the unused branch.

On each rank: `_act`; in both: `_num_before`, `_later_uses`. In the kernel: the rest.
"""

import torch

from ddp_lessons.checks.ddp.branches import (
    EVERY_USE,
    FROZEN,
    HEADS,
    THIN,
    TIED,
    ZERO,
    Branches,
    is_apart,
    reached,
)
from ddp_lessons.checks.ddp.shared import USUAL_RANKS
from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.checks.kit.shared.warm_up import first_ddp
from ddp_lessons.pictures import holdings_picture

_MOST_FLAG_BYTES = 8


def _cases(draw):
    uses = [["left", ZERO, THIN], ["left", "right", ZERO, THIN]]
    yield Case(4, {"uses": [*uses, uses[0], uses[0]]}, seed=0)
    yield Case(1, {"uses": [["left", FROZEN]]})
    yield Case(2, {"uses": [["left"], [name for name in EVERY_USE if name != FROZEN]]})
    for world_size in (2, 3, 4):
        names = draw.sample(["left", "right", "spare"], 3)
        uses = [[names[0], ZERO, FROZEN] for _ in range(world_size)]
        uses[draw.randrange(world_size)] += [names[1], TIED]
        yield Case(world_size, {"uses": uses})
    yield Case(2, {"uses": [EVERY_USE] * 2})
    # In the model's order, a head that one rank reaches stands between heads that two ranks reach.
    yield Case(3, {"uses": [["left", "right", "spare"], ["left", "spare"], [ZERO, THIN]]})
    # The model has more parameters than an int64 has bits.
    yield Case(2, {"uses": [["left"], ["right"]], "layers before the trunk": 32})


def _act(context, find_unused):
    def model_and_loss(uses):
        model = Branches(_num_before(context.case)).to(context.device)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)  # as an earlier step leaves it
        return model, model(torch.randn(3, 4, device=context.device), uses).square().mean()

    model, loss = model_and_loss(context["uses"][context.rank])
    context.call(find_unused, model, loss)
    again = find_unused(*model_and_loss(_later_uses(context.world_size)[context.rank]))
    return {"gradients": [parameter.grad for parameter in model.parameters()], "again": again}


def _num_before(case):
    return case.data.get("layers before the trunk", 0)


def _later_uses(world_size):
    # Return the heads that each rank uses in a second call, which finds answers that keep results.
    return [["left", "spare"], *[["left"]] * (world_size - 1)]


def _counts_and_lists(uses, num_before):
    names = [name for name, p in Branches(num_before).named_parameters() if p.requires_grad]
    counts = {name: sum(name in reached(one, num_before) for one in uses) for name in names}
    freeze = [name for name in names if counts[name] == 0]
    return counts, (freeze, [name for name in names if 0 < counts[name] < len(uses)])


def _judge(case_result):
    num_before = _num_before(case_result.case)
    most = _MOST_FLAG_BYTES * len(list(Branches(num_before).parameters()))
    counts, expected = _counts_and_lists(case_result.case["uses"], num_before)
    shaped = [_two_lists(got) for got in case_result.results]
    for rank, got in enumerate(case_result.results):
        if shaped[rank] is None:
            fact = "The function must return two lists of names."
            raise case_result.wrong("no-lists", rank, got=got, fact=fact)
    for rank, got in enumerate(shaped):
        if got != expected:
            _name_the_branch(case_result, rank, shaped, expected, counts)
    _, expected = _counts_and_lists(_later_uses(case_result.case.world_size), num_before)
    for rank, seen in enumerate(case_result.seen):
        got = seen.output["again"]
        if _two_lists(got) != expected:
            fact = "Called once more, with another model and loss, it returns other names."
            raise case_result.wrong("kept", rank, got=got, expected=expected, fact=fact)
    for rank, seen in enumerate(case_result.seen):
        gradients = seen.output["gradients"]
        if any(one is None or not bool((one == 1).all()) for one in gradients):
            fact = "The lists are right, but gradients of an earlier step are not as they were."
            raise case_result.wrong("gradients", rank, fact=fact)
    for rank, events in enumerate(case_result.traces):
        sent = [event for event in events if event.is_communication]
        num_bytes = sum(event.input_bytes for event in sent)
        if any(event.dtype == "uint8" for event in sent) and len(sent) > 1:
            fact = "The function sends names as pickled objects."
            raise case_result.wrong("objects", rank, fact=fact)
        if len(sent) > 1:
            fact = f"The function makes {len(sent)} collectives; 1 is enough."
            raise case_result.wrong("cost", rank, fact=fact)
        if num_bytes > most:
            fact = f"{num_bytes} bytes go into its call; {most} are enough."
            raise case_result.wrong("bytes", rank, fact=fact)


def _two_lists(got):
    is_pair = isinstance(got, list | tuple) and len(got) == 2
    if not is_pair or not all(isinstance(names, list | tuple) for names in got):
        return None
    if not all(isinstance(name, str) for names in got for name in names):
        return None
    return tuple(list(names) for names in got)


def _name_the_branch(case_result, rank, results, expected, counts):
    got, world_size = results[rank], case_result.case.world_size
    both = {"got": got, "expected": expected}
    named = [*got[0], *got[1]]
    if any(other != got for other in results):
        raise case_result.wrong("one-rank", rank, **both, fact="Ranks do not return the same.")
    if _num_before(case_result.case):
        fact = f"This model has {len(counts)} trained parameters. With fewer, the names were right."
        raise case_result.wrong("no-room", rank, **both, fact=fact)
    if any(name.startswith(FROZEN) for name in named):
        raise case_result.wrong(
            "frozen", rank, **both, fact="A parameter on a list is frozen already."
        )
    if f"{TIED}.weight" in named:
        fact = f"{TIED}.weight is spare.weight, under another name."
        raise case_result.wrong("twice-named", rank, **both, fact=fact)
    by_usual = [name for name, count in counts.items() if 0 < count < USUAL_RANKS]
    if got == (expected[0], by_usual):
        fact = "A parameter on the list `find` is reached on every rank of this group."
        raise case_result.wrong("fixed-size", rank, **both, fact=fact)
    by_all = [name for name in named if counts.get(name) == world_size]
    if any(name in got[1] and not name.startswith(ZERO) for name in by_all):
        fact = "A parameter on the list `find` is reached on every rank."
        raise case_result.wrong("any-rank", rank, **both, fact=fact)
    if any(name.startswith(ZERO) for name in by_all):
        fact = "A parameter on a list is reached on every rank; its gradient happens to be zero."
        raise case_result.wrong("zero", rank, **both, fact=fact)
    if not named and expected[0]:
        fact = "Both lists are empty, as if every rank's loss reached every parameter."
        raise case_result.wrong("stale", rank, **both, fact=fact)
    if got == expected[::-1]:
        raise case_result.wrong(
            "swapped", rank, **both, fact="The two lists are the wrong way round."
        )
    apart = [head for head in HEADS if is_apart(head, expected) and not is_apart(head, got)]
    if apart and set(named) <= set(counts):
        fact = f"The weight and the bias of `{apart[0]}` are not reached alike."
        raise case_result.wrong("by-layer", rank, **both, fact=fact)
    if set(got[0]) & set(got[1]):
        raise case_result.wrong("both-lists", rank, **both, fact="A parameter is on both lists.")
    if got[0] == expected[0] and set(got[1]) < set(expected[1]):
        fact = "A parameter that some ranks reach, and others do not, is on no list."
        raise case_result.wrong("too-few", rank, **both, fact=fact)
    if set(named) == {*expected[0], *expected[1]} and set(got[0]) > set(expected[0]):
        fact = "A parameter to freeze is reached on some rank."
        raise case_result.wrong("too-much", rank, **both, fact=fact)
    if [sorted(names) for names in got] == [sorted(names) for names in expected]:
        raise case_result.wrong("order", rank, **both, fact="The names are out of order.")
    raise case_result.wrong("other-names", rank, **both, fact="These are not the names.")


def _draw(case_result):
    uses, rows = case_result.case["uses"], []
    for used, got in zip(uses, case_result.results, strict=True):
        freeze, find = _two_lists(got)
        rows.append(
            {
                "uses": ", ".join(used),
                "to freeze": ", ".join(name for name in freeze if name.endswith("weight")),
                "to find": ", ".join(name for name in find if name.endswith("weight")),
            }
        )
    return holdings_picture(["uses", "to freeze", "to find"], rows)


find_unused = Task(
    number="06.2",
    name="find_unused",
    may_mutate=("grad",),
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="1 collective, at most 8 bytes a parameter",
    draw=_draw,
    warm_up=first_ddp,
    hints=(
        "A rank knows which parameters its own loss reaches. The list for a parameter depends on "
        "the number of ranks whose loss reaches it: none, some, or all.",
        "torch.autograd.grad(loss, parameters) returns the gradients, and does not touch .grad. "
        "With allow_unused=True, it returns None for a parameter that the loss does not reach.",
        "Make a tensor with 1 for each parameter that is reached, and 0 for each other one. Sum "
        "it over the ranks. All ranks have the same parameters in the same order.",
        "After dist.all_reduce, the tensor counts ranks. A count of 0 belongs to freeze, and a "
        "count between 0 and dist.get_world_size() to find.",
    ),
    mistakes={
        "no-lists": "Return freeze, find: two lists of strings.",
        "frozen": "A parameter with requires_grad=False gets no gradient, and DDP does not wait "
        "for it.",
        "zero": "A gradient of zeros is a gradient. A parameter that the loss does not reach has "
        "none: torch.autograd.grad returns None for it.",
        "stale": "A gradient in .grad may be of an earlier step. Compute the gradients of this "
        "loss, without .grad.",
        "one-rank": "The losses of other ranks may reach other parameters. Let the ranks exchange "
        "what each of them reaches, so that all make the same lists.",
        "swapped": "Return freeze, then find. freeze has the parameters that no rank reaches, and "
        "find those that only some ranks reach.",
        "too-much": "Put a parameter on `freeze` only if no rank reaches it. If one rank reaches "
        "it, its loss trains it.",
        "too-few": "Put a parameter on `find` as soon as one rank reaches it and another does not.",
        "both-lists": "A parameter that no rank reaches belongs to `freeze` alone. DDP does not "
        "wait for frozen parameters.",
        "twice-named": "A weight that two layers share is one parameter. It is listed once, by the "
        "name that model.named_parameters() gives it.",
        "fixed-size": "A group may have any number of ranks: compare with dist.get_world_size(). "
        "A parameter that all ranks reach is on no list.",
        "any-rank": "A parameter that all ranks reach is on no list. Count the ranks: a sum of "
        "bools, or the largest flag, only says whether any rank reaches it.",
        "by-layer": "A loss may reach a weight and not its bias. Decide for each parameter, not "
        "for each layer.",
        "order": "Keep the order of model.named_parameters().",
        "other-names": "Use the names of model.named_parameters(), and count for each of them how "
        "many ranks reach it.",
        "gradients": "backward() adds to .grad. torch.autograd.grad computes gradients without it.",
        "no-room": "A model may have hundreds of parameters. Make a tensor with one number for "
        "each parameter: a single number has no room for the flags of all.",
        "objects": "All ranks know the names. Send one number for each parameter instead.",
        "cost": "Put the flags of all parameters into one tensor, and send it once.",
        "bytes": "Send one small number for each parameter.",
        "deadlock": "Every rank must make the same calls, also a rank that reaches all parameters.",
        "raised": "torch.autograd.grad raises for a frozen parameter, so leave frozen ones out. "
        "With allow_unused=True, it accepts parameters that the loss does not reach.",
    },
)
