"""
Exercise 06: what does DistributedDataParallel do for you?

Legend: w ranks; N numbers in all gradients; S steps; C channels.
"""

import copy

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_lessons.checks.ddp_branches import (
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
from ddp_lessons.checks.ddp_gradients import (
    LARGE_DEBT,
    LATE_STEP,
    NUM_STEPS,
    Kinds,
    LateMessages,
    Parts,
    gradients_of,
)
from ddp_lessons.checks.ddp_scripts import (
    FROZEN_LATE,
    LONELY,
    NEAR,
    NUM_SCRIPTS,
    PASSED_BY,
    Net,
    Training,
    are_near,
    how_trained,
    loss_of,
    script_batches,
    state_of,
    unseen_pair,
    weights_of,
    whose_statistics,
    wrappings,
)
from ddp_lessons.checks.ddp_statistics import STATISTICS, Pooled
from ddp_lessons.checks.kit import Case, Task, equal, normal_numbers
from ddp_lessons.checks.kit.judging import BLANK
from ddp_lessons.checks.kit.plain import plain, share_memory
from ddp_lessons.checks.kit.regression import gradient
from ddp_lessons.checks.kit.warm_up import first_ddp
from ddp_lessons.pictures import holdings_picture, timeline_picture, timeline_tracks
from ddp_lessons.trace import merge


def _note_waits_of_ddp(here):
    # DDP waits in C++ for what it sends outside of backward. A trace sees no such wait.
    for event in here.calls[-1].events:
        if event.name in ("broadcast", "all_gather") and event.wait_index is None:
            event.wait_index = event.index + 1


# ---- 06.1 a half-precision hook with error feedback ----

_BUCKET_MIB = 0.0003  # a long parameter fills a bucket, short ones share one
_HALF_BYTES = 2
_UNIT = torch.finfo(torch.bfloat16).eps / 2
_USUAL_RANKS = 4


def _hook_cases(draw):
    yield Case(4, {"lengths": [96, 20, 20, 120], "dtype": "float32"}, seed=0)
    for world_size, dtype in ((1, "float32"), (2, "float64"), (3, "float32")):
        lengths = [draw.randint(80, 130), *(draw.randint(9, 20) for _ in range(2)), 96]
        yield Case(world_size, {"lengths": lengths, "dtype": dtype})


def _hook_act(here, half_hook):
    case = here.case
    model = DistributedDataParallel(Parts(case).to(here.device), bucket_cap_mb=_BUCKET_MIB)
    steps = [list(row.split(case["lengths"])) for row in gradients_of(case, here.rank)]
    messages = LateMessages(here)
    kinds, num_buckets, num_shared, num_steps = [], 0, 0, 0
    residuals: dict = {}

    def hook(state, bucket):
        nonlocal num_buckets, num_shared
        future = messages.call(half_hook, state, bucket, num_steps)
        if not isinstance(future, torch._C.Future):  # of which torch.futures.Future is one
            kinds.append(type(future).__name__)
            future = torch.futures.Future()
            future.set_result(bucket.buffer())
        num_buckets += 1
        num_shared += share_memory(state, bucket.buffer())
        return future

    def train():
        nonlocal num_steps
        averages = []
        for gradients in steps:
            model.zero_grad()
            model([one.to(here.device) for one in gradients]).backward()
            averages.append(gradient(model))
            num_steps += 1
        return averages

    model.register_comm_hook(residuals, hook)
    here.call(train, watch=(model,))
    _note_waits_of_ddp(here)
    return {
        "kinds": kinds,
        "num_stuck": messages.num_stuck,
        "num_early": messages.num_early,
        "num_buckets": num_buckets,
        "num_shared": num_shared,
        "num_residuals": len(residuals),
    }


def _hook_judge(played):
    case = played.case
    for seen in played.seen:
        if seen.kept["kinds"]:
            fact = f"The hook returned no future, but a {seen.kept['kinds'][0]}."
            raise played.wrong("no-future", seen.rank, fact=fact)
    given = [gradients_of(case, rank).double() for rank in range(case.world_size)]
    means = sum(given) / case.world_size
    # Averages of whole numbers are exact. Of a debt, a later step leaves its rounding: u * u; as
    # much is lost by keeping it in half precision.
    most_off = 2 * _UNIT**2 * sum(each.abs() for each in given) / case.world_size
    for rank, result in enumerate(played.results):
        got = torch.stack(result).double()
        _judge_average(played, rank, got, means, most_off)
    for rank, result in enumerate(played.results):
        _judge_debts(played, rank, torch.stack(result).double(), means, most_off)
    for seen, events in zip(played.seen, played.traces, strict=True):
        sent = [event for event in events if event.backward is not None and event.is_communication]
        num_bytes, most = sum(event.input_bytes for event in sent), _HALF_BYTES * means.numel()
        if not seen.kept["num_residuals"]:
            fact = "The dictionary that the hook got is still empty."
            raise played.wrong("elsewhere", seen.rank, fact=fact)
        if num_bytes > most:
            fact = f"{num_bytes} bytes went into its calls; {most} are enough."
            raise played.wrong("bytes", seen.rank, fact=fact)
        if len(sent) > seen.kept["num_buckets"]:
            fact = f"It made {len(sent)} calls for {seen.kept['num_buckets']} buckets."
            raise played.wrong("cost", seen.rank, fact=fact)
    _judge_early(played)
    if any(seen.kept["num_stuck"] for seen in played.seen):
        fact = "One rank came late to a bucket, and another did not leave its hook before it came."
        raise played.wrong("waits", fact=fact)


def _judge_early(played):
    for seen in played.seen:
        if seen.kept["num_early"]:
            fact = "Its future was done before the last rank had sent anything."
            raise played.wrong("too-early", seen.rank, fact=fact)


def _judge_average(played, rank, got, means, most_off):
    shared = Kinds(played.case).shared
    got, means, most_off = (each[:, shared] for each in (got, means, most_off))
    both, world_size = {"got": got[0], "expected": means[0]}, played.case.world_size

    def are_first(value):
        return bool(((got - value).abs() <= world_size * most_off)[0].all())

    if bool(((got - means).abs() <= most_off).all()):
        return
    if are_first(world_size * means) and world_size > 1:
        raise played.wrong("summed", rank, **both, fact="It gave sums, not means.")
    if are_first(means / world_size) and world_size > 1:
        raise played.wrong("divided-twice", rank, **both, fact="It gave means, divided by w again.")
    if are_first(means * world_size / _USUAL_RANKS) and world_size != _USUAL_RANKS:
        fact = f"It gave sums, divided by {_USUAL_RANKS} in a group of {world_size}."
        raise played.wrong("fixed-size", rank, **both, fact=fact)
    if played.seen[rank].kept["num_shared"]:
        fact = "What is owed lies in a bucket's own memory, and is overwritten."
        raise played.wrong("view", rank, fact=fact)
    _judge_early(played)
    after_sum = means[1] + (1 - world_size) * means[0]
    if are_first(means) and bool(((got[1] - after_sum).abs() <= world_size * most_off[1]).all()):
        fact = "Each rank owes its own part, less what all ranks sent."
        raise played.wrong("after-sum", rank, fact=fact)
    if are_first(means):
        fact = "The first averages are right, later ones are not."
        raise played.wrong("wrong-debt", rank, fact=fact)
    raise played.wrong("values", rank, **both, fact="These are no averages.")


def _judge_debts(played, rank, got, means, most_off):
    kinds, world_size = Kinds(played.case), played.case.world_size
    early, late = kinds.early, kinds.late
    if not got.isfinite().all():
        largest = f"{means.abs().max():,.0f}"
        raise played.wrong("overflow", rank, fact=f"It gave inf or nan for means up to {largest}.")
    totals, right, most_off = got.sum(0), means.sum(0), most_off.sum(0)
    off = totals - right
    is_off = off.abs() > most_off
    if not is_off.any():
        return
    owed = right - right.float().bfloat16().double()
    both = {"got": totals[late], "expected": right[late]}

    def is_off_by(times):
        return bool(((off - times * owed).abs() <= most_off)[late].all())

    steps = f"After {NUM_STEPS} steps, what all of them sent does not add up to the means."
    if not is_off[~kinds.alike].any():
        both = {"got": totals[is_off], "expected": right[is_off]}
        fact = f"{steps} It does for each parameter whose length no other one has."
        raise played.wrong("same-key", rank, **both, fact=fact)
    large = early & (owed.abs() >= LARGE_DEBT)
    if not is_off[~early | large].any() and large.any():
        both = {"got": totals[is_off], "expected": right[is_off]}
        fact = f"{steps} It does where much was owed, and not where little was."
        raise played.wrong("small-debts", rank, **both, fact=fact)
    if not is_off[~kinds.twice].any():
        both = {"got": totals[kinds.twice], "expected": right[kinds.twice]}
        fact = f"{steps} It does where the step after a debt has no gradient, and nowhere else."
        raise played.wrong("after-rounding", rank, **both, fact=fact)
    if is_off_by(0):
        both = {"got": totals[early], "expected": right[early]}
        fact = "What was owed after the first step was not paid. Later debts were."
        raise played.wrong("rebuild", rank, **both, fact=fact)
    if bool(((totals - _halved(right * world_size, world_size)).abs() <= most_off)[late].all()):
        fact = f"{steps} Sums of {world_size} ranks were divided in half precision."
        raise played.wrong("half-average", rank, **both, fact=fact)
    if not got[LATE_STEP + 1 :, late].any():
        fact = f"{steps} What rounding took away was never sent."
        raise played.wrong("no-feedback", rank, **both, fact=fact)
    if is_off_by(-2):
        fact = f"{steps} They are off by twice what rounding took away."
        raise played.wrong("sign", rank, **both, fact=fact)
    if world_size > 1 and is_off_by(1 / world_size - 1):
        fact = f"{steps} Of what was owed, one part in {world_size} was paid."
        raise played.wrong("divided-debt", rank, **both, fact=fact)
    fact = f"{steps} What was owed was not paid once."
    raise played.wrong("wrong-debt", rank, **both, fact=fact)


def _halved(owed, world_size):
    # What late steps give of sums if each is divided in half precision, which rounds once more.
    total = torch.zeros_like(owed)
    for _ in range(LATE_STEP, NUM_STEPS):
        message = owed.bfloat16()
        owed, total = owed - message, total + message / world_size
    return total


def _draw_last_backward(played):
    last = max(event.backward or 0 for event in played.traces[0])
    shown = [[event for event in events if event.backward == last] for events in played.traces]
    return timeline_picture(timeline_tracks(merge(shown)), "events of the last step, in order")


half_hook = Task(
    number="06.1",
    name="half_hook",
    cases=_hook_cases,
    act=_hook_act,
    judge=_hook_judge,
    ok="2 bytes a number, one call a bucket, and every debt is paid",
    draw=_draw_last_backward,
    hints=(
        "What rounding takes away is known at once, on this rank: what you wanted to send, less "
        "what you sent. Add it to what you want to send next time.",
        "target = bucket.buffer() / world_size, a new tensor; plus what is owed; message = "
        "target.bfloat16(); owed from now on: target - message.",
        "target.split([p.numel() for p in bucket.parameters()]) gives a view of each parameter's "
        "part. residuals.get(parameter, 0) is what is owed for it.",
        "dist.all_reduce(message, async_op=True).get_future() is ready when the message is; "
        ".then(lambda _: buffer.copy_(message)) is a future of the result.",
    ),
    mistakes={
        "raised": "The line that is named is yours. If sizes do not match: DDP makes new buckets "
        "after its first step. Keep what is owed for each parameter.",
        "no-future": "A hook returns a torch.futures.Future. The handle of an asynchronous call "
        "has get_future().",
        "too-early": "Let the future of the all-reduce make the result: .get_future().then(...).",
        "summed": "all_reduce adds up. Somewhere the sum must be divided by the world size.",
        "divided-twice": "Divide by the world size once: before the message or after it.",
        "no-feedback": "Keep target - message, and add it to the next target.",
        "rebuild": "DDP makes new buckets after its first step. Keep what is owed for each "
        "parameter, so that it outlives its bucket.",
        "view": "Make the target a new tensor. The average overwrites what lies in the buffer.",
        "sign": "What is owed is what you wanted to send, less what you sent.",
        "wrong-debt": "What is owed after a step takes the place of what was owed before: it is "
        "the whole target, old debts included, less the message.",
        "fixed-size": "A group may have any number of ranks. Ask for it in the hook.",
        "after-rounding": "A message that is rounded already has no place for a small debt. Add it "
        "to the target, and round them together.",
        "after-sum": "What is owed is known before anything is sent. After the all-reduce, the "
        "message is what all ranks sent.",
        "divided-debt": "What is owed is in the unit of the target. Once divided by the world size "
        "is enough.",
        "same-key": "Two parameters may have the same length. Keep what is owed under what tells "
        "one parameter from every other.",
        "small-debts": "Keep all that rounding takes away, however small, in a dtype that holds "
        "it.",
        "half-average": "A division in half precision rounds once more, and nobody keeps what that "
        "takes away. Divide in the bucket's own dtype.",
        "overflow": "float16 ends at 65,504. bfloat16 goes as far as float32 does.",
        "elsewhere": "Keep what is owed in `residuals`. Two models would share a global of yours.",
        "bytes": "What all_reduce gets must itself be bfloat16.",
        "cost": "Send the bucket as one tensor: parameters lie in it side by side.",
        "waits": "A hook that waits stops backward. Return a future at once, and let `then` do "
        "what comes after the message.",
    },
    returns=False,
    warm_up=first_ddp,
)

# ---- 06.2 find the unused branch ----

_MOST_FLAG_BYTES = 8


def _branch_cases(draw):
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


def _branch_act(here, find_unused):
    def model_and_loss(uses):
        model = Branches().to(here.device)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)  # of an earlier step
        return model, model(torch.randn(3, 4, device=here.device), uses).square().mean()

    model, loss = model_and_loss(here["uses"][here.rank])
    here.call(find_unused, model, loss)
    again = find_unused(*model_and_loss(_later_uses(here.world_size)[here.rank]))
    return {"gradients": [parameter.grad for parameter in model.parameters()], "again": again}


