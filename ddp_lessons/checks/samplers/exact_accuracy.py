"""
Task 04.2: exact accuracy.

On each rank: `_act`; in both: `_Predict`, `_models`. In the kernel: the rest.
"""

import math
from collections import Counter
from dataclasses import replace

import torch

from ddp_lessons.checks.kit import Case, Task, generator
from ddp_lessons.checks.samplers.shares import judge_cost
from ddp_lessons.errors import WrongAnswer
from ddp_lessons.pictures import samples_picture
from ddp_lessons.ranks.diagnosis.wording import rank_names

_NUM_CLASSES = 3

_RADIX = 128  # base in which a sample's number has two digits that bfloat16 can hold

_FRACTION = 2**-30  # added to each digit in float64, and lost in float32

_UNKNOWN = -1  # stands for an input that is no test sample

_MOST_BYTES = 16


class _Predict:
    """
    A stand-in for a trained model, which records the samples that it is asked about.

    Args:
        case: The Case. Its seed decides which samples the model gets wrong.
        device: The device of its tensors.
    """

    def __init__(self, case, device):
        num_samples, rng = case["num_samples"], generator(case)
        labels = torch.randint(0, _NUM_CLASSES, (num_samples,), generator=rng)
        wrong = torch.rand(num_samples, generator=rng) < 0.3
        wrong[0] = True  # the sample that padding repeats first
        # Make the number of right predictions odd: above 256, bfloat16 cannot hold it.
        if num_samples > 1:
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


def _cases(draw):
    yield Case(4, {"num_samples": 9, "dtype": "float32"}, seed=0)
    for world_size in (1, 2, 3):
        num_samples = world_size * draw.randint(3, 9) + 1
        yield Case(world_size, {"num_samples": num_samples, "dtype": "float64"})
    yield Case(4, {"num_samples": 2, "dtype": "float32"})
    # More right predictions than float16 can count exactly, and than 8 bits can hold.
    yield Case(2, {"num_samples": 2 * draw.randint(3000, 3050) + 1, "dtype": "bfloat16"})


def _act(context, exact_accuracy):
    asked = []
    for case in _models(context.case):
        predict = _Predict(case, context.device)
        context.call(exact_accuracy, predict, predict.inputs, predict.labels)
        asked.append(predict.batches)
    return asked


def _models(case):
    """
    Return a Case for each model that is evaluated.

    The second model shows whether an answer keeps something of the first one.
    """
    second = replace(case, seed=case.seed + 1, data=case.data | {"backwards": True})
    return [case, second] if case["num_samples"] < 100 else [case]


def _judge(case_result):
    before = None
    for number, case in enumerate(_models(case_result.case)):
        seen = [
            replace(one, calls=[one.calls[number]], output=one.output[number])
            for one in case_result.seen
        ]
        before = _judge_accuracy(
            replace(case_result, seen=seen), _Predict(case, "cpu").is_right, before
        )


def _judge_accuracy(case_result, is_right, before):
    """
    Judge the accuracy of one model.

    Args:
        case_result: The CaseResult, reduced to the call for this model.
        is_right: A list: for each sample, whether the model predicts it rightly.
        before: The right accuracy of the model before; None for the first model.

    Returns:
        float: The right accuracy of this model.
    """
    asked = [[one for batch in seen.output for one in batch] for seen in case_result.seen]
    try:
        _judge_asked(case_result, asked)
    except WrongAnswer:
        if before is None:
            raise
        fact = "In an earlier call, with another model, it distributed as many samples correctly."
        raise case_result.wrong("kept", fact=fact) from None
    num_right = [sum(is_right[sample] for sample in own) for own in asked]
    exact = sum(num_right) / len(is_right)
    for rank, got in enumerate(case_result.results):
        if not isinstance(got, float):
            fact = "It must return a float."
            raise case_result.wrong("no-float", rank, got=got, expected=exact, fact=fact)
    for rank, got in enumerate(case_result.results):
        if not _near(got, exact):
            mistake, fact = _accuracy_mistake(case_result, asked, num_right, exact)
            # The number for the first model was right, so an answer must have kept something of it.
            if before is not None:
                told = {
                    before: "that of the earlier model",
                    before + exact: "both models' together",
                }
                what = [words for value, words in told.items() if _near(got, value)]
                mistake, fact = (
                    "kept",
                    "An earlier call, with another model and as many samples, was right.",
                )
                fact = f"This is {what[0]}: it was called twice." if what else fact
            raise case_result.wrong(mistake, rank, got=got, expected=exact, fact=fact)
    judge_cost(case_result, "The number is", _MOST_BYTES)
    return exact


