"""
Task 06.4: mend four broken scripts.

On each rank: `_act`. In the kernel: the rest.
"""

from dataclasses import replace

from ddp_lessons.checks.ddp.shared import note_waits_of_ddp
from ddp_lessons.checks.ddp.trainings import (
    FROZEN_LATE,
    LONELY,
    NEAR,
    NUM_SCRIPTS,
    PASSED_BY,
    Net,
    Training,
    are_pooled,
    how_trained,
    loss_of,
    script_batches,
    state_of,
    unseen_pair,
    weights_of,
    wrappings,
)
from ddp_lessons.checks.kit import VALUES, Case, Expected, Mistake, Task, found_by
from ddp_lessons.checks.kit.case_failures import BLANK
from ddp_lessons.checks.kit.shared.warm_up import first_ddp
from ddp_lessons.pictures import timeline_picture, timeline_tracks
from ddp_lessons.trace import merge

_NOT_REDUCED = "Expected to have finished reduction"


def _cases(draw):
    yield Case(4, {"script": 1}, seed=0)
    for script in (1, PASSED_BY, FROZEN_LATE, LONELY):
        yield Case(draw.choice((2, 3)), {"script": script})
    yield Case(1, {"script": LONELY})


def _act(context, scripts):
    number = context["script"]
    found = list(scripts() or ())
    if len(found) != NUM_SCRIPTS:
        return {"end": "not four", "num_scripts": len(found)}
    net = Net(context.case).to(context.device)

    def on_device(pairs):
        return [(x.to(context.device), y.to(context.device)) for x, y in pairs]

    test = on_device([unseen_pair(context.case, context.rank)]) if number == LONELY else []
    batches = on_device(script_batches(context.case, context.rank))
    try:
        with wrappings() as wrapped:
            context.call(found[number - 1], net, batches, *test, watch=(net,))
    except NotImplementedError as error:
        if number == 1 or BLANK not in str(error):
            raise
        return {"end": "blank"}
    except RuntimeError as error:
        if _NOT_REDUCED not in str(error):
            raise
        return {"end": "not reduced"}
    note_waits_of_ddp(context)
    return {"end": "", "state": state_of(net), "wrapped": wrapped}


def _weights(case, kept):
    """
    Return the weights of a net; None if its training did not end, or its parameters were replaced.
    """
    if kept["end"]:
        return None
    shapes = {name: one.shape for name, one in state_of(Net(case)).items()}
    found = {name: one.shape for name, one in kept["state"].items() if name in shapes}
    return weights_of(case, kept["state"]) if found == shapes else None


def _gave(view):
    weights = _weights(view.case, view.output)
    return {} if weights is None else {"weights": weights}


def _right(case, _):
    return {"weights": weights_of(case, Training(case, range(case.world_size)).state)}


def _most_off(case, rank):
    return {"weights": NEAR * _right(case, rank)["weights"].abs().max()}


def _is_unfinished(view):
    end = view.output["end"]
    if end == "not four":
        return f"`scripts` returns {view.output['num_scripts']} functions in place of 4."
    return end == "blank" and f"script_{view.case['script']} {BLANK}; script_1 is repaired."


def _wraps_again(view):
    wrapped = view.output.get("wrapped", ())
    how_often = f"The script wraps a model {len(wrapped)} times: {', '.join(wrapped)}."
    return len(wrapped) > 1 and how_often


def _how_trained(view):
    weights = [_weights(view.case, seen.output) for seen in view.case_result.seen]
    if not view.is_off or any(one is None for one in weights):
        return "", ""
    return how_trained(view.case, weights, any(view.case_result.call_names))


def _how_evaluated(view):
    """
    Return the mistake in the evaluation of script 4, and a sentence about it.

    Both are "" for another script, for another rank, and if rank 0 returned a right loss.
    """
    case, result = view.case, view.case_result.results[0]
    if case["script"] != LONELY or view.rank:
        return "", ""
    states = [seen.output["state"] for seen in view.case_result.seen]
    try:
        loss = float(result)
    except (TypeError, ValueError, RuntimeError):
        return "no-evaluation", f"Rank 0 must return the loss on `test`, and gave {result!r}."

    def is_loss(wanted):
        return abs(loss - wanted) <= NEAR * wanted

    training, test = Training(case, range(case.world_size)), unseen_pair(case, 0)
    expected = loss_of(case, training.state, test)
    if is_loss(expected):
        return "", ""
    own = Training(case, range(case.world_size), are_shared=False).counted
    if is_loss(loss_of(case, states[0], test)):
        if any(are_pooled(states[0], counted) for counted in (training.counted, own)):
            return "", ""
        return "statistics", "BatchNorm has other statistics than the training gave it."
    losses = [loss_of(case, one, unseen_pair(case, rank)) for rank, one in enumerate(states)]
    if is_loss(sum(losses) / len(losses)):
        return "mean-of-losses", "This is a mean of losses, each with one rank's statistics."
    fact = "This is not the loss of the trained model on `test`"
    return "evaluation", f"{fact}: it is {loss:.6g}, and {expected:.6g} is right."