def _later_uses(world_size):
    # Of a second call, for which nothing of the first one counts.
    return [["left", "spare"], *[["left"]] * (world_size - 1)]


def _counts_and_lists(uses):
    names = [name for name, p in Branches().named_parameters() if p.requires_grad]
    counts = {name: sum(name in reached(one) for one in uses) for name in names}
    freeze = [name for name in names if counts[name] == 0]
    return counts, (freeze, [name for name in names if 0 < counts[name] < len(uses)])


def _branch_judge(played):
    most = _MOST_FLAG_BYTES * len(list(Branches().parameters()))
    counts, expected = _counts_and_lists(played.case["uses"])
    shaped = [_two_lists(got) for got in played.results]
    for rank, got in enumerate(played.results):
        if shaped[rank] is None:
            fact = "It must return two lists of names."
            raise played.wrong("no-lists", rank, got=got, fact=fact)
    for rank, got in enumerate(shaped):
        if got != expected:
            _name_the_branch(played, rank, shaped, expected, counts)
    _, expected = _counts_and_lists(_later_uses(played.case.world_size))
    for rank, seen in enumerate(played.seen):
        got = seen.kept["again"]
        if _two_lists(got) != expected:
            fact = "Called once more, with another model and loss, it returns other names."
            raise played.wrong("kept", rank, got=got, expected=expected, fact=fact)
    for rank, seen in enumerate(played.seen):
        gradients = seen.kept["gradients"]
        if any(one is None or not bool((one == 1).all()) for one in gradients):
            fact = "The lists are right, but gradients of an earlier step are not as they were."
            raise played.wrong("gradients", rank, fact=fact)
    for rank, events in enumerate(played.traces):
        sent = [event for event in events if event.is_communication]
        num_bytes = sum(event.input_bytes for event in sent)
        if any(event.dtype == "uint8" for event in sent) and len(sent) > 1:
            raise played.wrong("objects", rank, fact="It sends names as pickled objects.")
        if len(sent) > 1:
            fact = f"It makes {len(sent)} collectives; 1 is enough."
            raise played.wrong("cost", rank, fact=fact)
        if num_bytes > most:
            fact = f"It sends {num_bytes} bytes; {most} are enough."
            raise played.wrong("bytes", rank, fact=fact)


