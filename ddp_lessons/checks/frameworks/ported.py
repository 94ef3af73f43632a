"""
Task 16.1: port a loop.

On each rank: `_act`, `_read`. In the kernel: the rest.
"""

import pickle
from dataclasses import replace
from functools import lru_cache

import torch

from ddp_lessons.checks.frameworks.material import Samples, classifier, warm_up_one
from ddp_lessons.checks.frameworks.on_one_process import BATCH_SIZE, NUM_EPOCHS, loop_of
from ddp_lessons.checks.frameworks.wrapping import noting_who_trains
from ddp_lessons.checks.kit import VALUES, Case, Expected, Mistake, Task, words
from ddp_lessons.frameworks import told
from ddp_lessons.pictures import holdings_picture

_MOST_OFF = 1e-9
"""
How far a loss may be off. A sum of some dozen float64 numbers has a relative error below 1e-14, and
ten steps at these rates enlarge it less than a thousandfold. Each mistake moves some loss by at
least 1e-4.
"""


def _cases(draw):
    yield Case(4, {"samples": 30, "every": 2}, seed=0)
    for world_size, every in ((2, 3), (3, 1), (4, 2), (1, 2)):
        num_batches = every * draw.randint(2, 3)
        a_rank = BATCH_SIZE * num_batches - draw.randint(0, 1)
        num = world_size * a_rank - draw.randint(0, world_size - 1)
        yield Case(world_size, {"samples": num, "every": every})


def _act(context, ported):
    model = classifier(context.case, torch.float64)
    dataset = Samples(context.case, context["samples"], torch.float64)
    folder = context.folder / f"{context.case.seed}-rank-{context.rank}"
    folder.mkdir()
    path = folder / "model.pt"
    with told(), noting_who_trains() as trained_by:
        context.call(ported, model, dataset, context["every"], path)
    for event in context.calls[-1].events:
        # DDP makes its calls in C++ and waits for them there, where a trace sees no wait.
        event.wait_index = event.index if event.wait_index is None else event.wait_index
    return {
        "fetched": dataset.fetched,
        "weights": model.state_dict(),
        "trained by": list(trained_by.values()),
        "is in train mode": all(part.training for part in model.modules()),
        "saved": _read(path) if path.exists() else None,
        "files": sorted(file.name for file in folder.iterdir()),
    }


def _read(path):
    try:
        return torch.load(path)
    except pickle.UnpicklingError:
        return "something else than a state_dict"


@lru_cache(maxsize=64)
def _loop(world_size, samples, every, seed, **how):
    return loop_of(Case(world_size, {"samples": samples, "every": every}, seed), **how)


def _right(case, **how):
    return _loop(case.world_size, case["samples"], case["every"], case.seed, **how)


def _gave(view):
    result = view.case_result.results[view.rank]
    return list(result) if isinstance(result, tuple) else result


def _returns_no_losses(view):
    is_row = isinstance(view.got, list) and all(isinstance(one, float) for one in view.got)
    return not is_row and f"It returns {words(view.got)}."


def _returns_other_losses(view):
    case, got = view.case, view.got
    if not view.is_off:
        return ""
    if len(got) != len(view.expected):
        return f"It returns {len(got)} losses of {len(view.expected)} micro-batches."
    losses = _right(case).losses
    if view.is_near([sum(row) / len(row) for row in zip(*losses, strict=True)]):
        return "These are mean losses of all ranks."
    is_part = view.is_near([one / case["every"] for one in view.expected])
    return is_part and "These are losses that have been divided."


def _has_one_order(view):
    got, same = view.output["fetched"], _right(view.case, sets_epoch=False).fetched[view.rank]
    return got == same and got != _right(view.case).fetched[view.rank]


def _fetches_others(view):
    got, expected = view.output["fetched"], _right(view.case).fetched[view.rank]
    an_epoch = len(expected) // NUM_EPOCHS
    return got != expected and (
        f"It fetches {len(got)} samples, the plain loop {len(expected)}. Those of the first epoch "
        f"are {words(got[:an_epoch])}; the plain loop's are {words(expected[:an_epoch])}."
    )


def _trains_own_ddp(view):
    makers = view.output["trained by"]
    return view.case.world_size > 1 and makers and not any(makers)


def _averages_nothing(view):
    is_plain = view.is_off and view.is_near(_right(view.case, averages=False).losses[view.rank])
    return view.case.world_size > 1 and (not view.output["trained by"] or is_plain)


def _losses_by(ways_of):
    """
    Return a `gives` with the losses of other loops, if they differ from those of the right loop.

    Args:
        ways_of: Function of a Case that returns a list of named arguments of `loop_of`.
    """

    def gives(case, rank):
        others = (_right(case, **how).losses for how in ways_of(case))
        return [losses[rank] for losses in others if losses != _right(case).losses]

    return gives


def _trains_another(view):
    weights = _right(view.case).weights[view.rank]
    if not _is_state(view.output["weights"], weights):
        return "The losses are right, but `model` has not the weights that the loop ends with."
    return not view.output["is in train mode"] and "It leaves `model` in eval mode."


def _is_state(got, expected):
    return got.keys() == expected.keys() and all(
        bool(((got[name] - expected[name]).abs() <= _MOST_OFF).all()) for name in expected
    )


def _syncs_too_often(view):
    num_bytes = sum(8 * one.numel() for one in view.output["weights"].values())
    large = [e for e in view.events if e.name == "all_reduce" and e.input_bytes >= num_bytes]
    num_windows = _right(view.case).num_windows
    if view.case.world_size == 1 or len(large) <= num_windows:
        return ""
    return f"It makes {len(large)} all-reduces of gradients, and the plain loop {num_windows}."


