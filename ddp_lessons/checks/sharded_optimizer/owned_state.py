"""
Task 13.3: the owners' optimizer state, which some ranks save and other ranks load.

On each rank: `_owned`, `_make`, `_act`, `_come_last`, `_through`, `_turn_times_round`, `_train`,
`_states`; in both: `owners_of`, `_settings_after`. In the kernel: the rest.
"""

import os
import time

import torch
import torch.distributed as dist

from ddp_lessons.checks.kit import Case, Mistake, Task, equal, generator
from ddp_lessons.checks.kit.on_rank.snapshots import plain
from ddp_lessons.checks.kit.shared.numbers import words_of_both
from ddp_lessons.checks.kit.shared.warm_up import first_step
from ddp_lessons.errors import BadInput
from ddp_lessons.pictures import holdings_picture
from ddp_lessons.ranks.system.load_aware_timeout import LoadAwareTimeout
from ddp_lessons.ranks.system.thread_stats import is_main_awake

NUM_PARAMS, _MADE_WITH = 7, 0.01
_ASLEEP_S, _LOOK_EVERY_S = 0.3, 0.005


def _cases(draw):
    # All cases of a seed share a folder. First four ranks save, then two ranks load, and so on. An
    # answer must not mix the later files of two ranks with the files that four ranks left there.
    both = ((0, "Adam", "float32"), (draw.getrandbits(40), "SGD", "float64"))
    for seed, name, dtype in both:
        what = {"optimizer": name, "dtype": dtype}
        yield Case(4, what | {"saved by": 4, "does": "save", "steps": 2}, seed=seed)
        yield Case(2, what | {"saved by": 4, "does": "load", "steps": 2}, seed=seed)
        yield Case(4, what | {"saved by": 4, "does": "load", "steps": 2}, seed=seed)
        yield Case(2, what | {"saved by": 2, "does": "save", "steps": 3}, seed=seed)
        world_size = 1 if seed == 0 else 3
        yield Case(world_size, what | {"saved by": 2, "does": "load", "steps": 3}, seed=seed)


def owners_of(case):
    """
    Return each parameter's owner: it depends on the seed, the world size, and on save or load.
    """
    rng = generator(case, ("owners", case["does"], case.world_size))
    order = torch.randperm(NUM_PARAMS, generator=rng).tolist()
    extra = torch.randint(case.world_size, (NUM_PARAMS,), generator=rng).tolist()
    owners = [0] * NUM_PARAMS
    for place, number in enumerate(order):  # every rank owns at least one
        owners[number] = place if place < case.world_size else extra[place]
    return owners


def _owned(case, rank):
    owned = [number for number, owner in enumerate(owners_of(case)) if owner == rank]
    return owned[::-1]  # an optimizer may have its parameters in any order


def _make(context, owned):
    ones = torch.ones(3, dtype=getattr(torch, context["dtype"]), device=context.device)
    params = [torch.nn.Parameter(ones.clone()) for _ in owned]
    if context["optimizer"] == "Adam":
        return params, torch.optim.Adam(params, lr=_MADE_WITH)
    return params, torch.optim.SGD(params, lr=_MADE_WITH, momentum=0.9)


def _settings_after(case):
    # A learning rate schedule leaves such settings: it also stores the initial lr in the group.
    rate = {2: 0.003, 3: 0.002}[case["steps"]]
    found = {"lr": rate, "weight_decay": 10 * rate, "initial_lr": _MADE_WITH}
    moved = {"betas": (1 - 20 * rate, 0.99)} if case["optimizer"] == "Adam" else {"momentum": 0.5}
    return found | moved


