"""
Exercise 04: who sees which sample.

Legend: N samples, w ranks. A share is what one rank gets of the samples, a list of their numbers.
"""

import copy
import math
import random
from fractions import Fraction
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from ddp_lessons.checks.kit import Case, Task, equal, generator
from ddp_lessons.pictures import samples_picture, timeline_picture
from ddp_lessons.ranks.telling import rank_names

# ---- 04.1 shard indices ----

_MANY = 20
"""
So many samples that two orders, or two ways to share them, are not alike by chance.
"""
_OTHER_SEED = 1000


def _shard_cases(draw):
    yield Case(4, {"num_samples": 10, "seed": 5, "epoch": 0}, seed=0)
    for world_size in (1, 2, 3, 4):
        num_samples = world_size * draw.randint(_MANY, 30) + draw.randint(1, world_size)
        yield Case(world_size, {"num_samples": num_samples, **_drawn_epoch(draw)})
    yield Case(4, {"num_samples": 1, **_drawn_epoch(draw)})


def _drawn_epoch(draw):
    return {"seed": draw.randint(0, 10**6), "epoch": draw.randint(1, 50)}


def _shard_act(here, shard_indices):
    num_samples, seed, epoch = here["num_samples"], here["seed"], here["epoch"]
    torchs, pythons = torch.get_rng_state(), random.getstate()
    for other_seed, later in ((0, 0), (0, 1), (_OTHER_SEED, 0), (0, 0)):
        here.call(shard_indices, num_samples, seed + other_seed, epoch + later)
    return equal(torchs, torch.get_rng_state()) and pythons == random.getstate()


def _shard_judge(played):
    case, num_samples = played.case, played.case["num_samples"]
    now, later, other, again = zip(*[[c.result for c in s.calls] for s in played.seen], strict=True)
    for rank, share in enumerate(now):
        if not equal(share, again[rank]):
            fact = f"Called twice with the same arguments, it gave {again[rank]} the second time."
            raise played.wrong("unseeded", rank, got=share, fact=fact)
    for shares in (now, later, other):
        _judge_shares(played, shares)
    if num_samples >= _MANY or case.seed == 0:
        if equal(now, later):
            in_order = all(list(share[:-1]) == sorted(share[:-1]) for share in now)
            what = "not shuffled" if in_order else f"that of epoch {case['epoch']}"
            fact = f"The order in epoch {case['epoch'] + 1} is {what}."
            raise played.wrong("no-shuffle" if in_order else "no-epoch", 0, got=now[0], fact=fact)
        if equal(now, other):
            fact = f"With seed {case['seed'] + _OTHER_SEED} the order is still the same."
            raise played.wrong("no-seed", 0, got=now[0], fact=fact)
    if num_samples >= _MANY and len(now) > 1 and list(map(set, now)) == list(map(set, later)):
        fact = "In the next epoch each rank has the same samples again, in another order."
        raise played.wrong("own-share", 0, got=sorted(set(now[0])), fact=fact)
    for seen in played.seen:
        if not seen.kept:
            fact = "After it, the global random state is another one than before."
            raise played.wrong("global-state", seen.rank, fact=fact)


