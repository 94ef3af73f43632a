"""
Task 14.1: a server that bounds staleness.
"""

import torch

from ddp_lessons.checks.asynchronous.workers import (
    RATE,
    first_weights,
    gradients_of,
    may_go_on,
    order_of,
    place_of,
    play_worker,
    sizes_of,
)
from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.checks.kit.inside.early import Early
from ddp_lessons.checks.kit.material.early_use import EARLY
from ddp_lessons.checks.kit.material.warm_up import import_compiler
from ddp_lessons.pictures import holdings_picture

_UNDER_WAY = {
    "changed-under-way": "`{}` writes into a tensor that is still being sent.",
    "early": "`{}` takes a tensor that is still being received.",
}


def _cases(draw):
    yield Case(4, {"steps": 4, "bound": 2, "dtype": "float32"}, seed=0)
    yield Case(2, {"steps": draw.randint(2, 4), "bound": 0, "dtype": "float64"})
    yield Case(4, {"steps": draw.randint(2, 3), "bound": 0, "dtype": "float64"})
    bound = draw.randint(1, 3)
    yield Case(3, {"steps": bound + draw.randint(2, 4), "bound": bound, "dtype": "float64"})


def _act(here, serve):
    case = here.case
    if here.rank == 0:
        with Early() as early:
            here.call(serve, first_weights(case), case["steps"], case["bound"], RATE)
        return {"changed-under-way": early.written_by, "early": early.taken_by}
    here.call(play_worker, gradients_of(case, here.rank), order_of(case))
    return None


def _judge(played):
    for mistake, name in played.seen[0].kept.items():  # numbers tell it only of a slow message
        if name is not None:
            raise played.wrong(mistake, 0, fact=_UNDER_WAY[mistake].format(name))
    log = _log_of(played)
    places = _places(played.case, log)
    versions = [0] * len(log)  # of the weights that each gradient was computed at
    for worker in range(1, played.case.world_size):
        own = [place for place, (one, _) in enumerate(log) if one == worker]
        for step, reply in enumerate(played.results[worker]):
            version = _version(played, worker, step, reply, places)
            _judge_send(played, worker, step, version)
            _judge_moment(played, log, worker, version, own[step])
            if step + 1 < len(own):
                versions[own[step + 1]] = version
    _judge_ages(played, log, versions)
    after = played.after[0]
    if not torch.equal(after, _weights_of(played.case, set(places)).to(after.dtype)):
        is_untouched = torch.equal(after, played.before[0])
        fact = "In the end `weights` holds other numbers than the last ones that it should have."
        mistake = "not-in-place" if is_untouched else "values"
        raise played.wrong(mistake, 0, got=after, fact=fact)


def _log_of(played):
    log, case = played.results[0], played.case
    is_log = isinstance(log, list | tuple) and all(
        isinstance(pair, list | tuple) and [type(one) for one in pair] == [int, int] for pair in log
    )
    if not is_log:
        fact = "It must return a list of pairs (worker, age), two whole numbers each."
        raise played.wrong("no-log", 0, got=log, fact=fact)
    counts = [sum(worker == one for worker, _ in log) for one in range(1, case.world_size)]
    if len(log) != sum(counts) or set(counts) != {case["steps"]}:
        fact = f"The log must hold each worker {case['steps']} times."
        raise played.wrong("log", 0, got=log, fact=fact)
    return [tuple(pair) for pair in log]


def _places(case, log):
    # The place in the weights of each gradient of the log.
    made = dict.fromkeys(range(1, case.world_size), 0)
    places = []
    for worker, _ in log:
        places.append(place_of(case, worker, made[worker]))
        made[worker] += 1
    return places


def _weights_of(case, applied):
    sizes, weights = sizes_of(case), first_weights(case).double()
    for place in applied:
        weights[place] -= RATE * sizes[place]
    return weights


def _version(played, worker, step, reply, places):
    case = played.case
    sizes, first = sizes_of(case), first_weights(case).double()
    moved = first - reply.double()
    is_in = moved == RATE * sizes
    expected = _weights_of(case, set(is_in.nonzero().flatten().tolist())).to(reply.dtype)
    which = f"The weights that answer gradient {step + 1} of worker {worker}"
    if not bool((is_in | (moved == 0)).all()):
        fact = f"{which} hold numbers that no gradients taken once give."
        mistake = _name_numbers(moved, sizes)
        raise played.wrong(mistake, 0, got=reply, expected=expected, fact=fact)
    own = place_of(case, worker, step)
    if not is_in[own]:
        fact = f"{which} do not have that gradient in them."
        raise played.wrong("own-missing", 0, got=reply, fact=fact)
    version = int(is_in.sum())
    if {places[turn] for turn in range(version)} != set(is_in.nonzero().flatten().tolist()):
        fact = f"{which} have others in them than the first {version} gradients of the log."
        raise played.wrong("log-order", 0, got=played.results[0], fact=fact)
    return version


def _name_numbers(moved, sizes):
    odd = moved[(moved != 0) & (moved != RATE * sizes)]
    right = (RATE * sizes)[(moved != 0) & (moved != RATE * sizes)]
    for name, factor in (("no-rate", 1 / RATE), ("sign", -1.0), ("sign", -1 / RATE)):
        if torch.equal(odd, factor * right):
            return name
    return "values"


