"""
Task 08.2: capture the state of a run, and restore it.

On each rank: `_act`, `_objects`, `_parts`, `_without_zeros`. In the kernel: the rest.
"""

import io
import random

import torch

from ddp_lessons.checks.checkpoint.noted_runs import buffered_run
from ddp_lessons.checks.kit import Case, Task, equal
from ddp_lessons.checks.kit.on_rank.patched_environ import redefine
from ddp_lessons.checks.kit.on_rank.snapshots import plain
from ddp_lessons.checks.kit.shared.small_runs import NUM_SAMPLES
from ddp_lessons.checks.kit.shared.warm_up import first_save
from ddp_lessons.pictures import holdings_picture
from ddp_lessons.ranks.rank.rank_agent import current_agent

_STEPS_AFTER = 4

_PARTS = (
    "weights",
    "buffers",
    "optimizer",
    "schedule",
    "place",
    "noise",
    "factors",
    "step",
    "mode",
)


def _cases(draw):
    def case(world_size, optimizer, captured, restored, seed=None):
        steps = {"captured at step": captured, "restored at step": restored}
        return Case(world_size, {"optimizer": optimizer, **steps}, seed)

    yield case(4, "SGD", 4, 0, seed=0)
    yield case(1, "AdamW", 4, draw.choice((1, 2)))
    # Restore into a run that is ahead, by an epoch as well: state that only it has must go.
    yield case(draw.choice((2, 3)), "AdamW", 4, 7)
    yield case(draw.choice((1, 2, 3)), "SGD", 0, 5)


def _act(context, capture):
    restore = current_agent().shell.user_ns.get("restore")
    if not callable(restore):
        return {"fault": "missing"}
    captured_at = context["captured at step"]
    first = buffered_run(context, seed=context.case.seed)
    first.go_on(captured_at)
    before = _parts(context, first.run)
    state = context.call(capture, first.run)
    after = _parts(context, first.run)
    changed = [name for name, part in before.items() if not equal(part, after[name])]
    kept = {"fault": None, "changed": changed, "saved": before}
    content = io.BytesIO()
    try:
        torch.save(state, content)
        content.seek(0)
        state = torch.load(content, weights_only=True)
    except Exception:
        return kept | {"fault": "code"}
    first.go_on(captured_at + _STEPS_AFTER)
    kept["later"] = _parts(context, first.run)
    # After this call, state that was kept outside of the returned one is that of a later step.
    capture(first.run)
    second = buffered_run(context, seed=context.case.seed + 64)
    second.go_on(context["restored at step"])
    torch.randn(3)
    own, before = _objects(second.run), _parts(context, second.run)
    try:
        # After a kill the cell of `restore` is run again: values kept in global names are gone.
        is_theirs = getattr(restore, "__globals__", None) is current_agent().shell.user_ns
        restores = redefine(restore, "restore") if is_theirs else restore
        restores(second.run, state)
    except Exception:
        restore(second.run, state)  # if this raises, the error is reported
        return kept | {"fault": "elsewhere"}
    now = _objects(second.run)
    kept["new"] = [name for name, one in own.items() if now[name] is not one]
    if not all(isinstance(now[name], type(one)) for name, one in own.items()):
        return kept | {"fault": "no-object"}
    kept["restored"] = _parts(context, second.run)
    kept["as before"] = equal(before, kept["restored"])
    second.seen.clear()
    if second.run.step < captured_at + _STEPS_AFTER:
        second.go_on(captured_at + _STEPS_AFTER)
    ended = {"right": first.weights(), "ended": second.weights()}
    return kept | ended | {"seen": first.seen[captured_at:] == second.seen}


def _objects(run):
    # One parameter stands for all. The answer may have replaced the model by something else.
    parameters = run.model.parameters() if isinstance(run.model, torch.nn.Module) else [None]
    own = {name: getattr(run, name) for name in ("model", "optimizer", "scheduler", "sampler")}
    return own | {"parameter": next(iter(parameters))}


def _parts(context, run):
    # DDP broadcasts rank 0's buffers when a forward begins, so other ranks' buffers do not count.
    buffers = dict(run.model.named_buffers()) if context.rank == 0 else {}
    parameters = list(run.model.parameters())
    return plain(
        {
            "weights": dict(run.model.named_parameters()),
            "buffers": buffers,
            "optimizer": [_without_zeros(run.optimizer.state.get(p)) for p in parameters],
            "schedule": (run.scheduler.last_epoch, [g["lr"] for g in run.optimizer.param_groups]),
            "place": (run.sampler.state_dict(), run.epoch),
            "noise": torch.get_rng_state(),
            "factors": random.getstate(),
            "step": run.step,
            "mode": [module.training for module in run.model.modules()],
            "gradients": [p.grad for p in parameters],
        }
    )


def _without_zeros(state):
    # An optimizer treats missing state as zeros, and torch's own functions fill zeros in.
    return {name: one for name, one in (state or {}).items() if torch.as_tensor(one).any()}


def _judge(case_result):
    for rank, seen in enumerate(case_result.seen):
        _judge_restored(case_result, rank, seen.output)
    for rank, kept in enumerate(seen.output for seen in case_result.seen):
        if not (kept["seen"] and equal(kept["right"], kept["ended"])):
            both = {"got": kept["ended"], "expected": kept["right"]}
            fact = f"{_new_ones(kept['new'])}After {_STEPS_AFTER} more steps the weights differ."
            raise case_result.wrong(
                "new-object" if kept["new"] else "values", rank, **both, fact=fact
            )


def _new_ones(names):
    return f"restore has put another {' and another '.join(names)} into the run. " if names else ""