def _two_lists(got):
    is_pair = isinstance(got, list | tuple) and len(got) == 2
    if not is_pair or not all(isinstance(names, list | tuple) for names in got):
        return None
    if not all(isinstance(name, str) for names in got for name in names):
        return None
    return tuple(list(names) for names in got)


def _name_the_branch(played, rank, results, expected, counts):
    got, world_size = results[rank], played.case.world_size
    both = {"got": got, "expected": expected}
    named = [*got[0], *got[1]]
    if any(other != got for other in results):
        raise played.wrong("one-rank", rank, **both, fact="Ranks do not return the same.")
    if any(name.startswith(FROZEN) for name in named):
        raise played.wrong("frozen", rank, **both, fact="A parameter on a list is frozen already.")
    if f"{TIED}.weight" in named:
        fact = f"{TIED}.weight is spare.weight, under another name."
        raise played.wrong("twice-named", rank, **both, fact=fact)
    by_usual = [name for name, count in counts.items() if 0 < count < _USUAL_RANKS]
    if got == (expected[0], by_usual):
        fact = "A parameter on the list `find` is reached on every rank of this group."
        raise played.wrong("fixed-size", rank, **both, fact=fact)
    by_all = [name for name in named if counts.get(name) == world_size]
    if any(name in got[1] and not name.startswith(ZERO) for name in by_all):
        fact = "A parameter on the list `find` is reached on every rank."
        raise played.wrong("any-rank", rank, **both, fact=fact)
    if any(name.startswith(ZERO) for name in by_all):
        fact = "A parameter on a list is reached on every rank; its gradient happens to be zero."
        raise played.wrong("zero", rank, **both, fact=fact)
    if not named and expected[0]:
        fact = "It says that every parameter is reached."
        raise played.wrong("stale", rank, **both, fact=fact)
    if got == expected[::-1]:
        raise played.wrong("swapped", rank, **both, fact="The two lists are the wrong way round.")
    apart = [head for head in HEADS if is_apart(head, expected) and not is_apart(head, got)]
    if apart and set(named) <= set(counts):
        fact = f"The weight and the bias of `{apart[0]}` are not reached alike."
        raise played.wrong("by-layer", rank, **both, fact=fact)
    if set(got[0]) & set(got[1]):
        raise played.wrong("both-lists", rank, **both, fact="A parameter is on both lists.")
    if got[0] == expected[0] and set(got[1]) < set(expected[1]):
        fact = "A parameter that some ranks reach, and others do not, is on no list."
        raise played.wrong("too-few", rank, **both, fact=fact)
    if set(named) == {*expected[0], *expected[1]} and set(got[0]) > set(expected[0]):
        fact = "A parameter to freeze is reached on some rank."
        raise played.wrong("too-much", rank, **both, fact=fact)
    if [sorted(names) for names in got] == [sorted(names) for names in expected]:
        raise played.wrong("order", rank, **both, fact="The names are out of order.")
    raise played.wrong("other-names", rank, **both, fact="These are not the names.")


