"""
Task 09.2: a script that survives a restart, and loses at most one step.

On each rank: `_act`, `_goes_on`. In the kernel: the rest.
"""

import torch.distributed as dist

from ddp_lessons.checks.kit import Case, Mistake, Task, equal
from ddp_lessons.checks.kit.shared.numbers import words_of_both
from ddp_lessons.checks.kit.shared.warm_up import first_step
from ddp_lessons.checks.launch.restarts import begun_after, in_a_life, live, lives_of, whole_run
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


def _act(context, survive):
    path = context.folder / f"lives-{context.case.seed}" / "run.pt"
    path.parent.mkdir(exist_ok=True)
    ends = context.case.data.get("ended in steps", [None])
    is_new_job = context["started again by"] != "torchrun"
    whole, lives = whole_run(context, NUM_STEPS), []
    # A job that has finished is started once more, and must find nothing left to do.
    for number, ends_in in enumerate([*ends, None, *([None] if is_new_job else [])]):
        cut_save = context.case.data.get("ended in save") if number == 0 else None
        told = 0 if is_new_job else number
        lives.append(
            live(context, survive, path, NUM_STEPS, number=told, ends_in=ends_in, cut_save=cut_save)
        )
        if cut_save is not None:
            lives[-1]["is_cut"] |= not _goes_on(context, survive, path, lives[-1]["end"][0])
        if lives[-1]["is_cut"]:
            break  # half a file is wrong, whatever the next life makes of it
    # A kill leaves the content that the file has at that moment. So a life must be able to go on
    # from each of these contents.
    moments = [moment for life in lives for moment in life.pop("seen")]
    left = [
        (done, content and len(content), *begun_after(context, survive, path, NUM_STEPS, content))
        for done, content in moments
    ]
    forgotten = None
    if is_new_job:
        if context.rank == 0:
            path.unlink(missing_ok=True)
        dist.barrier()
        forgotten = live(context, survive, path, NUM_STEPS, number=0, ends_in=0)["made"]
    return {"whole": whole, "lives": lives, "left": left, "forgotten": forgotten}


def _goes_on(context, survive, path, done):
    # Tell whether a life that finds the file after a cut save begins with one of two right steps.
    content = path.read_bytes() if path.exists() else None
    first, _ = begun_after(context, survive, path, NUM_STEPS, content)
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)
    return first in (max(done, 1), done + 1)


def _goes_on_after_its_end(_, one):
    return one.life["num_late"] and "it goes on after it was ended."


def _saves_too(view, one):
    return view.rank and one.life["num_saves"] and f"rank {view.rank} saves, too."


def _counts_otherwise(_, one):
    numbers = one.numbers
    right = [*range(numbers[0], numbers[0] + len(numbers))] if numbers else []
    return numbers != right and f"the numbers of its steps are {numbers}."


def _begins(view, one):
    # Return the number of the life's first step if it is a wrong one, else None.
    numbers, was_cut = one.numbers, "ended in save" in view.case.data
    is_right = not numbers or numbers[0] == one.done + 1 or (was_cut and numbers[0] == one.done)
    return None if is_right else numbers[0]


def _begins_anew_as_a_job(view, one):
    is_new_job = view.case["started again by"] != "torchrun"
    return is_new_job and _begins_anew(view, one)


def _begins_anew(view, one):
    return _begins(view, one) == 1 and f"it begins with step 1, and {one.done + 1} is next."


def _begins_elsewhere(view, one):
    first = _begins(view, one)
    return first and f"it begins with step {first}, and {one.done + 1} is next."


def _begins_with_other_weights(view, one):
    for number, weights, _ in one.life["made"][:1]:
        right = view.output["whole"][number - 1][1]
        if not equal(weights, right):
            got, expected = words_of_both(weights, right)
            return f"it begins step {number} with the weights {got}; {expected} are right."
    return ""


def _begins_without_momentum(view, one):
    for number, _, momentum in one.life["made"][:1]:
        if _begins_with_other_weights(view, one):
            return ""
        if not equal(momentum, view.output["whole"][number - 1][2]):
            return "the weights are right, and the optimizer's momentum is not."
    return ""


def _leaves_half(view):
    cut = next((one for one in lives_of(view) if one.life["is_cut"]), None)
    if cut:
        return f"{cut.when}: it ends in the middle of a save, and no whole one lies at `path`."
    for done, size, first, weights in view.output["left"]:
        what = "no file at `path`" if size is None else f"{size} bytes at `path`"
        fact = f"After step {done}, a life that ends at one moment of the save leaves {what}"
        if first is None:
            return f"{fact}, and the next one raises {weights}."
        if first not in (max(done, 1), done + 1):
            return f"{fact}, and the next one begins with step {first}."
        if not equal(weights, view.output["whole"][first - 1][1]):
            return f"{fact}, and the next one begins step {first} with other weights."
    return ""


