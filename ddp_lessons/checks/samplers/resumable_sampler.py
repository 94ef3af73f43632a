"""
Task 04.3: a sampler that resumes in the middle of an epoch.

On each rank: `_act`, `_train_and_die`, `_lists`. In the kernel: the rest.
"""

import copy
from itertools import chain, islice
from typing import Any

from torch.utils.data import DataLoader

from ddp_lessons.checks.kit import Case, Task, equal
from ddp_lessons.checks.samplers.shares import drawn_epoch, judge_shares
from ddp_lessons.pictures import samples_picture

_MOST_STATE = 4

_MOST_BATCHES = 100  # more than any case has: an endless epoch is cut off here


def _cases(draw):
    yield Case(4, {"num_samples": 23, "batch_size": 2, "epoch": 3, "seed": 5}, seed=0)
    for world_size in (1, 2, 3):
        batch_size = draw.randint(2, 4)
        num_samples = world_size * (4 * batch_size + draw.randint(6, 9)) - (world_size > 1)
        told = {"num_samples": num_samples, "batch_size": batch_size}
        yield Case(world_size, told | drawn_epoch(draw))
    yield Case(4, {"num_samples": 48, "batch_size": 3, **drawn_epoch(draw)})
    # Epoch 0 comes last: by then it is known that other epochs resume rightly.
    yield Case(1, {"num_samples": 23, "batch_size": 2, "epoch": 0, "seed": 5})


def _act(context, sampler_class):
    context.call(_train_and_die, sampler_class, context.case.data)


def _train_and_die(sampler_class, told):
    """
    Read an epoch in a run that never stops, and in a run that dies twice and resumes.

    Returns:
        dict: Lists of batches by name. "states" has a pair for each save: the state that the
        sampler returned, and a copy that was made at once.
    """
    epoch = told["epoch"]
    dataset: Any = range(told["num_samples"])  # each sample is its own number
    states = []

    def start(place=None):
        sampler = sampler_class(dataset, told["seed"])
        if place is not None:
            given, taken = states[place]
            # A state that has changed since is refused later; until then, use its copy.
            sampler.load_state_dict(given if equal(given, taken) else copy.deepcopy(taken))
        return sampler, DataLoader(dataset, batch_size=told["batch_size"], sampler=sampler)

    def save(sampler):
        states.append([sampler.state_dict()])
        states[-1].append(copy.deepcopy(states[-1][0]))

    def save_and_die(sampler, batches):
        steps = _lists(islice(batches, 1))
        save(sampler)
        _lists(islice(batches, 1))  # one step more, which is lost
        return steps

    sampler, loader = start()
    sampler.set_epoch(0)
    seen = {"epoch 0": _lists(loader)}
    sampler, loader = start()
    sampler.set_epoch(epoch)
    seen["whole"] = _lists(loader)
    save(sampler)
    sampler.set_epoch(epoch + 1)
    seen["whole next"] = _lists(loader)

    sampler, loader = start()
    sampler.set_epoch(epoch)
    seen["first"] = save_and_die(sampler, iter(loader))
    sampler, loader = start(1)
    sampler.set_epoch(epoch)
    seen["second"] = save_and_die(sampler, iter(loader))
    sampler, loader = start(2)  # without set_epoch: the state tells which epoch it is
    seen["third"] = _lists(loader)
    sampler.set_epoch(epoch + 1)
    seen["next"] = _lists(loader)

    sampler, loader = start(0)
    sampler.set_epoch(epoch)
    seen["after the end"] = _lists(loader)
    sampler.set_epoch(epoch + 1)
    seen["next after the end"] = _lists(loader)

    sampler, loader = start(1)
    sampler.set_epoch(epoch + 1)  # the rest of the epoch before is skipped
    seen["next at once"] = _lists(loader)
    sampler.set_epoch(epoch)
    seen["back"] = _lists(loader)
    if epoch:
        sampler, loader = start(1)
        sampler.set_epoch(0)
        seen["back to 0"] = _lists(loader)
    sampler, loader = start(1)
    sampler.set_epoch(epoch + 1)
    steps = iter(loader)
    for _ in range(2):
        _lists(islice(steps, 1))
        save(sampler)
    sampler, loader = start(3)
    seen["later"] = _lists(loader)
    return seen | {"states": states}


def _lists(batches):
    return [batch.tolist() for batch in islice(batches, _MOST_BATCHES)]