def _branch_draw(played):
    uses, rows = played.case["uses"], []
    for used, got in zip(uses, played.results, strict=True):
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
    may_change=("grad",),
    cases=_branch_cases,
    act=_branch_act,
    judge=_branch_judge,
    ok="1 collective, at most 8 bytes a parameter",
    draw=_branch_draw,
    warm_up=first_ddp,
    hints=(
        "A rank knows which parameters its own loss reaches. What to do about one depends on how "
        "many ranks reach it: none, some, or all.",
        "torch.autograd.grad gives gradients back and leaves .grad alone. With allow_unused=True "
        "it gives None for a parameter that the loss does not reach.",
        "Make a tensor with 1 for each parameter that is reached and 0 for each other, and add it "
        "up over the ranks. All ranks have the same parameters in the same order.",
        "counts == 0: freeze. 0 < counts < dist.get_world_size(): find. counts is the tensor after "
        "dist.all_reduce.",
    ),
    mistakes={
        "no-lists": "Return freeze, find: two lists of strings.",
        "frozen": "A parameter with requires_grad=False gets no gradient, and DDP does not wait "
        "for it.",
        "zero": "Not reached and zero are two things. What is not reached has no gradient at all: "
        "None.",
        "stale": "A gradient in .grad may be of an earlier step. Ask for this loss alone.",
        "one-rank": "Other ranks may reach other parameters. Ranks must talk, and all decide "
        "alike.",
        "swapped": "Freeze what no rank reaches, and let DDP find what some ranks reach: in this "
        "order.",
        "too-much": "Freeze a parameter only if no rank reaches it: another rank's loss trains it.",
        "too-few": "A parameter needs finding as soon as one rank does not reach it, and another "
        "does.",
        "both-lists": "What no rank reaches is frozen, and then needs no finding.",
        "twice-named": "A weight that two layers share is one parameter. It is listed once, by the "
        "name that model.named_parameters() gives it.",
        "fixed-size": "A group may have any number of ranks. Ask for it: what all of them reach "
        "needs no finding.",
        "any-rank": "What all ranks reach needs no finding. Count the ranks: a sum of bools, or "
        "the greatest flag, only says whether any does.",
        "by-layer": "A loss may reach a weight and not its bias. Ask for each parameter by itself.",
        "order": "Keep the order of model.named_parameters().",
        "other-names": "Take the names that model.named_parameters() gives, and count for each "
        "how many ranks reach it.",
        "gradients": "backward() adds to .grad. Ask for gradients without it: torch.autograd.grad.",
        "objects": "All ranks know the names. A number for each parameter says enough.",
        "cost": "Put the flags of all parameters in one tensor, and send it once.",
        "bytes": "One small number for each parameter says enough.",
        "deadlock": "Every rank makes the same calls, also one that reaches every parameter.",
        "raised": "With allow_unused=True, torch.autograd.grad takes parameters that the loss "
        "does not reach; frozen ones it never takes.",
    },
)

