"""
Exercise 08: what must be saved so that nothing is lost?

Legend: w ranks; a tensor of n rows of which rank r holds some; step s is made when s - 1 are done.
"""

import io
import random
import shutil
from itertools import pairwise

import torch
import torch.distributed as dist

from ddp_lessons.checks.checkpoint_runs import (
    DigitsRun,
    NotedCheckpoints,
    NotedRun,
    RightGradients,
    buffered_run,
    is_update,
)
from ddp_lessons.checks.kit import Case, Task, equal, generator, normal_numbers
from ddp_lessons.checks.kit.disk import LEFT, FileWatch, left_by_kills
from ddp_lessons.checks.kit.plain import plain
from ddp_lessons.checks.kit.runs import BATCH_SIZE, NUM_SAMPLES, live
from ddp_lessons.checks.kit.warm_up import first_save
from ddp_lessons.errors import BadInput
from ddp_lessons.pictures import (
    holdings_picture,
    samples_picture,
    shards_picture,
    timeline_picture,
)
from ddp_lessons.ranks.rank.guard import current_guard
from ddp_lessons.trace import match
from ddp_lessons.workloads import load_digits

# ---- 08.1 an atomic save ----


_NEIGHBOUR = "epoch-7.pt"


def _save_cases(draw):
    yield Case(4, {"numbers": 5000, "old file": True}, seed=0)
    for world_size in (1, 2, 3):
        old = world_size != 2
        # One rank is killed in mid-save: only what is larger than a buffer is cut then.
        fewest = 5000 if world_size == 1 else 100
        yield Case(world_size, {"numbers": draw.randint(fewest, 9000), "old file": old})


def _state(case, rank, step):
    return {
        "step": step,
        "weights": normal_numbers(case, rank, [case["numbers"]]) + step,
        "rates": [0.1, 0.05],
    }


def _save_act(here, save):
    path = here.folder / f"case-{here.case.seed}" / "run.pt"
    if here.rank == 0:
        path.parent.mkdir()
        if here["old file"]:
            torch.save(_state(here.case, 0, 1), path)
        path.with_name(_NEIGHBOUR).touch()
    dist.barrier()
    watch = FileWatch(path)
    with watch:
        here.call(save, _state(here.case, here.rank, 2), path)
    try:
        found = torch.load(path, weights_only=True)
    except Exception:
        found = None  # that is for the kernel to judge
    names = ("num_saves", "num_moves", "synced", "was_beside", "was_written_over")
    kept = {name: vars(watch)[name] for name in names}
    dist.barrier()
    others = sorted({file.name for file in path.parent.iterdir()} ^ {path.name, _NEIGHBOUR})
    fault = _fault_after_a_kill(here, save) if here.world_size == 1 else None
    return kept | {"versions": watch.versions, "found": found, "others": others, "fault": fault}


def _fault_after_a_kill(here, save):
    # Of a save by one rank that was killed at some moment. None: the next one is all right.
    path = here.folder / f"killed-{here.case.seed}" / "run.pt"
    path.parent.mkdir()
    torch.save(_state(here.case, 0, 1), path)
    for folder in left_by_kills(path, lambda: save(_state(here.case, 0, 2), path)):
        shutil.rmtree(path.parent)
        folder.rename(path.parent)
        fault = _fault_of_the_next(here, save, path)
        if fault is not None:
            return fault
    return None


def _fault_of_the_next(here, save, path):
    try:
        with FileWatch(path) as watch:
            save(_state(here.case, 0, 3), path)
    except Exception as error:
        return f"it raises {type(error).__name__}"
    try:
        found = torch.load(path, weights_only=True)
    except Exception:
        return "it leaves no file that torch.load takes"
    if LEFT in path.read_bytes():  # torch.load may not mind
        return "what was left is still in the file"
    if not equal(plain(_unsealed(found)), _state(here.case, 0, 3)):
        return "it leaves another state than its own"
    whole = (watch.versions[0], watch.versions[-1])
    if any(version not in whole for version in watch.versions):
        return "for a moment, the name has neither the old file nor the new one"
    return None


