"""
Task 06.1: a half-precision hook with error feedback.

On each rank: `_act`. In the kernel: the rest.
"""

from dataclasses import replace

import torch
from torch.nn.parallel import DistributedDataParallel

from ddp_lessons.checks.ddp.gradients import (
    LATE_STEP,
    NUM_STEPS,
    Kinds,
    LateMessages,
    Parts,
    gradients_of,
)
from ddp_lessons.checks.ddp.shared import USUAL_RANKS, note_waits_of_ddp
from ddp_lessons.checks.kit import VALUES, Case, Expected, Mistake, Task
from ddp_lessons.checks.kit.comparing import find_difference
from ddp_lessons.checks.kit.on_rank.snapshots import share_memory
from ddp_lessons.checks.kit.shared.regression import gradient
from ddp_lessons.checks.kit.shared.warm_up import first_ddp
from ddp_lessons.pictures import timeline_picture, timeline_tracks
from ddp_lessons.private.dispatcher import future_class
from ddp_lessons.trace import merge

_BUCKET_MIB = 0.0003  # a long parameter fills a bucket, short ones share one

_HALF_BYTES = 2
_SUMS = "the sums over all steps"

_UNIT = torch.finfo(torch.bfloat16).eps / 2


def _cases(draw):
    yield Case(4, {"lengths": [96, 20, 20, 120], "dtype": "float32"}, seed=0)
    for world_size, dtype in ((1, "float32"), (2, "float64"), (3, "float32")):
        lengths = [draw.randint(80, 130), *(draw.randint(9, 20) for _ in range(2)), 96]
        yield Case(world_size, {"lengths": lengths, "dtype": dtype})


def _act(context, half_hook):
    case = context.case
    model = DistributedDataParallel(Parts(case).to(context.device), bucket_cap_mb=_BUCKET_MIB)
    steps = [list(row.split(case["lengths"])) for row in gradients_of(case, context.rank)]
    messages = LateMessages(context)
    kinds, num_buckets, num_shared, num_steps = [], 0, 0, 0
    residuals: dict = {}

    def hook(state, bucket):
        nonlocal num_buckets, num_shared
        future = messages.call(half_hook, state, bucket, num_steps)
        if not isinstance(future, future_class()):  # the base class of torch.futures.Future
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
            model([one.to(context.device) for one in gradients]).backward()
            averages.append(gradient(model))
            num_steps += 1
        return averages

    model.register_comm_hook(residuals, hook)
    context.call(train, watch=(model,))
    note_waits_of_ddp(context)
    return {
        "kinds": kinds,
        "num_stuck": messages.num_stuck,
        "num_early": messages.num_early,
        "num_buckets": num_buckets,
        "num_shared": num_shared,
        "num_residuals": len(residuals),
    }


def _means(case):
    return sum(gradients_of(case, rank).double() for rank in range(case.world_size)) / (
        case.world_size
    )


def _most_off(case):
    # Averages of whole numbers are exact. Sending a residual in a later step rounds it again, which
    # leaves an error of u * u. Keeping residuals in half precision costs as much once more.
    sizes = sum(gradients_of(case, rank).double().abs() for rank in range(case.world_size))
    return 2 * _UNIT**2 * sizes / case.world_size


def _steps(view):
    return torch.stack(view.seen.calls[-1].result).double()


def _parts(case, steps):
    """
    Return the parts of the averages of all steps (S, N) that are judged, by name.

    They are the numbers without residuals in each step, and the sums over all steps.
    """
    plain = steps[:, Kinds(case).shared]
    return {f"the averages of step {step}": row for step, row in enumerate(plain, start=1)} | {
        _SUMS: steps.sum(0)
    }


def _is_plain_off(view, step=None, factor=1):
    """
    Tell whether averages of numbers without residuals are off, in the given step or in any.
    """
    names = [f"the averages of step {step}"] if step else [*view.expected][:-1]
    return any(
        find_difference(
            view.got[name], factor * view.expected[name], view.case.world_size * view.most_off[name]
        )
        for name in names
    )


def _divides_wrongly(view):
    w = view.case.world_size
    return _is_plain_off(view, 1) and not all(
        _is_plain_off(view, 1, factor) for factor in (w, 1 / w, w / USUAL_RANKS)
    )


def _is_paid(view, mask):
    got, means, most_off = (parts[_SUMS] for parts in (view.got, view.expected, view.most_off))
    return bool(((got - means).abs() <= most_off)[mask].all())


def _forgets_at_rebuild(view):
    kinds = Kinds(view.case)
    return _is_paid(view, kinds.late) and not _is_paid(view, kinds.early & ~kinds.small)


def _never_pays(view):
    return not _steps(view)[LATE_STEP + 1 :, Kinds(view.case).late].any()


