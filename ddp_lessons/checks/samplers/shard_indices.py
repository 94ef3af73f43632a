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
            fact = "The call has changed the global random state."
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
        "If every rank shuffles all samples in the same way, each rank can take its own shard of "
        "that order, and no message is needed.",
        "torch.Generator() with manual_seed gives the same numbers on every rank, and "
        "torch.randperm takes it as generator=. Both seed and epoch must go into the seed.",
        "Pad the order to a length of ceil(N / w) * w by repeating it from its beginning, as often "
        "as needed, before you take a shard of it. -(-N // w) rounds up.",
        "With a long enough order, padded[rank : length * world_size : world_size] is this rank's "
        "shard.",
    ),
    mistakes={
        "nothing": "Return the list of this rank's samples.",
        "forbidden": "No message is needed: every rank can compute the same order from seed and "
        "epoch.",
        "unseeded": "Draw the order with a generator that was seeded with seed and epoch. A "
        "generator without a seed starts at random, or always in the same state.",
        "kept": "The order depends on all three arguments. Do not use the order of an earlier call "
        "for another number of samples, seed or epoch: draw it in each call.",
        "no-list": "Return a list of Python numbers, as tolist() makes it. Tensors in a set are "
        "never equal, so an overlap of two shards would not be found.",
        "no-sample": "Pad with samples that exist: repeat the order from its beginning.",
        "all-samples": "Every rank returned all samples. Use the rank to choose its own.",
        "dropped": "The last samples of the order are on no rank. Round the length up, and pad.",
        "fewer": "There may be fewer samples than ranks. Then the order must be repeated more than "
        "once to fill every shard.",
        "too-long": "Repeat no more samples than needed: a shard has ceil(N / w) of them.",
        "unequal": "Pad the order to the length of w equal shards before you take one of them.",
        "other-size": "The shards are as long as they would be for 4 ranks. Ask for the world size "
        "in every call: it is not always the same.",
        "overlap": "There are three usual causes. The ranks have different orders, for example "
        "because the rank goes into the seed. Or two shards take the same positions of one order. "
        "Or the sample numbers do not fit into the dtype that you chose.",
        "own-order": "hash() of a string differs between the processes that torchrun starts, and "
        "between runs. Compute the generator's seed from the two numbers alone.",
        "no-shuffle": "Shuffle before you take a shard: torch.randperm draws an order. An order "
        "that only starts elsewhere, or has whole blocks moved, is not shuffled.",
        "no-epoch": "Add the epoch to the generator's seed, as torch's sampler does. Add all of "
        "it: epoch % 10, for example, repeats itself in a later epoch.",
        "no-seed": "The argument seed must go into the generator's seed, all of it, and also in "
        "epoch 0: seed * epoch, for example, is 0 there.",
        "sorted": "Keep the shuffled order inside a shard. Sorting it undoes the shuffling.",
        "own-share": "Shuffle all samples in each epoch first, and then take a shard. If you only "
        "shuffle inside a shard, a rank sees the same samples in every epoch.",
        "turned": "Draw a new order for each seed and epoch. The old order from another start, or "
        "backwards, has the same neighbours.",
        "global-state": "Draw from your own torch.Generator(). Dropout, for example, draws from "
        "the global one, and would get other numbers.",
        "raised": "Does the line also work for one rank alone, and for fewer samples than ranks?",
    },
    allowed=(),
)