def _saves_otherwise(view):
    saved, files, weights = (view.output[name] for name in ("saved", "files", "weights"))
    if view.rank:
        return files and f"This rank writes {', '.join(files)}."
    if saved is None:
        return "There is no file at `path` on rank 0."
    keys = list(saved) if isinstance(saved, dict) else []
    if keys != list(weights):
        told = words(keys or saved)
        return f"The keys of what is saved are {told}, and not {words(list(weights))}."
    is_other = not _is_state(saved, weights)
    return is_other and "What is saved are other weights than those that the loop ends with."


def _draw(case_result):
    names = ["first samples", "first loss", "last loss", "file"]
    rows = []
    for seen, losses in zip(case_result.seen, case_result.results, strict=True):
        fetched = " ".join(map(str, seen.output["fetched"][:BATCH_SIZE]))
        row = {"first samples": fetched, "first loss": f"{losses[0]:.4f}"}
        row |= {"last loss": f"{losses[-1]:.4f}"}
        row |= {"file": seen.output["files"][0]} if seen.output["files"] else {}
        rows.append(row)
    return holdings_picture(names, rows)


ported = Task(
    number="16.1",
    name="ported",
    cases=_cases,
    act=_act,
    ok="the plain loop's samples, losses and file, and a framework's wrapping",
    draw=_draw,
    warm_up=warm_up_one,
    hints=(
        "Hand over as little as you can: the model and the optimizer. What you keep, such as the "
        "loader, stays as it is.",
        "The framework has a word of its own for each of these: not to sync within a window, to "
        "run backward, to clip, and to save. Look who divides the loss.",
        "Accelerate: `gradient_accumulation_steps`, `accumulate` and `sync_gradients`. Fabric: "
        "`no_backward_sync` with `enabled`, and you divide. A schedule of your own steps once a "
        "window.",
        "with accelerator.accumulate(replica): accelerator.backward(loss), or "
        "with fabric.no_backward_sync(replica, enabled=not ends): fabric.backward(loss / every); "
        "then what the plain loop does at the end of a window.",
    ),
    expected=Expected(
        lambda case, rank: _right(case).losses[rank],
        most_off=lambda case, rank: [
            _MOST_OFF * max(1.0, abs(loss)) for loss in _right(case).losses[rank]
        ],
        gave=_gave,
    ),
    mistakes=(
        Mistake(
            "no-losses",
            "Return a list with one float for each micro-batch, as the plain loop appends them.",
            shows=_returns_no_losses,
        ),
        Mistake(
            "epoch",
            "The sampler must be told the epoch, as the plain loop tells it: a framework knows "
            "only of loaders that it was handed.",
            "Its second epoch has the order of the first.",
            shows=_has_one_order,
        ),
        Mistake(
            "samples",
            "Keep the plain loop's sampler, with its seed, and its loader. A loader that is handed "
            "over may be dealt to the ranks once more, or in another way.",
            shows=_fetches_others,
        ),
        Mistake(
            "own-ddp",
            "Hand the model to the framework, leave the wrapping to it, and train what it returns.",
            "It trains a DistributedDataParallel of its own making, and of no framework's.",
            shows=_trains_own_ddp,
        ),
        Mistake(
            "not-averaged",
            "The framework must wrap the model, and forward must go through what it returns.",
            "Forward goes through no wrapper: ranks do not average.",
            shows=_averages_nothing,
        ),
        Mistake(
            "other-losses",
            "The list has this rank's own loss of each micro-batch, before it is divided, as the "
            "plain loop appends them.",
            shows=_returns_other_losses,
        ),
        Mistake(
            "divided",
            "A window's gradient is the mean of its micro-batches: either you divide, or the "
            "framework's backward does. Look which it is.",
            "Losses are divided twice, or not at all.",
            gives=_losses_by(lambda case: [{"divisor": case["every"] ** 2}, {"divisor": 1}]),
        ),
        Mistake(
            "schedule",
            "The schedule makes one step at the end of each window. A schedule that was handed "
            "over makes a step for each rank.",
            "The rate does not fall as in the plain loop.",
            gives=_losses_by(
                lambda case: [
                    {"schedule_steps": steps} for steps in (case.world_size, case["every"], 0)
                ]
            ),
        ),
        Mistake(
            "no-clip",
            "Clip the gradient of the whole window, once, before the step, as the plain loop does.",
            "Gradients are not clipped, or after each micro-batch.",
            gives=_losses_by(lambda _: [{"clips": False}, {"clips": "each"}]),
        ),
        replace(
            VALUES,
            hint="Put the plain loop beside yours, and compare a window, line by line: divide, "
            "sync, clip, step, zero, schedule.",
            symptom="Its losses are not those of the plain loop.",
        ),
        Mistake(
            "copy",
            "Train the model that you were given, and leave it in its mode: others look at it "
            "afterwards.",
            shows=_trains_another,
        ),
        Mistake(
            "synced",
            "Within a window nobody needs the mean. Tell the framework not to sync there.",
            shows=_syncs_too_often,
        ),
        Mistake(
            "file",
            "When the loop is over, rank 0 alone saves, at `path`, the state_dict of `model`, "
            "which has no wrapper around it, and nothing else.",
            shows=_saves_otherwise,
        ),
        Mistake(
            "raised",
            "The line that is named is yours. Use what a framework returns: it is not what you "
            "gave it. There may be one rank, and a window of one. Fabric is in lightning_fabric.",
        ),
        Mistake(
            "deadlock",
            "Some ranks make a call that others do not. A framework's own save is for all ranks: "
            "it finds out who writes.",
        ),
    ),
    in_place=True,
    uses_store=True,
)
