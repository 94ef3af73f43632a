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
from ddp_lessons.checks.kit import Case, Task, equal, generator
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


def _judge(played):
    killed_in = played.case["killed in step"]
    done = (killed_in - 1) // _EVERY * _EVERY
    right = RightGradients(played.seen[0].kept)
    for rank, seen in enumerate(played.seen):
        if seen.kept["is changed"]:
            raise played.wrong("input-changed", rank, fact="It leaves the list of batches changed.")
        lives = seen.kept["lives"]
        whole, resumed = lives["whole"], lives["resumed"]
        if "killed" in lives:
            _judge_life(played, right, rank, whole, 0, _NUM_STEPS, "Without a kill")
            _judge_life(played, right, rank, lives["killed"], 0, killed_in - 1, "Until the kill")
            for step, other in zip(lives["killed"]["steps"], whole["steps"], strict=False):
                if not equal(step["weights"], other["weights"]):
                    fact = (
                        f"Step {step['number']} does not begin with the same weights, to the last "
                    )
                    fact += "bit, in two runs of as many ranks."
                    raise played.wrong("values", rank, fact=fact)
        when = f"After the kill, with {done} steps on the disk"
        _judge_life(played, right, rank, resumed, done, _NUM_STEPS, when)
        for part in ("weights", "optimizer"):
            if not equal(resumed["steps"][0][part], whole["steps"][done][part]):
                fact = f"{when}: its {part} are not what was saved."
                fact = fact.replace("optimizer are", "optimizer's state is")
                raise played.wrong(part, rank, fact=fact)
        if "killed" in lives and not equal(resumed["end"], whole["end"]):
            fact = "As many ranks as before, and the last bits differ from a run without a kill."
            raise played.wrong("values", rank, fact=fact)


def _judge_life(played, right, rank, life, done, stop, when):
    numbers = [step["number"] for step in life["steps"]]
    expected = [*range(done + 1, stop + 1)]
    if life["num_late"]:
        raise played.wrong("saves-dead", rank, fact=f"{when}: it saves a run that is dead.")
    if numbers != expected:
        both = {"got": numbers, "expected": expected}
        fact = f"{when}: these are the numbers of its steps."
        mistake = "from-start" if done and numbers[:1] == [1] else "steps"
        if numbers == [number + 1 for number in expected]:
            mistake = "counted-early"
        if numbers and len(set(numbers)) == 1 < len(numbers):
            mistake = "uncounted"
        raise played.wrong(mistake, rank, **both, fact=fact)
    due = [step for step in expected if step % _EVERY == 0]
    saved = [step for _, step in life["saves"]]
    is_over = expected[-1:] == [_NUM_STEPS]  # then one save more does no harm
    if saved != due and not (is_over and saved == [*due, _NUM_STEPS]):
        fact = f"{when}: it saves when run.step is {saved}, and {due} were due."
        is_early = any(step < done + made for step, made in zip(saved, life["made"], strict=True))
        raise played.wrong("uncounted" if is_early else "save-steps", rank, fact=fact)
    if any(name == "save" for name, _ in life["saves"]):
        raise played.wrong("whole-file", rank, fact=f"{when}: rank 0 writes everything alone.")
    for step in life["steps"]:
        _judge_digits_step(played, rank, step, *right.of(step))
    for step, later in pairwise([*life["steps"], life["end"]]):
        if not is_update(step, later):
            fact = f"{when}: in step {step['number']}, the weights are not moved as run.optimizer "
            fact += "was made to move them."
            raise played.wrong("other-update", rank, fact=fact)
    if life["num_syncs"] > len(expected):
        fact = f"{when}: {life['num_syncs']} all-reduces for {len(expected)} steps."
        raise played.wrong("cost", rank, fact=fact)
    if life["num_syncs"] + life["num_between"] > len(expected):
        num = life["num_between"]
        fact = f"{when}: {num} calls in {len(expected)} steps, beside backward, loading and saving."
        raise played.wrong("other-talk", rank, fact=fact)


def _judge_digits_step(played, rank, step, right, error):
    w = played.case.world_size
    if step["largest"] > _MICRO_BATCH:
        fact = f"A forward takes {step['largest']} samples; {_MICRO_BATCH} is the most."
        raise played.wrong("memory", rank, fact=fact)
    if step["samples"] != _GLOBAL_BATCH // w:
        fact = f"It takes {step['samples']} samples a step; {_GLOBAL_BATCH // w} are its share."
        is_more = step["samples"] > _GLOBAL_BATCH // w
        raise played.wrong("all-samples" if is_more else "few-samples", rank, fact=fact)
    got = step["gradient"].double()
    if bool(((got - right).abs() <= error).all()):
        return
    both = {"got": step["gradient"], "expected": right.float()}
    fact = f"The gradient of step {step['number']} is not the mean over all its samples."
    k = _GLOBAL_BATCH // w // _MICRO_BATCH
    if bool(((got - k * right).abs() <= k * error).all()):
        raise played.wrong("undivided", rank, **both, fact=fact)
    if (got - right).norm() <= 0.05 * right.norm():
        raise played.wrong("rounded", rank, **both, fact=fact)
    raise played.wrong("gradient", rank, **both, fact=fact)


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
    judge=_judge,
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
    mistakes={
        "from-start": "Load the latest checkpoint first. What is left is batches[run.step:].",
        "steps": "Step number run.step + 1 trains on batches[run.step]. None is left out or made "
        "twice.",
        "uncounted": "Count each step in run.step before you save: the checkpoint is named by it.",
        "counted-early": "Count a step, and save it, when optimizer.step() has made it.",
        "other-talk": "Ranks talk once a step: in the backward of its last part. A loss that is "
        "only looked at needs no message, and a barrier neither.",
        "other-update": "Leave the rate and all else that the optimizer goes by alone: the "
        "gradient is the mean over the whole batch, so it is as large on two ranks as on four.",
        "rounded": "The gradient is nearly right. Compute in float32, as the model is: no "
        "autocast, no half precision.",
        "save-steps": "Save after each step whose number every divides, and after no other but the "
        "last.",
        "whole-file": "Let every rank write its part at once: save_sharded.",
        "saves-dead": "A kill asks nobody: no except and no finally runs. Save while all is well.",
        "memory": "Give the model micro_batch samples at a time: split your share.",
        "all-samples": "Each rank takes its own part of the batch only: rank and world_size tell "
        "which.",
        "few-samples": "The fewer ranks there are, the more of the batch each one takes: share it "
        "among as many as there are now.",
        "undivided": "Each backward adds a whole mean. Divide each loss by the number of parts.",
        "gradient": "Each sample of the batch is counted once. The gradient begins at zero "
        "in each step, and ranks average what all parts have added up.",
        "cost": "Only the last part of a step may sync: the others run under run.model.no_sync().",
        "weights": "Load after nothing else has changed the run, and train only then.",
        "optimizer": "The optimizer is part of the run: use saves.load and saves.save_sharded.",
        "values": "Loading, sharing and adding up must be done in the same way in every run.",
        "input-changed": "Leave the list of batches as it is: a slice is a list of its own.",
        "raised": "The run may have been saved by another number of ranks: exact=False allows it.",
        "deadlock": "Loading, saving and the last part's backward are collective: every rank makes "
        "each of them.",
    },
    in_place=True,
    returns=False,
)
