"""
Task 08.3: resume in the middle of an epoch.

On each rank: `_act`. In the kernel: the rest.
"""

from itertools import pairwise

from ddp_lessons.checks.checkpoint.noted_runs import NotedCheckpoints, NotedRun
from ddp_lessons.checks.kit import Case, Task, equal
from ddp_lessons.checks.kit.shared.small_runs import BATCH_SIZE, NUM_SAMPLES, live
from ddp_lessons.checks.kit.shared.warm_up import first_save
from ddp_lessons.pictures import samples_picture


def _cases(draw):
    yield Case(4, {"epochs": 2, "every": 2, "kills": [4, 5]}, seed=0)
    yield Case(1, {"epochs": 2, "every": 4, "kills": [draw.randint(5, 7), draw.randint(13, 15)]})
    # One kill comes before anything was saved, and one right after an epoch's last save.
    yield Case(2, {"epochs": 3, "every": 3, "kills": [2, 6, draw.randint(7, 11)]})
    yield Case(3, {"epochs": 2, "every": 3, "kills": [draw.randint(4, 5)]})


def _act(context, train):
    right = NotedRun(context, seed=context.case.seed)
    num_samples = len(right.run.sampler)  # type: ignore[arg-type]  # a ResumableSampler
    right.go_on(context["epochs"] * -(-num_samples // BATCH_SIZE))
    lives = []
    for kill in [*context["kills"], None, None]:
        life = NotedRun(context, seed=context.case.seed, killed_after=kill)
        saves = NotedCheckpoints(context.folder / f"case-{context.case.seed}", life)
        given = (life.run, life.batches, life.step, saves, context["epochs"], context["every"])
        live(context, saves, train, *given)
        lives.append(
            {
                "seen": life.seen,
                "saves": [step for _, step in saves.log],
                "num_late": saves.num_late,
                "weights": life.weights(),
                "counts": life.counts,
                "places": saves.places,
                "num_loads": saves.num_loads,
            }
        )
    return {"right": right.seen, "weights": right.weights(), "lives": lives}


def _judge(case_result):
    for rank, seen in enumerate(case_result.seen):
        _judge_lives(case_result, rank, **seen.output)


def _judge_lives(case_result, rank, right, weights, lives):
    every = case_result.case["every"]
    done = 0  # number of steps on the disk
    for number, (life, kill) in enumerate(
        zip(lives, [*case_result.case["kills"], None, None], strict=True)
    ):
        stop = len(right) if kill is None else kill
        due = [step for step in range(done + 1, stop + 1) if step % every == 0]
        when = f"Start {number + 1}, with {done} of {len(right)} steps on the disk"
        if life["num_late"]:
            fact = f"{when}: it saves after the run was killed."
            raise case_result.wrong("saves-dead", rank, fact=fact)
        if life["seen"] != right[done:stop]:
            mistake = _name_the_counts(case_result, lives[: number + 1], right, done)
            mistake = mistake or _name_the_samples(life["seen"], right, done, stop)
            both = {"got": life["seen"], "expected": right[done:stop]}
            fact = f"{when}: these are the (epoch, samples) of its steps."
            raise case_result.wrong(mistake, rank, **both, fact=fact)
        saved = life["saves"]
        if not set(due) <= set(saved):
            fact = f"{when}: it saves after steps {saved}, and saves were due after {due}."
            raise case_result.wrong("too-seldom", rank, fact=fact)
        if len(saved) > len(due) + (kill is None):
            fact = f"{when}: it saves after steps {saved}; saves after {due} are enough."
            raise case_result.wrong("too-often", rank, fact=fact)
        done = max([done, *saved])
    if not equal(lives[-2]["weights"], weights):
        both = {"got": lives[-2]["weights"], "expected": weights}
        fact = "The weights at the end differ from those of a run without kills."
        raise case_result.wrong("values", rank, **both, fact=fact)


def _name_the_counts(case_result, lives, right, done):
    # Return the mistake in what the loop did to run.step, run.epoch and the sampler, or None.
    if any(own for _, _, own in lives[0]["counts"][:1]):
        return "other-epoch"
    if any(life["num_loads"] > 1 for life in lives):
        return "loads-again"
    steps = [step for step, _, _ in lives[-1]["counts"]]
    if any(two - one != 1 for one, two in pairwise(steps)):
        return "counted"
    if done and any(run < own for life in lives for _, run, own in life["counts"]):
        return "epoch-behind"
    for step, epoch, position in (place for life in lives for place in life["places"]):
        if 0 < step <= len(right):
            in_epoch = sum(one == right[step - 1][0] for one, _ in right[:step])
            given = in_epoch * BATCH_SIZE * case_result.case.world_size
            if (epoch, position) > (right[step - 1][0], min(given, NUM_SAMPLES)):
                return "ahead"
    return None


def _name_the_samples(seen, right, done, stop):
    if done == len(right) and seen:
        return "after-end"
    if done and seen[:1] == right[:1]:
        return "from-start"
    begin = next(one for one in right if one[0] == right[done][0])
    if seen[:1] == [begin] != right[done : done + 1]:
        return "epoch-anew"
    if seen and all(one == two for one, two in zip(seen, right[done:stop], strict=False)):
        return "num-epochs"
    if any(one == two for one, two in pairwise(seen)):
        return "twice"
    samples = [batch for _, batch in seen]
    if {epoch for epoch, _ in seen} == {0} and {epoch for epoch, _ in right[done:stop]} != {0}:
        return "alike"
    if seen and seen[0] in right:
        first = right.index(seen[0])
        if first != done:
            return "lost" if first > done else "twice"
    if not samples or len(seen) < stop - done:
        return "lost"
    return "twice" if any(one in right[:done] for one in seen) else "values"


def _draw(case_result):
    # Draw the last epoch as the weights contain it: without steps that a kill has undone.
    num_epochs, rows = case_result.case["epochs"], []
    for seen in case_result.seen:
        kept, done = [], 0
        for life in seen.output["lives"]:
            steps = kept[:done] + life["seen"]
            kept, done = steps, max([done, *life["saves"]])
        rows.append([batch for epoch, batch in kept if epoch == num_epochs - 1])
    return samples_picture(rows, NUM_SAMPLES)


train = Task(
    number="08.3",
    extra_time_s=4.0,  # for the disk
    uses_store=True,
    name="train",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="killed again and again, no sample lost or seen twice, every bit the same",
    draw=_draw,
    warm_up=first_save,
    hints=(
        "A program that was killed is started again from its first line. So the same function must "
        "start a new run and resume an old one: it first looks for a checkpoint.",
        "saves.load(run) restores the epoch, the step and the sampler's place. If there is no "
        "checkpoint, it leaves the run as it is.",
        "The outer loop begins at run.epoch, not at 0. In a resumed epoch, batches yields only the "
        "samples that are left.",
        "for run.epoch in range(run.epoch, num_epochs): first set_epoch, then the loop over "
        "batches: train_step, and saves.save(run) if run.step % every == 0.",
    ),
    mistakes={
        "from-start": "Load the latest checkpoint before anything else, and begin at its epoch and "
        "at its place in the epoch.",
        "counted": "train_step counts each step in run.step. Do not change run.step yourself.",
        "epoch-behind": "A checkpoint holds the run.epoch of the moment of the save. Begin the "
        "loop at run.epoch, and increase run.epoch when an epoch is over.",
        "ahead": "The sampler was ahead of the steps when the run was saved: it counts the samples "
        "that it has yielded. Save right after a step, and take no batch before you train on it.",
        "other-epoch": "Epochs count from 0. The sampler, the loop and run.epoch must all have the "
        "same epoch.",
        "loads-again": "Each load puts the run back to the latest checkpoint. Load once, at the "
        "start.",
        "epoch-anew": "The epoch is right, but the sampler starts the epoch again, although the "
        "load has restored its place. Call set_epoch with no other epoch in between, and let "
        "batches continue.",
        "num-epochs": "num_epochs is the number of epochs of the whole run, and epochs before a "
        "kill count, too. Leave out no epoch at the end, and add none after the last.",
        "twice": "Make one step with each batch, however often the run is killed. After a "
        "checkpoint in the middle of epoch e, the run resumes in e. Keep run.epoch up to date, so "
        "that the loop begins there.",
        "lost": "After a checkpoint in the middle of epoch e, the run resumes in e, and the "
        "sampler skips the samples that were seen. Count an epoch when it is over, and a step when "
        "it is made.",
        "alike": "The samples of epoch 0 come again. Call set_epoch with the current epoch, and "
        "increase run.epoch when an epoch is over.",
        "after-end": "A run that was saved at its end has no step left. Which epoch does its "
        "checkpoint name?",
        "too-seldom": "Save after each step whose number is a multiple of every. The number is "
        "run.step, which continues from epoch to epoch.",
        "too-often": "A save costs time. Save only after steps whose number is a multiple of "
        "every.",
        "saves-dead": "After a kill, no except block and no finally block runs. Save after a step, "
        "in the loop.",
        "deadlock": "saves.save and saves.load are collective: every rank must call them.",
    },
    must_return=False,
)
