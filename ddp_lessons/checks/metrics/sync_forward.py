"""
Task 12.2: BatchNorm's forward, over the samples of all ranks.
"""

import torch
from torch import nn

from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.checks.kit.inside.plain import plain, same_bits
from ddp_lessons.checks.metrics.prices import batch_of, judge_price, within
from ddp_lessons.pictures import holdings_picture

NUM_CALLS = 2  # with other samples: what stays in the layer is judged after each
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def _cases(draw):
    yield Case(4, {"samples": [5, 3, 4, 2], "channels": 3, "dtype": "float32"}, seed=0)
    channels = draw.randint(4, 6)
    for samples in ([draw.randint(4, 9)], [draw.randint(2, 4), draw.randint(6, 9)]):
        yield Case(len(samples), {"samples": samples, "channels": channels, "dtype": "float64"})
    samples = [draw.randint(3, 5), 0, 1]
    yield Case(3, {"samples": samples, "channels": channels, "dtype": "float32"})
    samples = [draw.randint(10, 15), draw.randint(4, 6)]
    data = {"samples": samples, "channels": channels, "dtype": "float32", "offset": 3000}
    yield Case(2, data)
    # In float64 two orders of a sum differ in few numbers: many channels have some.
    samples = [draw.randint(2, 9) for _ in range(4)]
    yield Case(4, {"samples": samples, "channels": 64, "dtype": "float64"})


def layer_of(case):
    """
    Return the layer that every rank of a case gets, on the CPU.
    """
    channels, dtype = case["channels"], getattr(torch, case["dtype"])
    layer = nn.BatchNorm1d(channels, eps=0.05, momentum=0.3)
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(0.5, 2, channels))
        layer.bias.copy_(torch.linspace(3, 1, channels))
        layer.running_mean.copy_(torch.linspace(-2, 0.5, channels))
        layer.running_var.copy_(torch.linspace(4, 2, channels))
    return layer.to(dtype)


def _act(here, sync_forward):
    layer = layer_of(here.case).to(here.device)
    noted = []
    for call in range(NUM_CALLS):
        here.call(sync_forward, layer, batch_of(here.case, here.rank, call).to(here.device))
        noted.append(plain({name: getattr(layer, name) for name in STATISTICS}))
    return noted


class _Right:
    """
    Say what one process has after each call, and what the usual mistakes give.
    """

    def __init__(self, case):
        self.case = case
        self.layer = layer_of(case).double()
        self.unit = torch.finfo(getattr(torch, case["dtype"])).eps / 2

    def call(self, number):
        """
        Go on to the samples of a call.
        """
        ranks = range(self.case.world_size)
        self.parts = [batch_of(self.case, rank, number).double() for rank in ranks]
        self.whole = torch.cat(self.parts)
        self.old = self.layer.running_mean.clone(), self.layer.running_var.clone()
        self.mean = self.whole.mean(0)
        self.biased, self.unbiased = (self.whole.var(0, correction=one) for one in (0, 1))
        with torch.no_grad():
            self.layer(self.whole)
        # Values and their mean are rounded; what is left of them is of the size of the spread.
        # Sums of squares in float64 are off by some of their last digits.
        self.rounds, distance = 8 + len(self.whole), self.mean.abs() / self.biased.sqrt()
        self.squares_off = self.rounds * torch.finfo(torch.float64).eps * self.mean.square()
        self.share = self.unit * (self.rounds + 4 * distance) + self.squares_off / self.biased

    def y(self, rank, mean=None, variance=None, eps=None):
        """
        Return what comes out on a rank, by these statistics or by the right ones.
        """
        mean = self.mean if mean is None else mean
        variance = self.biased if variance is None else variance
        eps = self.layer.eps if eps is None else eps
        normal = (self.parts[rank] - mean) / (variance + eps).sqrt()
        with torch.no_grad():
            return normal * self.layer.weight + self.layer.bias

    def slack(self, y):
        """
        Return how far y may be off.
        """
        return self.share * (y.abs() + self.layer.weight.abs() + self.layer.bias.abs()).detach()

    def biased_on(self, rank):
        """
        Return variances that divide by N, or by what a rank's own number of samples makes of it.
        """
        own = len(self.parts[rank])
        return [self.biased] + ([self.biased * own / (own - 1)] if own > 1 else [])

    def mistakes(self, rank):
        """
        Yield (name, y) of the usual mistakes.
        """
        means = [part.mean(0) if len(part) else torch.zeros_like(self.mean) for part in self.parts]
        spreads = [
            part.var(0, correction=0) if len(part) else torch.zeros_like(self.mean)
            for part in self.parts
        ]
        filled = [one for one, part in enumerate(self.parts) if len(part)]
        shares = [len(part) / len(self.whole) for part in self.parts]
        plain_mean = sum(means[one] for one in filled) / len(filled)
        plain_spread = sum(spreads[one] for one in filled) / len(filled)
        all_mean, all_spread = (sum(one) / len(means) for one in (means, spreads))
        within = sum(share * one for share, one in zip(shares, spreads, strict=True))
        yield "own-statistics", self.y(rank, means[rank], spreads[rank])
        if len(self.parts[rank]) > 1:
            spread = self.parts[rank].var(0, correction=1)
            yield "own-statistics", self.y(rank, means[rank], spread)
        for mean, spread in ((plain_mean, plain_spread), (all_mean, all_spread)):
            for one in (spread, within, self.biased):
                yield "mean-of-means", self.y(rank, mean, one)
            some = filled if mean is plain_mean else range(len(means))
            squares = sum(spreads[one] + means[one].square() for one in some) / len(some)
            yield "mean-of-means", self.y(rank, mean, squares - mean.square())
            around = (self.whole - mean).square().mean(0)
            yield "mean-of-means", self.y(rank, mean, around)
        for spread in (within, plain_spread, all_spread):
            yield "mean-of-variances", self.y(rank, variance=spread)
        yield "running-used", self.y(rank, *self.old)
        yield "running-used", self.y(rank, self.layer.running_mean, self.layer.running_var)
        yield "unbiased", self.y(rank, variance=self.unbiased)
        yield "eps", self.y(rank, eps=0.0)
        yield "eps", self.y(rank, eps=1e-5)
        normal = (self.parts[rank] - self.mean) / (self.biased.sqrt() + self.layer.eps)
        # No `no_grad` around a yield: who stops asking would leave it on for all that follows.
        weight, bias = self.layer.weight.detach(), self.layer.bias.detach()
        yield "eps", normal * weight + bias
        bare = (self.y(rank) - bias) / weight
        yield "no-weights", bare
        yield "no-weights", bare * weight
        yield "no-weights", bare + bias