# ---- 06.3 keep BatchNorm honest ----

_MOST_POOL_CALLS = 2


def _norm_cases(draw):
    yield Case(4, {"samples": [5, 9, 2, 7], "channels": 3, "centre": 0}, seed=0)
    for world_size, channels in ((1, 1), (2, draw.randint(4, 9)), (3, draw.randint(4, 9))):
        samples = draw.sample(range(2, 12), world_size)
        yield Case(world_size, {"samples": samples, "channels": channels, "centre": 0})
    samples = draw.sample(range(4, 12), 4)
    yield Case(4, {"samples": samples, "channels": 9, "centre": draw.randint(900, 1100)})


def _norm_act(here, pool_statistics):
    num_samples, channels = here["samples"][here.rank], here["channels"]
    layer = nn.BatchNorm1d(channels, momentum=1.0).to(here.device)
    numbers = normal_numbers(here.case, here.rank, (num_samples, channels))
    layer((numbers + here["centre"] + here.rank).to(here.device))
    before, spare = _parts_of(layer), copy.deepcopy(layer)
    here.call(pool_statistics, layer, num_samples)
    pool_statistics(spare, num_samples)
    return {"before": before, "after": _parts_of(layer), "again": _parts_of(spare)}


def _parts_of(layer):
    # Beside the statistics: how many batches there were, the momentum, switches and so on.
    parts = {name: value for name, value in vars(layer).items() if not name.startswith("_")}
    names = (*STATISTICS, "num_batches_tracked")
    return plain(parts | {name: getattr(layer, name) for name in names})


