"""
Task 12.3: BatchNorm's backward, over the samples of all ranks.

On each rank: `_act`; in both: `_Given`. In the kernel: the rest.
"""

import torch

from ddp_lessons.checks.kit import Case, Task, normal_numbers
from ddp_lessons.checks.metrics.op_costs import batch_of, judge_price, within
from ddp_lessons.pictures import holdings_picture

EPS = 0.05
NAMES = ("grad_x", "grad_weight", "grad_bias")


def _cases(draw):
    yield Case(4, {"samples": [5, 3, 4, 2], "channels": 3, "dtype": "float32"}, seed=0)
    channels = draw.randint(4, 6)
    for samples in ([draw.randint(4, 9)], [draw.randint(2, 4), draw.randint(6, 9)]):
        yield Case(len(samples), {"samples": samples, "channels": channels, "dtype": "float64"})
    samples = [draw.randint(3, 5), 0, 1]
    yield Case(3, {"samples": samples, "channels": channels, "dtype": "float64"})


class _Given:
    """
    The arguments of all ranks of a case: each rank's normal numbers and gradients, and the tensors
    that all ranks share.
    """

    def __init__(self, case):
        ranks, dtype = range(case.world_size), getattr(torch, case["dtype"])
        parts = [batch_of(case, rank).double() for rank in ranks]
        whole = torch.cat(parts)
        inverse = (whole.var(0, correction=0) + EPS).rsqrt()
        self.inverse = inverse.to(dtype)
        self.weight = torch.linspace(0.5, 2, case["channels"], dtype=dtype)
        self.normals = [((part - whole.mean(0)) * inverse).to(dtype) for part in parts]
        shape = [(len(part), case["channels"]) for part in parts]
        self.grads = [
            (normal_numbers(case, (rank, "grad"), shape[rank], torch.float64) + 1 + rank).to(dtype)
            for rank in ranks
        ]
        self.total = len(whole)

    def of(self, rank):
        """
        Return the arguments of a rank's call, as a tuple.
        """
        return self.grads[rank], self.normals[rank], self.inverse, self.weight, self.total


def _act(context, sync_backward):
    *tensors, total = _Given(context.case).of(context.rank)
    context.call(sync_backward, *(one.to(context.device) for one in tensors), total)