def _judge_shares(played, shares, mistake=None):
    num_samples, num_ranks = played.case["num_samples"], len(shares)
    for rank, share in enumerate(shares):
        if not isinstance(share, list | tuple) or any(type(one) is not int for one in share):
            fact = "A share must be a list of whole numbers."
            raise played.wrong(mistake or "no-list", rank, got=share, fact=fact)
        for index in share:
            if not 0 <= index < num_samples:
                fact = f"There is no sample {index}: they are 0 to {num_samples - 1}."
                raise played.wrong(mistake or "no-sample", rank, got=share, fact=fact)
    length, lengths = -(-num_samples // num_ranks), [len(share) for share in shares]
    if lengths != [length] * num_ranks:
        rank = next(rank for rank in range(num_ranks) if lengths[rank] != length)
        fact = f"Shares are {', '.join(map(str, lengths))} long; each must be {length} long."
        mistake = mistake or _length_mistake(lengths, num_samples, length)
        raise played.wrong(mistake, rank, got=shares[rank], fact=fact)
    lost = set(range(num_samples)).difference(*shares)
    if lost:
        fact = f"No rank has sample {min(lost)}; in all, {len(lost)} of {num_samples} are missing."
        raise played.wrong(mistake or "overlap", 0, got=shares[0], fact=fact)


def _length_mistake(lengths, num_samples, length):
    num_ranks = len(lengths)
    if lengths == [num_samples] * num_ranks:
        return "all-samples"
    if lengths == [num_samples // num_ranks] * num_ranks:
        return "dropped"
    if num_samples < num_ranks:
        return "fewer"
    return "too-long" if max(lengths) > length else "unequal"


def _shard_draw(played):
    num_samples = played.case["num_samples"]
    shares = [seen.calls[0].result for seen in played.seen]
    whole = [[one for one in _listed(share) if type(one) is int and one >= 0] for share in shares]
    exist = all(one < num_samples for share in whole for one in share)
    return samples_picture([[[one] for one in s] for s in whole], num_samples if exist else None)


def _listed(value):
    return value if isinstance(value, list | tuple) else []


shard_indices = Task(
    number="04.1",
    name="shard_indices",
    twice=True,
    cases=_shard_cases,
    act=_shard_act,
    judge=_shard_judge,
    ok="ceil(N / w) a rank, every sample on some rank, without a message",
    draw=_shard_draw,
    hints=(
        "If every rank shuffles all samples in the same way, each can cut out its own share, and "
        "nobody has to be asked.",
        "torch.Generator() with manual_seed gives the same numbers on every rank, and "
        "torch.randperm takes it as generator=. Both seed and epoch must go into the seed.",
        "Lengthen the order to ceil(N / w) * w places by repeating it from its beginning, before "
        "you share it out. -(-N // w) rounds up.",
        "With a long enough order, padded[rank : length * world_size : world_size] is this rank's.",
    ),
    mistakes={
        "nothing": "Return the list of this rank's samples.",
        "forbidden": "No rank needs to be told: let each compute the same order by itself.",
        "unseeded": "Draw the order with a generator that was seeded with seed and epoch.",
        "no-list": "Return a list of plain numbers, such as tolist() gives. Tensors in a set are "
        "never equal, so nobody would see an overlap.",
        "no-sample": "Fill up with samples that there are: take them from the order's beginning.",
        "all-samples": "Every rank got all samples. Use its rank to take only its own.",
        "dropped": "A tail was left out. Round the length up, and repeat samples to fill it.",
        "fewer": "There may be fewer samples than ranks. Then one repeat of the order is not "
        "enough to fill every share.",
        "too-long": "Repeat no more than is needed: round N / w up, not further.",
        "unequal": "Make the order as long as w equal shares, and share it out then.",
        "overlap": "All ranks must share out the same order. If the rank goes into the seed, or "
        "shares overlap, some samples are never seen.",
        "no-shuffle": "Shuffle before you share out: torch.randperm gives an order.",
        "no-epoch": "The epoch must go into the generator's seed, as set_epoch does it.",
        "no-seed": "The seed must go into the generator's seed, together with the epoch.",
        "own-share": "Shuffle all samples first and share them out then, not the other way round.",
        "global-state": "Draw from a generator of your own. The global one belongs to dropout and "
        "to all else that draws numbers.",
        "raised": "Think of one rank alone, and of fewer samples than ranks.",
    },
    allowed=(),
)

# ---- 04.2 exact accuracy ----

_NUM_CLASSES = 3
_RADIX = 128  # a sample's number, written with two digits that bfloat16 can hold
_MOST_BYTES = 16


class _Predict:
    """
    Play a trained model, and note which samples it is asked about.

    Args:
        case: The Case; which samples it gets wrong follows from its seed.
        device: Where its tensors are.
    """

    def __init__(self, case, device):
        num_samples, rng = case["num_samples"], generator(case)
        labels = torch.randint(0, _NUM_CLASSES, (num_samples,), generator=rng)
        wrong = torch.rand(num_samples, generator=rng) < 0.3
        wrong[0] = True  # the sample that padding repeats first
        if num_samples > 1:  # an odd number of right ones: bfloat16 does not hold it above 256
            wrong[-1] ^= int((~wrong).sum()) % 2 == 0
        numbers = torch.arange(num_samples)
        digits = torch.stack([numbers // _RADIX, numbers % _RADIX], dim=1)
        self.inputs = digits.to(device, getattr(torch, case["dtype"]))  # (N, 2)
        self.labels = labels.to(device)  # (N,)
        self.is_right = (~wrong).tolist()
        self.batches: list = []
        self._predictions = ((labels + wrong) % _NUM_CLASSES).to(device)

    def __call__(self, inputs):
        radix = torch.tensor([_RADIX, 1.0], dtype=torch.float64, device=inputs.device)
        numbers = (inputs.double() @ radix).long()  # (n, 2) (2,) -> (n,)
        self.batches.append(numbers.flatten().tolist())
        return self._predictions[numbers]


def _accuracy_cases(draw):
    yield Case(4, {"num_samples": 9, "dtype": "float32"}, seed=0)
    for world_size in (1, 2, 3):
        num_samples = world_size * draw.randint(3, 9) + 1
        yield Case(world_size, {"num_samples": num_samples, "dtype": "float64"})
    yield Case(4, {"num_samples": 2, "dtype": "float32"})
    yield Case(2, {"num_samples": 2 * draw.randint(700, 800) + 1, "dtype": "bfloat16"})


def _accuracy_act(here, exact_accuracy):
    predict = _Predict(here.case, here.device)
    here.call(exact_accuracy, predict, predict.inputs, predict.labels)
    return predict.batches


def _accuracy_judge(played):
    asked = [[one for batch in seen.kept for one in batch] for seen in played.seen]
    _judge_asked(played, asked)
    is_right = _Predict(played.case, "cpu").is_right
    num_right = [sum(is_right[sample] for sample in own) for own in asked]
    exact = sum(num_right) / len(is_right)
    for rank, got in enumerate(played.results):
        if not isinstance(got, float):
            fact = "It must return a float."
            raise played.wrong("no-float", rank, got=got, expected=exact, fact=fact)
    for rank, got in enumerate(played.results):
        if not _near(got, exact):
            mistake, fact = _accuracy_mistake(played, asked, num_right, exact)
            raise played.wrong(mistake, rank, got=got, expected=exact, fact=fact)
    _judge_cost(played, "The number is", _MOST_BYTES)


def _judge_cost(played, what_is, most_bytes):
    for rank, events in enumerate(played.traces):
        moved = [event for event in events if event.is_communication]
        num_bytes = sum(event.input_bytes for event in moved)
        if len(moved) > 1 or num_bytes > most_bytes:
            fact = (
                f"{what_is} right, but it took {len(moved)} calls with {num_bytes} bytes; 1 "
                f"with {most_bytes} is enough."
            )
            raise played.wrong("cost", rank, fact=fact)


def _judge_asked(played, asked):
    num_samples, num_ranks = played.case["num_samples"], len(asked)
    if num_ranks > 1 and all(sorted(own) == list(range(num_samples)) for own in asked):
        fact = f"Every rank has evaluated all {num_samples} samples."
        raise played.wrong("all-samples", fact=fact)
    lost = sorted(set(range(num_samples)).difference(*asked))
    if lost:
        fact = f"No rank has evaluated sample {lost[0]}; in all, {len(lost)} were left out."
        raise played.wrong("lost", fact=fact)
    total, most = sum(map(len, asked)), -(-num_samples // num_ranks)
    if total > num_samples:
        fact = f"The ranks have evaluated {total} samples, but there are {num_samples}."
        raise played.wrong("padding", fact=fact)
    for rank, own in enumerate(asked):
        if len(own) > most:
            fact = f"This rank has evaluated {len(own)} samples; {most} are enough."
            raise played.wrong("not-shared", rank, fact=fact)


def _near(got, expected):
    # Two whole numbers below 2**24, divided in float32: half its epsilon, and half for reading it.
    return abs(got - expected) <= torch.finfo(torch.float32).eps * max(1.0, expected)


def _accuracy_mistake(played, asked, num_right, exact):
    results, num_samples = played.results, played.case["num_samples"]
    own = [r / len(a) if a else math.nan for r, a in zip(num_right, asked, strict=True)]
    if any(map(math.isnan, results)):
        return "no-samples", "A rank without samples has divided by 0."
    for factor, what in ((len(own), "mean"), (1, "sum")):
        if len(own) > 1 and all(_near(got, sum(own) / factor) for got in results):
            return "mean-of-means", f"This is the {what} of the ranks' own accuracies."
    parts = [r / num_samples for r in num_right]
    for alone in (own, parts):
        if all(map(_near, results, alone)):
            return "alone", "Each rank has counted only its own right answers."
    if any(_near(got, exact) for got in results):
        right = [rank for rank, got in enumerate(results) if _near(got, exact)]
        return "not-everywhere", f"The accuracy is right only on {rank_names(right)}."
    if all(_near(got, sum(num_right)) for got in results):
        return "undivided", "This is the number of right answers."
    total = [sum(num_right) / len(a) if a else math.nan for a in asked]
    if all(map(_near, results, total)):
        return "own-count", "All right answers were divided by the samples of one rank."
    if all(abs(got - exact) < torch.finfo(torch.bfloat16).eps for got in results):
        return "rounded", "The accuracy is a little off."
    return "values", "The accuracy is not the one that a single process gets."


def _accuracy_draw(played):
    batches = [seen.kept or [[]] for seen in played.seen]
    return samples_picture(batches, played.case["num_samples"])


exact_accuracy = Task(
    number="04.2",
    name="exact_accuracy",
    cases=_accuracy_cases,
    act=_accuracy_act,
    judge=_accuracy_judge,
    ok="every sample evaluated once, 1 collective, 16 bytes at most",
    draw=_accuracy_draw,
    hints=(
        "The accuracy of all ranks is a quotient of two sums. Add up first, divide once.",
        "A slice with a start and a step shares out samples without repeats: inputs[start::step]. "
        "It may be empty, and that does no harm.",
        "(predict(inputs) == labels).sum() is a count, as int64. An all-reduce adds counts up.",
        "num_right = (predict(mine) == labels_of_mine).sum(); dist.all_reduce(num_right); what is "
        "left is to divide by the number of all samples.",
    ),
    mistakes={
        "nothing": "Return the accuracy, on every rank.",
        "no-float": "Return a Python number: tensor.item() makes one of a tensor with one element.",
        "all-samples": "Share the work: each rank evaluates only its own samples.",
        "lost": "Every sample must be evaluated by one rank. Leave no tail out, and let all ranks "
        "share out the same order.",
        "padding": "DistributedSampler fills up with repeats. They would count twice: let some "
        "ranks have one sample less.",
        "not-shared": "Share the samples out evenly: ceil(N / w) is the most that one rank needs.",
        "no-samples": "There may be fewer samples than ranks. Divide by the number of all samples, "
        "which is never 0.",
        "mean-of-means": "Ranks with few samples would weigh as much as ranks with many. Add up "
        "counts, and divide at the end.",
        "alone": "Add the counts of all ranks up before you divide.",
        "not-everywhere": "Every rank must get the sum: choose a call that gives it to all.",
        "undivided": "An accuracy is a share: divide by how many samples there are.",
        "own-count": "Divide by the samples of all ranks, not by those of this one.",
        "rounded": "Count in whole numbers: bfloat16 cannot count beyond 256. A comparison's "
        "sum() is int64 by itself.",
        "cost": "One all-reduce of the counts is enough. Predictions need not travel.",
        "deadlock": "A rank without samples must make the call too: the others wait for it.",
    },
)

# ---- 04.3 a sampler that resumes in the middle of an epoch ----

_MOST_STATE = 4
_MOST_BATCHES = 100  # more than any case has; an epoch without an end is cut


def _resume_cases(draw):
    yield Case(4, {"num_samples": 23, "batch_size": 2, "epoch": 3, "seed": 5}, seed=0)
    for world_size in (1, 2, 3):
        batch_size = draw.randint(2, 4)
        num_samples = world_size * (4 * batch_size + draw.randint(6, 9)) - (world_size > 1)
        told = {"num_samples": num_samples, "batch_size": batch_size}
        yield Case(world_size, told | _drawn_epoch(draw))
    yield Case(4, {"num_samples": 48, "batch_size": 3, **_drawn_epoch(draw)})


def _resume_act(here, sampler_class):
    here.call(_train_and_die, sampler_class, here.case.data)


def _train_and_die(sampler_class, told):
    """
    Draw an epoch as a run that never stops, and as one that dies twice and goes on.

    Returns:
        dict: Lists of batches, and the states: as they were taken, and as they were loaded.
    """
    epoch = told["epoch"]
    dataset: Any = range(told["num_samples"])  # each sample is its own number
    states = []

    def start(state=None):
        sampler = sampler_class(dataset, told["seed"])
        if state is not None:
            sampler.load_state_dict(state)
        return sampler, DataLoader(dataset, batch_size=told["batch_size"], sampler=sampler)

    def save(sampler):
        states.append([sampler.state_dict()])
        states[-1].append(copy.deepcopy(states[-1][0]))

    def save_and_die(sampler, batches):
        steps = _lists(islice(batches, 1))
        save(sampler)
        _lists(islice(batches, 1))  # one step more, which is lost
        return steps

    _, loader = start()
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
    sampler, loader = start(states[1][0])
    sampler.set_epoch(epoch)
    seen["second"] = save_and_die(sampler, iter(loader))
    sampler, loader = start(states[2][0])  # and nobody says which epoch it is
    seen["third"] = _lists(loader)
    sampler.set_epoch(epoch + 1)
    seen["next"] = _lists(loader)

    sampler, loader = start(states[0][0])
    sampler.set_epoch(epoch)
    seen["after the end"] = _lists(loader)
    sampler.set_epoch(epoch + 1)
    seen["next after the end"] = _lists(loader)

    sampler, loader = start(states[1][0])
    sampler.set_epoch(epoch + 1)  # what was left of the epoch before is given up
    seen["next at once"] = _lists(loader)
    return seen | {"states": states}


def _lists(batches):
    return [batch.tolist() for batch in islice(batches, _MOST_BATCHES)]


def _resume_judge(played):
    epoch, batch_size = played.case["epoch"], played.case["batch_size"]
    rows = [
        {name: list(chain(*got)) for name, got in result.items() if name != "states"}
        for result in played.results
    ]
    if not any(row["whole next"] for row in rows):
        fact = f"After epoch {epoch}, epoch {epoch + 1} is empty."
        raise played.wrong("short-epoch", 0, got=[], fact=fact)
    for name in ("whole", "whole next"):
        _judge_shares(played, [row[name] for row in rows], mistake="shares")
    if all(row["whole"] == row["whole next"] for row in rows):
        fact = f"Epochs {epoch} and {epoch + 1} have the same order."
        raise played.wrong("same-order", 0, got=rows[0]["whole"], fact=fact)
    _judge_states(played)
    for rank, row in enumerate(rows):
        for place, (name, start) in enumerate(
            {"second": batch_size, "third": 2 * batch_size}.items()
        ):
            stop = len(row["whole"]) if name == "third" else start + batch_size
            expected = row["whole"][start:stop]
            if row[name] != expected:
                mistake = _resume_mistake(row, row[name], start, batch_size)
                fact = f"Resumed after {start} samples a rank, it does not go on with the next one."
                if place:
                    fact += " This was the second restart, and set_epoch was not called after it."
                raise played.wrong(mistake, rank, got=row[name], expected=expected, fact=fact)
        if row["after the end"]:
            mistake = "again" if row["after the end"] == row["whole"] else "values"
            fact = f"Saved after the last batch of epoch {epoch}, it has samples of it left."
            raise played.wrong(mistake, rank, got=row["after the end"], expected=[], fact=fact)
        for name in ("next", "next after the end", "next at once"):
            if row[name] != row["whole next"]:
                both = {"got": row[name], "expected": row["whole next"]}
                fact = f"After a restart, epoch {epoch + 1} is not the one it should be."
                short = len(row[name]) < len(row["whole next"])
                raise played.wrong("short-epoch" if short else "values", rank, **both, fact=fact)


def _judge_states(played):
    for rank, result in enumerate(played.results):
        for loaded, taken in result["states"]:
            if not isinstance(taken, dict) or not all(map(_is_number, taken.values())):
                fact = "The state is not a dictionary of numbers."
                raise played.wrong("big-state", rank, got=taken, fact=fact)
            if len(taken) > _MOST_STATE:
                fact = f"The state holds {len(taken)} numbers; {_MOST_STATE} are enough."
                raise played.wrong("big-state", rank, got=taken, fact=fact)
            if not equal(loaded, taken):
                fact = "The state changed after it was taken, while the loop went on."
                raise played.wrong("live-state", rank, got=loaded, expected=taken, fact=fact)
        if not equal(result["states"], played.results[0]["states"]):
            own, first = result["states"][1][1], played.results[0]["states"][1][1]
            fact = f"After equal steps, rank 0 has the state {first}."
            raise played.wrong("own-state", rank, got=own, fact=fact)


def _is_number(value):
    return isinstance(value, bool | int | float | str | None)


def _resume_mistake(row, got, start, batch_size):
    whole = row["whole"]
    if not got:
        return "all-at-once"
    for mistake, other in (
        ("restart", whole),
        ("one-twice", whole[start - 1 :]),
        ("relative", whole[start - batch_size :]),
        ("no-epoch", row["epoch 0"][start:]),
        ("no-epoch", row["epoch 0"]),
    ):
        if got == other[: len(got)]:
            return mistake
    return "values"


def _resume_draw(played):
    names = ("first", "second", "third")
    batches = [list(chain(*(result[name] for name in names))) for result in played.results]
    return samples_picture(batches, played.case["num_samples"])


ResumableSampler = Task(
    number="04.3",
    name="ResumableSampler",
    cases=_resume_cases,
    act=_resume_act,
    judge=_resume_judge,
    ok="an epoch goes on after two restarts, nothing twice, nothing lost",
    draw=_resume_draw,
    hints=(
        "The order follows from seed and epoch. So all that a restart must know is the epoch, and "
        "how many samples of it each rank has had.",
        "In __iter__, count each sample as it is handed out. The line after a yield runs only when "
        "the next one is asked for, so count before it.",
        "The training loop calls set_epoch after load_state_dict, with the same epoch. Start anew "
        "only if the epoch is another one.",
        "for index in mine[self.num_given :]: count it, then yield it. The state is the epoch and "
        "self.num_given.",
    ),
    mistakes={
        "blank": "Replace the line that raises NotImplementedError by your own code, in all four "
        "methods, run that cell, and run this one again.",
        "shares": "In an epoch without a restart, a rank must yield what super().__iter__() does: "
        "its own share, and nothing else.",
        "same-order": "Every epoch has an order of its own only if super().set_epoch is called "
        "with it.",
        "short-epoch": "Another epoch begins at its beginning: set the count to 0 when set_epoch "
        "names another one.",
        "big-state": "Save a few plain numbers. The order can be computed anew from them.",
        "live-state": "Make a new dictionary at every call, and copy the numbers out of one "
        "that is loaded: neither may go on changing.",
        "own-state": "One rank saves for all. After equal steps, the state must be the same on "
        "every rank.",
        "all-at-once": "Count one by one, as the loader takes them. To make the list is not to "
        "hand it out.",
        "restart": "It began the epoch anew. Is the count saved and loaded, and does it survive a "
        "call of set_epoch with the same epoch?",
        "one-twice": "The last sample before the save came twice. What stands after a yield runs "
        "only when the next sample is asked for.",
        "relative": "After the second restart it is too early in the epoch. Count from the "
        "epoch's beginning, not from the restart.",
        "no-epoch": "It goes on in another epoch's order. Save the epoch, and load it.",
        "again": "An epoch that is over must not come again: leave the count as it is at the end, "
        "until set_epoch names another epoch.",
        "forbidden": "Every rank can tell by itself where it was: send nothing.",
        "raised": "The line that is named is yours. Think of a state taken after the last batch: "
        "no sample is left then.",
    },
    allowed=(),
)

# ---- 04.4 balanced shares ----

_SPEED_BYTES = 8


def _balanced_cases(draw):
    yield Case(4, {"speeds": [100.0, 200.0, 50.0, 100.0], "num_samples": 120}, seed=0)
    yield Case(1, {"speeds": [draw.uniform(5, 50)], "num_samples": draw.randint(10, 99)})
    speeds = [draw.uniform(2.6, 2.9), draw.uniform(1.0, 1.2)]
    yield Case(2, {"speeds": speeds, "num_samples": draw.randint(101, 199)})
    speeds = [draw.uniform(0.1, 0.9)] * 3
    yield Case(3, {"speeds": speeds, "num_samples": 3 * draw.randint(20, 90) + 2})
    speeds = draw.sample([draw.uniform(100 * k + 5, 100 * k + 70) for k in range(4)], 4)
    yield Case(4, {"speeds": speeds, "num_samples": draw.randint(500, 2000)})
    yield Case(3, {"speeds": draw.sample([9.0, 1.0, 4.0], 3), "num_samples": 2})


def _balanced_act(here, balanced_shares):
    backend = torch.distributed.get_backend()
    device = here.device if backend == "nccl" else "cpu"  # Gloo gathers from the CPU's memory
    speed = torch.tensor([here["speeds"][here.rank]], dtype=torch.float64, device=device)
    here.call(balanced_shares, speed, here["num_samples"])


def _balanced_judge(played):
    num_samples, num_ranks = played.case["num_samples"], played.case.world_size
    speeds = [Fraction(speed) for speed in played.case["speeds"]]
    shares, exact = played.results[0], _proportion(num_samples, speeds)
    for rank, got in enumerate(played.results):
        is_list = isinstance(got, list | tuple) and len(got) == num_ranks
        if not is_list or any(type(share) is not int for share in got):
            fact = f"It must return a list of {num_ranks} whole numbers, a share for each rank."
            raise played.wrong("no-list", rank, got=got, fact=fact)
    if num_ranks > 1 and not any(played.names):
        fact = "No rank has told another how fast it is."
        raise played.wrong("alone", 0, got=shares, fact=fact)
    for rank, got in enumerate(played.results):
        if list(got) != list(shares):
            fact = f"Rank 0 has other shares: {shares}."
            raise played.wrong("not-agreed", rank, got=got, fact=fact)
    if sum(shares) != num_samples or not _is_near(shares, exact):
        mistake, fact = _balanced_mistake(shares, exact, speeds, num_samples)
        told = [round(float(share), 2) for share in exact]
        fact += f" In proportion to the speeds they would be {told}, before rounding."
        raise played.wrong(mistake, 0, got=shares, fact=fact)
    _judge_cost(played, "The shares are", _SPEED_BYTES * num_ranks)


def _proportion(num_samples, weights):
    return [num_samples * weight / sum(weights) for weight in weights]


def _is_near(shares, exact):
    return all(abs(share - part) < 1 for share, part in zip(shares, exact, strict=True))


def _balanced_mistake(shares, exact, speeds, num_samples):
    whole = [Fraction(int(speed)) for speed in speeds]
    if any(whole) and whole != speeds and _is_near(shares, _proportion(num_samples, whole)):
        return "whole-speeds", "The speeds were rounded before they were used."
    differ = max(exact) - min(exact) > 2
    if differ and max(shares) - min(shares) <= 1:
        return "equal", "All ranks have equal shares."
    if differ and _is_near(shares, _proportion(num_samples, [1 / speed for speed in speeds])):
        return "inverted", "The slower a rank is, the more it gets."
    if sum(shares) != num_samples:
        return "sum", f"The shares add up to {sum(shares)}, not to {num_samples}."
    if _is_near(sorted(shares), sorted(exact)):
        return "order", "The shares are those of other ranks."
    off = [rank for rank, share in enumerate(shares) if abs(share - exact[rank]) >= 1]
    if len(off) == 1:
        return "rest-to-one", f"Only the share of rank {off[0]} is off by a whole sample or more."
    return "values", "Shares are off by a whole sample or more."


def _balanced_draw(played):
    speeds, num_samples = played.case["speeds"], played.case["num_samples"]
    epochs, shares = [[num_samples / len(speeds)] * len(speeds)], _listed(played.results[0])
    if len(shares) == len(speeds) and all(isinstance(one, int | float) for one in shares):
        epochs.append([max(0, one) for one in shares])
    tracks, begin = [[] for _ in speeds], 0.0
    for shares in epochs:
        taken_s = [share / speed for share, speed in zip(shares, speeds, strict=True)]
        end = begin + max(taken_s)
        for track, own_s, share in zip(tracks, taken_s, shares, strict=True):
            track.append(("compute", begin, begin + own_s, f"{share:g}"))
            if begin + own_s < end:
                track.append(("waiting", begin + own_s, end))
        begin = end
    axis = "seconds by these speeds: first an epoch with equal shares, then one with yours"
    return timeline_picture(tracks, axis)


balanced_shares = Task(
    number="04.4",
    name="balanced_shares",
    twice=True,
    cases=_balanced_cases,
    act=_balanced_act,
    judge=_balanced_judge,
    ok="no share off by a whole sample, 1 collective",
    draw=_balanced_draw,
    hints=(
        "A rank knows its own speed only. The shares need the speeds of all ranks, so they must "
        "be told first, by one collective.",
        "The exact share of rank r is num_samples * speeds[r] / sum(speeds). Rounding each one by "
        "itself can lose samples, or make some up.",
        "Round all shares down. Fewer samples are left over than there are ranks: give one each to "
        "the ranks that lost most by rounding.",
        "sorted(range(world_size), key=lambda r: shares[r] - exact[r]) lists the ranks, those that "
        "lost most first.",
    ),
    mistakes={
        "nothing": "Return the list of all shares, on every rank.",
        "no-list": "Return a list of whole numbers, as int(x) makes them: one share for each "
        "rank, in rank order.",
        "alone": "Every rank gets only its own speed. Gather the speeds of all.",
        "not-agreed": "Every rank must compute with the same speeds, those of all ranks.",
        "whole-speeds": "Gather the speeds as they are, in float64: they are seldom whole.",
        "equal": "A fast rank must get more: go by speed.",
        "inverted": "Speeds are samples per second, not seconds per sample: more is faster.",
        "sum": "Rounding each share by itself does not keep the sum. Round down, and then hand out "
        "what is left.",
        "order": "Give the shares in rank order: place r is rank r's.",
        "rest-to-one": "What rounding leaves over is for several ranks: one sample each, to those "
        "that lost most.",
        "cost": "Gather the speeds in one call: one number a rank.",
        "raised": "The line that is named is yours. Tensors that are gathered all have the dtype "
        "and the shape of speed.",
        "input-changed": "Gather into new tensors, and leave your own speed as it is.",
    },
)