def _norm_judge(played):
    case = played.case
    kept = [seen.kept for seen in played.seen]
    for rank, one in enumerate(kept):
        for when in ("after", "again"):
            _judge_kind(played, rank, one["before"], one[when])
    pooled = Pooled(case["samples"], [one["before"] for one in kept], case["centre"])
    for rank, one in enumerate(kept):
        are_right = [pooled.are_right(one[when]) for when in ("after", "again")]
        if not all(are_right) and not equal(one["after"], one["again"]):
            fact = "Called once more, with a layer like this one, it gives other statistics."
            raise played.wrong("kept", rank, fact=fact)
    for rank in range(case.world_size):
        _judge_statistics(played, rank, kept, pooled)
    for rank, one in enumerate(kept):
        for name, was in one["before"].items():
            if name not in STATISTICS and not equal(was, one["after"].get(name)):
                fact = f"It leaves the layer's {name} changed."
                raise played.wrong("left-changed", rank, fact=fact)
    for rank, names in enumerate(played.names):
        if len(names) > _MOST_POOL_CALLS:
            fact = f"The statistics are right, but it took {len(names)} collectives; 2 are enough."
            raise played.wrong("cost", rank, fact=fact)


def _judge_kind(played, rank, before, after):
    for name in STATISTICS:
        was, now = before[name], after[name]
        if not isinstance(now, torch.Tensor) or now.shape != was.shape:
            fact = f"{name} is not {tuple(was.shape)} any more."
            raise played.wrong("shape", rank, got=now, fact=fact)
        if now.dtype != was.dtype:
            fact = f"{name} is not {str(was.dtype).removeprefix('torch.')} any more."
            raise played.wrong("dtype", rank, got=now, fact=fact)


def _judge_statistics(played, rank, kept, pooled):
    after = kept[rank]["after"]
    if pooled.are_right(after):
        return
    mean, variance = (after[name] for name in STATISTICS)
    first = kept[0]["before"]
    means = {"got": mean, "expected": pooled.mean.float()}
    if len(kept) > 1 and all(equal(first, one["after"]) for one in kept):
        fact = "Every rank has the statistics that rank 0 had."
        raise played.wrong("rank-0", rank, **means, fact=fact)
    if all(equal(one["before"], one["after"]) for one in kept):
        raise played.wrong("unchanged", rank, **means, fact="The layer is as it was.")
    have_mean = [pooled.has_mean(one["after"]["running_mean"]) for one in kept]
    if any(have_mean) and not all(have_mean):
        fact = f"Rank {have_mean.index(True)} has the mean of all samples, and not every rank has."
        raise played.wrong("not-everywhere", have_mean.index(False), fact=fact)
    if not pooled.has_mean(mean):
        mistake, fact = pooled.how_mean(rank, mean)
        raise played.wrong(mistake, rank, **means, fact=fact)
    mistake, fact = pooled.how_variance(rank, variance)
    variances = {"got": variance, "expected": pooled.variance.float()}
    raise played.wrong(mistake, rank, **variances, fact=fact)


def _norm_draw(played):
    rows = []
    for num_samples, seen in zip(played.case["samples"], played.seen, strict=True):
        cells = {"samples": str(num_samples)}
        for when in ("before", "after"):
            cells[f"mean {when}"] = f"{seen.kept[when]['running_mean'][0]:.2f}"
            cells[f"variance {when}"] = f"{seen.kept[when]['running_var'][0]:.2f}"
        rows.append(cells)
    names = ["samples", "mean before", "mean after", "variance before", "variance after"]
    return holdings_picture(names, rows)