def _makes_another_number(view):
    too_far = [one for one in lives_of(view) if one.numbers and one.numbers[-1] > NUM_STEPS]
    if too_far:
        return f"{too_far[0].when}: it makes step {too_far[0].numbers[-1]} of {NUM_STEPS}."
    last = lives_of(view)[-1].life["end"][0]
    return last != NUM_STEPS and (
        f"In its last life nothing ends it. run.step is {last} when it returns."
    )


def _ends_with_other_weights(view):
    got, right = lives_of(view)[-1].life["end"][1], view.output["whole"][-1][1]
    if equal(got, right):
        return in_a_life(_begins_with_other_weights)(view)
    told = words_of_both(got, right)
    return f"In the end the weights are {told[0]}; a run that nothing has ended has {told[1]}."


def _remembers(view):
    made = view.output["forgotten"]
    return (
        made is not None
        and [step for step, *_ in made] != [1]
        and ("The file was taken away, and a new job started. It does not begin with step 1.")
    )


def _draw(case_result):
    names = [f"life {number}" for number in range(len(case_result.seen[0].output["lives"]))]
    rows = []
    for seen in case_result.seen:
        made = [[step for step, *_ in life["made"]] for life in seen.output["lives"]]
        told = [f"steps {steps[0]} to {steps[-1]}" if steps else "no step" for steps in made]
        rows.append(dict(zip(names, told, strict=True)))
    return holdings_picture(names, rows)


survive = Task(
    number="09.2",
    name="survive",
    uses_store=True,
    cases=_cases,
    act=_act,
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
    mistakes=(
        Mistake(
            "after-end",
            "A process that is ended runs no line more. So catch nothing, and save while all is "
            "well.",
            shows=in_a_life(_goes_on_after_its_end),
        ),
        Mistake(
            "every-rank",
            "All ranks hold the same. One writes the file, rank 0; several write over each other.",
            shows=in_a_life(_saves_too),
        ),
        Mistake(
            "counted",
            "train_step counts run.step by itself. Set it once, after loading, and leave it alone.",
            shows=in_a_life(_counts_otherwise),
        ),
        Mistake(
            "by-count",
            "Here it begins anew, and under torchrun it did not. A new job counts its restarts "
            "from 0. What counts is whether the file is there.",
            shows=in_a_life(_begins_anew_as_a_job),
        ),
        Mistake(
            "from-start",
            "It begins anew, though an earlier life has left its steps. Load before the first "
            "step, on every rank, and take over the number of steps too. Have all of it in `path`: "
            "nothing else comes over.",
            shows=in_a_life(_begins_anew),
        ),
        Mistake(
            "other-step",
            "Save after every step, what was not saved is lost; and save run.step as it is then, "
            "no number that is ahead of the weights.",
            shows=in_a_life(_begins_elsewhere),
        ),
        Mistake(
            "in-place",
            "If you open the file for writing, it is empty first, and if you remove it, there is "
            "none for a moment. Write under another name in the same folder; os.replace then gives "
            "it the name in one act. To move a file from another disk, such as /tmp, is to copy "
            "it.",
            shows=_leaves_half,
        ),
        Mistake(
            "num-steps",
            "Go on until run.step is num_steps, and no further. Steps of earlier lives count.",
            shows=_makes_another_number,
        ),
        Mistake(
            "optimizer",
            "The optimizer remembers, too: its momentum. Save its state_dict with the model's.",
            shows=in_a_life(_begins_without_momentum),
        ),
        Mistake(
            "weights",
            "Take over the weights of the checkpoint, on every rank, before the first step, and "
            "also where no step is left to make. After that only train_step changes them.",
            shows=_ends_with_other_weights,
        ),
        Mistake(
            "memory",
            "A process that is started anew has an empty memory. Only what is in the file comes "
            "over.",
            shows=_remembers,
        ),
        Mistake(
            "deadlock",
            "Every rank must make the same steps: so every rank loads, not only the one that "
            "saves.",
        ),
        Mistake(
            "raised",
            "The first life finds no file, and a later one finds what you have saved: look whether "
            "it is there. Nothing but `path` comes over, so have all of it in this file. If a file "
            "is gone before it is renamed, another rank has done so.",
        ),
    ),
    must_return=False,
    in_place=True,
    warm_up=first_step,
)
