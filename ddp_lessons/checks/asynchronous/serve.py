"""
Task 14.1: a server that bounds staleness.

On each rank: `_act`. In the kernel: the rest.
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
from ddp_lessons.checks.kit import Case, Mistake, Task, words
from ddp_lessons.checks.kit.on_rank.premature_use import PrematureUse
from ddp_lessons.checks.kit.shared.numbers import words_of_both
from ddp_lessons.checks.kit.shared.warm_up import import_compiler
from ddp_lessons.checks.kit.shared.watched_calls import EARLY_USE
from ddp_lessons.pictures import holdings_picture


def _cases(draw):
    yield Case(4, {"steps": 4, "bound": 2, "dtype": "float32"}, seed=0)
    yield Case(2, {"steps": draw.randint(2, 4), "bound": 0, "dtype": "float64"})
    yield Case(4, {"steps": draw.randint(2, 3), "bound": 0, "dtype": "float64"})
    bound = draw.randint(1, 3)
    yield Case(3, {"steps": bound + draw.randint(2, 4), "bound": bound, "dtype": "float64"})


def _act(context, serve):
    case = context.case
    if context.rank == 0:
        with PrematureUse() as early:
            context.call(serve, first_weights(case), case["steps"], case["bound"], RATE)
        return {"early": early.taken_by, "overwritten": early.written_by}
    context.call(play_worker, gradients_of(case, context.rank), order_of(case))
    return {}


def _gives_no_log(view):
    # All these functions judge the whole case: a mistake shows in the first view, that of rank 0.
    log, steps = view.case_result.results[0], view.case["steps"]
    is_log = isinstance(log, list | tuple) and all(
        isinstance(pair, list | tuple) and [type(one) for one in pair] == [int, int] for pair in log
    )
    workers = [worker for worker in range(1, view.case.world_size) for _ in range(steps)]
    is_log = is_log and sorted(worker for worker, _ in log) == workers
    return not is_log and f"{steps} pairs (worker, age) of each worker are due, not {words(log)}."


def _places(case_result):
    # Return the position in the weights of each gradient of the log.
    workers = [worker for worker, _ in case_result.results[0]]
    made = [workers[:turn].count(worker) for turn, worker in enumerate(workers)]
    return [place_of(case_result.case, *both) for both in zip(workers, made, strict=True)]


def _weights_of(case, held):
    weights, places = first_weights(case).double(), [*held]
    weights[places] -= RATE * sizes_of(case)[places]
    return weights.to(first_weights(case).dtype)


def _answers(case_result):
    # Yield for each answer: worker, step, weights, and the positions of the gradients in them.
    first, moves = first_weights(case_result.case).double(), RATE * sizes_of(case_result.case)
    for worker in range(1, case_result.case.world_size):
        for step, weights in enumerate(case_result.results[worker]):
            held = (first - weights.double() == moves).nonzero().flatten()
            yield worker, step, weights, {*held.tolist()}


def _answers_with(tells):
    # Return a function of a View that says what is wrong with the weights of an answer, if `tells`
    # finds something: a function of the CaseResult and of what `_answers` yields.

    def shows(view):
        for worker, step, *rest in _answers(view.case_result):
            fact = tells(view.case_result, worker, step, *rest)
            if fact:
                return f"The weights that answer gradient {step + 1} of worker {worker} {fact}"
        return ""

    return shows


def _are_others(case_result, worker, step, weights, held):
    right = _weights_of(case_result.case, held)
    if not torch.equal(weights, right):
        told = words_of_both(weights, right)
        return f"are {told[0]}; gradients that are taken once give {told[1]}."
    # A tensor is read at any time during a send: gradients applied after it began may be in it.
    calls = [event for event in case_result.traces[0] if event.name in ("send", "recv")]
    sends = [at for at, event in enumerate(calls) if event.is_send and event.peer == worker]
    num_taken = sum(not event.is_send for event in calls[: sends[step]])
    is_later = len(held) > num_taken
    return is_later and f"are sent after {num_taken} gradients, and have {len(held)} in them."


def _lack_it(case_result, worker, step, _, held):
    return (
        place_of(case_result.case, worker, step) not in held
        and "do not have that gradient in them."
    )


def _are_no_version(case_result, _worker, _step, _weights, held):
    firsts = {*_places(case_result)[: len(held)]}
    return firsts != held and f"hold other gradients than the first {len(held)} of the log."


def _is_free(case_result, worker, num_gradients):
    workers = [one for one, _ in case_result.results[0][:num_gradients]]
    made = {one: workers.count(one) for one in range(1, case_result.case.world_size)}
    return may_go_on(made, worker, case_result.case["bound"])


def _are_late(case_result, worker, step, _, held):
    own = _places(case_result).index(place_of(case_result.case, worker, step)) + 1
    free = [number for number in range(own, len(held)) if _is_free(case_result, worker, number)]
    return free and f"may be sent after {free[0]} gradients, and are sent after {len(held)}."


def _are_early(case_result, worker, _step, _weights, held):
    return not _is_free(case_result, worker, len(held)) and "are sent while it is too far ahead."


def _ages(view):
    # Return the ages of the log, and the right ones.
    log, places = view.case_result.results[0], _places(view.case_result)
    right = [*range(len(log))]
    for worker, step, _, held in _answers(view.case_result):
        if step + 1 < view.case["steps"]:
            right[places.index(place_of(view.case, worker, step + 1))] -= len(held)
    return [age for _, age in log], right


def _counts_itself(view):
    got, right = _ages(view)
    return got == [age + 1 for age in right]


def _gives_other_ages(view):
    got, right = _ages(view)
    return got != right and f"The ages in the log are {got}; right are {right}."


def _leaves_others(view):
    got, right = view.case_result.after[0], _weights_of(view.case, _places(view.case_result))
    told = words_of_both(got, right)
    is_other = not torch.equal(got, right.to(got.dtype))
    return is_other and f"In the end `weights` holds {told[0]}; the last version is {told[1]}."


def _draw(case_result):
    log = case_result.results[0]
    names = ["steps", "ages of its gradients", "oldest"]
    rows = [{"steps": "serves"}]
    for worker in range(1, case_result.case.world_size):
        ages = [age for one, age in log if one == worker]
        told = [str(len(ages)), " ".join(map(str, ages)), str(max(ages))]
        rows.append(dict(zip(names, told, strict=True)))
    return holdings_picture(names, rows)


serve = Task(
    number="14.1",
    name="serve",
    cases=_cases,
    act=_act,
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
    mistakes=(
        EARLY_USE,
        Mistake(
            "log",
            "Note for each gradient, once, its worker and its age, as Python's whole numbers.",
            shows=_gives_no_log,
        ),
        Mistake(
            "weights",
            "Take rate times each gradient off the weights, once, as it came, whatever its age, "
            "not while they are sent. A tensor that is received into holds the new gradient only.",
            shows=_answers_with(_are_others),
        ),
        Mistake(
            "own-missing", "First apply the gradient, then answer.", shows=_answers_with(_lack_it)
        ),
        Mistake(
            "log-order",
            "Note gradients in the order in which you apply them.",
            shows=_answers_with(_are_no_version),
        ),
        Mistake(
            "too-late",
            "After each gradient look at all who wait, not only at who has just sent.",
            shows=_answers_with(_are_late),
        ),
        Mistake(
            "too-early",
            "A worker waits while it has made more than `bound` steps more than the slowest. One "
            "that has sent nothing yet has made 0 steps.",
            shows=_answers_with(_are_early),
        ),
        Mistake(
            "own-counted",
            "The gradient itself does not make itself older: count those before it.",
            "All ages are too high by 1.",
            shows=_counts_itself,
        ),
        Mistake(
            "ages",
            "An age counts the gradients that were applied since this worker got its weights, of "
            "whomever. So note for each worker at which version it got them.",
            shows=_gives_other_ages,
        ),
        Mistake(
            "not-in-place",
            "Change the numbers of the tensor that you were given, up to the last gradient.",
            shows=_leaves_others,
        ),
        Mistake(
            "deadlock",
            "A worker waits for weights that it may have, and the server for its gradient. Take "
            "what comes first; then look at all who wait, with `bound` steps ahead allowed.",
        ),
        Mistake(
            "late",
            "Do not poll: Gloo's handle of an `irecv` says False in is_completed() until you "
            "wait() for it. dist.recv without a source waits for whatever comes first.",
        ),
    ),
    allowed=("send", "recv"),
    in_place=True,
    twice=True,
    warm_up=import_compiler,
)