pool_statistics = Task(
    number="06.3",
    name="pool_statistics",
    may_change=("buffers",),
    cases=_norm_cases,
    act=_norm_act,
    judge=_norm_judge,
    ok="2 collectives at most, and the statistics of all samples",
    draw=_norm_draw,
    hints=(
        "A mean and a variance can be had from sums: how many samples, their sum, and their "
        "squared distances. Sums of ranks add up. Means do not.",
        "The sum of squared distances from a rank's own mean is (n_r - 1) times its running_var. "
        "Seen from the common mean, n_r times (its mean - the common mean) squared comes on top.",
        "First all_reduce n_r and n_r * mean_r, and divide: that is the common mean. Then "
        "all_reduce the squared distances from it. Double precision costs little here.",
        "spread = (n - 1) * variance + n * (own_mean - mean) ** 2; all_reduce it; running_var is "
        "spread / (total - 1). Write with copy_.",
    ),
    mistakes={
        "unchanged": "Write into the layer: layer.running_mean.copy_(...).",
        "rank-0": "That is what DDP does. Every rank's samples must count.",
        "not-everywhere": "Every rank needs the result: reduce gives it to one rank, all_reduce "
        "to all.",
        "unweighted": "Ranks have different numbers of samples. Each sample counts as much as any "
        "other.",
        "within-only": "Samples of two ranks are also apart because the ranks' means are.",
        "biased": "running_var is divided by n - 1. Undo that for each rank, and divide the whole "
        "by its own number of samples less 1.",
        "own-count": "Ranks have different numbers of samples: add up the numbers, too.",
        "part-way": "momentum is 1: what a rank had before is not kept beside the new.",
        "digits": "Add up in float32 or float64: half precision has 3 digits.",
        "distance-once": "The distance of a rank's mean counts once for each of its samples.",
        "root": "running_var is a variance. A standard deviation is its root.",
        "dtype": "The layer's statistics are float32. Write into them, and they stay so.",
        "shape": "Both statistics are tensors (C,), and stay so.",
        "cancels": "With means near 1,000, squares are near 1,000,000, and float32 has 7 digits. "
        "Measure from the mean, or use float64.",
        "cost": "Put what you add up in one tensor: one call for counts and sums, one for the "
        "spread.",
        "deadlock": "All ranks make the same calls, whatever their number of samples.",
        "left-changed": "Only running_mean and running_var are to change.",
        "raised": "num_samples is a plain number, and a layer's statistics are tensors (C,).",
    },
    in_place=True,
    returns=False,
)

# ---- 06.4 mend four broken scripts ----

_NOT_REDUCED = "Expected to have finished reduction"


def _script_cases(draw):
    yield Case(4, {"script": 1}, seed=0)
    for script in (1, PASSED_BY, FROZEN_LATE, LONELY):
        yield Case(draw.choice((2, 3)), {"script": script})
    yield Case(1, {"script": LONELY})


def _scripts_act(here, scripts):
    number = here["script"]
    found = list(scripts() or ())
    if len(found) != NUM_SCRIPTS:
        return {"end": "not four", "num_scripts": len(found)}
    net = Net(here.case).to(here.device)

    def on_device(pairs):
        return [(x.to(here.device), y.to(here.device)) for x, y in pairs]

    test = on_device([unseen_pair(here.case, here.rank)]) if number == LONELY else []
    batches = on_device(script_batches(here.case, here.rank))
    try:
        with wrappings() as wrapped:
            here.call(found[number - 1], net, batches, *test, watch=(net,))
    except NotImplementedError as error:
        if number == 1 or BLANK not in str(error):
            raise
        return {"end": "blank"}
    except RuntimeError as error:
        if _NOT_REDUCED not in str(error):
            raise
        return {"end": "not reduced"}
    _note_waits_of_ddp(here)
    return {"end": "", "state": state_of(net), "wrapped": wrapped}


def _scripts_judge(played):
    case, number = played.case, played.case["script"]
    kept = [seen.kept for seen in played.seen]
    for rank, one in enumerate(kept):
        if one["end"] == "not four":
            fact = f"The number of functions that it returns is {one['num_scripts']}."
            raise played.wrong("not-four", rank, fact=fact)
    if any(one["end"] == "blank" for one in kept):
        fact = f"script_{number} {BLANK}; script_1 is mended."
        raise played.wrong("unfinished", fact=fact)
    if any(one["end"] for one in kept):
        fact = f"In script_{number}, DDP stops: it waits for a gradient that never comes."
        raise played.wrong("waits-for-frozen", fact=fact)
    shapes = {name: one.shape for name, one in state_of(Net(case)).items()}
    for rank, one in enumerate(kept):
        wrapped = one["wrapped"]
        if len(wrapped) > 1:
            mistake = "two-wrappers" if "DataParallel" in wrapped else "wrapped-again"
            fact = f"script_{number} wraps a model {len(wrapped)} times: {', '.join(wrapped)}."
            raise played.wrong(mistake, rank, fact=fact)
        changed = [n for n in shapes if n not in one["state"] or one["state"][n].shape != shapes[n]]
        if changed:
            fact = f"script_{number}: `net` has no {changed[0]} any more, as it had."
            raise played.wrong("parts-gone", rank, fact=fact)
    training = Training(case, range(case.world_size))
    _judge_weights(played, [weights_of(case, one["state"]) for one in kept], training)
    if number == LONELY:
        _judge_evaluation(played, kept[0]["state"], training)