def _save_judge(played):
    for rank, seen in enumerate(played.seen[1:], start=1):
        if seen.kept["num_saves"] or seen.kept["num_moves"]:
            fact = f"Rank {rank} writes a file, or gives one the name."
            raise played.wrong("every-rank", rank, fact=fact)
    seen = played.seen[0].kept
    contents = [content for _, content in seen["versions"]]
    old, new = contents[0], contents[-1]
    if new is None or new == old:
        raise played.wrong("not-saved", 0, fact=f"After the call, {_under('the old', old)}.")
    for content in contents[1:-1]:
        if content is None:
            fact = "Killed at one moment of the save, it leaves no file of that name at all."
            raise played.wrong("gap", 0, fact=fact)
        if content not in (old, new):
            fact = f"Killed at one moment of the save, it leaves {len(content):,} bytes under the "
            fact += "name: neither the old file nor the new one."
            raise played.wrong("in-place", 0, fact=fact)
    expected = _state(played.case, 0, 2)
    if not equal(_unsealed(seen["found"]), expected):
        fact = "What torch.load finds in the file is not the state of rank 0."
        raise played.wrong("other-state", 0, fact=fact)
    if seen["was_written_over"]:
        fact = "The new bytes were written into the old file: a kill in between leaves half of it."
        raise played.wrong("in-place", 0, fact=fact)
    if not seen["was_beside"]:
        fact = "No file with that content lay in the folder, or below it, before it got the name."
        raise played.wrong("other-folder", 0, fact=fact)
    if not seen["synced"]:
        fact = "The file got its name before all of it was on the disk."
        raise played.wrong("unsynced", 0, fact=fact)
    _judge_wait(played, replaced_ns=seen["versions"][-1][0])
    if _NEIGHBOUR in seen["others"]:
        fact = f"It takes away {_NEIGHBOUR}, which was in the folder before."
        raise played.wrong("neighbour", 0, fact=fact)
    if seen["others"]:
        fact = f"These files are left beside it: {', '.join(seen['others'])[:80]}."
        raise played.wrong("left-over", 0, fact=fact)
    if seen["fault"]:
        fact = f"Killed while it saved, and called again: {seen['fault']}."
        raise played.wrong("after-kill", 0, fact=fact)


def _under(what, content):
    return "there is no file" if content is None else f"{what} file is still there"


def _unsealed(found):
    # ddp_lessons.checkpoint puts a state into an envelope.
    return found["state"] if isinstance(found, dict) and "state" in found else found


def _judge_wait(played, replaced_ns):
    told = {0}
    for met in match(played.traces):
        own = met.get(0)
        if own is None or own.start_ns < replaced_ns or own.is_receive:
            continue
        rooted = own.name in ("reduce", "gather", "broadcast", "scatter")
        if not rooted or (own.name in ("broadcast", "scatter") and own.peer == 0):
            told |= set(met)
    for rank in range(played.case.world_size):
        if rank not in told:
            fact = f"Rank {rank} may return before the file is there: nothing makes it wait."
            raise played.wrong("no-wait", rank, fact=fact)


def _save_draw(played):
    old, new = (played.seen[0].kept["versions"][place][1] for place in (0, -1))
    words = {old: "step 1", None: "nothing", new: "step 2"}
    left = dict.fromkeys(words[content] for _, content in played.seen[0].kept["versions"])
    both = {"file before": words[old], "after a kill": " or ".join(left)}
    rows = [
        both | {"on return": f"step {_unsealed(seen.kept['found'])['step']}"}
        for seen in played.seen
    ]
    return holdings_picture(["file before", "after a kill", "on return"], rows)


