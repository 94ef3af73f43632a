"""
Task 07.2: the last window of an epoch.

On each rank: `_act`. In the kernel: the rest.
"""

import torch

from ddp_lessons.checks.accumulation.training import (
    AGAIN_MISTAKES,
    BY_HAND_MISTAKES,
    WatchedTraining,
    judge_left,
    judge_talk,
    judge_trained,
    name_gradient,
)
from ddp_lessons.checks.accumulation.windows import WindowGradients
from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.checks.kit.shared.warm_up import first_ddp
from ddp_lessons.pictures import samples_picture


def _cases(draw):
    yield Case(4, {"sizes": [2] * 7 + [1], "k": 3, "dtype": "float32"}, seed=0)
    for world_size in (1, 2, 3):
        k, size = draw.randint(3, 4), draw.randint(3, 5)
        num_batches = draw.randint(1, 2) * k + draw.randint(2, k - 1)
        sizes = [size] * (num_batches - 1) + [draw.randint(1, size - 1)]
        yield Case(world_size, {"sizes": sizes, "k": k, "dtype": "float64"})
    yield Case(2, {"sizes": [3, 3, 3, 2], "k": 2, "dtype": "float32"})  # nothing is left over
    yield Case(2, {"sizes": [3] * 7, "k": 3, "dtype": "float64"})  # one batch is left over
    # There is no full window.
    yield Case(1, {"sizes": [3, 2], "k": 3, "dtype": "float64", "mode": "eval"})


NUM_EPOCHS, STEP_RATE, MOMENTUM = 2, 0.05, 0.9


def _act(context, train_epoch):
    def train_epochs(*args):
        for _ in range(NUM_EPOCHS):
            train_epoch(*args)
            watched.noted.setdefault("num_first", len(watched.steps))

    watched = WatchedTraining(
        context, lambda p: torch.optim.SGD(p, lr=STEP_RATE, momentum=MOMENTUM)
    )
    return watched.call(context, train_epochs, watched.optimizer, watched.batches, context["k"])


def _judge(case_result):
    judge_trained(case_result)
    case = case_result.case
    num_batches, k = len(case["sizes"]), case["k"]
    places = [range(num_batches)[i : i + k] for i in range(0, num_batches, k)]
    nums = [len(seen.output["steps"]) for seen in case_result.seen]
    for rank, got in enumerate(nums):
        if got != NUM_EPOCHS * len(places):
            _judge_end(case_result, rank)
        _judge_num_steps(case_result, rank, got, NUM_EPOCHS * len(places), len(set(nums)) == 1)
    for number, part in enumerate(NUM_EPOCHS * places):
        window = WindowGradients(
            case, case_result.seen[0].output["steps"][number]["weights"], part, k
        )
        for rank in range(case.world_size):
            _judge_step(case_result, window, rank, number, part)
    judge_talk(case_result, num_syncs=NUM_EPOCHS * len(places))
    judge_left(case_result)
    for rank, seen in enumerate(case_result.seen):
        _judge_optimizer(case_result, rank, seen.output)


def _judge_end(case_result, rank):
    # Refuse a window that begins at the end of one epoch and continues in the next.
    sizes, kept = case_result.case["sizes"], case_result.seen[rank].output
    for step in kept["steps"][kept["num_first"] :][:1]:
        places = _batches_of(step["samples"], sizes)
        if {0, len(sizes) - 1} <= set(places) and len(places) <= case_result.case["k"] < len(sizes):
            fact = (
                f"A step uses batches {places}: the last of one epoch, and the first of the next."
            )
            raise case_result.wrong("runs-on", rank, fact=fact)


