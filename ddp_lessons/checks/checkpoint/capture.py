"""
Task 08.2: capture the state of a run, and restore it.

On each rank: `_act`, `_objects`, `_parts`, `_without_zeros`. In the kernel: the rest.
"""

import io
import random

import torch

from ddp_lessons.checks.checkpoint.noted_runs import buffered_run
from ddp_lessons.checks.kit import Case, Mistake, Task, equal
from ddp_lessons.checks.kit.on_rank.patched_environ import redefine
from ddp_lessons.checks.kit.on_rank.snapshots import plain
from ddp_lessons.checks.kit.shared.small_runs import NUM_SAMPLES
from ddp_lessons.checks.kit.shared.warm_up import first_save
from ddp_lessons.pictures import holdings_picture
from ddp_lessons.ranks.rank.rank_agent import current_agent

_STEPS_AFTER = 4

_FORGOTTEN = {
    "weights": "Give model.load_state_dict the dictionary that model.state_dict() returned.",
    "buffers": "A model has buffers as well, such as BatchNorm's running mean. They are in "
    "model.state_dict(), but not in model.parameters().",
    "optimizer": "The optimizer keeps earlier gradients (momentum). Its state_dict holds them, and "
    "load_state_dict replaces all that the optimizer keeps.",
    "schedule": "The learning rate follows a schedule, which counts its own steps.",
    "place": "The next batch depends on the sampler's place and on run.epoch: restore both.",
    "noise": "The noise comes from torch's random number generator. Restore the generator's state "
    "last, because each draw changes it.",
    "factors": "The model draws its factors from Python's random number generator: "
    "random.getstate() returns its state. Restore the state last, by random.setstate.",
    "step": "run.step must continue from its captured value.",
    "mode": "Leave the mode as it is: a run that trains on must be in train mode.",
}
"""
{part of a run: hint}, for each part that `restore` may forget. The first one names the mistake.
"""


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


def _has_fault(fault):
    return lambda view: view.output["fault"] == fault


def _changes_the_run(view):
    changed = view.output.get("changed")
    return changed and f"capture changes the run itself: {', '.join(changed)}."


def _differing(view):
    # The parts that are not as they were when the state was captured, if restore has ended.
    saved, restored = view.output.get("saved"), view.output.get("restored")
    return [part for part in _FORGOTTEN if restored and not equal(saved[part], restored[part])]


def _not_restored(view):
    differing = view.finding_of(_differing)
    return differing and f"Not restored: {', '.join(differing)}."


def _has_another_object(view):
    new, differing = view.output.get("new"), view.finding_of(_differing)
    if not new:
        return ""
    fact = f"restore has put another {' and another '.join(new)} into the run."
    if view.output["fault"] == "no-object":
        return f"{fact} An object is of another type."
    if differing and "parameter" in new:
        return f"{fact} {_not_restored(view)}"
    ends_elsewhere = not differing and _ends_elsewhere(view)
    return ends_elsewhere and f"{fact} {ends_elsewhere}"


def _ends_elsewhere(view):
    kept = view.output
    if "ended" not in kept or (kept["seen"] and equal(kept["right"], kept["ended"])):
        return ""
    return f"After {_STEPS_AFTER} more steps the weights differ."


def _comes_from_elsewhere(view):
    if view.output["fault"] == "elsewhere":
        return "restore needs variables of an earlier run of its cell, which are gone after a kill."
    later, restored = view.output.get("later"), view.output.get("restored")
    if any(equal(later[part], restored[part]) for part in view.finding_of(_differing)):
        return (
            f"{_not_restored(view)} The run got the state of a later call of capture, and not the "
            "given state."
        )
    return ""


def _lacks(part):
    def shows(view):
        return view.finding_of(_differing)[:1] == [part] and _not_restored(view)

    return shows


def _has_weights_only(view):
    differing = {*view.finding_of(_differing)}
    lacks_rest = differing >= {"optimizer", "schedule", "place", "noise"}
    return lacks_rest and "weights" not in differing and _not_restored(view)


def _is_of_rank_0(view):
    first = view.case_result.seen[0].output.get("saved")
    for part in ("noise", "factors"):
        is_off = view.rank and part in view.finding_of(_differing)
        if is_off and equal(view.output["restored"][part], first[part]):
            return f"This rank got the random number generator of rank 0 ({part})."
    return ""


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
    mistakes=(
        Mistake(
            "missing",
            "Both functions must be defined on every rank. They are in one cell: run that cell.",
            "restore is not defined on this rank.",
            shows=_has_fault("missing"),
        ),
        Mistake(
            "code",
            "Put the state_dict() of an object into the state, never the object itself, and a "
            "tensor or a list in place of an array.",
            "torch.load refuses the state: the state holds more than tensors and plain values.",
            shows=_has_fault("code"),
        ),
        Mistake(
            "capture-changes",
            "capture must only read: it must not draw a random number, load anything, empty a "
            "gradient or change the mode.",
            shows=_changes_the_run,
        ),
        Mistake(
            "untouched",
            "Every rank calls restore. It must put a run back to the given state, also if the run "
            "has made more steps since.",
            "restore has changed nothing in the run.",
            shows=lambda view: view.output.get("as before"),
        ),
        Mistake(
            "new-object",
            "Keep the run's own objects, and load the captured state into them. The optimizer "
            "changes the parameters with which it was created, the schedule changes that "
            "optimizer, and the loop uses the sampler that it already has.",
            shows=_has_another_object,
        ),
        Mistake(
            "elsewhere",
            "After a kill, all variables of the process are gone. Everything that restore needs "
            "must be in the state that it gets.",
            shows=_comes_from_elsewhere,
        ),
        Mistake(
            "weights-only",
            "The weights alone are not enough. What else does the next step depend on?",
            shows=_has_weights_only,
        ),
        Mistake(
            "other-rank",
            "The generators of the ranks differ, so each rank must capture its own generators.",
            shows=_is_of_rank_0,
        ),
        *(Mistake(part, hint, shows=_lacks(part)) for part, hint in _FORGOTTEN.items()),
        Mistake(
            "other-end",
            "Something that the loop uses was not restored, or is not where the loop looks for it: "
            "load_state_dict puts it there. Restore the random number generators last.",
            shows=_ends_elsewhere,
        ),
        Mistake(
            "deadlock",
            "Every rank captures and restores its own run. If you call a collective, every rank "
            "must call it.",
        ),
        Mistake(
            "raised",
            "load_state_dict needs the dictionary that state_dict() of the same object returned, "
            "under the key that you gave it: model and model.module name their weights "
            "differently. load_state_dict writes into parameters, and puts an optimizer's state "
            "where the optimizer looks for it.",
        ),
    ),
)