def _act(context, OwnedState):
    case, owned = context.case, _owned(context.case, context.rank)
    folder = context.folder / f"state-{case.seed}"
    truth = context.folder / f"truth-{case.seed}"
    if context.rank == 0 and context["does"] == "save":
        for one in (folder, truth):
            one.mkdir(exist_ok=True)
    dist.barrier()
    params, optimizer = _make(context, owned)
    if context["does"] == "save":
        _train(context, owned, params, optimizer)
        was = plain(_states(owned, params, optimizer))
        torch.save(was, truth / f"{case['steps']}-{context.rank}.pt")
        weights = plain(params)
        _come_last(context)
        context.call(OwnedState().save, folder, optimizer, list(owned))
        _through(context, context.rank).touch()
        dist.barrier()
        if context.rank == 0:
            _turn_times_round(folder)
        now = _states(owned, params, optimizer)
        return {"was": was, "now": now, "has moved": not equal(weights, plain(params))}
    if not folder.exists():
        raise BadInput(
            f"Too few ranks: {context['saved by']} must save (got {context.world_size}). Run "
            "start_ranks(4)."
        )
    weights = plain(params)
    context.call(OwnedState().load, folder, optimizer, list(owned))
    return {
        "has moved": not equal(weights, plain(params)),
        "now": _states(owned, params, optimizer),
        "num_states": len(optimizer.state),
        "settings": {k: v for k, v in optimizer.param_groups[0].items() if k != "params"},
        "truth": {str(path.name): torch.load(path) for path in sorted(truth.iterdir())},
    }


def _come_last(context):
    # A rank that removes old files must spare new ones; a rank that lists files must find all. To
    # test both, one rank begins when the others have finished, or their main threads sleep because
    # they wait for it. (A thread of Gloo, or of an earlier answer, may never sleep.)
    pids = [0] * context.world_size
    dist.all_gather_object(pids, os.getpid())
    if context.rank == (0 if context.case.seed == 0 else context.world_size - 1):
        others = [rank for rank in range(context.world_size) if rank != context.rank]
        asleep = LoadAwareTimeout(_ASLEEP_S, lambda: [pids[r] for r in others], wants=is_main_awake)
        while not all(_through(context, rank).exists() for rank in others) and not asleep.is_over:
            time.sleep(_LOOK_EVERY_S)


def _through(context, rank):
    return context.folder / f"through-{context.case.seed}-{context['steps']}-{rank}"


def _turn_times_round(folder):
    # In a copied folder the file that was written last need not have the latest time.
    files = [path for path in folder.rglob("*") if path.is_file()]
    times = [path.stat().st_mtime_ns for path in files]
    for path, time_ns in zip(files, times, strict=True):
        turned = min(times) + max(times) - time_ns
        os.utime(path, ns=(turned, turned))


def _train(context, owned, params, optimizer):
    for step in range(context["steps"]):
        for number, parameter in zip(owned, params, strict=True):
            rng = generator(context.case, ("gradient", number, step, context["steps"]))
            gradient = torch.randn(3, dtype=parameter.dtype, generator=rng)
            parameter.grad = gradient.to(context.device)
        optimizer.step()
    optimizer.param_groups[0].update(_settings_after(context.case))
    # Parameters that were added at different times have different counts of steps.
    for number, parameter in zip(owned, params, strict=True):
        if "step" in optimizer.state[parameter]:
            optimizer.state[parameter]["step"] += number


def _states(owned, params, optimizer):
    return {
        number: dict(optimizer.state[parameter]) if parameter in optimizer.state else {}
        for number, parameter in zip(owned, params, strict=True)
    }


def _is_wrong_by(name):
    """
    Return a `shows` that tells whether a parameter's state is wrong by the mistake of this name.
    """

    def shows(view):
        if view.case["does"] == "save":
            return ""
        right, old = _truths(view.case_result.seen[0].output["truth"], view.case["steps"])
        for number, got in view.output["now"].items():
            if equal(got, right[number]) or _name(number, got, right, old) != name:
                continue
            wanted = right[number]
            key = next((k for k in wanted if k not in got or not equal(got[k], wanted[k])), "step")
            told = words_of_both(got.get(key, "nothing"), wanted.get(key, "nothing"))
            return f"Of parameter {number}, {key!r} is {told[0]}; {told[1]} was saved for it."
        return ""

    return shows


def _truths(truth, steps):
    """
    Return two dicts, {parameter: state}: the states of the last save, and those of earlier saves.
    """
    right, old = {}, {}
    for name, states in truth.items():
        (right if name.startswith(f"{steps}-") else old).update(states)
    return right, old


def _keeps_too_much(view):
    num_owned, num_states = len(view.output["now"]), view.output.get("num_states", 0)
    return num_states > num_owned and f"It keeps {num_states} states, and owns {num_owned}."