def _judge_num_steps(case_result, rank, got, expected, is_alike):
    if got == expected:
        return
    fact = f"In {NUM_EPOCHS} epochs, rank {rank} should make {expected} steps of the optimizer. It "
    fact += f"makes {got}."
    if not is_alike:
        raise case_result.wrong("not-all-step", rank, fact=fact)
    num_batches, k = len(case_result.case["sizes"]), case_result.case["k"]
    names = {num_batches // k: "lost", num_batches: "each-batch", 0: "no-step"}
    raise case_result.wrong(names.get(got / NUM_EPOCHS, "num-steps"), rank, fact=fact)


def _judge_optimizer(case_result, rank, kept):
    before, left = (kept[which]["options"][0] for which in ("before", "left"))
    for name, value in before.items():
        if left.get(name) != value:
            fact = f"The optimizer's {name} was {value}, and is {left.get(name)} after the call."
            raise case_result.wrong("optimizer", rank, fact=fact)
    steps = kept["steps"]
    afterwards = [*(step["weights"] for step in steps[1:]), kept["weights"]]
    momentum = size = torch.zeros_like(kept["first"]).double()
    unit = torch.finfo(kept["first"].dtype).eps
    if not torch.equal(steps[0]["weights"], kept["first"]):
        fact = "The weights change before the first step."
        raise case_result.wrong("optimizer", rank, fact=fact)
    for number, (step, after) in enumerate(zip(steps, afterwards, strict=True), start=1):
        momentum = MOMENTUM * momentum + step["gradient"].double()
        size = MOMENTUM * size + step["gradient"].double().abs()
        expected = step["weights"].double() - STEP_RATE * momentum
        slack = 8 * number * unit * (step["weights"].double().abs() + size)
        if not bool(((after.double() - expected).abs() <= slack).all()):
            both = {"got": after, "expected": expected.to(after.dtype)}
            fact = f"The gradients are right, but the weights after step {number} are wrong."
            raise case_result.wrong("optimizer", rank, **both, fact=fact)


def _judge_step(case_result, window, rank, number, places):
    steps = case_result.seen[rank].output["steps"]
    got, before = steps[number]["gradient"], steps[number - 1]["gradient"] if number else None
    num_steps = len(steps) // NUM_EPOCHS
    which = f"Step {number % num_steps + 1} of {num_steps} in epoch {number // num_steps}"
    expected, error = window.right()
    if got is None or not got.any():
        fact = f"{which} has no gradient."
        raise case_result.wrong("zeroed-first", rank, fact=fact)
    if window.agrees(got, window.all()):
        return
    both = {"got": got, "expected": expected.to(got.dtype)}
    fact = f"{which} uses another gradient than the mean over its samples."
    changes = case_result.seen[rank].calls[-1].changes
    if number >= num_steps and "hooks" in changes:
        raise case_result.wrong("hooks-stay", rank, **both, fact=f"{fact} {changes['hooks']}")
    if before is not None:
        # The sum of both gradients is rounded once more.
        slack = 2 * error + torch.finfo(got.dtype).eps * got.double().abs()
        if bool(((got.double() - before.double() - expected).abs() <= slack).all()):
            raise case_result.wrong("not-zeroed", rank, **both, fact=fact)
    samples = steps[number]["samples"]
    mistake = name_gradient(case_result, window, rank, got, steps[number]["weights"], places)
    sizes = case_result.case["sizes"]
    first = sum(sizes[: places[0]])
    right = list(range(first, first + sum(sizes[place] for place in places)))
    if mistake in ("values", "scaled") and samples and sorted(samples) != right:
        fact += f" Its forwards used batches {_batches_of(samples, sizes)} of the list, and "
        fact += f"{list(places)} were expected."
        mistake = "other-batches"
    raise case_result.wrong(mistake, rank, **both, fact=fact)


def _batches_of(samples, sizes):
    of = [place for place, size in enumerate(sizes) for _ in range(size)]
    return sorted({of[sample] for sample in samples})


def _draw(case_result):
    num_own, num_ranks = sum(case_result.case["sizes"]), case_result.case.world_size
    steps = [
        [
            [rank + sample * num_ranks for sample in step["samples"]]
            for step in seen.output["steps"][: seen.output["num_first"]]
        ]
        for rank, seen in enumerate(case_result.seen)
    ]
    return samples_picture(steps, num_own * num_ranks)


train_epoch = Task(
    number="07.2",
    name="train_epoch",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="every sample reaches a step with equal weight, one all-reduce a step",
    draw=_draw,
    hints=(
        "First cut the list of batches into windows of k batches each. The batches that are left "
        "over are a window, too. Then treat each window as in task 07.1, and make a step.",
        "A slice that goes beyond the end of a list is shorter, without an error: "
        "batches[start:start + k].",
        "A batch of n samples has the weight n / N in a window of N samples. N is not k times n in "
        "the last window.",
        "For each window: total = sum(len(y) for _, y in window); each loss times "
        "len(y) / total; no_sync for window[:-1] only; then step and zero_grad.",
    ),
    mistakes=BY_HAND_MISTAKES
    | {
        "hooks-stay": AGAIN_MISTAKES["hooks"],
        "lost": "The batches that are left over at the end are a window, too, and it needs a step.",
        "each-batch": "Make a step after each window of k batches, and not after each batch.",
        "no-step": "At the end of each window, call step() of the optimizer that the function "
        "gets.",
        "not-all-step": "Every rank has its own optimizer: all of them must make the same steps.",
        "runs-on": "Cut each epoch into its own windows. The batches that are left over at its end "
        "need a step before the epoch ends.",
        "num-steps": "Make one step for each k batches, and one step for the batches that are left "
        "over.",
        "zeroed-first": "Call step first, then zero_grad: step reads .grad.",
        "not-zeroed": "Empty .grad after each step, or the next window adds to this one. The next "
        "window may be the first of another epoch.",
        "by-k": "The last window may have fewer than k batches, and its last batch fewer samples. "
        "Divide by the number of samples in the window.",
        "mean-of-means": "A batch with fewer samples must count less: weight each batch by its "
        "number of samples.",
        "no-sync": "Each window makes its all-reduce with its own last batch, also the shorter "
        "window at the end.",
        "other-batches": "Cut windows from the front of the list, k batches each. The batches that "
        "are left over are the last window.",
        "optimizer": "Only optimizer.step() may change the weights. Leave the optimizer's learning "
        "rate and momentum buffers as they are.",
        "input-changed": "Leave the list of batches and the batches as they are: a slice is a new "
        "list.",
        "raised": "The message names a line of yours. Some parameters are frozen: their .grad is "
        "None. The last window may have only one batch.",
        "scaled": "The direction of the gradient is right, but its norm is wrong. If a rank has N "
        "samples in this window, each of them has the weight 1/N.",
        "values": "Take the window of that step: write down how many samples each of its batches "
        "has, and what weight each batch has in your gradient.",
    },
    allowed=("all_reduce",),
    must_return=False,
    warm_up=first_ddp,
)