class _Right:
    """
    The right gradients of each rank, how far they may be off, and what usual mistakes give.
    """

    def __init__(self, case):
        self.given = given = _Given(case)
        self.num_ranks = case.world_size
        self.grads = [one.double() for one in given.grads]
        self.normals = [one.double() for one in given.normals]
        self.scale = given.inverse.double() * given.weight.double()
        self.own = [
            (grad.sum(0), (grad * normal).sum(0))
            for grad, normal in zip(self.grads, self.normals, strict=True)
        ]
        self.sums = tuple(map(sum, zip(*self.own, strict=True)))
        sizes = [
            (grad.abs().sum(0), (grad * normal).abs().sum(0))
            for grad, normal in zip(self.grads, self.normals, strict=True)
        ]
        self.sizes = tuple(map(sum, zip(*sizes, strict=True)))
        unit = torch.finfo(given.inverse.dtype).eps / 2
        self.share = (given.total + 8) * unit  # a sum of n terms, and 8 operations after it

    def grad_x(self, rank, sums=None, count=None, scale=None):
        """
        Return the gradient of x on a rank, by these two sums over `count` samples, times `scale`.

        Default: the right sums, count and scale.
        """
        sums, count = self.sums if sums is None else sums, count or self.given.total
        scale = self.scale if scale is None else scale
        inner = self.grads[rank] - sums[0] / count - self.normals[rank] * sums[1] / count
        return scale * inner

    def expected(self, rank):
        """
        Return the three right gradients of a rank, and how far each of them may be off.
        """
        sizes = self.grads[rank].abs() + self.sizes[0] / self.given.total
        sizes = sizes + self.normals[rank].abs() * self.sizes[1] / self.given.total
        right = self.grad_x(rank), self.own[rank][1], self.own[rank][0]
        slack = self.scale * sizes, self.sizes[1], self.sizes[0]
        return right, tuple(self.share * one for one in slack)

    def mistakes(self, rank):
        """
        Yield (name, gradient of x) for each usual mistake.
        """
        own, num_own = self.own[rank], len(self.grads[rank])
        zero = torch.zeros_like(self.scale)
        given = self.given
        yield "own-sums", self.grad_x(rank, own, num_own)
        yield "own-sums", self.grad_x(rank, own)
        if num_own:
            yield "own-count", self.grad_x(rank, count=num_own)
            yield "own-count", self.grad_x(rank, count=num_own * self.num_ranks)
            means = [
                (sums[0] / max(len(grad), 1), sums[1] / max(len(grad), 1))
                for sums, grad in zip(self.own, self.grads, strict=True)
            ]
            mean = tuple(sum(one) / self.num_ranks for one in zip(*means, strict=True))
            yield "mean-of-means", self.grad_x(rank, mean, 1)
            yield "mean-of-means", self.grad_x(rank, mean, given.total / self.num_ranks)
        yield "constant", self.grad_x(rank, (zero, zero))
        yield "no-mean-term", self.grad_x(rank, (zero, self.sums[1]))
        yield "no-spread-term", self.grad_x(rank, (self.sums[0], zero))
        yield "undivided", self.grad_x(rank, count=1)
        fewer = given.total / max(given.total - 1, 1)
        yield "unbiased", self.grad_x(rank, (self.sums[0], self.sums[1] * fewer))
        yield "unbiased", self.grad_x(rank, count=given.total - 1)
        yield "by-ranks", self.grad_x(rank, count=self.num_ranks)
        yield "by-ranks", self.grad_x(rank, count=given.total * self.num_ranks)
        yield "scale", self.grad_x(rank, scale=given.inverse.double())
        yield "scale", self.grad_x(rank, scale=given.weight.double())
        yield "scale", self.grad_x(rank, scale=torch.ones_like(self.scale))
        yield "scale", self.grad_x(rank, scale=given.weight.double() / given.inverse.double())
        weighted = [one * given.weight.double() for one in self.sums]
        yield "weighted-twice", self.grad_x(rank, weighted)
        yield "swapped", self.grad_x(rank, (self.sums[1], self.sums[0]))