save = Task(
    number="08.1",
    uses_store=True,
    name="save",
    cases=_save_cases,
    act=_save_act,
    judge=_save_judge,
    ok="the old file or the new one at every moment, and nobody returns too soon",
    draw=_save_draw,
    hints=(
        "Opening a file for writing empties it. So the old file must keep its name until the new "
        "one is whole.",
        "Write under another name in the same folder, and wait until that is on the disk. Then "
        "give it the name: os.replace is done wholly or not at all.",
        "To wait for the disk you need the open file: with open(other, 'wb') as file, torch.save "
        "into it, file.flush(), and os.fsync(file.fileno()).",
        "Rank 0 does all of that under `if dist.get_rank() == 0:`. After it, on every rank: "
        "dist.barrier().",
    ),
    mistakes={
        "every-rank": "Let rank 0 write, and nobody else.",
        "not-saved": "After the call, the new state must be under the name that was given.",
        "in-place": "Write under another name, and rename what is whole. A copy writes in place, "
        "also that of shutil.move from another file system.",
        "gap": "Do not remove the old file. os.replace puts the new one in its place in one act.",
        "other-state": "The file must hold what rank 0 was given, as torch.save writes it.",
        "other-folder": "A rename is atomic within one file system only. Write the new file beside "
        "the old one: path.with_name(...).",
        "unsynced": "Call os.fsync on the new file, not on its folder, after all is written and "
        "flushed, and before the rename.",
        "after-kill": "A kill may leave a part of the new file behind, of any length, and what "
        "else you made. The next save has to begin all of it anew, and must not fail because it is "
        "there.",
        "no-wait": "A barrier belongs after the rename, and every rank must call it.",
        "left-over": "Leave one file: rename what you wrote, and remove what else you made, also a "
        "second name for the old file.",
        "neighbour": "Remove only what a save makes: other files in the folder belong to others.",
        "deadlock": "Every rank must come to the barrier, not only the one that writes.",
        "raised": "Only one rank may touch the new file: it is gone when it has been renamed.",
    },
    returns=False,
)

# ---- 08.2 capture and restore ----

_STEPS_AFTER = 4
_PARTS = ("weights", "buffers", "optimizer", "schedule", "place", "noise", "step", "mode")


def _capture_cases(draw):
    def case(world_size, optimizer, captured, restored, seed=None):
        steps = {"captured at step": captured, "restored at step": restored}
        return Case(world_size, {"optimizer": optimizer, **steps}, seed)

    yield case(4, "SGD", 4, 0, seed=0)
    yield case(1, "AdamW", 4, draw.choice((1, 2)))
    # Into a run that is ahead, by an epoch as well: what it has more than the state must go.
    yield case(draw.choice((2, 3)), "AdamW", 4, 7)
    yield case(draw.choice((1, 2, 3)), "SGD", 0, 5)


def _capture_act(here, capture):
    restore = current_guard().shell.user_ns.get("restore")
    if not callable(restore):
        return {"fault": "missing"}
    captured_at = here["captured at step"]
    first = buffered_run(here, seed=here.case.seed)
    first.go_on(captured_at)
    before = _parts(here, first.run)
    state = here.call(capture, first.run)
    after = _parts(here, first.run)
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
    kept["later"] = _parts(here, first.run)
    capture(first.run)  # from now on, what was kept elsewhere than in the state is that of later
    second = buffered_run(here, seed=here.case.seed + 64)
    second.go_on(here["restored at step"])
    torch.randn(3)
    own, before = _objects(second.run), _parts(here, second.run)
    restore(second.run, state)
    now = _objects(second.run)
    kept["new"] = [name for name, one in own.items() if now[name] is not one]
    if not all(isinstance(now[name], type(one)) for name, one in own.items()):
        return kept | {"fault": "no-object"}
    kept["restored"] = _parts(here, second.run)
    kept["as before"] = equal(before, kept["restored"])
    second.seen.clear()
    if second.run.step < captured_at + _STEPS_AFTER:
        second.go_on(captured_at + _STEPS_AFTER)
    ended = {"right": first.weights(), "ended": second.weights()}
    return kept | ended | {"seen": first.seen[captured_at:] == second.seen}


def _objects(run):
    # One parameter stands for all. A model may be none any more.
    parameters = run.model.parameters() if isinstance(run.model, torch.nn.Module) else [None]
    own = {name: getattr(run, name) for name in ("model", "optimizer", "scheduler", "sampler")}
    return own | {"parameter": next(iter(parameters))}


