"""
Task 06.4: mend four broken scripts.
"""

from ddp_lessons.checks.ddp.shared import note_waits_of_ddp
from ddp_lessons.checks.ddp.trainings import (
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
from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.checks.kit.ends import BLANK
from ddp_lessons.checks.kit.material.warm_up import first_ddp
from ddp_lessons.pictures import timeline_picture, timeline_tracks
from ddp_lessons.trace import merge

_NOT_REDUCED = "Expected to have finished reduction"


def _cases(draw):
    yield Case(4, {"script": 1}, seed=0)
    for script in (1, PASSED_BY, FROZEN_LATE, LONELY):
        yield Case(draw.choice((2, 3)), {"script": script})
    yield Case(1, {"script": LONELY})


def _act(here, scripts):
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
    note_waits_of_ddp(here)
    return {"end": "", "state": state_of(net), "wrapped": wrapped}


def _judge(played):
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
        _judge_evaluation(played, [one["state"] for one in kept], training)


def _judge_weights(played, weights, training):
    case, expected = played.case, weights_of(played.case, training.state)
    for rank, got in enumerate(weights):
        if not are_near([got], [expected]):
            mistake, fact = how_trained(case, weights, rank, any(played.names))
            fact = f"script_{case['script']}: {fact}."
            raise played.wrong(mistake, rank, got=got, expected=expected, fact=fact)


def _judge_evaluation(played, states, training):
    case, got, state = played.case, played.results[0], states[0]
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
    losses = [loss_of(case, one, unseen_pair(case, rank)) for rank, one in enumerate(states)]
    mean = sum(losses) / len(losses)
    if abs(loss - mean) <= NEAR * mean:
        fact = "script_4: this is a mean of losses, to which each rank's own statistics led."
        raise played.wrong("mean-of-losses", 0, **both, fact=fact)
    if any(is_loss(pair) for pair in script_batches(case, 0)):
        fact = "script_4: this is the loss on a pair that it was trained on."
        raise played.wrong("other-pair", 0, **both, fact=fact)
    fact = "script_4: this is not the loss of the trained model on `test`."
    raise played.wrong("evaluation", 0, **both, fact=fact)


def _draw(played):
    return timeline_picture(timeline_tracks(merge(played.traces)), "events of script 1, in order")


scripts = Task(
    number="06.4",
    name="scripts",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="4 of 4 scripts mended",
    draw=_draw,
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
        "passed-by": "None of these messages carries gradients: a loss is no gradient, and "
        "autograd does not pass through an all-reduce. Let every forward of the training go "
        "through DDP's wrapper.",
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
        "mean-of-losses": "The loss may go by the statistics of rank 0, or by those of all ranks "
        "in one BatchNorm. A mean of losses, each by one rank's statistics, is neither.",
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