def _judge_send(played, worker, step, version):
    # Under way, a tensor is read at any time: what was sent before a gradient came may have it in.
    calls = [event for event in played.traces[0] if event.name in ("send", "recv")]
    sends = [at for at, event in enumerate(calls) if event.is_send and event.peer == worker]
    num_taken = sum(not event.is_send for event in calls[: sends[step]])
    if version > num_taken:
        fact = f"What was sent to worker {worker} after {num_taken} gradients has {version} in it."
        raise played.wrong("changed-under-way", 0, fact=fact)


def _judge_moment(played, log, worker, version, turn):
    # Sent when `version` gradients were applied: neither before it might be, nor later.
    bound = played.case["bound"]
    made = dict.fromkeys(range(1, played.case.world_size), 0)
    for now, (other, _) in enumerate(log[:version], start=1):
        made[other] += 1
        if turn < now < version and may_go_on(made, worker, bound):
            fact = f"Worker {worker} has made {made[worker]} steps and the slowest "
            fact += f"{min(made.values())}, so it may go on. It gets its weights only "
            late = version - now
            fact += f"{late} gradient{'s' if late > 1 else ''} later."
            raise played.wrong("too-late", 0, fact=fact)
    if not may_go_on(made, worker, bound):
        fact = f"Worker {worker} has made {made[worker]} steps and the slowest "
        fact += f"{min(made.values())}, and it gets its weights all the same."
        raise played.wrong("too-early", 0, fact=fact)


def _judge_ages(played, log, versions):
    right = [turn - version for turn, version in enumerate(versions)]
    got = [age for _, age in log]
    if got == right:
        return
    mistake = "ages"
    if got == [age + 1 for age in right]:
        mistake = "own-counted"
    elif got == versions:
        mistake = "version-for-age"
    expected = [(worker, age) for (worker, _), age in zip(log, right, strict=True)]
    fact = "The order of the log is right, its ages are not."
    raise played.wrong(mistake, 0, got=log, expected=expected, fact=fact)


def _draw(played):
    log = played.results[0]
    names = ["steps", "ages of its gradients", "oldest"]
    rows = [{"steps": "serves"}]
    for worker in range(1, played.case.world_size):
        ages = [age for one, age in log if one == worker]
        told = [str(len(ages)), " ".join(map(str, ages)), str(max(ages))]
        rows.append(dict(zip(names, told, strict=True)))
    return holdings_picture(names, rows)


serve = Task(
    number="14.1",
    name="serve",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="whoever comes first is served, and nobody is further ahead than the bound",
    draw=_draw,
    hints=(
        "A server does one thing again and again: it takes the next gradient, whoever sent it, and "
        "then looks who may go on now. That may be several workers, or none.",
        "dist.recv without a source takes what comes first, and returns the rank that sent it.",
        "Keep three things: how many steps each worker has made, which workers wait for an answer, "
        "and at which version each one got its weights.",
        "After each gradient: for each waiting worker, if steps[worker] - min(steps.values()) <= "
        "bound, send it the weights, note the version, and take it off the list.",
    ),
    mistakes={
        "unwaited": "Wait for every send: a worker takes one answer for each gradient.",
        "deadlock": "The server waits for a gradient, and the worker that would send it waits for "
        "weights that it may have. Take gradients of whoever comes first; and after each one look "
        "at all who wait, with `bound` steps ahead allowed.",
        "late": "Do not poll: Gloo's handle of an `irecv` says False in is_completed() until you "
        "wait() for it. dist.recv without a source waits for whatever comes first.",
        "changed-under-way": "Weights changed while they were still being sent. Wait for each send "
        "before the next gradient is applied, or send a copy.",
        "early": EARLY["early"],
        "too-early": "Nobody goes on while it has made more than `bound` steps more than the "
        "slowest. A worker that has sent nothing yet has made 0 steps.",
        "too-late": "After each gradient look at all who wait, not only at who has just sent.",
        "own-missing": "First apply the gradient, then answer.",
        "no-rate": "Take rate times the gradient from the weights.",
        "sign": "A step goes against the gradient.",
        "not-in-place": "Change the tensor that you were given: its numbers, not the name.",
        "no-log": "For each gradient note the pair of who sent it and how old it was, as Python's "
        "whole numbers.",
        "log": "Note every gradient once, under the rank that sent it.",
        "log-order": "Note gradients in the order in which you apply them.",
        "ages": "An age counts the gradients that were applied since this worker got its weights, "
        "of whomever. So note for each worker at which version it got them.",
        "own-counted": "The gradient itself does not make itself older: count those before it.",
        "version-for-age": "The age is not the version that the worker had, but how many versions "
        "have come since.",
        "raised": "The line that is named is yours. Workers are all ranks but 0, however many.",
        "died": "A received gradient needs a tensor like `weights`, in size and dtype. Where a "
        "message does not fit, Gloo ends the process.",
        "nothing": "Return the log.",
        "values": "Each gradient is applied once, as it came, whatever its age. A tensor that is "
        "received into again holds the new gradient only.",
    },
    allowed=("send", "recv"),
    in_place=True,
    twice=True,
    warm_up=import_compiler,
)