def _parts(here, run):
    # DDP sends rank 0's buffers to all when a forward begins, so those of the others do not count.
    buffers = dict(run.model.named_buffers()) if here.rank == 0 else {}
    parameters = list(run.model.parameters())
    return plain(
        {
            "weights": dict(run.model.named_parameters()),
            "buffers": buffers,
            "optimizer": [_without_zeros(run.optimizer.state.get(p)) for p in parameters],
            "schedule": (run.scheduler.last_epoch, [g["lr"] for g in run.optimizer.param_groups]),
            "place": (run.sampler.state_dict(), run.epoch),
            "noise": torch.get_rng_state(),
            "step": run.step,
            "mode": [module.training for module in run.model.modules()],
            "gradients": [p.grad for p in parameters],
        }
    )


def _without_zeros(state):
    # An optimizer takes zeros for what is not there yet, and torch's own functions fill them in.
    return {name: one for name, one in (state or {}).items() if torch.as_tensor(one).any()}


def _capture_judge(played):
    for rank, seen in enumerate(played.seen):
        _judge_restored(played, rank, seen.kept)
    for rank, kept in enumerate(seen.kept for seen in played.seen):
        if not (kept["seen"] and equal(kept["right"], kept["ended"])):
            both = {"got": kept["ended"], "expected": kept["right"]}
            fact = f"{_new_ones(kept['new'])}After {_STEPS_AFTER} more steps the weights differ."
            raise played.wrong("new-object" if kept["new"] else "values", rank, **both, fact=fact)


def _new_ones(names):
    return f"restore has put another {' and another '.join(names)} into the run. " if names else ""


def _judge_restored(played, rank, kept):
    if kept["fault"] == "missing":
        raise played.wrong("missing", rank, fact="restore is not defined on this rank.")
    if kept["fault"] == "code":
        fact = "torch.load refuses the state: it holds more than tensors and plain values."
        raise played.wrong("code", rank, fact=fact)
    if kept["changed"]:
        fact = f"capture changes the run itself: {', '.join(kept['changed'])}."
        raise played.wrong("capture-changes", rank, fact=fact)
    if kept["fault"] == "no-object":
        fact = f"{_new_ones(kept['new'])}It is of another type."
        raise played.wrong("new-object", rank, fact=fact)
    saved, later, restored = kept["saved"], kept["later"], kept["restored"]
    differ = [part for part in _PARTS if not equal(saved[part], restored[part])]
    fact = f"Not as it was: {', '.join(differ)}."
    if kept["as before"]:
        raise played.wrong("untouched", rank, fact="restore has changed nothing of that run.")
    if differ and "parameter" in kept["new"]:
        raise played.wrong("new-object", rank, fact=f"{_new_ones(kept['new'])}{fact}")
    if any(equal(later[part], restored[part]) for part in differ):
        fact += " It is as at a later call of capture, whose state was not given."
        raise played.wrong("elsewhere", rank, fact=fact)
    if "weights" in differ:
        raise played.wrong("weights", rank, fact=fact)
    if set(differ) >= {"optimizer", "schedule", "place", "noise"}:
        raise played.wrong("weights-only", rank, fact=fact)
    others = [seen.kept["saved"]["noise"] for seen in played.seen]
    if "noise" in differ and rank and equal(restored["noise"], others[0]):
        raise played.wrong("other-rank", rank, fact="This rank got the noise of rank 0.")
    if differ:
        raise played.wrong(differ[0], rank, fact=fact)