def _has_other_settings(view):
    for name, value in _settings_after(view.case).items() if view.case["does"] == "load" else ():
        got = view.output["settings"].get(name, "nothing")
        got = tuple(got) if isinstance(got, list) else got  # as JSON gives it back
        if got != value:
            return f"The group's {name} is {got}, and {value} was saved."
    return ""


def _name(number, got, right, old):
    if not any(isinstance(value, torch.Tensor) for value in got.values()):
        return "missing"
    if any(equal(got, other) for other in old.values()):
        return "stale"
    if any(equal(got, other) for place, other in right.items() if place != number):
        return "other-parameter"
    rest = {key: value for key, value in got.items() if key != "step"}
    if equal(rest, {key: value for key, value in right[number].items() if key != "step"}):
        return "step-count"
    return "state"


def _draw(case_result):
    case = case_result.case
    before = owners_of(Case(case["saved by"], case.data | {"does": "save"}, case.seed))
    rows = []
    for seen in case_result.seen:
        owned = sorted(seen.output["now"])
        savers = ", ".join(f"rank {before[number]}" for number in owned)
        rows.append({"has the state of": ", ".join(map(str, owned)), "saved by": savers})
    return holdings_picture(["has the state of", "saved by"], rows)


OwnedState = Task(
    number="13.3",
    extra_time_s=3.0,
    name="OwnedState",
    must_join_threads=True,
    cases=_cases,
    act=_act,
    ok="saved by 4 and by 2, loaded by 1 to 4, with counts and settings",
    draw=_draw,
    draws_case=1,
    hints=(
        "optimizer.state_dict() counts parameters from 0 on each rank. What would tell another "
        "number of ranks whose state that is?",
        "Write state under the numbers of the whole model: `owned` says which they are. A file "
        "for each rank will do, or one for each parameter.",
        "To load, read all that belongs to the last save, pick your own numbers, and count them "
        "from 0 again. How many files there are, a file can say.",
        "state = optimizer.state_dict(); state['state'] = {place: known[number] for place, number "
        "in enumerate(owned)}; settings into state['param_groups'][0]; load_state_dict(state).",
    ),
    mistakes=(
        Mistake(
            "left-changed",
            "Leave the parameters as they are: they are no part of the state.",
            "It changes the parameters themselves.",
            shows=lambda view: view.output["has moved"],
        ),
        Mistake(
            "save-changes",
            "Saving must leave the optimizer as it is: write into dictionaries of your own.",
            "After save, the optimizer's own state is not what it was.",
            shows=lambda view: (
                view.case["does"] == "save" and not equal(view.output["was"], view.output["now"])
            ),
        ),
        Mistake(
            "other-parameter",
            "This is the state of another parameter. A rank's optimizer counts its own from 0; "
            "`owned` says which they are.",
            shows=_is_wrong_by("other-parameter"),
        ),
        Mistake(
            "stale",
            "This is what an earlier save has left in the folder. Times of files do not tell which "
            "belong to the last save: a copied folder has others. Remove old files, or have a file "
            "say which are the last.",
            shows=_is_wrong_by("stale"),
        ),
        Mistake(
            "step-count",
            "The count of steps belongs to each parameter's state, as the rest of it does.",
            shows=_is_wrong_by("step-count"),
        ),
        Mistake(
            "missing",
            "A parameter of this rank has no state. Whichever rank owned it before, also one that "
            "does not run now: read what all of them have saved.",
            shows=_is_wrong_by("missing"),
        ),
        Mistake(
            "state",
            "Write down what one rank saves for the named parameter, and what another reads.",
            shows=_is_wrong_by("state"),
        ),
        Mistake(
            "too-much",
            "A rank keeps state for what it owns only. The rest is for others.",
            shows=_keeps_too_much,
        ),
        Mistake(
            "settings",
            "The group has settings besides its parameters, whatever their names: a schedule "
            "changes some, and notes others there. Save and load all of them, and leave its list "
            "of parameters as it is.",
            shows=_has_other_settings,
        ),
        Mistake(
            "raised",
            "The line that is named is yours. There may be more ranks than have saved, or fewer. "
            "Where a file is missing, look which rank writes it, and which may remove it: ranks "
            "save at the same time.",
        ),
        Mistake(
            "deadlock",
            "Every rank makes the same calls. Nobody needs to ask anybody: all see the folder.",
        ),
    ),
    in_place=True,
    must_return=False,
    uses_store=True,
    warm_up=first_step,
)
