"""
Task 08.5: the capstone: four ranks, a kill, two ranks.
"""

import shutil
from itertools import pairwise

import torch
import torch.distributed as dist

from ddp_lessons.checks.checkpoint.noted_runs import (
    DigitsRun,
    NotedCheckpoints,
    RightGradients,
    is_update,
)
from ddp_lessons.checks.kit import Case, Mistake, Task, equal, generator
from ddp_lessons.checks.kit.material.runs import live
from ddp_lessons.checks.kit.material.warm_up import first_save
from ddp_lessons.errors import BadInput
from ddp_lessons.pictures import timeline_picture
from ddp_lessons.workloads import load_digits

_NUM_STEPS, _EVERY, _GLOBAL_BATCH, _MICRO_BATCH, _NUM_DIGITS = 5, 2, 48, 4, 128


def _cases(draw):
    # The second case of a pair goes on with what the first has saved. The first pair is drawn, so
    # its step is always the same; the others are killed in any step after the first save. Three
    # ranks cannot take over four shares as they are, two and one can.
    data = {"saved by": 4, "killed in step": 4}
    yield Case(4, data, seed=0)
    yield Case(2, data, seed=0)
    others = [step for step in range(_EVERY + 1, _NUM_STEPS + 1) if step != 4]
    data = {"saved by": 4, "killed in step": draw.choice(others)}
    yield Case(4, data)
    yield Case(3, data)
    data = {"saved by": 2, "killed in step": draw.randint(3, _NUM_STEPS)}
    yield Case(2, data)
    yield Case(1, data)


def _act(here, finish):
    images, labels, batches = _digits_for(here)
    given = (images, labels, list(batches), _MICRO_BATCH, _EVERY)
    folders = {name: here.folder / f"{name}-{_pair(here)}" for name in ("whole", "many", "few")}
    lives = {}

    def play(name, folder, killed_in=None, seed=0):
        life = DigitsRun(here, seed, killed_in)
        saves = NotedCheckpoints(folders[folder], life)
        live(here, saves, finish, life.run, saves, *given)
        events = here.calls[-1].events if killed_in is None else []  # a killed call leaves none
        lives[name] = {
            "steps": life.steps,
            "saves": saves.log,
            "made": saves.made,
            "num_late": saves.num_late,
            "num_syncs": sum(e.name == "all_reduce" and e.backward is not None for e in events),
            "num_between": saves.num_between(events, life.steps),
            "end": life.state(),
        }

    if here.world_size == here["saved by"]:
        play("whole", "whole")
        play("killed", "many", here["killed in step"])
        if here.rank == 0:
            if folders["many"].exists():
                shutil.copytree(folders["many"], folders["few"])
            torch.save(lives["whole"], here.folder / f"whole-{_pair(here)}.pt")
        dist.barrier()
        play("resumed", "many", seed=1)
    else:
        lives["whole"] = torch.load(here.folder / f"whole-{_pair(here)}.pt")
        play("resumed", "few", seed=1)
    is_changed = not equal(given[2], batches)
    kept = {"lives": lives, "images": images, "labels": labels, "batches": batches}
    return kept | {"is changed": is_changed}


def _pair(here):
    return f"{here['saved by']}-{here['killed in step']}"


def _digits_for(here):
    path = here.folder / f"digits-{_pair(here)}.pt"
    if here.world_size == here["saved by"] and here.rank == 0:
        digits, rng = load_digits(), generator(here.case)
        chosen = torch.randperm(len(digits.train_labels), generator=rng)[:_NUM_DIGITS]
        batches = [
            torch.randperm(_NUM_DIGITS, generator=rng)[:_GLOBAL_BATCH] for _ in range(_NUM_STEPS)
        ]
        torch.save([digits.train_images[chosen], digits.train_labels[chosen], batches], path)
    dist.barrier()
    if not path.exists():
        raise BadInput(
            f"Too few ranks: {here['saved by']} must save (got {here.world_size}). Run "
            "start_ranks(4)."
        )
    images, labels, batches = torch.load(path)
    return images.to(here.device), labels.to(here.device), batches


def _lives(view):
    """
    Yield for each life of this rank when it was, what was noted, and the numbers of its steps.
    """
    killed_in, lives = view.case["killed in step"], view.kept["lives"]
    done = (killed_in - 1) // _EVERY * _EVERY
    if "killed" in lives:
        yield "Without a kill", lives["whole"], [*range(1, _NUM_STEPS + 1)]
        yield "Until the kill", lives["killed"], [*range(1, killed_in)]
    when = f"After the kill, with {done} steps on the disk"
    yield when, lives["resumed"], [*range(done + 1, _NUM_STEPS + 1)]


def _first_fault(view):
    """
    Return which function of `_OF_A_LIFE` first finds something wrong, and what, or None and "".

    What is wrong in later lives may come of that.
    """
    kept = view.kept
    if "fault" not in kept:
        facts = (
            (fact_of, f"{when}: {fact}")
            for when, *life in _lives(view)
            for fact_of in _OF_A_LIFE
            if (fact := fact_of(view, *life))
        )
        kept["fault"] = next(facts, (None, ""))
    return kept["fault"]