def _judge(played):
    right = _Right(played.case)
    for number in range(NUM_CALLS):
        right.call(number)
        for seen in played.seen:
            _judge_y(played, seen, number, right)
        for seen in played.seen:
            _judge_running(played, seen, number, right)
    for seen in played.seen:
        if not all(map(_alike, seen.kept, played.seen[0].kept)):
            fact = f"Ranks 0 and {seen.rank} have other bits in their running statistics."
            raise played.wrong("not-alike", seen.rank, fact=fact)
        for call in seen.calls:
            judge_price(played, seen.rank, call, 8 * (2 * played.case["channels"] + 1))


def _alike(one, other):
    return all(same_bits(one[name], other[name]) for name in STATISTICS)


def _judge_y(played, seen, number, right):
    rank, call = seen.rank, seen.calls[number]
    got, expected = call.result, right.y(seen.rank)
    given = batch_of(played.case, rank, number)
    slack = right.slack(expected)
    if isinstance(got, torch.Tensor) and (got.shape, got.dtype) == (given.shape, given.dtype):
        if within(got, expected, slack):
            return
        known = (name for name, y in right.mistakes(rank) if within(got, y, 4 * slack))
        mistake = next(known, None)
        if mistake is None:
            off = (got.double() - expected).abs().max()
            size = expected.abs().max()
            is_lost = "offset" in played.case.data or bool(off < 2e-3 * size)
            mistake = "digits" if is_lost else "values"
            if bool(got.isnan().any()):
                mistake = "nan"
        both = {"got": got, "expected": expected.to(given.dtype)}
        fact = f"Call {number + 1} gives other numbers than one process with all samples."
        raise played.wrong(mistake, rank, **both, fact=fact)
    played.expect(rank, got, expected.to(given.dtype), slack)


