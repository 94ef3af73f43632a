"""
Task 16.1: port a loop.
"""

import pickle
import sys
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ddp_lessons.checks.frameworks.material import Samples, classifier, warm_up_one
from ddp_lessons.checks.frameworks.on_one_process import BATCH_SIZE, NUM_EPOCHS, Loop, loop_of
from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.checks.kit.inside.replacing import replacing
from ddp_lessons.frameworks import told
from ddp_lessons.frameworks.stored import FRAMEWORKS
from ddp_lessons.pictures import holdings_picture

_FRAMEWORKS = (*FRAMEWORKS, "lightning")
_MOST_OFF = 1e-9
"""
How far a loss may be off. A sum of some dozen float64 numbers is off by 1e-14 of them at most, and
a loop of ten steps at these rates makes less than a thousand times of it. Each mistake moves some
loss by 1e-4 and more.
"""


def _cases(draw):
    yield Case(4, {"samples": 30, "every": 2}, seed=0)
    for world_size, every in ((2, 3), (3, 1), (4, 2), (1, 2)):
        num_batches = every * draw.randint(2, 3)
        a_rank = BATCH_SIZE * num_batches - draw.randint(0, 1)
        num = world_size * a_rank - draw.randint(0, world_size - 1)
        yield Case(world_size, {"samples": num, "every": every})


def _act(here, ported):
    model = classifier(here.case, torch.float64)
    dataset = Samples(here.case, here["samples"], torch.float64)
    folder = here.folder / f"{here.case.seed}-rank-{here.rank}"
    folder.mkdir()
    path = folder / "model.pt"
    with told(), _noting_who_trains() as trained_by:
        here.call(ported, model, dataset, here["every"], path)
    for event in here.calls[-1].events:
        # DDP sends by itself, in C++, and waits there, which no trace sees.
        event.wait_index = event.index if event.wait_index is None else event.wait_index
    return {
        "right": vars(loop_of(here.case)) if here.rank == 0 else None,
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


@contextmanager
def _noting_who_trains():
    # Of each wrapper through which forward goes, who made it.
    init, forward = DistributedDataParallel.__init__, DistributedDataParallel.forward
    makers, trained = {}, {}

    def noting_init(self, *args, **kwargs):
        makers[id(self)] = _maker()
        init(self, *args, **kwargs)

    def noting_forward(self, *args, **kwargs):
        trained[id(self)] = makers.get(id(self))
        return forward(self, *args, **kwargs)

    with replacing(DistributedDataParallel, __init__=noting_init, forward=noting_forward):
        yield trained


def _maker():
    # The framework that is nearest on the stack; None: it was the answer's own line.
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "").partition(".")[0]
        if name in _FRAMEWORKS:
            return name
        frame = frame.f_back
    return None


def _judge(played):
    right = Loop(**played.seen[0].kept["right"])
    for seen in played.seen:
        _judge_result(played, seen.rank)
    for seen in played.seen:
        _judge_samples(played, seen, right)
    for seen in played.seen:
        _judge_wrapping(played, seen)
    for seen in played.seen:
        got, expected = played.results[seen.rank], right.losses[seen.rank]
        if not _are_near(got, expected):
            raise _refuse_losses(played, seen.rank, got, right.losses)
    for seen in played.seen:
        _judge_model(played, seen, right)
        _judge_calls(played, seen, right)
        _judge_files(played, seen)


def _judge_result(played, rank):
    result = played.results[rank]
    is_row = isinstance(result, list | tuple)
    if not is_row or not all(isinstance(one, float) for one in result):
        fact = "It must return a list of this rank's losses, one a micro-batch, as floats."
        raise played.wrong("no-losses", rank, got=result, fact=fact)


