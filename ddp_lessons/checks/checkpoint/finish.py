"""
Task 08.5: the capstone: a run on four ranks is killed, and two ranks resume it.

On each rank: `_act`, `_pair`, `_digits_for`. In the kernel: the rest.
"""

import shutil

import torch
import torch.distributed as dist

from ddp_lessons.checks.checkpoint.life_faults import (
    EVERY,
    GLOBAL_BATCH,
    MICRO_BATCH,
    NUM_STEPS,
    counts_wrongly,
    goes_on_otherwise,
    in_a_life,
    is_no_mean,
    is_undivided,
    makes_other_steps,
    restores_otherwise,
    saves_other_steps,
    takes_other_share,
    takes_too_many,
    talks_too_much,
    writes_alone,
)
from ddp_lessons.checks.checkpoint.noted_runs import (
    DigitsRun,
    NotedCheckpoints,
)
from ddp_lessons.checks.kit import Case, Mistake, Task, equal, generator
from ddp_lessons.checks.kit.shared.small_runs import live
from ddp_lessons.checks.kit.shared.warm_up import first_save
from ddp_lessons.errors import BadInput
from ddp_lessons.pictures import timeline_picture
from ddp_lessons.workloads import load_digits

_NUM_DIGITS = 128


def _cases(draw):
    # The second case of a pair resumes what the first one saved. The first pair is drawn, so its
    # step is always the same. The others are killed in any step after the first save. Three ranks
    # cannot take over four shares without splitting them; two ranks and one rank can.
    data = {"saved by": 4, "killed in step": 4}
    yield Case(4, data, seed=0)
    yield Case(2, data, seed=0)
    others = [step for step in range(EVERY + 1, NUM_STEPS + 1) if step != 4]
    data = {"saved by": 4, "killed in step": draw.choice(others)}
    yield Case(4, data)
    yield Case(3, data)
    data = {"saved by": 2, "killed in step": draw.randint(3, NUM_STEPS)}
    yield Case(2, data)
    yield Case(1, data)


def _act(context, finish):
    images, labels, batches = _digits_for(context)
    given = (images, labels, list(batches), MICRO_BATCH, EVERY)
    folders = {
        name: context.folder / f"{name}-{_pair(context)}" for name in ("whole", "many", "few")
    }
    lives = {}

    def play(name, folder, killed_in=None, seed=0):
        life = DigitsRun(context, seed, killed_in)
        saves = NotedCheckpoints(folders[folder], life)
        live(context, saves, finish, life.run, saves, *given)
        events = context.calls[-1].events if killed_in is None else []  # a killed call leaves none
        lives[name] = {
            "steps": life.steps,
            "saves": saves.log,
            "made": saves.made,
            "num_late": saves.num_late,
            "num_syncs": sum(e.name == "all_reduce" and e.backward is not None for e in events),
            "num_between": saves.num_between(events, life.steps),
            "end": life.state(),
        }

    if context.world_size == context["saved by"]:
        play("whole", "whole")
        play("killed", "many", context["killed in step"])
        if context.rank == 0:
            if folders["many"].exists():
                shutil.copytree(folders["many"], folders["few"])
            torch.save(lives["whole"], context.folder / f"whole-{_pair(context)}.pt")
        dist.barrier()
        play("resumed", "many", seed=1)
    else:
        lives["whole"] = torch.load(context.folder / f"whole-{_pair(context)}.pt")
        play("resumed", "few", seed=1)
    is_changed = not equal(given[2], batches)
    kept = {"lives": lives, "images": images, "labels": labels, "batches": batches}
    return kept | {"is changed": is_changed}


def _pair(context):
    return f"{context['saved by']}-{context['killed in step']}"


def _digits_for(context):
    path = context.folder / f"digits-{_pair(context)}.pt"
    if context.world_size == context["saved by"] and context.rank == 0:
        digits, rng = load_digits(), generator(context.case)
        chosen = torch.randperm(len(digits.train_labels), generator=rng)[:_NUM_DIGITS]
        batches = [
            torch.randperm(_NUM_DIGITS, generator=rng)[:GLOBAL_BATCH] for _ in range(NUM_STEPS)
        ]
        torch.save([digits.train_images[chosen], digits.train_labels[chosen], batches], path)
    dist.barrier()
    if not path.exists():
        raise BadInput(
            f"Too few ranks: {context['saved by']} must save (got {context.world_size}). Run "
            "start_ranks(4)."
        )
    images, labels, batches = torch.load(path)
    return images.to(context.device), labels.to(context.device), batches


