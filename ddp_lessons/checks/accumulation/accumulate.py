"""
Task 07.1: a window of unknown length, with one sync.

On each rank: `_act`, `_deliver`. In the kernel: the rest.
"""

import torch

from ddp_lessons.checks.accumulation.training import (
    MOST_HELD,
    WatchedTraining,
    fewer_of,
    is_parallel,
    window_of,
)
from ddp_lessons.checks.accumulation.windows import NUM_FEATURES
from ddp_lessons.checks.kit import Case, Expected, Mistake, Task, equal, found_by
from ddp_lessons.checks.kit.on_rank.snapshots import plain
from ddp_lessons.checks.kit.shared.regression import Regression, trained
from ddp_lessons.checks.kit.shared.warm_up import first_ddp
from ddp_lessons.pictures import timeline_picture, timeline_tracks
from ddp_lessons.trace import collectives, merge
from ddp_lessons.trace.events import GRADIENT

MOST_TAKEN = 2
"""
Micro-batches that may be taken from the iterator and not yet through their backward: the current
one and the next.
"""
_ONE_NAME = {
    "by-k": "mean-of-means",
    "divided-twice": "ranks",
    "summed": "ranks",
    "fixed-size": "ranks",
}


def _cases(draw):
    yield Case(4, {"sizes": [4, 2, 3], "dtype": "float32"}, seed=0)
    for world_size in (1, 2, 3):
        sizes = [draw.randint(2, 6) for _ in range(draw.randint(3, 5))]
        yield Case(world_size, {"sizes": [*sizes, sizes[0] - 1], "dtype": "float64"})
    yield Case(2, {"sizes": [draw.randint(2, 5)], "dtype": "float32", "mode": "eval"})


def _act(context, accumulate):
    watched = WatchedTraining(context)
    given, before = list(watched.batches), plain(watched.batches)
    taken: list[int] = []
    iterator = _deliver(given, watched.forwards, taken)
    kept = watched.call(context, accumulate, iterator)
    is_changed = not equal(plain(given), before)
    _, again = watched.call_again(accumulate, iter(given[1:] or given))
    return kept | {"again": again, "most_taken": max(taken, default=0), "is_changed": is_changed}


def _deliver(micro_batches, forwards, taken):
    """
    Yield the micro-batches. Note for each how many were taken and not yet through their backward.
    """
    for number, micro_batch in enumerate(micro_batches, start=1):
        taken.append(number - sum(forward["backward"] is not None for forward in forwards))
        yield micro_batch


def _weights(case):
    return trained(Regression(case, NUM_FEATURES, getattr(torch, case["dtype"])))


def _right(case):
    """
    Return the right gradient in float64, and how far each number of an answer may be off.
    """
    return window_of(case, _weights(case)).right()


def _how_wrong(view):
    """
    Return (mistake, fact) for a wrong gradient, or ("", "") for the right one.
    """
    if not view.is_off:
        return "", ""
    events, got = view.events, view.got
    fact = "The gradient, of 6 weights and then the bias, is not the expected one."
    syncs = [event.backward for event in events if event.is_communication]
    last = max([0, *(event.backward for event in events if event.kind == GRADIENT)])
    if len(syncs) == 1 and syncs[0] is not None and syncs[0] < last:
        return "no-sync", f"Its all-reduce is in backward {syncs[0] + 1} of {last + 1}. {fact}"
    window = window_of(view.case, _weights(view.case))
    named = window.mistake(got, view.rank)
    if named is None and view.case.world_size > 1 and not syncs:
        named = "no-sync"  # no other mistake is possible: no rank made a call
    if named is None and is_parallel(got.double(), window.right()[0]):
        named = "undivided"
    return _ONE_NAME.get(named, named) or "values", fact


def _how_sent(view):
    """
    Return (mistake, fact) for what a right gradient cost, or ("", "").
    """
    num_calls, forwards = len(collectives(view.events)), view.output["forwards"]
    if num_calls > 1:
        is_outside = any(one["forward"] and one["backward"] is False for one in forwards)
        fact = f"Rank {view.rank} makes {num_calls} collectives. 1 is enough."
        return "forward-outside" if is_outside else "cost", fact
    most_taken = view.output["most_taken"]
    times = view.output["peak_bytes"] / view.output["one_bytes"]
    if times > MOST_HELD:
        return "memory", f"Rank {view.rank} holds {times:.1f} times the activations that it needs."
    if most_taken > MOST_TAKEN:
        return "listed", f"It holds {most_taken} micro-batches that had no backward yet."
    return "", ""


def _gives_frozen_ones(view):
    if not view.output["left"]["frozen gradients"]:
        return ""
    return "A frozen parameter has a gradient."


def _is_left_off(view):
    if view.output["syncs"]:
        return ""
    return "The model stays inside of no_sync: no later backward would average gradients."


def _differs_when_called_again(view):
    got, (expected, error) = view.output["again"], fewer_of(view.case, _weights(view.case)).right()
    if got is not None and bool(((got.double() - expected).abs() <= error).all()):
        return ""
    return "A second call on the same model, with .grad empty, leaves another gradient."