def _judge_weights(played, weights, training):
    case, expected = played.case, weights_of(played.case, training.state)
    for rank, got in enumerate(weights):
        if not are_near([got], [expected]):
            mistake, fact = how_trained(case, weights, rank, any(played.names))
            fact = f"script_{case['script']}: {fact}."
            raise played.wrong(mistake, rank, got=got, expected=expected, fact=fact)


def _judge_evaluation(played, state, training):
    case, got = played.case, played.results[0]
    expected = loss_of(case, training.state, unseen_pair(case, 0))
    try:
        loss = float(got)
    except (TypeError, ValueError, RuntimeError):
        fact = "script_4: rank 0 must return the loss on `test`."
        raise played.wrong("no-evaluation", 0, got=got, fact=fact) from None
    both = {"got": f"{loss:.6g}", "expected": f"{expected:.6g}"}

    def is_loss(pair, of=state):
        wanted = loss_of(case, of, pair)
        return abs(loss - wanted) <= NEAR * wanted

    test = unseen_pair(case, 0)
    if is_loss(test, training.state):
        return
    own = Training(case, range(case.world_size), are_shared=False).counted
    if is_loss(test):
        found = [whose_statistics(state, counted) for counted in (training.counted, own)]
        if "all" in found:
            return
        rank = next((one for one in found if one is not None), None)
        if rank is not None:
            fact = f"script_4: BatchNorm has the statistics of rank {rank} alone."
            raise played.wrong("other-rank", 0, **both, fact=fact)
        fact = "script_4: BatchNorm has other statistics than the training gave it."
        raise played.wrong("statistics", 0, **both, fact=fact)
    if any(is_loss(pair) for pair in script_batches(case, 0)):
        fact = "script_4: this is the loss on a pair that it was trained on."
        raise played.wrong("other-pair", 0, **both, fact=fact)
    fact = "script_4: this is not the loss of the trained model on `test`."
    raise played.wrong("evaluation", 0, **both, fact=fact)


def _scripts_draw(played):
    return timeline_picture(timeline_tracks(merge(played.traces)), "events of script 1, in order")


scripts = Task(
    number="06.4",
    name="scripts",
    cases=_script_cases,
    act=_scripts_act,
    judge=_scripts_judge,
    ok="4 of 4 scripts mended",
    draw=_scripts_draw,
    hints=(
        "Each script has one fault. Ask of each: which line talks to the other ranks, and do all "
        "ranks get there?",
        "Scripts 1 and 2 send no gradients. In one the wrapper is the wrong one, in the other it "
        "is never called.",
        "Script 3: DDP notes when it wraps which parameters to wait for. Script 4: forward of a "
        "wrapped model with buffers is a collective.",
        "1: DDP in place of DataParallel. 2: model(inputs). 3: freeze, then wrap. 4: rank 0 calls "
        "net(inputs), which sends nothing.",
    ),
    mistakes={
        "alone": "Look for what sends gradients. DataParallel is one process's own, and DDP sends "
        "only if its own forward was called.",
        "passed-by": "None of these messages carries gradients. Let every forward of the training "
        "go through DDP's wrapper.",
        "waits-for-frozen": "What a model trains must be settled before it is wrapped.",
        "deadlock": "With buffers, forward of the wrapper is a collective. Who calls it, and who "
        "does not?",
        "unfinished": "Mend one script after the other, and check after each.",
        "values": "Compare with the script as it was: same batches, same rate, one step a batch.",
        "untrained": "Train `net` itself, and all of it but the spare head: no copy, nothing else "
        "frozen.",
        "parts-gone": "Leave `net` as it is built. The spare head stays: DDP must "
        "only not wait for it.",
        "too-far": "DDP takes the mean of all ranks' gradients by itself. Do not add up, multiply, "
        "or step more often.",
        "too-short": "DDP takes the mean of all ranks' gradients by itself, so divide by nothing. "
        "Who averages by hand asks how many ranks there are.",
        "made-one": "The mean of gradients in each step is not the mean of weights at the end, nor "
        "the training of one rank.",
        "mode": "BatchNorm must count while the model is trained. Eval mode comes afterwards.",
        "statistics": "Between training and evaluation, no batch may be counted, and nothing "
        "forgotten.",
        "other-rank": "DDP leaves rank 0's statistics in the model. Keep them, or make them those "
        "of all ranks.",
        "other-pair": "Evaluate on `test`, which no step has seen.",
        "wrapped-again": "Wrap once, before the loop: each wrapping sends the whole model.",
        "two-wrappers": "DataParallel is for one process that has several GPUs, DDP for several "
        "processes. One of them is enough.",
        "not-four": "Let `scripts` return all four functions, in order, as it did.",
        "no-evaluation": "Keep the evaluation, and return its loss on rank 0.",
        "evaluation": "Evaluate after the training, in eval mode, on all of `test`.",
    },
    returns=False,
    warm_up=first_ddp,
)