def _draw(case_result):
    return timeline_picture(
        timeline_tracks(merge(case_result.traces)), "events of script 1, in order"
    )


scripts = Task(
    number="06.4",
    name="scripts",
    cases=_cases,
    act=_act,
    ok="4 of 4 scripts repaired",
    draw=_draw,
    hints=(
        "Each script has one mistake. Look in each script for the line that sends something to "
        "other ranks. Do all ranks reach this line?",
        "Scripts 1 and 2 send no gradients. Script 1 has the wrong wrapper. Script 2 has the right "
        "one, and never calls it.",
        "Script 3: DDP notes which parameters to wait for at the moment when it wraps. Script 4: "
        "the forward of a wrapped model with buffers is a collective.",
        "Script 1: DDP in place of DataParallel. Script 2: the loop calls model(inputs). Script 3: "
        "freeze, then wrap. Script 4: rank 0 calls net(inputs), which sends nothing.",
    ),
    expected=Expected(_right, most_off=_most_off, gave=_gave),
    mistakes=(
        Mistake(
            "unfinished",
            "Repair one script after the other. `scripts` must return all four, in order.",
            shows=_is_unfinished,
        ),
        Mistake(
            "waits-for-frozen",
            "Freeze a part of the model before you wrap it: DDP waits for all parameters that had "
            "requires_grad when it wrapped the model.",
            "DDP raises an error, because a gradient that it waits for never came.",
            shows=lambda view: view.output["end"] == "not reduced",
        ),
        Mistake(
            "wrapped-again",
            "Wrap once, before the loop: each wrapping broadcasts the whole model. DataParallel is "
            "for one process with several GPUs, and DDP for several processes.",
            shows=_wraps_again,
        ),
        Mistake(
            "alone",
            "No line of the script sends gradients. DataParallel knows only its own process, and "
            "DDP sends only if its own forward was called.",
            shows=found_by(_how_trained, "alone"),
        ),
        Mistake(
            "passed-by",
            "The script sends messages, but none of them carries gradients. A loss is no gradient, "
            "and autograd does not pass through an all-reduce. Call DDP's wrapper in every step of "
            "the training.",
            shows=found_by(_how_trained, "passed-by"),
        ),
        Mistake(
            "scaled",
            "DDP already computes the mean of all ranks' gradients. Do not add, multiply, divide "
            "or step more often. If you average without DDP, divide by dist.get_world_size().",
            shows=found_by(_how_trained, "scaled"),
        ),
        Mistake(
            "made-one",
            "Average the gradients in each step. A mean of the weights at the end, or the weights "
            "of one rank, is another model.",
            shows=found_by(_how_trained, "made-one"),
        ),
        replace(
            VALUES,
            hint="Compare your script with the broken one: it trains the same `net`, and no copy, "
            "with the same batches, the same learning rate, one step for each batch, and BatchNorm "
            "in train mode.",
        ),
        Mistake(
            "no-evaluation",
            "Keep the evaluation of the broken script, and return its loss on rank 0.",
            shows=found_by(_how_evaluated, "no-evaluation"),
        ),
        Mistake(
            "statistics",
            "DDP leaves rank 0's statistics in the model. Keep them, or pool those of all ranks. "
            "After the training, no batch may change them: evaluate in eval mode.",
            shows=found_by(_how_evaluated, "statistics"),
        ),
        Mistake(
            "mean-of-losses",
            "Compute one loss with BatchNorm's statistics of rank 0, or with those of all ranks, "
            "pooled. A mean of losses, each with the statistics of another rank, is neither.",
            shows=found_by(_how_evaluated, "mean-of-losses"),
        ),
        Mistake(
            "evaluation",
            "Evaluate after the training, in eval mode, on all of `test`, which no step has seen.",
            shows=found_by(_how_evaluated, "evaluation"),
        ),
        Mistake(
            "deadlock",
            "If a model has buffers, the forward of its DDP wrapper is a collective. Which ranks "
            "call it?",
        ),
    ),
    must_return=False,
    warm_up=first_ddp,
)
