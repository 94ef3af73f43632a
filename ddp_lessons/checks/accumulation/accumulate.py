"""
Task 07.1: a window of micro-batches with one sync.

On each rank: `_act`. In the kernel: the rest.
"""

from ddp_lessons.checks.accumulation.training import (
    AGAIN_MISTAKES,
    BY_HAND_MISTAKES,
    WatchedTraining,
    fewer_of,
    judge_left,
    judge_talk,
    judge_trained,
    name_gradient,
    refuse_again,
    window_of,
)
from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.checks.kit.shared.warm_up import first_ddp
from ddp_lessons.pictures import timeline_picture, timeline_tracks
from ddp_lessons.trace import merge
from ddp_lessons.trace.events import GRADIENT


def _draw(case_result):
    return timeline_picture(timeline_tracks(merge(case_result.traces)), "events, in order")


def _cases(draw):
    yield Case(4, {"sizes": [4] * 3, "dtype": "float32"}, seed=0)
    for world_size in (1, 2, 3):
        sizes = [draw.randint(2, 5)] * draw.randint(4, 6)
        yield Case(world_size, {"sizes": sizes, "dtype": "float64"})
    yield Case(2, {"sizes": [draw.randint(2, 5)], "dtype": "float32", "mode": "eval"})


def _act(context, accumulate):
    watched = WatchedTraining(context)
    given = list(watched.batches)
    kept = watched.call(context, accumulate, watched.batches)
    _, again = watched.call_again(accumulate, given[1:] or given)
    return kept | {"again": again}


def _judge(case_result):
    judge_trained(case_result)
    weights = case_result.seen[0].output["first"]
    window = window_of(case_result.case, weights)
    for rank, seen in enumerate(case_result.seen):
        _judge_gradient(case_result, window, rank, seen.output["gradient"], weights)
    judge_talk(case_result, num_syncs=1)
    judge_left(case_result)
    fewer = fewer_of(case_result.case, weights)
    for rank, seen in enumerate(case_result.seen):
        got, (expected, error) = seen.output["again"], fewer.right()
        if got is None or not bool(((got.double() - expected).abs() <= error).all()):
            refuse_again(case_result, rank, got, expected)


def _judge_gradient(case_result, window, rank, got, weights):
    expected, _ = window.right()
    if got is None:
        fact = "There is no gradient in .grad."
        raise case_result.wrong("no-gradient", rank, fact=fact)
    if window.agrees(got, window.all()):
        return
    both = {"got": got, "expected": expected.to(got.dtype)}
    syncs = [event.backward for event in case_result.traces[rank] if event.is_communication]
    last = max([0, *(e.backward for e in case_result.traces[rank] if e.kind == GRADIENT)])
    if len(syncs) == 1 and syncs[0] is not None and syncs[0] < last:
        fact = f"Its sync is in backward {syncs[0] + 1} of {last + 1}."
        raise case_result.wrong("sync-early", rank, **both, fact=fact)
    mistake = name_gradient(case_result, window, rank, got, weights, range(window.k))
    fact = "The gradient, of 6 weights and then the bias, is not the one expected."
    raise case_result.wrong(mistake, rank, **both, fact=fact)


accumulate = Task(
    number="07.1",
    name="accumulate",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="one sync a window, the activations of one micro-batch",
    draw=_draw,
    hints=(
        "A backward adds to .grad. So the window's gradient makes itself, if nobody empties .grad "
        "and the last backward of the window is the only one that talks.",
        "All micro-batches but the last stand inside `with model.no_sync():`, forward and "
        "backward. The last one stands outside.",
        "k means of equal parts add up to k times the mean of the whole: divide each loss by k.",
        "with model.no_sync(): loop over micro_batches[:-1]; then the same two lines once more "
        "for micro_batches[-1].",
    ),
    mistakes=BY_HAND_MISTAKES
    | AGAIN_MISTAKES
    | {
        "forbidden": "A gradient adds up in .grad by itself. The only call that ranks need is "
        "DDP's all-reduce.",
        "summed": "An average over ranks is wanted, not a sum. DDP's own sync makes one.",
        "scaled": "The direction is right, the length is not. Each micro-batch counts with 1/k, "
        "and k is how many there are in this window.",
        "raised": "The line that is named is yours. Some parameters are frozen: their .grad is "
        "None. The check calls it twice on one model.",
        "deadlock": "All ranks sync, each once for the window: no rank has a part of its own.",
        "input-changed": "Leave the micro-batches as they are. Divide the loss, not the samples.",
        "no-gradient": "Call backward on the loss of each micro-batch, and leave .grad full.",
        "sync-early": "What is added after the sync stays on its rank: sync with the last "
        "micro-batch, not before.",
        "values": "Each micro-batch counts with 1/k of the mean of its loss.",
    },
    allowed=("all_reduce",),
    must_return=False,
    warm_up=first_ddp,
)