def _capture_draw(played):
    rows = []
    for seen in played.seen:
        parts = seen.kept["restored"]
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
    uses_store=True,
    name="capture",
    cases=_capture_cases,
    act=_capture_act,
    judge=_capture_judge,
    ok=f"{_STEPS_AFTER} more steps, and every bit of the weights is the same",
    draw=_capture_draw,
    warm_up=first_save,
    hints=(
        "Whatever changes from step to step, and has a say in the next one, must come back. Go "
        "through one step of the loop and list it.",
        "model, optimizer, scheduler and sampler each have state_dict and load_state_dict. The "
        "rest are numbers, and the random numbers of torch.",
        "torch.get_rng_state() returns the state of torch's random numbers as a tensor, and "
        "torch.set_rng_state(state) puts it back.",
        "The dictionary has seven entries: model, optimizer, scheduler, sampler, epoch, step, rng. "
        "Each is restored by one line.",
    ),
    mistakes={
        "missing": "Both functions must be on every rank. They stand in one cell: run it.",
        "code": "Put state_dict() of an object into the state, never the object itself, and of an "
        "array a tensor or a list.",
        "capture-changes": "capture only reads. It draws no random number, loads nothing, empties "
        "no gradient and leaves the mode alone.",
        "elsewhere": "After a kill, all names of the process are gone. What restore needs must be "
        "in the state that it is given.",
        "buffers": "A model has buffers as well, such as BatchNorm's running mean. They are in "
        "model.state_dict(), but not in model.parameters().",
        "mode": "Leave the mode as it is: who trains on must be in train mode.",
        "deadlock": "Every rank captures and restores a run of its own. If you call a collective, "
        "every rank must call it.",
        "untouched": "restore puts a run back to the state that it is given, also if the run has "
        "come further since. It is called on every rank.",
        "weights": "model.load_state_dict takes what model.state_dict() returned.",
        "weights-only": "The weights are the smallest part of it. What else moves the next step?",
        "optimizer": "The optimizer remembers earlier gradients (momentum): it has a state_dict, "
        "and load_state_dict puts that in the place of all it remembers.",
        "schedule": "The learning rate falls by a schedule, which counts steps of its own.",
        "place": "Samples are gone through in epochs: restore the sampler's place and run.epoch.",
        "noise": "The noise comes from torch's random numbers. They have a state, too. Put it back "
        "as it was, and last: what draws afterwards moves it on.",
        "other-rank": "Each rank has random numbers of its own: let each capture its own.",
        "step": "run.step counts on from where it was.",
        "new-object": "Keep the run's own objects, and put into them what was captured: an "
        "optimizer moves the parameters that it was made with, a schedule that optimizer, and the "
        "loop draws from the sampler that it has.",
        "raised": "load_state_dict takes what state_dict() of the same object returned (model and "
        "model.module name their weights differently), under the key that you gave it. It knows "
        "how to write into parameters, and where an optimizer looks for its state.",
        "values": "Something that the loop uses is not as it was, or not where the loop looks for "
        "it: load_state_dict puts it there. Restore random numbers last.",
    },
)

# ---- 08.3 resume in the middle of an epoch ----


def _train_cases(draw):
    yield Case(4, {"epochs": 2, "every": 2, "kills": [4, 5]}, seed=0)
    yield Case(1, {"epochs": 2, "every": 4, "kills": [draw.randint(5, 7), draw.randint(13, 15)]})
    # One kill before anything was saved, and one right after an epoch's last save.
    yield Case(2, {"epochs": 3, "every": 3, "kills": [2, 6, draw.randint(7, 11)]})
    yield Case(3, {"epochs": 2, "every": 3, "kills": [draw.randint(4, 5)]})