def _judge_asked(case_result, asked):
    num_samples, num_ranks = case_result.case["num_samples"], len(asked)
    for rank, own in enumerate(asked):
        if _UNKNOWN in own:
            fact = "It called predict with numbers that are not in inputs, but close to some."
            raise case_result.wrong("other-inputs", rank, fact=fact)
    if num_ranks > 1 and all(sorted(own) == list(range(num_samples)) for own in asked):
        fact = f"Every rank has evaluated all {num_samples} samples."
        raise case_result.wrong("all-samples", fact=fact)
    lost = sorted(set(range(num_samples)).difference(*asked))
    if lost:
        number = f"{len(lost)} of {num_samples}"
        fact = f"Samples that no rank has evaluated: {number}. The first of them is {lost[0]}."
        raise case_result.wrong("lost", fact=fact)
    for rank, own in enumerate(asked):
        sample, times = Counter(own).most_common(1)[0] if own else (None, 0)
        if times > 1:
            fact = f"This rank has evaluated sample {sample} more than once."
            raise case_result.wrong("asked-again", rank, fact=fact)
    total, most = sum(map(len, asked)), -(-num_samples // num_ranks)
    if total > num_samples:
        fact = f"The ranks have evaluated {total} samples, but there are {num_samples}."
        raise case_result.wrong("padding", fact=fact)
    for rank, own in enumerate(asked):
        if len(own) > most:
            fact = f"This rank has evaluated {len(own)} samples; {most} are enough."
            raise case_result.wrong("not-shared", rank, fact=fact)


def _near(got, expected):
    # A quotient of whole numbers below 2**24 in float32 is off by half an epsilon at most. The
    # other half is for one more rounding, when the number is read.
    return abs(got - expected) <= torch.finfo(torch.float32).eps * max(1.0, expected)


def _accuracy_mistake(case_result, asked, num_right, exact):
    results, num_samples = case_result.results, case_result.case["num_samples"]
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
            return "alone", "Each rank has counted only its own correct predictions."
    if any(_near(got, exact) for got in results):
        right = [rank for rank, got in enumerate(results) if _near(got, exact)]
        return "not-everywhere", f"The accuracy is right only on {rank_names(right)}."
    if all(_near(got, sum(num_right)) for got in results):
        return "undivided", "This is the number of correct predictions."
    if all(_near(got / 100, exact) for got in results):
        return "percent", "This is the accuracy in percent."
    for factor, what in (
        (1, "samples of one rank"),
        (len(own), "samples of one rank, times the number of ranks"),
        (num_busy, "samples of one rank, times the number of ranks that have some"),
    ):
        wrong = [sum(num_right) / (len(a) * factor) if a else None for a in asked]
        if all(one is None or _near(got, one) for got, one in zip(results, wrong, strict=True)):
            return "own-count", f"The sum of correct predictions was divided by the {what}."
    for factor, what in ((len(own), "ranks"), (num_busy, "ranks that have samples")):
        if all(_near(got, sum(num_right) / factor) for got in results):
            return (
                "own-count",
                f"The sum of correct predictions was divided by the number of {what}.",
            )
    counted = [got * num_samples for got in results]
    if all(_near(one, round(one)) and not (round(one) - sum(num_right)) % 256 for one in counted):
        fact = f"It stands for {round(counted[0])} correct predictions; there are {sum(num_right)}."
        return "overflow", f"{fact} They differ by a multiple of 256."
    if all(abs(got - exact) < torch.finfo(torch.bfloat16).eps for got in results):
        return "rounded", "The accuracy is a little off."
    return "values", "The accuracy differs from that of a single process."


def _draw(case_result):
    batches = [seen.output[0] or [[]] for seen in case_result.seen]
    return samples_picture(batches, case_result.case["num_samples"])


exact_accuracy = Task(
    number="04.2",
    name="exact_accuracy",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="every sample evaluated once, 1 collective, 16 bytes at most",
    draw=_draw,
    hints=(
        "The accuracy over all ranks is a quotient of two sums. Sum first, then divide once.",
        "A slice with a start and a step distributes samples without repeats: inputs[start::step]. "
        "The slice may be empty, which raises no error.",
        "(predict(inputs) == labels).sum() is a count, as int64. An all-reduce sums the counts of "
        "all ranks. Every rank knows the number of all samples without a message.",
        "num_right = (predict(own_inputs) == own_labels).sum(); dist.all_reduce(num_right); then "
        "divide by the number of all samples.",
    ),
    mistakes={
        "nothing": "Return the accuracy, on every rank.",
        "no-float": "Return a Python number: tensor.item() returns that of a tensor with one "
        "element.",
        "all-samples": "Distribute the work: each rank evaluates only its own samples.",
        "lost": "Every sample must be evaluated by one rank. Do not drop the last samples, and "
        "take the shards of all ranks from the same order.",
        "padding": "Some samples were evaluated on several ranks, as with DistributedSampler, "
        "which repeats samples. They would count twice: give some ranks one sample less.",
        "other-inputs": "Pass the inputs to predict as they are: a smaller dtype rounds them.",
        "asked-again": "Call predict once for each sample, and keep its result.",
        "not-shared": "Distribute the samples evenly: no rank needs more than ceil(N / w).",
        "no-samples": "There may be fewer samples than ranks. Divide by the number of all samples, "
        "which is never 0.",
        "mean-of-means": "A mean of accuracies gives a rank with few samples the same weight as a "
        "rank with many. Sum the counts, and divide at the end.",
        "alone": "Sum the counts of all ranks before you divide.",
        "not-everywhere": "Every rank must get the sum: choose a collective that returns it on "
        "all.",
        "undivided": "An accuracy is a fraction: divide by the number of all samples.",
        "percent": "Return the fraction, a number from 0 to 1.",
        "own-count": "Divide by the number of all samples, which every rank knows. The ranks do "
        "not all have the same number.",
        "rounded": "Count in whole numbers: bfloat16 cannot count beyond 256, nor float16 beyond "
        "2,048. The sum() of a comparison is int64 anyway. Do not round the result, either.",
        "overflow": "A dtype of 8 bits holds 256 numbers; a larger count wraps around. The sum() "
        "of a comparison is int64 anyway.",
        "kept": "Count from 0 in each call, with the model, inputs and labels of that call. Keep "
        "nothing from one call to the next, not even if the number of samples is the same.",
        "store": "Send the counts by a collective, not through the store.",
        "raised": "If the message names a line, it is yours. An all-reduce does not accept every "
        "dtype, but it accepts int64. With few samples, chunk() may return fewer parts than ranks.",
        "cost": "One all-reduce of the counts is enough. Do not send the predictions.",
        "deadlock": "A rank without samples must call the collective, too: the others wait for it.",
    },
)