def _judge(case_result):
    epoch, batch_size = case_result.case["epoch"], case_result.case["batch_size"]
    rows = [
        {name: list(chain(*got)) for name, got in result.items() if name != "states"}
        for result in case_result.results
    ]
    for rank, row in enumerate(rows):
        lengths = len(row["epoch 0"]), len(row["whole"])
        if lengths[0] != lengths[1]:
            fact = "Two new samplers yielded {} and {} samples in an epoch.".format(*lengths)
            raise case_result.wrong("kept", rank, fact=fact)
    if not any(row["whole next"] for row in rows):
        fact = f"After epoch {epoch}, epoch {epoch + 1} is empty."
        raise case_result.wrong("short-epoch", 0, got=[], fact=fact)
    for name in ("whole", "whole next"):
        judge_shares(case_result, [row[name] for row in rows], mistake="shares")
    if all(row["whole"] == row["whole next"] for row in rows):
        fact = f"Epochs {epoch} and {epoch + 1} have the same order."
        raise case_result.wrong("same-order", 0, got=rows[0]["whole"], fact=fact)
    _judge_states(case_result)
    for rank, row in enumerate(rows):
        for place, name in enumerate(("first", "second", "third")):
            start = place * batch_size
            stop = len(row["whole"]) if name == "third" else start + batch_size
            expected = row["whole"][start:stop]
            if row[name] != expected:
                mistake, what = _resume_mistake(case_result, rank, row, row[name], start)
                fact = f"Resumed after {start} samples a rank, it does not yield the next sample."
                if not place:
                    fact = "A new sampler, which has loaded no state, starts elsewhere."
                if place == 2:
                    fact += " This was the second restart, and set_epoch was not called after it."
                both = {"got": row[name], "expected": expected}
                raise case_result.wrong(mistake, rank, **both, fact=f"{fact} {what}".strip())
        if row["after the end"]:
            mistake = "again" if row["after the end"] == row["whole"] else "too-early"
            fact = (
                f"Resumed after the last batch of epoch {epoch}, it still yields samples of that "
                "epoch."
            )
            raise case_result.wrong(mistake, rank, got=row["after the end"], expected=[], fact=fact)
        for name, told, expected in (
            ("next", f"{epoch + 1}", row["whole next"]),
            ("next after the end", f"{epoch + 1}", row["whole next"]),
            ("next at once", f"{epoch + 1}", row["whole next"]),
            ("back", f"{epoch + 1}, and then {epoch} again", row["whole"]),
            ("back to 0", "0", row["epoch 0"]),
            (
                "later",
                f"{epoch + 1}, and resumed after a batch of it",
                row["whole next"][batch_size:],
            ),
        ):
            if name in row and row[name] != expected:
                both = {"got": row[name], "expected": expected}
                fact = (
                    f"Resumed in epoch {epoch}, and after set_epoch({told}), it yields other "
                    "samples."
                )
                short = len(row[name]) < len(expected)
                raise case_result.wrong(
                    "short-epoch" if short else "values", rank, **both, fact=fact
                )


def _judge_states(case_result):
    for rank, result in enumerate(case_result.results):
        for loaded, taken in result["states"]:
            if not isinstance(taken, dict) or not all(map(_is_number, taken.values())):
                fact = "The state is not a dictionary of numbers."
                raise case_result.wrong("big-state", rank, got=taken, fact=fact)
            if len(taken) > _MOST_STATE:
                fact = f"The state holds {len(taken)} numbers; {_MOST_STATE} are enough."
                raise case_result.wrong("big-state", rank, got=taken, fact=fact)
            if not equal(loaded, taken):
                fact = "The state changed after the save: while the loop went on, or on loading."
                raise case_result.wrong("live-state", rank, got=loaded, expected=taken, fact=fact)
        if not equal(result["states"], case_result.results[0]["states"]):
            own, first = result["states"][1][1], case_result.results[0]["states"][1][1]
            fact = f"After equal steps, rank 0 has the state {first}."
            raise case_result.wrong("own-state", rank, got=own, fact=fact)


def _is_number(value):
    return isinstance(value, bool | int | float | str | None)