def _in_a_life(fact_of):
    """
    Return a function of a View that says what one function of `_OF_A_LIFE` finds wrong.
    """

    def shows(view):
        found, fact = _first_fault(view)
        return fact if found is fact_of else ""

    return shows


def _counts_wrongly(view, life, expected):
    numbers = [step["number"] for step in life["steps"]]
    is_early = numbers and numbers == [number + 1 for number in expected]
    is_stuck = len(set(numbers)) == 1 < len(numbers)
    if is_early or is_stuck:
        return f"in its steps, run.step + 1 is {numbers}; right is {expected}."
    if numbers != expected:
        return ""
    done, saved = min(expected, default=1) - 1, [step for _, step in life["saves"]]
    if any(step < done + made for step, made in zip(saved, life["made"], strict=False)):
        return f"it saves when run.step is {saved}, and has not counted the last step then."
    return ""


def _makes_other_steps(view, life, expected):
    numbers = [step["number"] for step in life["steps"]]
    if numbers == expected:
        return ""
    return f"it makes the steps {numbers}; right is {expected}."


def _saves_other_steps(view, life, expected):
    due = [step for step in expected if step % _EVERY == 0]
    saved = [step for _, step in life["saves"]]
    is_over = expected[-1:] == [_NUM_STEPS]  # then one save more does no harm
    if saved == due or (is_over and saved == [*due, _NUM_STEPS]):
        return ""
    return f"it saves when run.step is {saved}, and {due} were due."


def _writes_alone(view, life, expected):
    is_alone = any(name == "save" for name, _ in life["saves"])
    return "rank 0 writes everything alone." if is_alone else ""


def _takes_too_many(view, life, expected):
    largest = max((step["largest"] for step in life["steps"]), default=0)
    if largest <= _MICRO_BATCH:
        return ""
    return f"a forward takes {largest} samples; {_MICRO_BATCH} is the most."


def _takes_other_share(view, life, expected):
    share = _GLOBAL_BATCH // view.case.world_size
    taken = {step["samples"] for step in life["steps"]} - {share}
    return f"it takes {min(taken)} samples a step; {share} are its share." if taken else ""


def _gradients(view, life):
    first = view.played.seen[0].kept
    right = first.setdefault("right", RightGradients(first))  # ranks share it
    for step in life["steps"]:
        yield step["number"], step["gradient"].double(), *right.of(step)


def _is_undivided(view, life, expected):
    num_parts = _GLOBAL_BATCH // view.case.world_size // _MICRO_BATCH
    for number, got, right, error in _gradients(view, life):
        is_off = bool(((got - right).abs() > error).any())
        if is_off and bool(((got - num_parts * right).abs() <= num_parts * error).all()):
            return f"the gradient of step {number} is {num_parts} times the mean over its samples."
    return ""


def _is_no_mean(view, life, expected):
    for number, got, right, error in _gradients(view, life):
        if not bool(((got - right).abs() <= error).all()):
            off = float((got - right).norm() / right.norm())
            return (
                f"the gradient of step {number} is not the mean over all its samples. It is off by "
                f"{off:.2g} of its length."
            )
    return ""


def _talks_too_much(view, life, expected):
    most, num = len(expected), life["num_syncs"]
    if num > most:
        return f"{num} all-reduces for {most} steps."
    between = life["num_between"]
    if num + between > most:
        return f"{between} calls in {most} steps, beside backward, loading and saving."
    return ""


_OF_A_LIFE = (
    _counts_wrongly,
    _makes_other_steps,
    _saves_other_steps,
    _writes_alone,
    _takes_too_many,
    _takes_other_share,
    _is_undivided,
    _is_no_mean,
    _talks_too_much,
)
"""
What can be wrong in a life.
"""


def _differs_in_bits(view):
    """
    Say in which step two runs of as many ranks begin with other weights, before any kill.
    """
    lives = view.kept["lives"]
    pairs = zip(lives.get("killed", {"steps": []})["steps"], lives["whole"]["steps"], strict=False)
    for step, other in pairs:
        if not equal(step["weights"], other["weights"]):
            return (
                f"Step {step['number']} does not begin with the same weights, to the last bit, in "
                "two runs of as many ranks."
            )
    return ""


def _restores_otherwise(view):
    if _differs_in_bits(view):
        return ""  # what is restored may be right then
    lives = view.kept["lives"]
    done = (view.case["killed in step"] - 1) // _EVERY * _EVERY
    for part in ("weights", "optimizer"):
        if not equal(lives["resumed"]["steps"][0][part], lives["whole"]["steps"][done][part]):
            what = "its weights are" if part == "weights" else "the state of its optimizer is"
            return f"After the kill, with {done} steps on the disk: {what} not what was saved."
    return ""