def _draw(case_result):
    return timeline_picture(timeline_tracks(merge(case_result.traces)), "events, in order")


accumulate = Task(
    number="07.1",
    changed_in="0.2.0",
    name="accumulate",
    may_mutate=("grad",),
    cases=_cases,
    act=_act,
    ok="one all-reduce a window, and the activations of one micro-batch at a time",
    draw=_draw,
    hints=(
        "A micro-batch is the last one if the iterator has no other after it. So take the next "
        "micro-batch before you compute with the current one.",
        "Each micro-batch that has another one after it belongs inside of `with model.no_sync():`, "
        "forward and backward. The last one belongs outside.",
        "You learn the number of samples only at the end. Sums need no number: add up gradients of "
        'mse_loss(..., reduction="sum"), and divide .grad once, after the last backward.',
        "current = next(micro_batches); for following in micro_batches: compute current inside of "
        "no_sync, then current = following. After the loop compute current outside, and divide "
        "each p.grad that is not None by the number of samples.",
    ),
    expected=Expected(
        lambda case, rank: _right(case)[0].to(getattr(torch, case["dtype"])),
        most_off=lambda case, rank: _right(case)[1],
        gave=lambda view: view.output["gradient"],
    ),
    mistakes=(
        Mistake(
            "length",
            "An iterator has no length, and no item can be read by its position. Take "
            "micro-batches from it by `next` or by a `for` loop.",
            raises=("has no len()", "is not subscriptable"),
        ),
        Mistake(
            "nothing",
            "A trained parameter's .grad is None. Call backward for each micro-batch, and leave "
            "the sum in .grad.",
        ),
        Mistake(
            "no-sync",
            "The all-reduce belongs to the last micro-batch. Gradients that a rank adds after it, "
            "or without it, stay on that rank.",
            shows=found_by(_how_wrong, "no-sync"),
        ),
        Mistake(
            "mean-of-means",
            "The micro-batches are unequal: each sample must count the same, not each micro-batch.",
            shows=found_by(_how_wrong, "mean-of-means"),
        ),
        Mistake(
            "undivided",
            "The direction of the gradient is right, but its norm is wrong. Divide once, by the "
            "number of samples that this rank has in the window.",
            shows=found_by(_how_wrong, "undivided"),
        ),
        Mistake(
            "zeroed",
            "Only the last micro-batch has reached .grad. Nothing may empty .grad inside of a "
            "window.",
            shows=found_by(_how_wrong, "zeroed"),
        ),
        Mistake(
            "ranks",
            "The gradient must be the mean over ranks. DDP's all-reduce already divides by the "
            "number of ranks; the result of an all-reduce of your own must be divided by it once.",
            shows=found_by(_how_wrong, "ranks"),
        ),
        Mistake(
            "values",
            "Take the case that the message names: write down how many samples each micro-batch "
            "has, and what weight each sample has in your gradient.",
        ),
        Mistake(
            "frozen-gradient",
            "A frozen parameter's .grad stays None. With zeros there, an optimizer with weight "
            "decay would move the parameter.",
            shows=_gives_frozen_ones,
        ),
        Mistake(
            "forward-outside",
            "DDP plans the all-reduce in the forward. So the forward, too, belongs inside of "
            "no_sync.",
            shows=found_by(_how_sent, "forward-outside"),
        ),
        Mistake(
            "cost",
            "All micro-batches but the last belong inside of no_sync, and no message of your own "
            "is needed: micro-batch j has the same size on all ranks.",
            shows=found_by(_how_sent, "cost"),
        ),
        Mistake(
            "listed",
            "A list of all micro-batches needs memory for all of them. Take one micro-batch "
            "ahead, and no more.",
            shows=found_by(_how_sent, "listed"),
        ),
        Mistake(
            "memory",
            "Activations are freed by backward. Call forward and backward for one micro-batch "
            "before the forward of the next, without retain_graph.",
            shows=found_by(_how_sent, "memory"),
        ),
        Mistake(
            "left-off",
            "Use no_sync in a with statement: it switches the averaging on again when it ends.",
            shows=_is_left_off,
        ),
        Mistake(
            "input-changed",
            "Leave the micro-batches as they are. Scale the loss or the gradient, not the samples.",
            symptom="It changes the micro-batches.",
            shows=lambda view: view.output["is_changed"],
        ),
        Mistake(
            "again",
            "Each call counts its own samples, and keeps nothing for the next call.",
            shows=_differs_when_called_again,
        ),
        Mistake(
            "left-changed",
            "Only .grad may change. Make no step, leave modes and frozen parameters as they are, "
            "and remove the hooks that you register.",
        ),
        Mistake(
            "forbidden",
            "Gradients add up in .grad. The only call that ranks need is DDP's all-reduce.",
        ),
        Mistake(
            "raised",
            "If the message names a line, it is a line of your function. There may be only one "
            "micro-batch, and a frozen parameter's .grad is None.",
        ),
        Mistake(
            "deadlock",
            "Every rank has the same number of micro-batches, and makes one all-reduce, with its "
            "last micro-batch.",
        ),
    ),
    allowed=("all_reduce",),
    must_return=False,
    warm_up=first_ddp,
)
