"""
Task 09.2: a script that survives a restart, and loses at most one step.
"""

import torch.distributed as dist

from ddp_lessons.checks.kit import Case, Task, equal
from ddp_lessons.checks.kit.material.warm_up import first_step
from ddp_lessons.checks.launch.lives import begun_after, live, whole_run
from ddp_lessons.pictures import holdings_picture

NUM_STEPS = 7


def _cases(draw):
    def case(world_size, ends, by, seed=None):
        return Case(world_size, {"ended in steps": ends, "started again by": by}, seed)

    yield case(4, [3, 6], "torchrun", seed=5)
    # The first life may end before anything was saved, and two may end in the same step.
    first = draw.randint(2, 5)
    yield case(draw.choice((2, 3)), [1, first, draw.choice((first, NUM_STEPS))], "torchrun")
    yield case(2, sorted(draw.sample(range(2, NUM_STEPS + 1), 2)), "a new job of Slurm")
    yield Case(1, {"ended in save": draw.randint(2, 5), "started again by": "torchrun"})


def _act(here, survive):
    path = here.folder / f"lives-{here.case.seed}" / "run.pt"
    path.parent.mkdir(exist_ok=True)
    ends = here.case.data.get("ended in steps", [None])
    is_new_job = here["started again by"] != "torchrun"
    whole, lives = whole_run(here, NUM_STEPS), []
    # A job that is over may be started once more: nothing is left to do.
    for number, ends_in in enumerate([*ends, None, *([None] if is_new_job else [])]):
        cut_save = here.case.data.get("ended in save") if number == 0 else None
        told = 0 if is_new_job else number
        lives.append(
            live(here, survive, path, NUM_STEPS, number=told, ends_in=ends_in, cut_save=cut_save)
        )
        if cut_save is not None:
            lives[-1]["is_cut"] |= not _goes_on(here, survive, path, lives[-1]["end"][0])
        if lives[-1]["is_cut"]:
            break  # what the next life makes of half a file is told by the file
    # A kill leaves what is under the name at that moment. So each of them must be enough.
    moments = [moment for life in lives for moment in life.pop("seen")]
    left = [
        (done, content and len(content), *begun_after(here, survive, path, NUM_STEPS, content))
        for done, content in moments
    ]
    forgotten = None
    if is_new_job:
        if here.rank == 0:
            path.unlink(missing_ok=True)
        dist.barrier()
        forgotten = live(here, survive, path, NUM_STEPS, number=0, ends_in=0)["made"]
    return {"whole": whole, "lives": lives, "left": left, "forgotten": forgotten}


def _goes_on(here, survive, path, done):
    # Whether a life that finds what a cut save has left begins with one of the two right steps.
    content = path.read_bytes() if path.exists() else None
    first, _ = begun_after(here, survive, path, NUM_STEPS, content)
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)
    return first in (max(done, 1), done + 1)


def _judge(played):
    for rank, seen in enumerate(played.seen):
        whole, lives, done = seen.kept["whole"], seen.kept["lives"], 0
        for number, life in enumerate(lives):
            when = f"In life {number}, after {done} steps that were made"
            _judge_life(played, rank, life, number, done, when)
            _judge_state(played, rank, life, whole, when)
            done = max(done, life["end"][0])
        if lives[-1]["end"][0] != NUM_STEPS:
            both = {"got": lives[-1]["end"][0], "expected": NUM_STEPS}
            fact = "In its last life nothing ends it. This is run.step when it returns."
            raise played.wrong("too-few", rank, **both, fact=fact)
        if not equal(lives[-1]["end"][1], whole[-1][1]):
            both = {"got": lives[-1]["end"][1], "expected": whole[-1][1]}
            fact = "The weights at the end are not those of a run that nothing has ended."
            mistake = "values" if lives[-1]["made"] else "weights"
            raise played.wrong(mistake, rank, **both, fact=fact)
        _judge_left(played, rank, seen.kept["left"], whole)
        made = seen.kept["forgotten"]
        if made is not None and [step for step, *_ in made] != [1]:
            both = {"got": made[0][0] if made else "no step", "expected": 1}
            fact = "The file was taken away, and a new job started. This is what it begins with."
            raise played.wrong("memory", rank, **both, fact=fact)


def _judge_life(played, rank, life, number, done, when):
    if life["num_late"]:
        raise played.wrong("after-end", rank, fact=f"{when}: it goes on after it was ended.")
    if rank and life["num_saves"]:
        raise played.wrong("every-rank", rank, fact=f"{when}: rank {rank} saves, too.")
    if life["is_cut"]:
        fact = f"{when}: it ends in the middle of a save, and no whole one lies at `path`."
        raise played.wrong("in-place", rank, fact=fact)
    numbers = [step for step, *_ in life["made"]]
    if numbers != [*range(numbers[0], numbers[0] + len(numbers))] if numbers else False:
        fact = f"{when}: these are the numbers of its steps, and all of them must be in order."
        raise played.wrong("counted", rank, got=numbers, fact=fact)
    if not numbers:
        return
    if numbers[-1] > NUM_STEPS:
        fact = f"{when}: it makes step {numbers[-1]} of {NUM_STEPS}."
        raise played.wrong("too-many", rank, fact=fact)
    first, was_cut = numbers[0], "ended in save" in played.case.data
    if first == done + 1 or (was_cut and first == done):
        return
    both = {"got": first, "expected": done + 1}
    fact = f"{when}: this is the step that it begins with."
    if first == 1:
        is_new_job = played.case["started again by"] != "torchrun"
        raise played.wrong("by-count" if is_new_job else "from-start", rank, **both, fact=fact)
    raise played.wrong("ahead" if first > done + 1 else "too-seldom", rank, **both, fact=fact)