def _train_act(here, train):
    right = NotedRun(here, seed=here.case.seed)
    right.go_on(here["epochs"] * -(-len(right.run.sampler) // BATCH_SIZE))
    lives = []
    for kill in [*here["kills"], None, None]:
        life = NotedRun(here, seed=here.case.seed, killed_after=kill)
        saves = NotedCheckpoints(here.folder / f"case-{here.case.seed}", life)
        given = (life.run, life.batches, life.step, saves, here["epochs"], here["every"])
        live(here, saves, train, *given)
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


def _train_judge(played):
    for rank, seen in enumerate(played.seen):
        _judge_lives(played, rank, **seen.kept)


def _judge_lives(played, rank, right, weights, lives):
    every = played.case["every"]
    done = 0  # steps that are safe on the disk
    for number, (life, kill) in enumerate(
        zip(lives, [*played.case["kills"], None, None], strict=True)
    ):
        stop = len(right) if kill is None else kill
        due = [step for step in range(done + 1, stop + 1) if step % every == 0]
        when = f"Start {number + 1}, with {done} of {len(right)} steps on the disk"
        if life["num_late"]:
            fact = f"{when}: it saves when the run is dead already."
            raise played.wrong("saves-dead", rank, fact=fact)
        if life["seen"] != right[done:stop]:
            mistake = _name_the_counts(played, lives[: number + 1], right, done)
            mistake = mistake or _name_the_samples(life["seen"], right, done, stop)
            both = {"got": life["seen"], "expected": right[done:stop]}
            fact = f"{when}: these are its (epoch, samples)."
            raise played.wrong(mistake, rank, **both, fact=fact)
        saved = life["saves"]
        if not set(due) <= set(saved):
            fact = f"{when}: it saves after steps {saved}, and {due} were due."
            raise played.wrong("too-seldom", rank, fact=fact)
        if len(saved) > len(due) + (kill is None):
            fact = f"{when}: it saves after steps {saved}; {due} are enough."
            raise played.wrong("too-often", rank, fact=fact)
        done = max([done, *saved])
    if not equal(lives[-2]["weights"], weights):
        both = {"got": lives[-2]["weights"], "expected": weights}
        fact = "The weights at the end differ from those of a run without kills."
        raise played.wrong("values", rank, **both, fact=fact)


def _name_the_counts(played, lives, right, done):
    # What did the loop make of run.step, run.epoch and the sampler?
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
            given = in_epoch * BATCH_SIZE * played.case.world_size
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


def _train_draw(played):
    # The last epoch, as it is in the weights: without the steps that a kill has undone.
    num_epochs, rows = played.case["epochs"], []
    for seen in played.seen:
        kept, done = [], 0
        for life in seen.kept["lives"]:
            steps = kept[:done] + life["seen"]
            kept, done = steps, max([done, *life["saves"]])
        rows.append([batch for epoch, batch in kept if epoch == num_epochs - 1])
    return samples_picture(rows, NUM_SAMPLES)


train = Task(
    number="08.3",
    uses_store=True,
    name="train",
    cases=_train_cases,
    act=_train_act,
    judge=_train_judge,
    ok="killed again and again, no sample lost or seen twice, every bit the same",
    draw=_train_draw,
    warm_up=first_save,
    hints=(
        "A program that was killed is started again from its first line. So the same function must "
        "start a run and go on with one: it looks first what is on the disk.",
        "saves.load(run) puts back the epoch, the step and the sampler's place. If there is no "
        "checkpoint, it leaves the run as it is.",
        "The outer loop begins at run.epoch, not at 0. In the epoch it comes back to, batches "
        "yields only what was not seen.",
        "for run.epoch in range(run.epoch, num_epochs): first set_epoch, then the loop over "
        "batches: train_step, and saves.save(run) if run.step % every == 0.",
    ),
    mistakes={
        "from-start": "Load the latest checkpoint before anything else, and begin at the epoch and "
        "the place that came with it.",
        "counted": "train_step counts each step in run.step. Leave that number alone.",
        "epoch-behind": "A checkpoint holds run.epoch as it was at the save. Begin the loop at it, "
        "and move it on when an epoch is over.",
        "ahead": "The sampler was ahead of the steps when the run was saved: it counts what it has "
        "given out. Save right after a step, and take no batch before you train on it.",
        "other-epoch": "Epochs count from 0. The sampler, the loop and run.epoch must mean the "
        "same one.",
        "loads-again": "Each load puts the run back to what is on the disk. Load once, at the "
        "start.",
        "epoch-anew": "The epoch is right, but the sampler has lost its place in it, which the "
        "load has put back. Tell it no other epoch in between, and let batches go on.",
        "num-epochs": "num_epochs is the number of epochs of the whole run. Those that were over "
        "before a kill count, too. None is left out at the end, and none comes after the last.",
        "twice": "Each batch is for one step, however often the run is killed. A checkpoint in the "
        "middle of epoch e says: go on in e. Keep run.epoch true, so that the loop begins there.",
        "lost": "A checkpoint in the middle of epoch e says: go on in e, and the sampler skips by "
        "itself what was seen. Count an epoch when it is over, and a step when it is made.",
        "alike": "The samples of epoch 0 come again. Tell the sampler by set_epoch which epoch it "
        "is, and move run.epoch on when one is over.",
        "after-end": "A run that is over has no step left. Which epoch does its checkpoint name?",
        "too-seldom": "Save after each step whose number can be divided by every. It is run.step, "
        "which counts on from epoch to epoch.",
        "too-often": "A save costs time. Save only after steps that every divides.",
        "saves-dead": "A kill asks nobody: no except and no finally runs. Save while all is well.",
        "deadlock": "saves.save and saves.load are collective: every rank must call them.",
    },
    returns=False,
)

# ---- 08.4 shards for another number of ranks ----

_NUM_COLUMNS = 3


def _reshard_cases(draw):
    yield Case(2, {"rows": 10, "pieces": [3, 3, 3, 1]}, seed=0)
    yield Case(4, {"rows": 5, "pieces": [2, 3]})
    for world_size in (1, 3, 4):
        pieces = [draw.randint(1, 6) for _ in range(draw.randint(2, 5))] + [0]
        draw.shuffle(pieces)
        yield Case(world_size, {"rows": sum(pieces), "pieces": pieces})


def _rows_of(case):
    numbers = torch.arange(case["rows"])[:, None] * 10 + torch.arange(_NUM_COLUMNS)
    shift = torch.randint(1, 100, (), generator=generator(case))
    return (numbers + shift * 1000).float()


def _own_part(case, rank):
    size = -(-case["rows"] // case.world_size)
    return tuple(min(place * size, case["rows"]) for place in (rank, rank + 1))


def _reshard_act(here, reshard):
    whole, start, table, reads = _rows_of(here.case), 0, [], []
    root = here.folder / f"case-{here.case.seed}"
    for number, length in enumerate(here["pieces"], start=1):
        # By their names they come in another order than by their rows.
        table.append((f"part-{len(here['pieces']) - number}.pt", start, start + length))
        start += length
    if here.rank == 0:
        root.mkdir()
        for name, start, stop in table:
            torch.save(whole[start:stop].clone(), root / name)
    # The table is in no order, as in a real one.
    random.Random(here.case.seed).shuffle(table)
    dist.barrier()

    def read(name, start, stop):
        rows = torch.load(root / name, mmap=True, weights_only=True)
        if not 0 <= start <= stop <= len(rows):
            raise IndexError(f"{name} has rows 0 to {len(rows)} (got {start} to {stop})")
        reads.append((name, int(start), int(stop)))
        return rows[start:stop].clone()

    begin, end = _own_part(here.case, here.rank)
    own = torch.full((end - begin, _NUM_COLUMNS), float("nan"))
    filled = own[:]  # its memory, also if `own` gets another
    starts = {name: start for name, start, _ in table}
    here.call(reshard, own, here["rows"], table, read)
    rows = [(starts[name] + start, starts[name] + stop) for name, start, stop in reads]
    return {"reads": rows, "filled": filled}


def _reshard_judge(played):
    whole = _rows_of(played.case)
    filled = [seen.kept["filled"] for seen in played.seen]
    for rank, got in enumerate(filled):
        begin, end = _own_part(played.case, rank)
        expected = whole[begin:end]
        if not torch.equal(got, expected):
            numbers, right = _numbers_of_rows(got, whole), [*range(begin, end)]
            fact = "own does not hold this rank's rows. These are the numbers of the rows in it."
            mistake = _name_the_rows(numbers, right, num_rows=len(whole))
            if mistake == "empty" and any(one.isfinite().any() for one in filled):
                mistake = "missing-rows"  # rows that were read have come into own elsewhere
            raise played.wrong(mistake, rank, got=numbers, expected=right, fact=fact)
    for rank, seen in enumerate(played.seen):
        begin, end = _own_part(played.case, rank)
        num_read = sum(stop - start for start, stop in seen.kept["reads"])
        if num_read != end - begin:
            fact = f"The rows are right, but it reads {num_read}; {end - begin} are its own."
            mistake = "reads-more" if num_read > end - begin else "reads-less"
            raise played.wrong(mistake, rank, fact=fact)


def _numbers_of_rows(got, whole):
    found = []
    for row in got:
        places = (whole == row).all(dim=1).nonzero().flatten().tolist()
        found.append(places[0] if places else None)
    return found


def _name_the_rows(got, expected, num_rows):
    if got and all(one is None for one in got):
        return "empty"
    rows = [row for row in got if row is not None]
    is_block = all(two - one == 1 for one, two in pairwise(rows))
    if None in got:
        is_at_end = is_block and got[0] not in (None, expected[0]) and rows[-1] == num_rows - 1
        return "other-rows" if is_at_end else "missing-rows"
    if sorted(got) == expected:
        return "order"
    return "other-rows" if is_block else "values"


def _reshard_draw(played):
    case, saved, start = played.case, [], 0
    for rank, length in enumerate(case["pieces"]):
        saved.append((rank, start, start + length))
        start += length
    loaded = [(seen.rank, *rows) for seen in played.seen for rows in sorted(seen.kept["reads"])]
    return shards_picture({"weight": case["rows"]}, {"weight": saved}, {"weight": loaded})


reshard = Task(
    number="08.4",
    uses_store=True,
    name="reshard",
    cases=_reshard_cases,
    act=_reshard_act,
    judge=_reshard_judge,
    ok="each rank reads its own rows, once, and sends nothing",
    draw=_reshard_draw,
    hints=(
        "Two things are known without a message: which rows this rank needs, and which rows lie in "
        "which piece. What it reads is where the two overlap.",
        "This rank needs rows begin to begin + len(own). All ranks before it have "
        "ceil(num_rows / w) rows each, as far as rows last.",
        "Rows start to stop and begin to end overlap from max(start, begin) to min(stop, end), if "
        "the first is less than the second.",
        "A piece counts from its own first row, and own from its own: for rows low to high, own"
        "[low - begin : high - begin] = read(name, low - start, high - start).",
    ),
    mistakes={
        "reads-more": "Read only what you need: from max of the starts to min of the stops.",
        "reads-less": "Take each row of this rank from read, which counts what it gives.",
        "empty": "Write into own itself: own[first:last] = rows. A new tensor is seen by nobody.",
        "missing-rows": "Go through all pieces. A rank's rows may lie in several, of any length.",
        "order": "The table is in no order, nor are the names. Where rows go in own follows from "
        "their numbers.",
        "other-rows": "The ranks before have ceil(num_rows / w) rows each: round up, for w as many "
        "as there are. The last rank may have fewer, or none.",
        "values": "Take one piece, and write down its rows in three ways: in the whole tensor, in "
        "the piece, in own.",
        "raised": "Each rank before has ceil(num_rows / w) rows: round up. read counts rows from "
        "the first of the piece, own from its own first row. A piece may have no row that you "
        "need, and a rank may have no rows at all.",
        "forbidden": "No message is needed: every rank has the table, and can read every piece.",
    },
    allowed=(),
    in_place=True,
    returns=False,
)

# ---- 08.5 the capstone: four ranks, a kill, two ranks ----

_NUM_STEPS, _EVERY, _GLOBAL_BATCH, _MICRO_BATCH, _NUM_DIGITS = 5, 2, 48, 4, 128


def _finish_cases(draw):
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


def _finish_act(here, finish):
    images, labels, batches = _digits_for(here)
    given = (images, labels, batches, _MICRO_BATCH, _EVERY)
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
    return {"lives": lives, "images": images, "labels": labels, "batches": batches}


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


def _finish_judge(played):
    killed_in = played.case["killed in step"]
    done = (killed_in - 1) // _EVERY * _EVERY
    right = RightGradients(played.seen[0].kept)
    for rank, seen in enumerate(played.seen):
        lives = seen.kept["lives"]
        whole, resumed = lives["whole"], lives["resumed"]
        if "killed" in lives:
            _judge_life(played, right, rank, whole, 0, _NUM_STEPS, "Without a kill")
            _judge_life(played, right, rank, lives["killed"], 0, killed_in - 1, "Until the kill")
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


def _finish_draw(played):
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
    uses_store=True,
    name="finish",
    cases=_finish_cases,
    act=_finish_act,
    judge=_finish_judge,
    ok="every bit as without the kill, and with fewer ranks every step right to rounding",
    draw=_finish_draw,
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
        "raised": "The run may have been saved by another number of ranks: exact=False allows it.",
        "deadlock": "Loading, saving and the last part's backward are collective: every rank makes "
        "each of them.",
    },
    in_place=True,
    returns=False,
)
