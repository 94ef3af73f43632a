"""
Task 06.1: a half-precision hook with error feedback.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddp_lessons.checks.ddp.gradients import (
    LARGE_DEBT,
    LATE_STEP,
    NUM_STEPS,
    Kinds,
    LateMessages,
    Parts,
    gradients_of,
)
from ddp_lessons.checks.ddp.shared import USUAL_RANKS, note_waits_of_ddp
from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.checks.kit.inside.plain import share_memory
from ddp_lessons.checks.kit.material.regression import gradient
from ddp_lessons.checks.kit.material.warm_up import first_ddp
from ddp_lessons.pictures import timeline_picture, timeline_tracks
from ddp_lessons.trace import merge

_BUCKET_MIB = 0.0003  # a long parameter fills a bucket, short ones share one

_HALF_BYTES = 2

_UNIT = torch.finfo(torch.bfloat16).eps / 2


def _cases(draw):
    yield Case(4, {"lengths": [96, 20, 20, 120], "dtype": "float32"}, seed=0)
    for world_size, dtype in ((1, "float32"), (2, "float64"), (3, "float32")):
        lengths = [draw.randint(80, 130), *(draw.randint(9, 20) for _ in range(2)), 96]
        yield Case(world_size, {"lengths": lengths, "dtype": dtype})


def _act(here, half_hook):
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
    note_waits_of_ddp(here)
    return {
        "kinds": kinds,
        "num_stuck": messages.num_stuck,
        "num_early": messages.num_early,
        "num_buckets": num_buckets,
        "num_shared": num_shared,
        "num_residuals": len(residuals),
    }


def _judge(played):
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
    if are_first(means * world_size / USUAL_RANKS) and world_size != USUAL_RANKS:
        fact = f"It gave sums, divided by {USUAL_RANKS} in a group of {world_size}."
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


def _draw(played):
    last = max(event.backward or 0 for event in played.traces[0])
    shown = [[event for event in events if event.backward == last] for events in played.traces]
    return timeline_picture(timeline_tracks(merge(shown)), "events of the last step, in order")


half_hook = Task(
    number="06.1",
    name="half_hook",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="2 bytes a number, one call a bucket, and every debt is paid",
    draw=_draw,
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
        "parameter, so that it outlives its bucket. They lie there in the order of parameters().",
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