def _resume_mistake(case_result, rank, row, got, start):
    """
    Return (mistake, fact) for a sampler that gives `got` instead of the samples after `start`.
    """
    whole, batch_size = row["whole"], case_result.case["batch_size"]
    one, next_one, next_two = (case_result.results[rank]["states"][place][1] for place in (1, 3, 4))
    if not start:
        return "kept", ""
    if case_result.case["epoch"] == 0:
        return "epoch-zero", "In other epochs it does."
    if equal(next_one, next_two):
        what = f"After one batch of an epoch and after two the state was the same: {next_one}."
        return "no-count" if got else "all-at-once", what
    if equal(one, next_one):
        what = f"After one batch of this epoch and of the next one the state was the same: {one}."
        return "no-epoch", what
    for mistake, other in (
        ("restart", whole),
        ("one-twice", whole[start - 1 :]),
        ("relative", whole[start - batch_size :]),
        ("no-epoch", row["epoch 0"][start:]),
        ("no-epoch", row["epoch 0"]),
    ):
        if got and got == other[: len(got)]:
            return mistake, ""
    for place in range(len(whole) - len(got) + 1):
        if got == whole[place : place + len(got)]:
            num, is_late = abs(place - start), place > start or not got
            what = f"It leaves out {num} of the samples." if is_late and got else ""
            return "too-far" if is_late else "too-early", what
    return "other-order", "The samples that it yields are not in this epoch's order."


def _draw(case_result):
    names = ("first", "second", "third")
    batches = [list(chain(*(result[name] for name in names))) for result in case_result.results]
    return samples_picture(batches, case_result.case["num_samples"])


ResumableSampler = Task(
    number="04.3",
    name="ResumableSampler",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="an epoch resumes after two restarts, no sample twice, none lost",
    draw=_draw,
    hints=(
        "The order depends on seed and epoch alone. So a restart needs only two numbers: the "
        "epoch, and how many samples of it each rank has had.",
        "In __iter__, count each sample when you yield it. The line after a yield runs only when "
        "the next sample is requested, so count before the yield.",
        "The training loop calls set_epoch after load_state_dict, with the same epoch. Set the "
        "count to 0 only if set_epoch gets another epoch.",
        "for index in own_samples[self.num_given :]: count it, then yield it. The state is the "
        "epoch and self.num_given.",
    ),
    mistakes={
        "blank": "Replace the line that raises NotImplementedError by your own code, in all four "
        "methods, run that cell, and run this one again.",
        "shares": "In an epoch without a restart, a rank must yield what super().__iter__() "
        "yields: its own shard, and nothing else.",
        "same-order": "Call super().set_epoch with the epoch: without that call, torch's sampler "
        "draws the same order in every epoch.",
        "short-epoch": "Another epoch starts at its beginning: set the count to 0 when set_epoch "
        "gets another epoch.",
        "big-state": "Save a few plain numbers. The order can be computed from them again.",
        "live-state": "Return a new dictionary at every call, and copy the numbers out of the "
        "dictionary that is loaded: neither may change afterwards.",
        "own-state": "One rank saves for all. After equal steps, the state must be the same on "
        "every rank.",
        "all-at-once": "Count each sample when it is yielded. When the list is made, the loader "
        "has not got any sample yet.",
        "no-count": "A restart is a new process, and knows only the state. So the state must hold "
        "how many samples were yielded.",
        "restart": "The epoch started from its beginning. Is the count loaded, and does set_epoch "
        "with the same epoch leave it as it is?",
        "epoch-zero": "Epoch 0 is an epoch like any other, but Python treats 0 as false. Compare "
        "epochs by == or !=, and do not write `if epoch:`.",
        "kept": "Store the count in self, not in the class or in the module: each sampler has its "
        "own count.",
        "too-far": "Count 1 for each sample that this rank yields, and resume at that position.",
        "too-early": "The sampler resumes too early in the epoch. Count every sample when it is "
        "yielded, from the beginning of the epoch.",
        "other-order": "An epoch has the same order before and after a restart: take it from "
        "super().__iter__(), with the same seed.",
        "values": "Each epoch has one order, whether there was a restart before it or not. Does "
        "set_epoch always pass the epoch to super().set_epoch?",
        "one-twice": "The last sample before the save came twice. The line after a yield runs only "
        "when the next sample is requested.",
        "relative": "After the second restart the sampler resumes too early. Count from the "
        "beginning of the epoch, not from the restart.",
        "no-epoch": "The sampler resumes in the order of another epoch. Save the epoch, and load "
        "it.",
        "again": "An epoch that has ended must not be repeated: keep the count at its end until "
        "set_epoch gets another epoch.",
        "forbidden": "Every rank knows its own position: send nothing.",
        "raised": "The message names a line of yours. Does it also work for a state that was taken "
        "after the last batch, when no sample is left?",
    },
    allowed=(),
)