def _draw(case_result):
    tracks = []
    for seen in case_result.seen:
        spans, now = [], 0
        for name in ("killed", "resumed"):
            life = seen.output["lives"][name]
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
    extra_time_s=4.0,  # for the disk
    uses_store=True,
    name="finish",
    cases=_cases,
    act=_act,
    ok="the same bits as without the kill, and with fewer ranks the same steps up to rounding",
    draw=_draw,
    warm_up=first_save,
    hints=(
        "You have written all three parts before: load the latest checkpoint (08.3), distribute "
        "each batch to the ranks (lesson 04), and make one all-reduce a step (lesson 07).",
        "After loading, the batches in batches[run.step:] are left. This rank takes "
        "batch[rank::world_size] of each batch, in parts of micro_batch samples.",
        "saves.load(run, exact=False) loads what another number of ranks has saved. All parts of a "
        "step but the last run under run.model.no_sync(), and each loss is divided by the number "
        "of parts.",
        "After the parts: run.optimizer.step(), run.optimizer.zero_grad(), run.step += 1, and "
        "saves.save_sharded(run) if run.step % every == 0.",
    ),
    mistakes=(
        Mistake(
            "input-changed",
            "Leave the list of batches as it is: a slice is a new list.",
            "It changes the list of batches.",
            shows=lambda view: view.output["is changed"],
        ),
        Mistake(
            "count",
            "Count each step in run.step after optimizer.step() and before you save: run.step "
            "names the checkpoint.",
            shows=in_a_life(counts_wrongly),
        ),
        Mistake(
            "steps",
            "Load the latest checkpoint first. Step number run.step + 1 trains on "
            "batches[run.step], so the batches in batches[run.step:] are left. Make each step "
            "once.",
            shows=in_a_life(makes_other_steps),
        ),
        Mistake(
            "save-steps",
            "Save after each step whose number is a multiple of every, and after no other step but "
            "the last.",
            shows=in_a_life(saves_other_steps),
        ),
        Mistake(
            "whole-file",
            "Let every rank write its own part, all at the same time: use save_sharded.",
            shows=in_a_life(writes_alone),
        ),
        Mistake(
            "memory",
            "Give the model micro_batch samples at a time: split this rank's share.",
            shows=in_a_life(takes_too_many),
        ),
        Mistake(
            "share",
            "Each rank must take only its own share of the batch. Distribute the batch to the "
            "ranks that run now: rank and world_size say which share belongs to which rank.",
            shows=in_a_life(takes_other_share),
        ),
        Mistake(
            "undivided",
            "Each backward adds a whole mean. Divide each loss by the number of parts.",
            shows=in_a_life(is_undivided),
        ),
        Mistake(
            "gradient",
            "Each sample of the batch must count once, in float32. The gradient must be zero when "
            "a step begins, and the ranks average the sum over all parts.",
            shows=in_a_life(is_no_mean),
        ),
        Mistake(
            "restored",
            "Load by saves.load, before anything else changes the run: the optimizer's state is in "
            "the checkpoint, too.",
            shows=restores_otherwise,
        ),
        Mistake(
            "other-run",
            "Every run must load, distribute, add up and save in the same way, from batches and "
            "run.step alone. Leave the learning rate as it is, and do not save after an error.",
            shows=goes_on_otherwise,
        ),
        Mistake(
            "cost",
            "Ranks communicate once a step, in the backward of the last part. DDP plans this in "
            "the forward: both forward and backward of the other parts belong inside "
            "run.model.no_sync(). A loss that you only print needs no message, and a step needs no "
            "barrier.",
            shows=in_a_life(talks_too_much),
        ),
        Mistake(
            "raised",
            "Another number of ranks may have saved the run: exact=False allows that.",
        ),
        Mistake(
            "deadlock",
            "Loading, saving and the backward of the last part are collective: every rank must "
            "make each of these calls.",
        ),
    ),
    in_place=True,
    must_return=False,
)