def _goes_on_otherwise(view):
    for when, life, _ in _lives(view):
        if life["num_late"]:
            return f"{when}: it saves a run that is dead."
        for step, later in pairwise([*life["steps"], life["end"]]):
            if not is_update(step, later):
                return (
                    f"{when}: in step {step['number']}, the weights are not moved as run.optimizer "
                    "was made to move them."
                )
    lives = view.kept["lives"]
    if "killed" in lives and not equal(lives["resumed"]["end"], lives["whole"]["end"]):
        end = "As many ranks as before, and the last bits differ from a run without a kill."
        return _differs_in_bits(view) or end
    return ""


def _draw(played):
    tracks = []
    for seen in played.seen:
        spans, now = [], 0
        for name in ("killed", "resumed"):
            life = seen.kept["lives"][name]
            saved = {step for _, step in life["saves"]}
            for step in life["steps"]:
                spans.append(("compute", now, now + 2, f"step {step['number']}"))
                now += 2
                if step["number"] in saved:
                    spans.append(("communication", now, now + 1, "save"))
                    now += 1
            if name == "killed":
                spans.append(("waiting", now, now + 2, "killed"))
                now += 2
        tracks.append(spans)
    return timeline_picture(tracks, "what was run, in order")


finish = Task(
    number="08.5",
    waits_s=4.0,  # for the disk
    uses_store=True,
    name="finish",
    cases=_cases,
    act=_act,
    ok="every bit as without the kill, and with fewer ranks every step right to rounding",
    draw=_draw,
    warm_up=first_save,
    hints=(
        "Three things you have written before: load what is there (08.3), share each batch among "
        "the ranks there are (lesson 04), one sync a step (lesson 07).",
        "What is left after loading is batches[run.step:]. Of each batch this rank takes "
        "batch[rank::world_size], in parts of micro_batch samples.",
        "saves.load(run, exact=False) lets another number of ranks go on. All parts of a step but "
        "the last run under run.model.no_sync(), and each loss is divided by their number.",
        "After the parts: run.optimizer.step(), run.optimizer.zero_grad(), run.step += 1, and "
        "saves.save_sharded(run) if run.step % every == 0.",
    ),
    mistakes=(
        Mistake(
            "input-changed",
            "Leave the list of batches as it is: a slice is a list of its own.",
            "It leaves the list of batches changed.",
            shows=lambda view: view.kept["is changed"],
        ),
        Mistake(
            "count",
            "Count each step in run.step when optimizer.step() has made it, and before you save: "
            "the checkpoint is named by it.",
            shows=_in_a_life(_counts_wrongly),
        ),
        Mistake(
            "steps",
            "Load the latest checkpoint first. Step number run.step + 1 trains on batches"
            "[run.step]: what is left is batches[run.step:].",
            shows=_in_a_life(_makes_other_steps),
        ),
        Mistake(
            "save-steps",
            "Save after each step whose number every divides, and after no other but the last.",
            shows=_in_a_life(_saves_other_steps),
        ),
        Mistake(
            "whole-file",
            "Let every rank write its part at once: save_sharded.",
            shows=_in_a_life(_writes_alone),
        ),
        Mistake(
            "memory",
            "Give the model micro_batch samples at a time: split your share.",
            shows=_in_a_life(_takes_too_many),
        ),
        Mistake(
            "share",
            "Each rank takes its own part of the batch only. Share the batch among as many ranks "
            "as there are now: rank and world_size tell which part is whose.",
            shows=_in_a_life(_takes_other_share),
        ),
        Mistake(
            "undivided",
            "Each backward adds a whole mean. Divide each loss by the number of parts.",
            shows=_in_a_life(_is_undivided),
        ),
        Mistake(
            "gradient",
            "Each sample of the batch is counted once, in float32. The gradient begins at zero in "
            "each step, and ranks average what all parts have added up.",
            shows=_in_a_life(_is_no_mean),
        ),
        Mistake(
            "restored",
            "Load before anything else changes the run, and by saves.load: the optimizer is part "
            "of what is saved.",
            shows=_restores_otherwise,
        ),
        Mistake(
            "other-run",
            "Load, share, add up and save in the same way in every run, from batches and run.step "
            "alone. Leave the rate as it is, and save only while all is well.",
            shows=_goes_on_otherwise,
        ),
        Mistake(
            "cost",
            "Ranks talk once a step, in the last part's backward. DDP decides in the forward: both "
            "forward and backward of the other parts belong inside run.model.no_sync(). A loss "
            "that is only looked at needs no message.",
            shows=_in_a_life(_talks_too_much),
        ),
        Mistake(
            "raised",
            "The run may have been saved by another number of ranks: exact=False allows it.",
        ),
        Mistake(
            "deadlock",
            "Loading, saving and the last part's backward are collective: every rank makes each "
            "of them.",
        ),
    ),
    in_place=True,
    returns=False,
)