def _judge_samples(played, seen, right):
    got, expected = seen.kept["fetched"], right.fetched[seen.rank]
    if got == expected:
        return
    an_epoch = len(expected) // NUM_EPOCHS
    fact = "These are not the samples that the plain loop fetches, or not in its order."
    mistake = "samples"
    if got == loop_of(played.case, sets_epoch=False).fetched[seen.rank]:
        mistake, fact = "epoch", "Its second epoch has the order of the first."
    elif got == loop_of(played.case, sampler_seed=0).fetched[seen.rank]:
        fact = "Its orders are those of a sampler with seed 0."
    elif len(got) <= 0.75 * len(expected):
        mistake = "twice"
        fact = f"It fetches {len(got)} samples, where the plain loop fetches {len(expected)}."
    elif len(got) == len(expected) and _all(played) == _all_of(right.fetched):
        mistake, fact = "dealt", "Ranks fetch the same samples, but other ranks others."
    both = {"got": got[:an_epoch], "expected": expected[:an_epoch]}
    raise played.wrong(mistake, seen.rank, **both, fact=fact)


def _all(played):
    return _all_of([seen.kept["fetched"] for seen in played.seen])


def _all_of(fetched):
    return {sample for one in fetched for sample in one}


def _judge_wrapping(played, seen):
    makers = seen.kept["trained by"]
    if played.case.world_size == 1 or any(makers):
        return  # alone, there is nothing to wrap
    if makers:
        fact = "It trains a DistributedDataParallel of its own making, and of no framework's."
        raise played.wrong("own-ddp", seen.rank, fact=fact)
    fact = "Forward goes through no wrapper: ranks do not average."
    raise played.wrong("not-averaged", seen.rank, fact=fact)


def _are_near(got, expected):
    return len(got) == len(expected) and all(map(_is_near, got, expected))


def _is_near(one, other):
    return abs(one - other) <= _MOST_OFF * max(1.0, abs(other))


def _refuse_losses(played, rank, got, losses):
    case, expected = played.case, losses[rank]
    every = case["every"]
    ways = {
        "divided-twice": {"divisor": every * every},
        "undivided": {"divisor": 1},
        "schedule": {"schedule_steps": case.world_size},
        "schedule-each": {"schedule_steps": every},
        "no-schedule": {"schedule_steps": 0},
        "no-clip": {"clips": False},
        "clip-each": {"clips": "each"},
        "not-averaged": {"averages": False},
    }
    mistake = "values"
    for name, how in ways.items():
        other = loop_of(case, **how).losses[rank]
        # In some cases a mistake changes nothing: there it is not the one that was made.
        if _are_near(got, other) and not _are_near(other, expected):
            mistake = name
            break
    else:
        if len(got) != len(expected):
            mistake = "no-losses"
        elif _are_near([one * every for one in got], expected):
            mistake = "loss-of-part"
        elif _are_near(got, [sum(row) / len(row) for row in zip(*losses, strict=True)]):
            mistake = "loss-of-all"
    mistake = {"schedule-each": "schedule", "clip-each": "no-clip"}.get(mistake, mistake)
    alike = list(map(_is_near, got, expected))
    first = alike.index(False) if False in alike else len(alike)
    fact = f"From micro-batch {first + 1} on, its losses are not those of the plain loop."
    return played.wrong(mistake, rank, got=got, expected=expected, fact=fact)


def _judge_model(played, seen, right):
    got, expected = seen.kept["weights"], right.weights[seen.rank]
    if not _is_state(got, expected):
        fact = "The losses are right, but `model` has not the weights that the loop ends with."
        raise played.wrong("copy", seen.rank, fact=fact)
    if not seen.kept["is in train mode"]:
        fact = "It leaves `model` in eval mode, in which it was not given."
        raise played.wrong("mode", seen.rank, fact=fact)


def _is_state(got, expected):
    return got.keys() == expected.keys() and all(
        bool(((got[name] - expected[name]).abs() <= _MOST_OFF).all()) for name in expected
    )


def _judge_calls(played, seen, right):
    num_bytes = sum(8 * one.numel() for one in seen.kept["weights"].values())
    events = played.traces[seen.rank]
    large = [e for e in events if e.name == "all_reduce" and e.input_bytes >= num_bytes]
    if played.case.world_size > 1 and len(large) > right.num_windows:  # alone, nobody talks
        fact = (
            f"It makes {len(large)} all-reduces of gradients, where the plain loop makes "
            f"{right.num_windows}."
        )
        raise played.wrong("synced", seen.rank, fact=fact)