def _judge_running(played, seen, number, right):
    rank, noted = seen.rank, seen.kept[number]
    old_mean, old_var = right.old
    momentum, layer = right.layer.momentum, right.layer
    fact = f"After call {number + 1}, num_batches_tracked is {noted['num_batches_tracked']}."
    for name, old, new in (
        ("running_mean", old_mean, right.mean),
        ("running_var", old_var, right.unbiased),
    ):
        got, expected = noted[name], getattr(layer, name)
        if got.dtype != getattr(torch, played.case["dtype"]):
            told = f"{name} was {played.case['dtype']}, and is {str(got.dtype).partition('.')[2]}."
            raise played.wrong("buffer-dtype", rank, fact=told)
        sizes = old.abs() + new.abs() + right.biased.sqrt()
        slack = right.unit * right.rounds * sizes + right.squares_off
        if within(got, expected, slack):
            continue
        mistake = "running"
        if within(got, old, slack):
            mistake = "running-left"
        elif any(within(got, share * old + (1 - share) * new, slack) for share in (momentum, 0)):
            mistake = "momentum"
        elif name == "running_var" and any(
            within(got, (1 - momentum) * old + momentum * new, slack)
            for new in right.biased_on(rank)
        ):
            mistake = "running-biased"
        elif within(got, (1 - momentum) * expected + momentum * new, slack):
            mistake = "running-twice"
        both = {"got": got, "expected": expected.to(got.dtype)}
        told = f"y is right, but after call {number + 1} {name} is not that of one process."
        raise played.wrong(mistake, rank, **both, fact=told)
    if noted["num_batches_tracked"].item() != number + 1:
        raise played.wrong("counter", rank, fact=fact)


def _draw(played):
    names = ["samples", "mean of its own", "mean in the layer", "collectives"]
    rows = []
    for rank, (seen, called) in enumerate(zip(played.seen, played.names, strict=True)):
        own = batch_of(played.case, rank)
        noted = seen.kept[0]["running_mean"][0]
        told = [str(len(own)), f"{own[:, 0].mean():.2f}", f"{noted:.2f}", str(len(called) // 2)]
        rows.append(dict(zip(names, told, strict=True)))
    return holdings_picture(names, rows)


sync_forward = Task(
    number="12.2",
    name="sync_forward",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="one collective, and what one process has, also far from 0",
    draw=_draw,
    hints=(
        "What must a rank tell the others so that all find the mean and the variance of all "
        "samples? Think of unequal numbers of samples, and of none.",
        "N, the sum of all x, and the sum of all squares: each is a sum over ranks. In one tensor "
        "they are one message. Or each rank's n, mean, and squares around it.",
        "The sums must be float64, or the variance of numbers far from 0 is lost. For y, the "
        "variance divides by N; for running_var by N - 1.",
        "own = torch.cat([count, x.double().sum(0), x.double().square().sum(0)]); "
        "dist.all_reduce(own); mean = sums / N; variance = squares / N - mean ** 2.",
    ),
    mistakes={
        "nan": "Something is not a number, and so is all that it is added to. A mean of no samples "
        "is nan, as some rank may have none: send sums and counts.",
        "own-statistics": "These are the statistics of this rank's samples alone.",
        "mean-of-means": "A mean of ranks' means weighs ranks alike. Weigh them by their samples, "
        "or add up sums and divide once.",
        "mean-of-variances": "Ranks' own variances leave out how far their means are from each "
        "other. Take squares around 0, or around the mean of all.",
        "running-used": "In training, y goes by the batch, not by the running statistics.",
        "unbiased": "y takes the variance that divides by N; only running_var takes N - 1.",
        "eps": "layer.eps is added to the variance, before the root.",
        "no-weights": "After normalising comes layer.weight, and then layer.bias.",
        "digits": "Digits are lost. Make sums in float64: where the mean is far from 0, the "
        "variance is a small difference of large numbers.",
        "running": "Old and new are mixed by layer.momentum: that share of the new. The new are "
        "those of all ranks' samples.",
        "buffer-dtype": "Write into the layer's buffers, in place, so that they keep their dtype.",
        "running-left": "The layer's running statistics move in training, both of them.",
        "running-biased": "For running_var, torch divides by N - 1. N is the number of samples of "
        "all ranks, not of this one.",
        "running-twice": "The running statistics have moved twice. Calling the layer itself moves "
        "them, too.",
        "momentum": "momentum is the share of the new, and the rest is that of the old.",
        "counter": "layer.num_batches_tracked counts calls: one more in each.",
        "not-alike": "All ranks must compute from the same bits, in the same order: a sum that "
        "begins with a rank's own part has other last digits on each rank.",
        "left-changed": "Only the running statistics change. Weights, modes and all else stay.",
        "input-changed": "Leave x as it is: make new tensors.",
        "nothing": "Return y.",
        "raised": "The line that is named is yours. A rank may have no samples, or one: then its "
        "own mean or variance is nan, and its sums are 0.",
        "deadlock": "Every rank makes the same call, one without samples too.",
        "cost": "Count, sums and squares fit into one tensor, and so into one collective.",
        "bytes": "2C + 1 numbers of 8 bytes are enough: no sample needs to travel.",
        "dtype": "y has the dtype of x. What you compute it in may have another.",
        "values": "Take two ranks with one channel, one with 1 sample and one with 3, and go "
        "through your lines with a pencil.",
    },
    may_change=("buffers",),
)