def _judge_left(played, rank, left, whole):
    for done, size, first, weights in left:
        what = "no file at `path`" if size is None else f"{size} bytes at `path`"
        fact = f"After step {done}, a life that ends at one moment of the save leaves {what}"
        if first is None:
            fact += f", and the next one raises {weights}."
            raise played.wrong("in-place", rank, fact=fact)
        if first not in (max(done, 1), done + 1):
            both = {"got": first, "expected": done + 1}
            fact += ". This is the step that the next one begins with."
            raise played.wrong("in-place", rank, **both, fact=fact)
        if not equal(weights, whole[first - 1][1]):
            both = {"got": weights, "expected": whole[first - 1][1]}
            fact += f". The next one begins step {first} with other weights."
            raise played.wrong("in-place", rank, **both, fact=fact)


def _judge_state(played, rank, life, whole, when):
    for number, weights, momentum in life["made"][:1]:
        _, right_weights, right_momentum = whole[number - 1]
        if not equal(weights, right_weights):
            both = {"got": weights, "expected": right_weights}
            fact = f"{when}: it begins step {number} with other weights than those after step "
            raise played.wrong("weights", rank, **both, fact=f"{fact}{number - 1}.")
        if not equal(momentum, right_momentum):
            both = {"got": momentum, "expected": right_momentum}
            fact = f"{when}: the weights are right, and the optimizer's momentum is not."
            raise played.wrong("optimizer", rank, **both, fact=fact)


def _draw(played):
    names = [f"life {number}" for number in range(len(played.seen[0].kept["lives"]))]
    rows = []
    for seen in played.seen:
        made = [[step for step, *_ in life["made"]] for life in seen.kept["lives"]]
        told = [f"steps {steps[0]} to {steps[-1]}" if steps else "no step" for steps in made]
        rows.append(dict(zip(names, told, strict=True)))
    return holdings_picture(names, rows)


survive = Task(
    number="09.2",
    name="survive",
    uses_store=True,
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="ended again and again, and every step that was made is kept",
    draw=_draw,
    hints=(
        "A script that is started again knows nothing of its earlier life. What it must know lies "
        "on the disk: look there first, whoever has started it.",
        "Three things make it go on as if nothing had happened: the weights, what the optimizer "
        "remembers, and the number of steps made.",
        "At most one step may be lost, so save after each. And a save may be cut off in its "
        "middle: write under another name, and rename.",
        "if path.exists(): load all three, on every rank. Then: while run.step < num_steps: "
        "run.train_step(), and rank 0 saves beside and calls os.replace(beside, path).",
    ),
    mistakes={
        "from-start": "It begins anew, though an earlier life has left its steps. Load before the "
        "first step, on every rank, and take over the number of steps too. Have all of it in "
        "`path`: nothing else comes over.",
        "by-count": "Here it begins anew, and under torchrun it did not. A new job counts its "
        "restarts from 0. What counts is whether the file is there.",
        "too-seldom": "What was not saved is lost. Save after every step.",
        "ahead": "A step is missing: the number that was saved is ahead of the weights. Save after "
        "a step, and save run.step as it is then.",
        "counted": "train_step counts run.step by itself. Set it once, after loading, and leave it "
        "alone.",
        "too-few": "Go on until run.step is num_steps. Steps of earlier lives count.",
        "too-many": "num_steps is for the whole run. Steps of earlier lives count.",
        "after-end": "A process that is ended runs no line more. So catch nothing, and save while "
        "all is well.",
        "every-rank": "All ranks hold the same. One writes the file, rank 0; several write over "
        "each other.",
        "in-place": "Whoever opens the file for writing empties it first, and whoever removes it "
        "has none for a moment. Write under another name in the same folder; os.replace then gives "
        "it the name in one act. To move a file from another disk, such as /tmp, is to copy it.",
        "memory": "A process that is started anew has an empty memory. Only what is in the file "
        "comes over.",
        "weights": "Take over the weights of the checkpoint, on every rank, before the first step, "
        "and also where no step is left to make.",
        "optimizer": "The optimizer remembers, too: its momentum. Save its state_dict with the "
        "model's.",
        "deadlock": "Every rank must make the same steps: so every rank loads, not only the one "
        "that saves.",
        "raised": "The first life finds no file, and a later one finds what you have saved: look "
        "whether it is there. Nothing but `path` comes over, so have all of it in this file. If a "
        "file is gone before it is renamed, another rank has done so.",
    },
    returns=False,
    in_place=True,
    warm_up=first_step,
)