def _judge_files(played, seen):
    saved, files = seen.kept["saved"], seen.kept["files"]
    if seen.rank:
        if files:
            fact = f"Rank {seen.rank} writes {', '.join(files)}."
            raise played.wrong("saved-by-all", seen.rank, fact=fact)
        return
    if saved is None:
        fact = "There is no file at `path` on rank 0."
        raise played.wrong("not-saved", 0, fact=fact)
    weights = seen.kept["weights"]
    keys = list(saved) if isinstance(saved, dict) else []
    both = {"got": keys, "expected": list(weights)}
    if keys != list(weights):
        fact = "What is saved does not fit a model that nobody has wrapped."
        raise played.wrong("wrapped", 0, **both, fact=fact)
    if not _is_state(saved, weights):
        fact = "What is saved are other weights than those that the loop ends with."
        raise played.wrong("saved-early", 0, fact=fact)


def _draw(played):
    names = ["first samples", "first loss", "last loss", "file"]
    rows = []
    for seen, losses in zip(played.seen, played.results, strict=True):
        fetched = " ".join(map(str, seen.kept["fetched"][:BATCH_SIZE]))
        row = {"first samples": fetched, "first loss": f"{losses[0]:.4f}"}
        row |= {"last loss": f"{losses[-1]:.4f}"}
        row |= {"file": seen.kept["files"][0]} if seen.kept["files"] else {}
        rows.append(row)
    return holdings_picture(names, rows)


ported = Task(
    number="16.1",
    name="ported",
    cases=_cases,
    act=_act,
    judge=_judge,
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
    mistakes={
        "no-losses": "One float for each micro-batch, as the plain loop appends them.",
        "loss-of-part": "The list has the loss of each micro-batch, before it is divided.",
        "loss-of-all": "The list has this rank's own losses, as the plain loop appends them, not "
        "their mean over ranks.",
        "epoch": "The sampler must be told the epoch, as the plain loop tells it: a framework "
        "knows only of loaders that it was handed.",
        "twice": "Each rank sees a part of a part: your sampler divides, and so does the "
        "framework. Let one of them do it.",
        "dealt": "The framework deals samples to ranks in another way than the plain loop. Keep "
        "the plain loop's sampler.",
        "samples": "Keep the plain loop's sampler, with its seed, and its loader.",
        "own-ddp": "Hand the model to the framework, leave the wrapping to it, and train what it "
        "returns.",
        "not-averaged": "The framework must wrap the model, and forward must go through what it "
        "returns.",
        "divided-twice": "Somebody divides the loss already. Look what the framework's backward "
        "does with it.",
        "undivided": "A window's gradient is the mean of its micro-batches: somebody must divide.",
        "schedule": "The rate falls too fast: a schedule that was handed over makes a step for "
        "each rank, and it steps once a window.",
        "no-schedule": "The rate stays as it was: the schedule makes a step at the end of each "
        "window.",
        "no-clip": "Clip the gradient of the whole window, once, before the step, as the plain "
        "loop does.",
        "copy": "Train the model that you were given: others look at it afterwards.",
        "mode": "The plain loop leaves the model in the mode that it has.",
        "synced": "Within a window nobody needs the mean. Tell the framework not to sync there.",
        "saved-by-all": "Only rank 0 writes a file.",
        "not-saved": "Save at the end, at `path`, on rank 0.",
        "wrapped": "Save the state_dict of `model`, which has no wrapper around it, and nothing "
        "else.",
        "saved-early": "Save when the loop is over.",
        "raised": "The line that is named is yours. Use what a framework returns: it is not what "
        "you gave it. There may be one rank, and a window of one. Fabric is in lightning_fabric.",
        "deadlock": "Some ranks make a call that others do not. A framework's own save is for all "
        "ranks: it finds out who writes.",
        "values": "Put the plain loop beside yours, and compare a window, line by line: divide, "
        "sync, clip, step, zero, schedule.",
    },
    in_place=True,
    uses_store=True,
)
