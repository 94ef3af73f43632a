"""
Exercise 04: who sees which sample.

Legend: N samples, w ranks. A share is what one rank gets of the samples, a list of their numbers.
"""

import copy
import inspect
import math
import random
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from itertools import chain, combinations, islice, pairwise
from typing import Any

import torch
from torch.utils.data import DataLoader

from ddp_lessons.checks.kit import Case, Task, equal, generator
from ddp_lessons.errors import WrongAnswer
from ddp_lessons.pictures import samples_picture, timeline_picture
from ddp_lessons.ranks.diagnosis.telling import rank_names

# ---- 04.1 shard indices ----

_FEW, _MANY = 10, 40
"""
So many samples that a picture shows them all, and so many that two orders, or two ways to share
them, are not alike by chance.
"""
_OTHER_SEED = 1000
_HASHES = "hash() of text"
_ODD_RANKS = "odd ranks ask for the orders"


def _shard_cases(draw):
    yield Case(4, {"num_samples": _FEW, "seed": 5, "epoch": 0}, seed=0)
    # What is kept of another length, or of whichever call came first, is another on each rank.
    backwards = {_ODD_RANKS: "backwards"}
    yield Case(4, {"num_samples": _MANY, "seed": 5, "epoch": 0} | backwards)
    yield Case(2, {"num_samples": _FEW, "seed": 5, "epoch": 0})  # for what is kept of other worlds
    hashes = {_HASHES: "each rank's own"}
    yield Case(4, {"num_samples": _MANY, "seed": 0, "epoch": 1} | hashes)
    for world_size in (1, 2, 3, 4):
        length = draw.randint(_MANY // world_size + 1, 60 // world_size)
        num_samples = world_size * length + draw.randint(1, world_size)
        yield Case(world_size, {"num_samples": num_samples, **_drawn_epoch(draw)})
    yield Case(4, {"num_samples": 1, **_drawn_epoch(draw)})


def _drawn_epoch(draw):
    return {"seed": draw.randint(0, 10**6), "epoch": draw.randint(1, 50)}


def _orders(case):
    """
    Return the seeds and epochs of all calls: first and last the same, then other ones.
    """
    seed, epoch = case["seed"], case["epoch"]
    return (seed, epoch), (seed, epoch + 1), (seed, epoch + 2), (seed + _OTHER_SEED, epoch)


def _shard_act(here, shard_indices):
    torch.rand(1)  # else who seeds it anew with its own seed would put the state back
    torchs, pythons = torch.get_rng_state(), random.getstate()
    orders = _orders(here.case)[:: _direction(here.case, here.rank)]
    with _hashes_of_its_own(here, shard_indices) as hashed:
        for seed, epoch in (*orders, orders[0]):
            here.call(shard_indices, here["num_samples"], seed, epoch)
    is_as_before = equal(torchs, torch.get_rng_state()) and pythons == random.getstate()
    return {"is_as_before": is_as_before, "num_hashed": len(hashed)}


def _direction(case, rank):
    return -1 if _ODD_RANKS in case.data and rank % 2 else 1


@contextmanager
def _hashes_of_its_own(here, answer):
    """
    Let `hash` give other numbers for text on each rank, if the case says so.

    Python draws anew for each process what hashes of text are. The ranks are forks of one process
    and share it, but the processes that torchrun starts do not, and neither do two runs.
    """
    names, hashed = getattr(inspect.unwrap(answer), "__globals__", {}), []

    def own_hash(value):
        if isinstance(value, str | bytes):
            hashed.append(value)
            return random.Random(f"{here.rank} {value!r}").getrandbits(60)
        return hash(tuple(map(own_hash, value)) if isinstance(value, tuple) else value)

    if _HASHES not in here.case.data or "hash" in names:
        yield hashed
        return
    names["hash"] = own_hash
    try:
        yield hashed
    finally:
        del names["hash"]


def _shard_judge(played):
    rows = []
    for rank, seen in enumerate(played.seen):
        *row, again = [call.result for call in seen.calls]
        if not equal(row[0], again):
            fact = f"Called twice with the same arguments, it gave {again} the second time."
            raise played.wrong("unseeded", rank, got=row[0], fact=fact)
        rows.append(row[:: _direction(played.case, rank)])
    several = list(zip(*rows, strict=True))
    lost = "kept" if _ODD_RANKS in played.case.data else "overlap"
    uses_hash = any(seen.kept["num_hashed"] for seen in played.seen)
    for shares in several:
        _judge_shares(played, shares, lost="hashes" if uses_hash else lost)
    if played.case["num_samples"] >= _MANY:
        names = [f"seed {seed} and epoch {epoch}" for seed, epoch in _orders(played.case)]
        _judge_orders(played, dict(zip(names, several, strict=True)))
    for seen in played.seen:
        if not seen.kept["is_as_before"]:
            fact = "After it, the global random state is another one than before."
            raise played.wrong("global-state", seen.rank, fact=fact)


def _judge_orders(played, orders):
    """
    Refuse orders that are not shuffled, or that have too much of one another.

    Args:
        played: The Played.
        orders: What each order is for -> the shares; the last has another seed than the first.
    """
    (first, *others), other_seed = orders, list(orders)[-1]
    now = orders[first]
    if all(equal(now, shares) for shares in orders.values()):
        _refuse_steps(played, first, now, 2 / 3)
        fact = f"The orders with {', with '.join(orders)} are all the same."
        raise played.wrong("unseeded", 0, got=now[0], fact=fact)
    for name in others:
        if equal(now, orders[name]):
            _refuse_steps(played, first, now, 2 / 3)
            mistake = "no-seed" if name == other_seed else "no-epoch"
            fact = f"The order with {name} is that with {first}."
            raise played.wrong(mistake, 0, got=now[0], fact=fact)
    if played.case["num_samples"] > _MANY:  # drawn: by chance, a weak shuffle may look like none
        return
    what = "are on one rank together"
    _refuse_pairs(played, orders, "own-share", _together, 0.9, (what, "are"))
    for name, shares in orders.items():
        _refuse_steps(played, name, shares, 1 / 3)
        if all(list(share) == sorted(share) for share in shares):
            fact = f"With {name}, the samples of every rank go up."
            raise played.wrong("sorted", 0, got=shares[0], fact=fact)
    what = "follow one another on a rank"
    _refuse_pairs(played, orders, "turned", _neighbours, 0.5, (what, "do"))


def _refuse_steps(played, name, shares, most):
    num_samples = played.case["num_samples"]
    steps = Counter((b - a) % num_samples for a, b in _neighbours(shares))
    (step, count), num_steps = steps.most_common(1)[0], sum(steps.values())
    if count > most * num_steps:
        step -= num_samples if step > num_samples / 2 else 0
        fact = (
            f"With {name}, {count} of {num_steps} steps from a sample of a rank to its next one "
            f"are {step:+}, where sample 0 comes after the last one."
        )
        raise played.wrong("no-shuffle", 0, got=shares[0], fact=fact)


def _refuse_pairs(played, orders, mistake, pairs_of, most, words):
    (first, now), *others = orders.items()
    pairs = set(map(frozenset, pairs_of(now)))
    for name, shares in others:
        again = pairs.intersection(map(frozenset, pairs_of(shares)))
        if len(again) > most * len(pairs):
            fact = (
                f"With {first}, {len(pairs)} pairs of samples {words[0]}. With {name}, "
                f"{len(again)} of these pairs {words[1]}, too."
            )
            raise played.wrong(mistake, 0, got=shares[0], fact=fact)


def _neighbours(shares):
    return chain.from_iterable(pairwise(share) for share in shares)


def _together(shares):
    return chain.from_iterable(combinations(share, 2) for share in shares)


def _judge_shares(played, shares, mistake=None, lost="overlap"):
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
    absent = set(range(num_samples)).difference(*shares)
    if absent:
        number = f"{len(absent)} of {num_samples}"
        fact = f"Samples that no rank has: {number}. The first of them is {min(absent)}."
        raise played.wrong(mistake or lost, 0, got=shares[0], fact=fact)


def _length_mistake(lengths, num_samples, length):
    num_ranks = len(lengths)
    if lengths == [num_samples] * num_ranks:
        return "all-samples"
    if lengths == [num_samples // num_ranks] * num_ranks:
        return "dropped"
    if num_samples < num_ranks:
        return "fewer"
    if num_samples > _FEW and lengths == [-(-_FEW // num_ranks)] * num_ranks:
        return "kept"
    if len({*lengths}) == 1 and num_ranks < 4 and lengths[0] == -(-num_samples // 4):
        return "other-size"
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
        "unseeded": "Draw the order with a generator that was seeded with seed and epoch. "
        "Unseeded, it begins anywhere, or always at the same place.",
        "kept": "An order belongs to its three arguments: what an earlier call has drawn may not "
        "be taken for another number of samples, seed or epoch. Draw it in each call.",
        "no-list": "Return a list of plain numbers, such as tolist() gives. Tensors in a set are "
        "never equal, so nobody would see an overlap.",
        "no-sample": "Fill up with samples that there are: take them from the order's beginning.",
        "all-samples": "Every rank got all samples. Use its rank to take only its own.",
        "dropped": "A tail was left out. Round the length up, and repeat samples to fill it.",
        "fewer": "There may be fewer samples than ranks. Then one repeat of the order is not "
        "enough to fill every share.",
        "too-long": "Repeat no more than is needed: round N / w up, not further.",
        "unequal": "Make the order as long as w equal shares, and share it out then.",
        "other-size": "Shares are as long as they would be for 4 ranks. Ask how many there are, "
        "and ask in every call: it is not always the same.",
        "overlap": "Either ranks share out different orders, as they do if the rank goes into the "
        "seed. Or shares overlap, or end too early: one must begin where another ends.",
        "hashes": "hash() of a text is another number in each process that torchrun starts, and "
        "in each run. Compute the seed from the two numbers alone.",
        "no-shuffle": "Shuffle before you share out: torch.randperm gives an order. To begin it "
        "elsewhere, or to move whole blocks, is not to shuffle.",
        "no-epoch": "The epoch must go into the generator's seed, as set_epoch does it.",
        "no-seed": "The seed must go into the generator's seed, together with the epoch, and also "
        "in epoch 0: a product of the two is 0 there.",
        "sorted": "Share out the shuffled order as it is. To sort a share undoes the shuffle.",
        "own-share": "Shuffle all samples anew in each epoch, and share them out then, not the "
        "other way round: who is with whom must change.",
        "turned": "Shuffle anew for each seed and epoch. An order that begins elsewhere, or runs "
        "backwards, is still the same order.",
        "global-state": "Draw from a generator of your own. The global one belongs to dropout and "
        "to all else that draws numbers.",
        "raised": "Think of one rank alone, and of fewer samples than ranks.",
    },
    allowed=(),
)

# ---- 04.2 exact accuracy ----

_NUM_CLASSES = 3
_RADIX = 128  # a sample's number, written with two digits that bfloat16 can hold
_FRACTION = 2**-30  # of each digit in float64, which float32 cannot hold beside it
_UNKNOWN = -1  # a sample that is none of the test samples
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
        numbers = numbers.flip(0) if case.data.get("backwards") else numbers
        digits = torch.stack([numbers // _RADIX, numbers % _RADIX], dim=1)
        self._fraction = _FRACTION * (case["dtype"] == "float64")
        dtype = getattr(torch, case["dtype"])
        self.inputs = digits.to(device, dtype) + self._fraction  # (N, 2)
        self.labels = labels[numbers].to(device)  # (N,)
        self.is_right = (~wrong).tolist()
        self.batches: list = []
        self._predictions = ((labels + wrong) % _NUM_CLASSES).to(device)

    def __call__(self, inputs):
        radix = torch.tensor([_RADIX, 1.0], dtype=torch.float64, device=inputs.device)
        digits = inputs.double() - self._fraction
        numbers = (digits.round() @ radix).long()  # (n, 2) (2,) -> (n,)
        is_known = (digits == digits.round()).all(dim=-1)
        self.batches.append(torch.where(is_known, numbers, _UNKNOWN).flatten().tolist())
        return self._predictions[numbers]


def _accuracy_cases(draw):
    yield Case(4, {"num_samples": 9, "dtype": "float32"}, seed=0)
    for world_size in (1, 2, 3):
        num_samples = world_size * draw.randint(3, 9) + 1
        yield Case(world_size, {"num_samples": num_samples, "dtype": "float64"})
    yield Case(4, {"num_samples": 2, "dtype": "float32"})
    # More right ones than float16 counts, and so many that no 8 bits are enough.
    yield Case(2, {"num_samples": 2 * draw.randint(3000, 3050) + 1, "dtype": "bfloat16"})


def _accuracy_act(here, exact_accuracy):
    asked = []
    for case in _models(here.case):
        predict = _Predict(case, here.device)
        here.call(exact_accuracy, predict, predict.inputs, predict.labels)
        asked.append(predict.batches)
    return asked


def _models(case):
    """
    Return a Case for each model that is evaluated: a second one shows what is kept of the first.
    """
    second = replace(case, seed=case.seed + 1, data=case.data | {"backwards": True})
    return [case, second] if case["num_samples"] < 100 else [case]


def _accuracy_judge(played):
    before = None
    for number, case in enumerate(_models(played.case)):
        seen = [
            replace(one, calls=[one.calls[number]], kept=one.kept[number]) for one in played.seen
        ]
        before = _judge_accuracy(replace(played, seen=seen), _Predict(case, "cpu").is_right, before)


def _judge_accuracy(played, is_right, before):
    """
    Judge the accuracy of one model.

    Args:
        played: The Played of its call alone.
        is_right: For each sample whether the model is right about it.
        before: What was right for the model before; None: it is the first.

    Returns:
        float: What is right.
    """
    asked = [[one for batch in seen.kept for one in batch] for seen in played.seen]
    try:
        _judge_asked(played, asked)
    except WrongAnswer:
        if before is None:
            raise
        fact = "For another model before, it has shared out as many samples rightly."
        raise played.wrong("kept", fact=fact) from None
    num_right = [sum(is_right[sample] for sample in own) for own in asked]
    exact = sum(num_right) / len(is_right)
    for rank, got in enumerate(played.results):
        if not isinstance(got, float):
            fact = "It must return a float."
            raise played.wrong("no-float", rank, got=got, expected=exact, fact=fact)
    for rank, got in enumerate(played.results):
        if not _near(got, exact):
            mistake, fact = _accuracy_mistake(played, asked, num_right, exact)
            if before is not None:  # which was right, so that only what is kept of it can harm
                told = {before: "that of the model before", before + exact: "both models' together"}
                what = [words for value, words in told.items() if _near(got, value)]
                mistake, fact = "kept", "It was right for as many samples and another model before."
                fact = f"This is {what[0]}: it was called twice." if what else fact
            raise played.wrong(mistake, rank, got=got, expected=exact, fact=fact)
    _judge_cost(played, "The number is", _MOST_BYTES)
    return exact


def _judge_cost(played, what_is, most_bytes):
    for rank, events in enumerate(played.traces):
        moved = [event for event in events if event.is_communication]
        num_bytes = sum(event.input_bytes for event in moved)
        if len(moved) > 1 or num_bytes > most_bytes:
            calls = "1 call" if len(moved) == 1 else f"{len(moved)} calls"
            fact = (
                f"{what_is} right, but it took {calls} with {num_bytes} bytes; 1 with "
                f"{most_bytes} is enough."
            )
            raise played.wrong("cost", rank, fact=fact)


def _judge_asked(played, asked):
    num_samples, num_ranks = played.case["num_samples"], len(asked)
    for rank, own in enumerate(asked):
        if _UNKNOWN in own:
            fact = "It has asked about numbers that are not in inputs, though close to some."
            raise played.wrong("other-inputs", rank, fact=fact)
    if num_ranks > 1 and all(sorted(own) == list(range(num_samples)) for own in asked):
        fact = f"Every rank has evaluated all {num_samples} samples."
        raise played.wrong("all-samples", fact=fact)
    lost = sorted(set(range(num_samples)).difference(*asked))
    if lost:
        number = f"{len(lost)} of {num_samples}"
        fact = f"Samples that no rank has evaluated: {number}. The first of them is {lost[0]}."
        raise played.wrong("lost", fact=fact)
    for rank, own in enumerate(asked):
        sample, times = Counter(own).most_common(1)[0] if own else (None, 0)
        if times > 1:
            fact = f"This rank has evaluated sample {sample} more than once."
            raise played.wrong("asked-again", rank, fact=fact)
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
    num_busy = sum(map(bool, asked))
    for factor, what in ((len(own), "mean"), (num_busy, "mean"), (1, "sum")):
        total = sum(one for one in own if not math.isnan(one))
        if len(own) > 1 and all(_near(got, total / factor) for got in results):
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
    if all(_near(got / 100, exact) for got in results):
        return "percent", "This is the share in percent."
    for factor, what in (
        (1, "samples of one rank"),
        (len(own), "samples of one rank, times the number of ranks"),
        (num_busy, "samples of one rank, times the number of ranks that have some"),
    ):
        wrong = [sum(num_right) / (len(a) * factor) if a else None for a in asked]
        if all(one is None or _near(got, one) for got, one in zip(results, wrong, strict=True)):
            return "own-count", f"All right answers were divided by the {what}."
    for factor, what in ((len(own), "ranks"), (num_busy, "ranks that have samples")):
        if all(_near(got, sum(num_right) / factor) for got in results):
            return "own-count", f"All right answers were divided by the number of {what}."
    counted = [got * num_samples for got in results]
    if all(_near(one, round(one)) and not (round(one) - sum(num_right)) % 256 for one in counted):
        fact = f"By it {round(counted[0])} samples would be right; in truth {sum(num_right)} are."
        return "overflow", f"{fact} They differ by a multiple of 256."
    if all(abs(got - exact) < torch.finfo(torch.bfloat16).eps for got in results):
        return "rounded", "The accuracy is a little off."
    return "values", "The accuracy is not the one that a single process gets."


def _accuracy_draw(played):
    batches = [seen.kept[0] or [[]] for seen in played.seen]
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
        "padding": "Some samples were evaluated on several ranks, as DistributedSampler fills up "
        "with repeats. They would count twice: let some ranks have one sample less.",
        "other-inputs": "Hand inputs on as they are: a smaller dtype rounds them.",
        "asked-again": "Ask predict about each sample once, and keep what it says.",
        "not-shared": "Share the samples out evenly: ceil(N / w) is the most that one rank needs.",
        "no-samples": "There may be fewer samples than ranks. Divide by the number of all samples, "
        "which is never 0.",
        "mean-of-means": "Ranks with few samples would weigh as much as ranks with many. Add up "
        "counts, and divide at the end.",
        "alone": "Add the counts of all ranks up before you divide.",
        "not-everywhere": "Every rank must get the sum: choose a call that gives it to all.",
        "undivided": "An accuracy is a share: divide by how many samples there are.",
        "percent": "Return the share itself, a number from 0 to 1.",
        "own-count": "Divide by the number of all samples, which every rank knows: ranks do not "
        "all have equally many.",
        "rounded": "Count in whole numbers: bfloat16 cannot count beyond 256, nor float16 beyond "
        "2,048. A comparison's sum() is int64 by itself. And do not round what you return.",
        "overflow": "A dtype of 8 bits holds 256 numbers, and begins again after the last. A "
        "comparison's sum() is int64 by itself.",
        "kept": "Count anew in each call, with its own model, inputs and labels. Other samples may "
        "be as many: nothing may stay from one call to the next.",
        "store": "Let the counts travel in the collective.",
        "raised": "A line that is named is yours. A reduction takes not every dtype, but it takes "
        "int64. And with few samples there may be fewer parts than ranks.",
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
    # The last one, so that other epochs are known to go on.
    yield Case(1, {"num_samples": 23, "batch_size": 2, "epoch": 0, "seed": 5})


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
    sampler.set_epoch(epoch)
    seen["back"] = _lists(loader)
    if epoch:
        sampler, loader = start(states[1][0])
        sampler.set_epoch(0)
        seen["back to 0"] = _lists(loader)
    sampler, loader = start(states[1][0])
    sampler.set_epoch(epoch + 1)
    steps = iter(loader)
    for _ in range(2):
        _lists(islice(steps, 1))
        save(sampler)
    sampler, loader = start(states[3][0])
    seen["later"] = _lists(loader)
    return seen | {"states": states}


def _lists(batches):
    return [batch.tolist() for batch in islice(batches, _MOST_BATCHES)]


def _resume_judge(played):
    epoch, batch_size = played.case["epoch"], played.case["batch_size"]
    rows = [
        {name: list(chain(*got)) for name, got in result.items() if name != "states"}
        for result in played.results
    ]
    for rank, row in enumerate(rows):
        lengths = len(row["epoch 0"]), len(row["whole"])
        if lengths[0] != lengths[1]:
            fact = "Of two new samplers the first gave {} samples, the second {}.".format(*lengths)
            raise played.wrong("kept", rank, fact=fact)
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
        for place, name in enumerate(("first", "second", "third")):
            start = place * batch_size
            stop = len(row["whole"]) if name == "third" else start + batch_size
            expected = row["whole"][start:stop]
            if row[name] != expected:
                mistake, what = _resume_mistake(played, rank, row, row[name], start)
                fact = f"Resumed after {start} samples a rank, it does not go on with the next one."
                if not place:
                    fact = "A new sampler, to which no state was given, begins elsewhere."
                if place == 2:
                    fact += " This was the second restart, and set_epoch was not called after it."
                both = {"got": row[name], "expected": expected}
                raise played.wrong(mistake, rank, **both, fact=f"{fact} {what}".strip())
        if row["after the end"]:
            mistake = "again" if row["after the end"] == row["whole"] else "too-early"
            fact = f"Saved after the last batch of epoch {epoch}, it has samples of it left."
            raise played.wrong(mistake, rank, got=row["after the end"], expected=[], fact=fact)
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
                fact = f"Resumed in epoch {epoch}, and told epoch {told}, it gives something else."
                short = len(row[name]) < len(expected)
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


def _resume_mistake(played, rank, row, got, start):
    """
    Return the mistake that gives such samples instead of the ones after `start`, and a fact.
    """
    whole, batch_size = row["whole"], played.case["batch_size"]
    one, next_one, next_two = (played.results[rank]["states"][place][1] for place in (1, 3, 4))
    if not start:
        return "kept", ""
    if played.case["epoch"] == 0:
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
            what = f"It leaves out {num}." if is_late and got else ""
            return "too-far" if is_late else "too-early", what
    return "other-order", "What it gives is no stretch of this epoch's order."


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
        "no-count": "A restart is another process, and knows no more than the state. So the state "
        "must tell how many samples were given.",
        "restart": "It began the epoch anew. Is the count loaded, and does it survive a call of "
        "set_epoch with the same epoch?",
        "epoch-zero": "Epoch 0 is an epoch like any other. Python takes 0 for false: compare it, "
        "and do not ask whether it is there.",
        "kept": "What a sampler counts must belong to it alone: to self, and not to the class or "
        "to the module.",
        "too-far": "Count 1 for each sample that this rank gives out, and begin at that place.",
        "too-early": "It is too early in the epoch. Count every sample as it is given out, from "
        "the epoch's beginning.",
        "other-order": "An epoch has the same order before and after a restart: take it from "
        "super().__iter__(), with the same seed.",
        "values": "Each epoch has one order, whether a restart came before it or not. Does "
        "set_epoch always pass the epoch on?",
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


_TO_ROUND = (
    # Each tells some ways to round apart from those that are right. Where shares are whole, the
    # speeds add up to a power of 2, so that all arithmetic is exact. Each of the first three is
    # wrong for one of these only: what rounding leaves to the fastest, and two ways to hand out
    # sample after sample.
    ((5.0, 5.0, 6.0, 5.0), 2131),
    ((12.0, 1.0, 1.0, 1.0), 161),
    ((12.0, 1.0, 1.0, 1.0), 154),
    ((30.0, 1.0, 1.0, 1.0), 16),
    ((11.0, 2.0, 2.0, 2.0), 3),
    ((3.0, 3.0, 3.0, 1.0), 2),
    ((299.0, 299.0, 299.0, 103.0), 999),
    ((1.0, 2.0, 1.0), 2),
    ((1.0, 1.0, 2.0), 2),
    ((2.0, 3.0, 3.0), 4),
    ((1.0, 1.0, 2.0), 6),
    ((1.0, 5.0, 5.0, 5.0), 8),
    ((1.0, 2.0, 2.0, 2.0), 5),
    ((1.0, 6.0, 1.0, 5.0), 21),
    ((5.0, 7.0), 0),
)


def _balanced_cases(draw):
    yield Case(4, {"speeds": [100.0, 200.0, 50.0, 150.0], "num_samples": 122}, seed=0)
    for fixed, num_samples in _TO_ROUND:
        yield Case(len(fixed), {"speeds": list(fixed), "num_samples": num_samples})
    yield Case(1, {"speeds": [draw.uniform(5, 50)], "num_samples": draw.randint(10, 99)})
    speeds = [draw.uniform(2.6, 2.9), draw.uniform(1.0, 1.2)]
    yield Case(2, {"speeds": speeds, "num_samples": draw.randint(101, 199)})
    speeds = [draw.uniform(0.1, 0.9)] * 3
    yield Case(3, {"speeds": speeds, "num_samples": 3 * draw.randint(20, 90) + 2})
    speeds = draw.sample([draw.uniform(100 * k + 5, 100 * k + 70) for k in range(4)], 4)
    yield Case(4, {"speeds": speeds, "num_samples": draw.randint(500, 2000)})


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
        mistake = "alone" if played.call == "first" else "kept"
        raise played.wrong(mistake, 0, got=shares, fact=fact)
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
    if min(shares) > 0 and min(exact) < Fraction(1, 2):
        return "at-least-one", "Every rank gets one at least."
    missing, percents = num_samples - sum(shares), _go_by_percents(shares, speeds, num_samples)
    if missing and percents:
        return "cut-early", percents
    if missing >= len(shares):
        fact = (
            f"The shares lack {missing} samples; rounding down can lose {len(shares) - 1} at most."
        )
        return "cut-early", fact
    if -missing >= len(shares):
        fact = f"The shares are {-missing} samples too many; rounding alone cannot add so many."
        return "no-parts", fact
    if missing:
        return "sum", f"The shares add up to {sum(shares)}, not to {num_samples}."
    if min(shares) < 0:
        return "negative", f"Rank {shares.index(min(shares))} would get {min(shares)} samples."
    if differ and _is_near(sorted(shares), sorted(exact)):
        return "order", "The shares are those of other ranks."
    for first in (Fraction(0), Fraction(1, 2), Fraction(1)):
        if list(shares) == _one_by_one(num_samples, speeds, first):
            return "one-by-one", "Shares are off by a whole sample or more."
    rest = num_samples - len(shares)
    if differ and _is_near(shares, [1 + part for part in _proportion(rest, speeds)]):
        return "at-least-one", f"Only {rest} of them are shared out in proportion to the speeds."
    if percents:
        return "cut-early", percents
    off = [rank for rank, share in enumerate(shares) if abs(share - exact[rank]) >= 1]
    for rank in off:
        if exact[rank].denominator == 1:
            return "whole-share", f"Without any rounding the share of rank {rank} is {exact[rank]}."
    down = [math.floor(part) for part in exact]
    if sum(map(int.__ne__, shares, down)) == 1:
        return "rest-to-one", f"All that rounding down leaves over is rank {off[0]}'s."
    return "values", f"The share of rank {off[0]} is off by a whole sample or more."


def _go_by_percents(shares, speeds, num_samples):
    """
    Return a sentence if shares follow from whole percents of all speeds, else "".
    """
    for to_whole in (round, math.floor):
        percents = [Fraction(to_whole(100 * speed / sum(speeds))) for speed in speeds]
        for whole in (Fraction(100), sum(percents)):
            parts = [num_samples * percent / (whole or 1) for percent in percents]
            if _is_near(shares, parts) and not _is_near(parts, _proportion(num_samples, speeds)):
                return "They go by whole percents."
    return ""


def _one_by_one(num_samples, speeds, first):
    """
    Return the shares if each sample goes to the rank that is the earliest to have done `first` of
    it: 0, a half, or all of it.
    """
    shares = [0] * len(speeds)
    for _ in range(num_samples):
        shares[min(range(len(speeds)), key=lambda r: (shares[r] + first) / speeds[r])] += 1
    return shares


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
        "not-agreed": "Every rank must compute the same: with the speeds of all ranks, and where "
        "two ranks lack equally much, with the same choice.",
        "whole-speeds": "Gather the speeds as they are, in float64: they are seldom whole.",
        "equal": "A fast rank must get more: go by speed.",
        "inverted": "Speeds are samples per second, not seconds per sample: more is faster.",
        "sum": "Rounding each share by itself does not keep the sum. Round down, and then hand out "
        "what is left.",
        "cut-early": "Keep the exact shares exact until the end: nothing may be rounded before "
        "they are, such as percents.",
        "no-parts": "Before rounding, the shares already add up to num_samples: a rank's is its "
        "part of all speeds together.",
        "negative": "No share may be below 0. If shares are rounded up, another rank has to pay: "
        "round all down first.",
        "order": "Give the shares in rank order: place r is rank r's.",
        "one-by-one": "Start from the exact shares. To hand out sample after sample to whoever is "
        "free, or is done first, favours slow or fast ranks.",
        "at-least-one": "A share below 1 may become 0. What you give a slow rank beforehand, so "
        "that it has one, is taken from the others.",
        "whole-share": "A share that is whole before rounding stays as it is. What is left over "
        "goes to ranks that lost by rounding down.",
        "values": "Each share must be the exact one, rounded down or up. Start with all rounded "
        "down, and hand out what is left to those that lost most.",
        "store": "Let the speeds travel in the collective.",
        "rest-to-one": "What rounding leaves over is for several ranks: one sample each, to those "
        "that lost most.",
        "cost": "Gather the speeds in one call: one number a rank.",
        "raised": "The line that is named is yours. Tensors that are gathered all have the dtype "
        "and the shape of speed.",
        "input-changed": "Gather into new tensors, and leave your own speed as it is.",
    },
)