def _judge(case_result):
    right = _Right(case_result.case)
    for rank, result in enumerate(case_result.results):
        if not isinstance(result, tuple | list) or len(result) != len(NAMES):
            fact = "It must return three tensors: grad_x, grad_weight, grad_bias."
            raise case_result.wrong("not-three", rank, got=result, fact=fact)
    for rank, result in enumerate(case_result.results):
        expected, slack = right.expected(rank)
        for place, name in enumerate(NAMES):
            wanted = expected[place].to(right.given.inverse.dtype)
            got = result[place]
            is_alike = isinstance(got, torch.Tensor)
            is_alike = is_alike and (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
            if is_alike and within(got, expected[place], slack[place]):
                continue
            if not is_alike:
                if name != "grad_x" and isinstance(got, torch.Tensor) and got.dim() == 2:
                    fact = f"{name} must have a number for each channel."
                    raise case_result.wrong("not-summed", rank, got=got, expected=wanted, fact=fact)
                case_result.expect(rank, got, wanted, slack[place])
            mistake = _mistake(right, rank, place, got.double(), slack[place])
            fact = f"{name} is not the one expected."
            raise case_result.wrong(mistake, rank, got=got, expected=wanted, fact=fact)
    for seen in case_result.seen:
        judge_price(case_result, seen.rank, seen.calls[-1], 8 * 2 * case_result.case["channels"])


def _mistake(right, rank, place, got, slack):
    if place == 0:
        found = [name for name, one in right.mistakes(rank) if within(got, one, 4 * slack)]
        if not found and within(got, right.expected(rank)[0][0], 0.02 * slack / right.share):
            found = ["digits"]
        return found[0] if found else "values"
    own, total = right.own[rank], right.sums
    which = 1 if place == 1 else 0
    named = [
        ("parameters-reduced", total[which]),
        ("parameters-reduced", total[which] / right.num_ranks),
        ("parameters-averaged", total[which] / right.given.total),
        ("parameters-averaged", own[which] / max(len(right.grads[rank]), 1)),
        ("parameters-swapped", own[1 - which]),
        ("parameters-weighted", own[which] * right.given.weight.double()),
    ]
    found = [name for name, one in named if within(got, one, 4 * slack)]
    return found[0] if found else "parameters"


def _draw(case_result):
    names = ["samples", "own sum of grad_y", "sum of grad_x", "collectives"]
    rows, given = [], _Given(case_result.case)
    for rank, (result, called) in enumerate(
        zip(case_result.results, case_result.call_names, strict=True)
    ):
        grad_x = result[0]
        numbers = given.grads[rank][:, 0].sum(), grad_x[:, 0].sum()
        told = [str(len(given.grads[rank])), *(f"{number:.2f}" for number in numbers)]
        rows.append(dict(zip(names, [*told, str(len(called))], strict=True)))
    return holdings_picture(names, rows)


sync_backward = Task(
    number="12.3",
    name="sync_backward",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="one collective, and the gradients of one process",
    draw=_draw,
    hints=(
        "y of one sample depends on every x of every rank, by the mean and by the spread. So two "
        "means over all samples come into grad_x.",
        "They are the mean of grad_y, and the mean of grad_y times the normal numbers. Each is a "
        "sum over ranks, divided by num_global.",
        "grad_bias is the sum of grad_y over this rank's samples, grad_weight that of grad_y times "
        "the normal numbers. The same two sums, over all ranks, make grad_x.",
        "sums = torch.stack([grad_bias, grad_weight]); dist.all_reduce(sums); mean, spread = sums "
        "/ num_global; grad_x = weight * inverse * (grad_y - mean - normal * spread).",
    ),
    mistakes={
        "own-sums": "The two means go over the samples of all ranks, not of this one.",
        "own-count": "The sums of all ranks are divided by the samples of all ranks.",
        "mean-of-means": "A mean of ranks' means weighs ranks alike. Add up sums, and divide by "
        "num_global.",
        "constant": "This would be right if mean and spread did not depend on x. They do.",
        "no-mean-term": "The mean depends on x, too: each x has a share in what is subtracted.",
        "no-spread-term": "The spread depends on x, too: each x has a share in what is divided by.",
        "undivided": "Of the sums over all ranks, take means: divide by num_global.",
        "unbiased": "Both means divide by num_global; one less is for running_var alone.",
        "by-ranks": "Sums over samples are divided by the number of samples, not of ranks.",
        "scale": "grad_x is scaled by weight and by inverse, both: y is weight times normal, and "
        "normal is inverse times what is left of x.",
        "weighted-twice": "weight stands before the brackets, so it must not stand inside as well.",
        "swapped": "The mean of grad_y is subtracted as it is; that of grad_y times normal is "
        "multiplied by normal first.",
        "digits": "Digits are lost. Keep the dtype that you were given, or a longer one.",
        "parameters-reduced": "grad_weight and grad_bias are those of this rank's samples: DDP "
        "brings those of all ranks together, and must not do so twice.",
        "parameters-averaged": "A gradient of weight or bias is a sum over samples, not a mean.",
        "parameters-swapped": "y = weight * normal + bias: which of the two is multiplied by the "
        "normal numbers?",
        "parameters-weighted": "grad_y is given for y, after the weight: it does not enter here.",
        "parameters": "y = weight * normal + bias: differentiate by weight and by bias, and add up "
        "over this rank's samples.",
        "not-summed": "weight and bias serve all samples: add up over them.",
        "not-three": "Return grad_x, grad_weight, grad_bias, in this order.",
        "nothing": "Return grad_x, grad_weight, grad_bias.",
        "input-changed": "A collective writes into the tensor that it gets, and so does an "
        "operator with an equals sign. Make new tensors.",
        "raised": "The line that is named is yours. A rank may have no samples: its sums are 0, "
        "and it has nothing to divide by.",
        "deadlock": "Every rank makes the same call, one without samples too.",
        "cost": "Both sums fit into one tensor, and so into one collective.",
        "bytes": "2C numbers are enough: no sample needs to travel.",
        "dtype": "Each gradient has the dtype of what you were given.",
        "values": "Take one channel and two ranks with one sample each, and write down y as a "
        "function of both x.",
    },
    twice=True,
)