def _judge_restored(case_result, rank, kept):
    if kept["fault"] == "missing":
        raise case_result.wrong("missing", rank, fact="restore is not defined on this rank.")
    if kept["fault"] == "code":
        fact = "torch.load refuses the state: the state holds more than tensors and plain values."
        raise case_result.wrong("code", rank, fact=fact)
    if kept["fault"] == "elsewhere":
        fact = "restore needs variables of an earlier run of its cell, which are gone after a kill."
        raise case_result.wrong("elsewhere", rank, fact=fact)
    if kept["changed"]:
        fact = f"capture changes the run itself: {', '.join(kept['changed'])}."
        raise case_result.wrong("capture-changes", rank, fact=fact)
    if kept["fault"] == "no-object":
        fact = f"{_new_ones(kept['new'])}An object is of another type."
        raise case_result.wrong("new-object", rank, fact=fact)
    saved, later, restored = kept["saved"], kept["later"], kept["restored"]
    differ = [part for part in _PARTS if not equal(saved[part], restored[part])]
    fact = f"Not restored: {', '.join(differ)}."
    if kept["as before"]:
        raise case_result.wrong("untouched", rank, fact="restore has changed nothing in the run.")
    if differ and "parameter" in kept["new"]:
        raise case_result.wrong("new-object", rank, fact=f"{_new_ones(kept['new'])}{fact}")
    if any(equal(later[part], restored[part]) for part in differ):
        fact += " The run got the state of a later call of capture, and not the given state."
        raise case_result.wrong("elsewhere", rank, fact=fact)
    if "weights" in differ:
        raise case_result.wrong("weights", rank, fact=fact)
    if set(differ) >= {"optimizer", "schedule", "place", "noise"}:
        raise case_result.wrong("weights-only", rank, fact=fact)
    first = case_result.seen[0].output["saved"]
    for part in ("noise", "factors"):
        if part in differ and rank and equal(restored[part], first[part]):
            fact = f"This rank got the random number generator of rank 0 ({part})."
            raise case_result.wrong("other-rank", rank, fact=fact)
    if differ:
        raise case_result.wrong(differ[0], rank, fact=fact)


def _draw(case_result):
    rows = []
    for seen in case_result.seen:
        parts = seen.output["restored"]
        rng = torch.Generator()
        rng.set_state(parts["noise"])
        state, epoch = parts["place"]
        rows.append(
            {
                "step": parts["step"],
                "rate": f"{parts['schedule'][1][0]:.2f}",
                "place": f"epoch {epoch}, {state['position']} of {NUM_SAMPLES}",
                "next noise": f"{torch.randn((), generator=rng).item():.2f}",
            }
        )
    return holdings_picture(["step", "rate", "place", "next noise"], rows)


capture = Task(
    number="08.2",
    changed_in="0.2.0",
    uses_store=True,
    name="capture",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok=f"{_STEPS_AFTER} more steps, and every bit of the weights is the same",
    draw=_draw,
    warm_up=first_save,
    hints=(
        "The state must hold everything that changes from step to step and influences the next "
        "step. Go through one step of the loop and list such things.",
        "model, optimizer, scheduler and sampler each have state_dict and load_state_dict. The "
        "state also needs two numbers, and two random number generators: torch's and Python's.",
        "torch.get_rng_state() returns the state of torch's generator as a tensor, and "
        "torch.set_rng_state(state) restores it. Python's module random has such a pair, too.",
        "The dictionary has eight entries: model, optimizer, scheduler, sampler, epoch, step, and "
        "the states of the two generators. Each is restored by one line.",
    ),
    mistakes={
        "missing": "Both functions must be defined on every rank. They are in one cell: run that "
        "cell.",
        "code": "Put the state_dict() of an object into the state, never the object itself, and a "
        "tensor or a list in place of an array.",
        "capture-changes": "capture must only read: it must not draw a random number, load "
        "anything, empty a gradient or change the mode.",
        "elsewhere": "After a kill, all variables of the process are gone. Everything that restore "
        "needs must be in the state that it gets.",
        "buffers": "A model has buffers as well, such as BatchNorm's running mean. They are in "
        "model.state_dict(), but not in model.parameters().",
        "mode": "Leave the mode as it is: a run that trains on must be in train mode.",
        "deadlock": "Every rank captures and restores its own run. If you call a collective, every "
        "rank must call it.",
        "untouched": "Every rank calls restore. It must put a run back to the given state, also if "
        "the run has made more steps since.",
        "weights": "Give model.load_state_dict the dictionary that model.state_dict() returned.",
        "weights-only": "The weights alone are not enough. What else does the next step depend on?",
        "optimizer": "The optimizer keeps earlier gradients (momentum). Its state_dict holds them, "
        "and load_state_dict replaces all that the optimizer keeps.",
        "schedule": "The learning rate follows a schedule, which counts its own steps.",
        "place": "The next batch depends on the sampler's place and on run.epoch: restore both.",
        "noise": "The noise comes from torch's random number generator. Restore the generator's "
        "state last, because each draw changes it.",
        "factors": "The model draws its factors from Python's random number generator: "
        "random.getstate() returns its state. Restore the state last, by random.setstate.",
        "other-rank": "The generators of the ranks differ, so each rank must capture its own "
        "generators.",
        "step": "run.step must continue from its captured value.",
        "new-object": "Keep the run's own objects, and load the captured state into them. The "
        "optimizer changes the parameters with which it was created, the schedule changes that "
        "optimizer, and the loop uses the sampler that it already has.",
        "raised": "load_state_dict needs the dictionary that state_dict() of the same object "
        "returned, under the key that you gave it: model and model.module name their weights "
        "differently. load_state_dict writes into parameters, and puts an optimizer's state where "
        "the optimizer looks for it.",
        "values": "Something that the loop uses was not restored, or is not where the loop looks "
        "for it: load_state_dict puts it there. Restore the random number generators last.",
    },
)