def _costs(view):
    sent = [e for e in view.events if e.backward is not None and e.is_communication]
    num_numbers = NUM_STEPS * sum(view.case["lengths"])
    num_bytes, most = sum(e.input_bytes for e in sent), _HALF_BYTES * num_numbers
    if num_bytes > most:
        return f"{num_bytes} bytes went into the hook's calls; {most} are enough."
    if len(sent) > view.output["num_buckets"]:
        return f"The hook made {len(sent)} calls for {view.output['num_buckets']} buckets."
    return ""


def _waits(view):
    if view.output["num_early"]:
        return "The hook's future was done before the last rank had sent anything."
    if view.output["num_stuck"]:
        return "This rank came late to a bucket, and another rank waited for it inside of its hook."
    return ""


def _draw(case_result):
    last = max(event.backward or 0 for event in case_result.traces[0])
    shown = [[event for event in events if event.backward == last] for events in case_result.traces]
    return timeline_picture(timeline_tracks(merge(shown)), "events of the last step, in order")


half_hook = Task(
    number="06.1",
    name="half_hook",
    cases=_cases,
    act=_act,
    ok="2 bytes a number, one call a bucket, and every residual is sent",
    draw=_draw,
    hints=(
        "A rank knows what rounding took away as soon as it has rounded: what it wanted to send "
        "minus what it sends. It adds this residual to what it wants to send next time.",
        "The target is a new tensor: bucket.buffer() / world_size plus the residuals. The message "
        "is target.bfloat16(). The new residual is target - message.",
        "target.split([p.numel() for p in bucket.parameters()]) gives a view of each parameter's "
        "part. residuals.get(parameter, 0) is its residual.",
        "dist.all_reduce(message, async_op=True).get_future() is a future of the sum. Its method "
        "then(function) returns a future of what the function returns: let the function copy the "
        "sum into the buffer, and return the buffer.",
    ),
    expected=Expected(
        lambda case, rank: _parts(case, _means(case)),
        most_off=lambda case, rank: _parts(case, _most_off(case)),
        gave=lambda view: _parts(view.case, _steps(view)),
    ),
    mistakes=(
        Mistake(
            "no-future",
            "A hook returns a torch.futures.Future. The handle that all_reduce returns with "
            "async_op=True has one: get_future().",
            shows=lambda view: (
                view.output["kinds"]
                and f"The hook returned no future, but a {view.output['kinds'][0]}."
            ),
        ),
        Mistake(
            "average",
            "all_reduce adds up. Divide by the world size once, before the message or after it. "
            "Call dist.get_world_size() in the hook, because a group may have any number of ranks.",
            "The averages are the sums, divided not at all, twice, or by another number.",
            shows=_divides_wrongly,
        ),
        Mistake(
            "view",
            "Make the target a new tensor. The average overwrites the buffer, and with it every "
            "residual that is a view of the buffer.",
            "A residual lies in a bucket's own memory, and is overwritten.",
            shows=lambda view: view.is_off and view.output["num_shared"] > 0,
        ),
        Mistake(
            "waits",
            "Start the all-reduce with async_op=True, return a future of it at once, and let "
            "`then` do what comes after the all-reduce. A hook that waits stops backward.",
            shows=_waits,
        ),
        Mistake(
            "wrong-debt",
            "The new residual replaces the old one. It is the whole target, the old residual "
            "included, minus this rank's own message. all_reduce overwrites the message by the "
            "sum, so compute the residual before it.",
            "The first averages are right, and later ones are not.",
            shows=lambda view: _is_plain_off(view) and not _is_plain_off(view, 1),
        ),
        Mistake(
            "overflow",
            "float16 has no number above 65,504. bfloat16 has the range of float32.",
            "An average is inf or nan.",
            shows=lambda view: not _steps(view).isfinite().all(),
        ),
        Mistake(
            "rebuild",
            "DDP makes new buckets after its first step. Keep a residual for each parameter, "
            "because a bucket's index and size change. In bucket.buffer() the gradients lie in the "
            "order of bucket.parameters().",
            "The residuals of the first step were never sent. Later ones were.",
            shows=lambda view: view.is_off and _forgets_at_rebuild(view),
            raises=("must match the size",),
        ),
        Mistake(
            "no-feedback",
            "Keep target - message, and add it to the next target.",
            "The part that rounding took away was never sent.",
            shows=lambda view: view.is_off and _never_pays(view),
        ),
        replace(
            VALUES,
            hint="Take one number that is off, and write down its target, its message and its "
            "residual for each step. Which dtype, which key and which sign has the residual?",
            symptom=f"The averages of all {NUM_STEPS} steps together are not the sum of the means.",
        ),
        Mistake(
            "elsewhere",
            "Keep the residuals in the dictionary `residuals`, which DDP passes to the hook. Two "
            "models would share a global variable.",
            "The dictionary that the hook got is still empty.",
            shows=lambda view: not view.output["num_residuals"],
        ),
        Mistake(
            "cost",
            "Send the whole bucket as one bfloat16 tensor, in one call.",
            shows=_costs,
        ),
    ),
    must_return=False,
    warm_up=first_ddp,
)
