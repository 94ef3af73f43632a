"""
Task 04.1: shard indices.

On each rank: `_act`; in both: `_orders`, `_direction`. In the kernel: the rest.
"""

import random
from collections import Counter
from itertools import chain, combinations, pairwise

import torch

from ddp_lessons.checks.kit import Case, Task, equal
from ddp_lessons.checks.samplers.shares import FEW, MANY, as_list, drawn_epoch, judge_shares
from ddp_lessons.pictures import samples_picture

_OTHER_SEED = 128_000  # added to a seed: as a multiple of 256 and 1,000 it keeps such remainders


_ODD_RANKS = "odd ranks ask for the orders"

_LATER = "epochs later"

# {world size: epochs to add}. An answer that reduces the epoch modulo 10, 12, 16 or 100, for
# example, gives the same order again.
_LATER_EPOCHS = {1: 100, 2: 256, 3: 300, 4: 336}


def _cases(draw):
    yield Case(4, {"num_samples": FEW, "seed": 5, "epoch": 0}, seed=0)
    # Odd ranks make the calls in reverse order. So an order that an answer keeps from its first
    # call, or from a call with another length, differs between ranks.
    backwards = {_ODD_RANKS: "backwards"}
    yield Case(4, {"num_samples": MANY, "seed": 5, "epoch": 0} | backwards)
    # This finds an order that an answer keeps from a case with 4 ranks.
    yield Case(2, {"num_samples": FEW, "seed": 5, "epoch": 0})
    yield Case(4, {"num_samples": MANY, "seed": 0, "epoch": 1})
    for world_size in (1, 2, 3, 4):
        length = draw.randint(MANY // world_size + 1, 60 // world_size)
        num_samples = world_size * length + draw.randint(1, world_size)
        told = {"num_samples": num_samples, **drawn_epoch(draw)}
        yield Case(world_size, told | {_LATER: _LATER_EPOCHS[world_size]})
    yield Case(4, {"num_samples": 1, **drawn_epoch(draw)})
    # Samples have numbers that need more than 8 bits.
    yield Case(2, {"num_samples": draw.randint(300, 400), **drawn_epoch(draw)})


def _orders(case):
    """
    Return (seed, epoch) for each call: the case's own, two later epochs, and another seed.
    """
    seed, epoch = case["seed"], case["epoch"]
    later = epoch + case.data.get(_LATER, 2)
    return (seed, epoch), (seed, epoch + 1), (seed, later), (seed + _OTHER_SEED, epoch)


def _act(context, shard_indices):
    # Leave the initial state. An answer that seeds the global generator with the initial seed would
    # restore that state, and the change would not be seen.
    torch.rand(1)
    torchs, pythons = torch.get_rng_state(), random.getstate()
    orders = _orders(context.case)[:: _direction(context.case, context.rank)]
    for seed, epoch in (*orders, orders[0]):
        context.call(shard_indices, context["num_samples"], seed, epoch)
    return equal(torchs, torch.get_rng_state()) and pythons == random.getstate()


def _direction(case, rank):
    return -1 if _ODD_RANKS in case.data and rank % 2 else 1


def _judge(case_result):
    rows = []
    for rank, seen in enumerate(case_result.seen):
        *row, again = [call.result for call in seen.calls]
        if not equal(row[0], again):
            fact = f"Called twice with the same arguments, it gave {again} the second time."
            raise case_result.wrong("unseeded", rank, got=row[0], fact=fact)
        rows.append(row[:: _direction(case_result.case, rank)])
    several = list(zip(*rows, strict=True))
    lost = "kept" if _ODD_RANKS in case_result.case.data else "overlap"
    for shares in several:
        judge_shares(case_result, shares, lost=lost)
    if case_result.case["num_samples"] >= MANY:
        names = [f"seed {seed} and epoch {epoch}" for seed, epoch in _orders(case_result.case)]
        _judge_orders(case_result, dict(zip(names, several, strict=True)))
    for seen in case_result.seen:
        if not seen.output:
            fact = "After it, the global random state is another one than before."
            raise case_result.wrong("global-state", seen.rank, fact=fact)


def _judge_orders(case_result, orders):
    """
    Refuse orders that are not shuffled, or that resemble one another too much.

    Args:
        case_result: The CaseResult.
        orders: {seed and epoch in words: shares}. The last one has another seed than the first.
    """
    (first, *others), other_seed = orders, list(orders)[-1]
    now = orders[first]
    if all(equal(now, shares) for shares in orders.values()):
        _refuse_steps(case_result, first, now, 2 / 3)
        fact = f"The orders with {', with '.join(orders)} are all the same."
        raise case_result.wrong("unseeded", 0, got=now[0], fact=fact)
    for name in others:
        if equal(now, orders[name]):
            _refuse_steps(case_result, first, now, 2 / 3)
            mistake = "no-seed" if name == other_seed else "no-epoch"
            fact = f"The order with {name} is that with {first}."
            raise case_result.wrong(mistake, 0, got=now[0], fact=fact)
    if (
        case_result.case["num_samples"] > MANY
    ):  # in a random case a real shuffle may look weak by chance
        return
    what = "are on one rank together"
    _refuse_pairs(case_result, orders, "own-share", _together, 0.9, (what, "are"))
    for name, shares in orders.items():
        _refuse_steps(case_result, name, shares, 1 / 3)
        if all(list(share) == sorted(share) for share in shares):
            fact = f"With {name}, the samples of every rank go up."
            raise case_result.wrong("sorted", 0, got=shares[0], fact=fact)
    what = "follow one another on a rank"
    _refuse_pairs(case_result, orders, "turned", _neighbours, 0.5, (what, "do"))


def _refuse_steps(case_result, name, shares, most):
    num_samples = case_result.case["num_samples"]
    steps = Counter((b - a) % num_samples for a, b in _neighbours(shares))
    (step, count), num_steps = steps.most_common(1)[0], sum(steps.values())
    if count > most * num_steps:
        step -= num_samples if step > num_samples / 2 else 0
        fact = (
            f"With {name}, {count} of {num_steps} steps from a sample of a rank to its next one "
            f"are {step:+}, where sample 0 comes after the last one."
        )
        raise case_result.wrong("no-shuffle", 0, got=shares[0], fact=fact)


def _refuse_pairs(case_result, orders, mistake, pairs_of, most, words):
    (first, now), *others = orders.items()
    pairs = set(map(frozenset, pairs_of(now)))
    for name, shares in others:
        again = pairs.intersection(map(frozenset, pairs_of(shares)))
        if len(again) > most * len(pairs):
            fact = (
                f"With {first}, {len(pairs)} pairs of samples {words[0]}. With {name}, "
                f"{len(again)} of these pairs {words[1]}, too."
            )
            raise case_result.wrong(mistake, 0, got=shares[0], fact=fact)


def _neighbours(shares):
    return chain.from_iterable(pairwise(share) for share in shares)


def _together(shares):
    return chain.from_iterable(combinations(share, 2) for share in shares)


def _draw(case_result):
    num_samples = case_result.case["num_samples"]
    shares = [seen.calls[0].result for seen in case_result.seen]
    whole = [[one for one in as_list(share) if type(one) is int and one >= 0] for share in shares]
    exist = all(one < num_samples for share in whole for one in share)
    return samples_picture([[[one] for one in s] for s in whole], num_samples if exist else None)


shard_indices = Task(
    number="04.1",
    name="shard_indices",
    twice=True,
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="ceil(N / w) a rank, every sample on some rank, without a message",
    draw=_draw,
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
        "seed. Or shares overlap, or end too early: one must begin where another ends. "
        "Or the numbers of samples do not fit into a dtype that you chose.",
        "own-order": "hash() of a text is another number in each process that torchrun starts, and "
        "in each run. Compute the seed from the two numbers alone.",
        "no-shuffle": "Shuffle before you share out: torch.randperm gives an order. To begin it "
        "elsewhere, or to move whole blocks, is not to shuffle.",
        "no-epoch": "The epoch must go into the generator's seed, as set_epoch does it, and the "
        "whole of it: a remainder comes again in a later epoch.",
        "no-seed": "The seed must go into the generator's seed, the whole of it, together with "
        "the epoch, and also in epoch 0: a product of the two is 0 there.",
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
