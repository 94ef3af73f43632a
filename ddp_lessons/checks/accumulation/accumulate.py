"""
Exercise 07: when should ranks talk?

Legend: w ranks, k micro-batches in a window, G numbers in a gradient.
"""

import math

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ddp_lessons.checks.kit import Case, Task, equal, generator
from ddp_lessons.checks.kit.regression import batch_gradients, gradient
from ddp_lessons.checks.kit.warm_up import first_ddp
from ddp_lessons.checks.kit.windows import Watched, Window, batches_of
from ddp_lessons.pictures import (
    holdings_picture,
    samples_picture,
    timeline_picture,
    timeline_tracks,
)
from ddp_lessons.trace import collectives, merge
from ddp_lessons.trace.events import GRADIENT

MOST_HELD = 1.5  # times the activations of one micro-batch; two at once are 2
FEWER_DIGITS = 2.0**-7  # a bfloat16 has 8 of them


class _Watched(Watched):
    # It also notes what is left: weights, modes, who is trained, the optimizer's settings.
    def call(self, here, answer, *args):
        before = self._state()
        return super().call(here, answer, *args) | {"before": before, "left": self._state()}

    def call_again(self, answer, *args):
        self.model.zero_grad()
        return answer(self.model, *args), gradient(self.model)

    def _state(self):
        parameters = list(self.model.parameters())
        groups = self.optimizer.param_groups if hasattr(self, "optimizer") else []
        return {
            "weights": [p.detach().cpu().clone() for p in parameters],
            "trained": [p.requires_grad for p in parameters],
            "frozen gradients": self._frozen_gradients(),
            "modes": [module.training for module in self.model.modules()],
            "options": [
                {name: value for name, value in group.items() if name != "params"}
                for group in groups
            ],
        }

    def _frozen_gradients(self):
        return sum(p.grad is not None and not p.requires_grad for p in self.model.parameters())

    def _note_step(self, *arguments):
        super()._note_step(*arguments)
        self.steps[-1]["frozen gradients"] = self._frozen_gradients()

    def _note_forward(self, module, arguments, output):
        is_open = any(forward["backward"] is None for forward in self.forwards)
        super()._note_forward(module, arguments, output)
        self.forwards[-1]["is one of many"] = is_open


def _judge_trained(played):
    for rank, seen in enumerate(played.seen):
        if seen.kept["left"]["trained"] != seen.kept["before"]["trained"]:
            fact = "After it, other parameters are trained than before it (requires_grad)."
            raise played.wrong("thawed", rank, fact=fact)


def _judge_left(played):
    for rank, seen in enumerate(played.seen):
        before, left = seen.kept["before"], seen.kept["left"]
        if left["modes"] != before["modes"]:
            fact = "It leaves the model, or a part of it, in another mode (train or eval)."
            raise played.wrong("mode", rank, fact=fact)
        if any(state["frozen gradients"] for state in (*seen.kept["steps"], left)):
            raise played.wrong("frozen-gradient", rank, fact="A frozen parameter has a gradient.")
        if "weights" in played.task.mistakes and not equal(left["weights"], before["weights"]):
            raise played.wrong("weights", rank, fact="It changes the weights, too.")
        changes = seen.calls[-1].changes
        if "hooks" in played.task.mistakes and "hooks" in changes:
            raise played.wrong("hooks", rank, fact=changes["hooks"])


def _known(played, *names):
    # The first of some mistakes that the task tells apart.
    return next((name for name in names if name in played.task.mistakes), "values")


def _judge_talk(played, num_syncs):
    # Who talks more often than that, holds too much, or is left inside no_sync?
    for rank, (seen, events) in enumerate(zip(played.seen, played.traces, strict=True)):
        num_calls = len(collectives(events))
        if num_calls > num_syncs:
            fact = f"Rank {rank} makes {num_calls} collectives; {num_syncs} would do."
            raise played.wrong(_name_cost(played, seen, events, num_syncs), rank, fact=fact)
        most, one = seen.kept["peak_bytes"], seen.kept["one_bytes"]
        if most > MOST_HELD * one:
            times = f"{most / one:.1f} times the activations of one micro-batch"
            fact = f"Rank {rank} holds {times} at a time."
            is_alone = not any(forward["is one of many"] for forward in seen.kept["forwards"])
            num_samples = [len(forward["samples"]) for forward in seen.kept["forwards"]]
            if is_alone and max(num_samples, default=0) <= max(played.case["sizes"]):
                fact += " Yet each forward is followed by its backward."
                raise played.wrong("graph-kept", rank, fact=fact)
            raise played.wrong("memory", rank, fact=fact)
        if not seen.kept["syncs"]:
            fact = "The model is left as in no_sync: it would never sync again."
            raise played.wrong("left-off", rank, fact=fact)


def _name_cost(played, seen, events, num_syncs):
    if any(one["forward"] and one["backward"] is False for one in seen.kept["forwards"]):
        return _known(played, "forward-outside", "cost")
    num_made = sum(event.is_communication and event.backward is not None for event in events)
    return "own-message" if num_made <= num_syncs else "cost"


def _name_gradient(played, window, rank, got, weights, places):
    named = window.mistake(got, rank)
    if named is not None:
        return _known(played, named)
    if played.case.world_size > 1 and not played.names[rank]:
        return "no-sync"  # it cannot be anything else: no rank talks
    sizes = [played.case["sizes"][place] for place in places]
    alike = torch.ones_like(window.all()) * max(sizes) / sum(sizes) / window.num_ranks
    if window.agrees(got, alike):
        return _known(played, "mean-of-means")
    if _is_near(got.double(), _met_by_all(played.case, weights, places, window)):
        return "shapes"
    if _is_rough(got.double(), window.right()[0]):
        return "digits"
    return "scaled" if _is_parallel(got.double(), window.right()[0]) else "values"


def _met_by_all(case, weights, places, window):
    # Outputs (n,) against targets (n, 1): each output meets each target.
    gradients = []
    for rank in range(case.world_size):
        batches = [batches_of(case, rank)[place] for place in places]
        level = [(inputs, targets.mean().expand_as(targets)) for inputs, targets in batches]
        gradients.append(batch_gradients(weights, level, num_terms=1)[0])
    return (window.all()[..., None] * torch.stack(gradients)).sum((0, 1))


def _is_near(one, other, share=5e-5):
    # Only to name a mistake that was found. Rounding of float32 is far below.
    return bool((one - other).norm() <= share * other.norm())


def _is_rough(one, other):
    # Each number is off by a little of its own; or all are alike, by no more than float32 rounds.
    share = 1e-6 if _is_parallel(one, other) else FEWER_DIGITS
    return _is_near(one, other, share)


def _is_parallel(one, other):
    lengths = one.norm() * other.norm()
    return bool(lengths > 0) and bool(one @ other >= (1 - 1e-8) * lengths)


def _draw_timeline(played):
    return timeline_picture(timeline_tracks(merge(played.traces)), "events, in order")


WINDOW_MISTAKES = {
    "cost": "All micro-batches but the last run inside the model's no_sync.",
    "no-sync": "The last micro-batch of a window runs outside of no_sync, and its backward syncs "
    "what has added up.",
    "undivided": "Each backward adds a whole mean. Weigh each loss, so that the sum is a mean.",
    "memory": "Forward and backward one micro-batch before you touch the next: only then are its "
    "activations given back.",
    "graph-kept": "A backward gives the activations back, unless retain_graph=True keeps them.",
    "own-message": "A message of your own is not needed. DDP's sync brings the gradients of all "
    "parameters at once, and batches have the same sizes on all ranks.",
    "left-off": "Use no_sync in a with statement: it turns the sync on again when it ends.",
    "shapes": "Outputs (n, 1) belong to targets (n, 1). With (n,) on one side, mse_loss compares "
    "each output with each target.",
    "fixed-size": "A group may have any number of ranks. Ask for it, if you divide by it.",
    "digits": "It is near, and too far off for its dtype. Keep the dtype of the parameters all the "
    "way, and round nothing.",
    "thawed": "Leave requires_grad as it is: a frozen parameter stays frozen.",
    "mode": "Leave the mode as it was. In eval mode, dropout and BatchNorm do something else in "
    "every step that follows.",
    "frozen-gradient": "A frozen parameter's .grad stays None. With zeros there, an optimizer with "
    "weight decay would move the parameter.",
}

BY_HAND_MISTAKES = WINDOW_MISTAKES | {
    "forward-outside": "DDP decides in the forward whether to sync. So the forward, too, belongs "
    "inside no_sync.",
    "zeroed": "Between the micro-batches of a window nobody may empty .grad.",
    "divided-twice": "DDP divides by the number of ranks already.",
}
AGAIN_MISTAKES = {
    "weights": "No step is wanted: leave the weights as they are.",
    "hooks": "What a call leaves on the model, the next one meets. Take away the hooks that you "
    "put there.",
    "again": "Each call counts its own micro-batches, and keeps nothing for the next one.",
}

# ---- 07.1 a window with one sync ----


def _cases_accumulate(draw):
    yield Case(4, {"sizes": [4] * 3, "dtype": "float32"}, seed=0)
    for world_size in (1, 2, 3):
        sizes = [draw.randint(2, 5)] * draw.randint(4, 6)
        yield Case(world_size, {"sizes": sizes, "dtype": "float64"})
    yield Case(2, {"sizes": [draw.randint(2, 5)], "dtype": "float32", "mode": "eval"})


def _act_accumulate(here, accumulate):
    watched = _Watched(here)
    given = list(watched.batches)
    kept = watched.call(here, accumulate, watched.batches)
    _, again = watched.call_again(accumulate, given[1:] or given)
    return kept | {"again": again}


def _judge_accumulate(played):
    _judge_trained(played)
    weights = played.seen[0].kept["first"]
    window = _window_of(played.case, weights)
    for rank, seen in enumerate(played.seen):
        _judge_gradient(played, window, rank, seen.kept["gradient"], weights)
    _judge_talk(played, num_syncs=1)
    _judge_left(played)
    fewer = _fewer_of(played.case, weights)
    for rank, seen in enumerate(played.seen):
        got, (expected, error) = seen.kept["again"], fewer.right()
        if got is None or not bool(((got.double() - expected).abs() <= error).all()):
            _refuse_again(played, rank, got, expected)


def _window_of(case, weights):
    return Window(case, weights, range(len(case["sizes"])), len(case["sizes"]))


def _fewer_of(case, weights):
    # The second call has all micro-batches but the first.
    places = range(len(case["sizes"]))[1:] or range(1)
    return Window(case, weights, places, len(places))


def _refuse_again(played, rank, got, expected):
    fact = "Called once more on the same model, .grad empty, it leaves another gradient, or none."
    expected = expected.to((expected if got is None else got).dtype)
    raise played.wrong("again", rank, got=got, expected=expected, fact=fact)


def _judge_gradient(played, window, rank, got, weights):
    expected, _ = window.right()
    if got is None:
        fact = "There is no gradient in .grad."
        raise played.wrong("no-gradient", rank, fact=fact)
    if window.agrees(got, window.all()):
        return
    both = {"got": got, "expected": expected.to(got.dtype)}
    syncs = [event.backward for event in played.traces[rank] if event.is_communication]
    last = max([0, *(e.backward for e in played.traces[rank] if e.kind == GRADIENT)])
    if len(syncs) == 1 and syncs[0] is not None and syncs[0] < last:
        fact = f"Its sync is in backward {syncs[0] + 1} of {last + 1}."
        raise played.wrong("sync-early", rank, **both, fact=fact)
    mistake = _name_gradient(played, window, rank, got, weights, range(window.k))
    fact = "The gradient, of 6 weights and then the bias, is not the one expected."
    raise played.wrong(mistake, rank, **both, fact=fact)


accumulate = Task(
    number="07.1",
    name="accumulate",
    cases=_cases_accumulate,
    act=_act_accumulate,
    judge=_judge_accumulate,
    ok="one sync a window, the activations of one micro-batch",
    draw=_draw_timeline,
    hints=(
        "A backward adds to .grad. So the window's gradient makes itself, if nobody empties .grad "
        "and the last backward of the window is the only one that talks.",
        "All micro-batches but the last stand inside `with model.no_sync():`, forward and "
        "backward. The last one stands outside.",
        "k means of equal parts add up to k times the mean of the whole: divide each loss by k.",
        "with model.no_sync(): loop over micro_batches[:-1]; then the same two lines once more "
        "for micro_batches[-1].",
    ),
    mistakes=BY_HAND_MISTAKES
    | AGAIN_MISTAKES
    | {
        "forbidden": "A gradient adds up in .grad by itself. The only call that ranks need is "
        "DDP's all-reduce.",
        "summed": "An average over ranks is wanted, not a sum. DDP's own sync makes one.",
        "scaled": "The direction is right, the length is not. Each micro-batch counts with 1/k, "
        "and k is how many there are in this window.",
        "raised": "The line that is named is yours. Some parameters are frozen: their .grad is "
        "None. The check calls it twice on one model.",
        "deadlock": "All ranks sync, each once for the window: no rank has a part of its own.",
        "input-changed": "Leave the micro-batches as they are. Divide the loss, not the samples.",
        "no-gradient": "Call backward on the loss of each micro-batch, and leave .grad full.",
        "sync-early": "What is added after the sync stays on its rank: sync with the last "
        "micro-batch, not before.",
        "values": "Each micro-batch counts with 1/k of the mean of its loss.",
    },
    allowed=("all_reduce",),
    returns=False,
    warm_up=first_ddp,
)

# ---- 07.2 the last window ----


def _cases_epoch(draw):
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


def _act_epoch(here, train_epoch):
    def train_epochs(*args):
        for _ in range(NUM_EPOCHS):
            train_epoch(*args)
            watched.noted.setdefault("num_first", len(watched.steps))

    watched = _Watched(here, lambda p: torch.optim.SGD(p, lr=STEP_RATE, momentum=MOMENTUM))
    return watched.call(here, train_epochs, watched.optimizer, watched.batches, here["k"])


def _judge_epoch(played):
    _judge_trained(played)
    case = played.case
    num_batches, k = len(case["sizes"]), case["k"]
    places = [range(num_batches)[i : i + k] for i in range(0, num_batches, k)]
    nums = [len(seen.kept["steps"]) for seen in played.seen]
    for rank, got in enumerate(nums):
        if got != NUM_EPOCHS * len(places):
            _judge_end(played, rank)
        _judge_num_steps(played, rank, got, NUM_EPOCHS * len(places), len(set(nums)) == 1)
    for number, part in enumerate(NUM_EPOCHS * places):
        window = Window(case, played.seen[0].kept["steps"][number]["weights"], part, k)
        for rank in range(case.world_size):
            _judge_step(played, window, rank, number, part)
    _judge_talk(played, num_syncs=NUM_EPOCHS * len(places))
    _judge_left(played)
    for rank, seen in enumerate(played.seen):
        _judge_optimizer(played, rank, seen.kept)


def _judge_end(played, rank):
    # Does a window begin at the end of one epoch, and go on in the next?
    sizes, kept = played.case["sizes"], played.seen[rank].kept
    for step in kept["steps"][kept["num_first"] :][:1]:
        places = _batches_of(step["samples"], sizes)
        if {0, len(sizes) - 1} <= set(places) and len(places) <= played.case["k"] < len(sizes):
            fact = f"A step goes by batches {places}: the last of one epoch, the first of the next."
            raise played.wrong("runs-on", rank, fact=fact)


def _judge_num_steps(played, rank, got, expected, is_alike):
    if got == expected:
        return
    fact = f"In {NUM_EPOCHS} epochs, rank {rank} should make {expected} steps of the optimizer. It "
    fact += f"makes {got}."
    if not is_alike:
        raise played.wrong("not-all-step", rank, fact=fact)
    num_batches, k = len(played.case["sizes"]), played.case["k"]
    names = {num_batches // k: "lost", num_batches: "each-batch", 0: "no-step"}
    raise played.wrong(names.get(got / NUM_EPOCHS, "num-steps"), rank, fact=fact)


def _judge_optimizer(played, rank, kept):
    before, left = (kept[which]["options"][0] for which in ("before", "left"))
    for name, value in before.items():
        if left.get(name) != value:
            fact = f"The optimizer's {name} was {value}, and is {left.get(name)} afterwards."
            raise played.wrong("optimizer", rank, fact=fact)
    steps = kept["steps"]
    afterwards = [*(step["weights"] for step in steps[1:]), kept["weights"]]
    momentum = size = torch.zeros_like(kept["first"]).double()
    unit = torch.finfo(kept["first"].dtype).eps
    if not torch.equal(steps[0]["weights"], kept["first"]):
        fact = "The weights have moved before the first step."
        raise played.wrong("optimizer", rank, fact=fact)
    for number, (step, after) in enumerate(zip(steps, afterwards, strict=True), start=1):
        momentum = MOMENTUM * momentum + step["gradient"].double()
        size = MOMENTUM * size + step["gradient"].double().abs()
        expected = step["weights"].double() - STEP_RATE * momentum
        slack = 8 * number * unit * (step["weights"].double().abs() + size)
        if not bool(((after.double() - expected).abs() <= slack).all()):
            both = {"got": after, "expected": expected.to(after.dtype)}
            fact = f"The gradients are right, the weights after step {number} are not."
            raise played.wrong("optimizer", rank, **both, fact=fact)


def _judge_step(played, window, rank, number, places):
    steps = played.seen[rank].kept["steps"]
    got, before = steps[number]["gradient"], steps[number - 1]["gradient"] if number else None
    num_steps = len(steps) // NUM_EPOCHS
    which = f"Step {number % num_steps + 1} of {num_steps} in epoch {number // num_steps}"
    expected, error = window.right()
    if got is None or not got.any():
        fact = f"{which} has no gradient to go by."
        raise played.wrong("zeroed-first", rank, fact=fact)
    if window.agrees(got, window.all()):
        return
    both = {"got": got, "expected": expected.to(got.dtype)}
    fact = f"{which} goes by another gradient than the mean over its samples."
    if before is not None:
        # The sum of both is rounded once more.
        slack = 2 * error + torch.finfo(got.dtype).eps * got.double().abs()
        if bool(((got.double() - before.double() - expected).abs() <= slack).all()):
            raise played.wrong("not-zeroed", rank, **both, fact=fact)
    samples = steps[number]["samples"]
    mistake = _name_gradient(played, window, rank, got, steps[number]["weights"], places)
    sizes = played.case["sizes"]
    first = sum(sizes[: places[0]])
    right = list(range(first, first + sum(sizes[place] for place in places)))
    if mistake in ("values", "scaled") and samples and sorted(samples) != right:
        fact += f" Its forwards had batches {_batches_of(samples, sizes)} of the list, and "
        fact += f"{list(places)} were expected."
        mistake = "other-batches"
    raise played.wrong(mistake, rank, **both, fact=fact)


def _batches_of(samples, sizes):
    of = [place for place, size in enumerate(sizes) for _ in range(size)]
    return sorted({of[sample] for sample in samples})


def _draw_samples(played):
    num_own, num_ranks = sum(played.case["sizes"]), played.case.world_size
    steps = [
        [
            [rank + sample * num_ranks for sample in step["samples"]]
            for step in seen.kept["steps"][: seen.kept["num_first"]]
        ]
        for rank, seen in enumerate(played.seen)
    ]
    return samples_picture(steps, num_own * num_ranks)


train_epoch = Task(
    number="07.2",
    name="train_epoch",
    cases=_cases_epoch,
    act=_act_epoch,
    judge=_judge_epoch,
    ok="every sample reaches a step with equal weight, one sync a step",
    draw=_draw_samples,
    hints=(
        "Cut the list of batches into windows first: k batches each, and what remains is a window "
        "too. Then each window is like task 07.1, and a step.",
        "A slice that goes beyond the end of a list is shorter, without an error: "
        "batches[start:start + k].",
        "A batch of n samples counts with n / N in a window of N samples. N is not k times n in "
        "the last window.",
        "For each window: total = sum(len(y) for _, y in window); each loss times "
        "len(y) / total; no_sync for window[:-1] only; then step and zero_grad.",
    ),
    mistakes=BY_HAND_MISTAKES
    | {
        "lost": "The batches that are left over at the end make a window too, and it needs a step.",
        "each-batch": "A step follows each window of k batches, not each batch.",
        "no-step": "Call optimizer.step() at the end of each window, of the optimizer that you "
        "were given.",
        "not-all-step": "Every rank has an optimizer of its own: all make the same steps.",
        "runs-on": "Each epoch is cut by itself. What is left over at its end gets a step before "
        "the epoch is over.",
        "num-steps": "One step for each k batches, and one for what is left over.",
        "zeroed-first": "First step, then zero_grad: a step goes by what is in .grad.",
        "not-zeroed": "After a step, empty .grad, or the next window adds to this one. The next "
        "window may be the first of another epoch.",
        "by-k": "The last window may have fewer than k batches, and its last batch fewer samples. "
        "Divide by what is there.",
        "mean-of-means": "A batch with fewer samples must count less: weigh by samples.",
        "no-sync": "Each window syncs with its own last batch, also the shorter one at the end.",
        "other-batches": "Cut windows from the front of the list, k batches each. What is left "
        "over comes last.",
        "optimizer": "Only optimizer.step() moves weights. Leave its rate, and the momentum that "
        "it remembers, as they are.",
        "input-changed": "Leave the list of batches, and what is in it, as they are: a slice is a "
        "list of its own.",
        "raised": "The line that is named is yours. Some parameters are frozen: their .grad is "
        "None. The last window may have one batch only.",
        "scaled": "The direction is right, the length is not. A sample counts with 1/N if a rank "
        "has N of them in this window.",
        "values": "Take the window of that step: write down how many samples each of its batches "
        "has, and what each of them counts.",
    },
    allowed=("all_reduce",),
    returns=False,
    warm_up=first_ddp,
)

# ---- 07.3 clip by the global norm ----


def _cases_clip(draw):
    yield Case(4, {"sizes": [4] * 3, "limit / length": 0.3, "dtype": "float32"}, seed=0)
    for world_size, share in ((1, 0.5), (3, 0.1)):
        sizes = [draw.randint(2, 5)] * draw.randint(3, 5)
        data = {"sizes": sizes, "limit / length": share, "dtype": "float64"}
        yield Case(world_size, data)
    # Here the limit lies between the length and its square.
    yield Case(2, {"sizes": [3] * 4, "limit / length": 1.05, "dtype": "float64"}, seed=1)
    data = {"sizes": [draw.randint(2, 5)], "limit / length": 0.2, "dtype": "float64"}
    yield Case(2, {**data, "mode": "eval"})


def _act_clip(here, clipped_window):
    watched = _Watched(here)
    given = list(watched.batches)
    length = _window_of(here.case, watched.noted["first"].cpu()).right()[0].norm()
    limit = round(here["limit / length"] * length.item(), 3)
    kept = watched.call(here, clipped_window, watched.batches, limit)
    again = watched.call_again(clipped_window, given[1:] or given, limit)
    zeros = None
    if here["limit / length"] > 1:  # so a gradient that is scaled up was seen before
        # Inputs of zeros, and targets that the model gives them: every gradient is exactly 0.
        with torch.no_grad():
            flat = [(0 * inputs, watched.model.module(0 * inputs)) for inputs, _ in given]
        zeros = watched.call_again(clipped_window, flat, limit)
    return kept | {"limit": limit, "again": again, "zeros": zeros}


def _judge_clip(played):
    _judge_trained(played)
    kept = played.seen[0].kept
    window, limit = _window_of(played.case, kept["first"]), kept["limit"]
    expected, slack, length, length_error = _clipped(window, limit, kept["first"].dtype)
    for rank, (seen, result) in enumerate(zip(played.seen, played.results, strict=True)):
        got = seen.kept["gradient"]
        if got is None:
            raise played.wrong("no-gradient", rank, fact="There is no gradient in .grad.")
        if not bool(((got.double() - expected).abs() <= slack).all()):
            both = {"got": got, "expected": expected.to(got.dtype)}
            fact = f"Clipped to {limit:g}, the gradient is not the one expected."
            mistake = _known(played, _clip_mistake(played, window, got.double(), limit, rank))
            raise played.wrong(mistake, rank, **both, fact=fact)
        _judge_length(played, rank, result, length, length_error, limit)
    for rank, events in enumerate(played.traces):
        is_own = [event.backward is None for event in events if event.is_communication]
        if any(is_own) and not all(is_own):
            fact = f"Rank {rank} makes {len(is_own)} collectives; 1 would do."
            raise played.wrong("length-message", rank, fact=fact)
    _judge_talk(played, num_syncs=1)
    _judge_left(played)
    fewer = _clipped(_fewer_of(played.case, kept["first"]), limit, kept["first"].dtype)
    for rank, seen in enumerate(played.seen):
        _judge_later(played, rank, seen.kept, *fewer)


def _judge_later(played, rank, kept, expected, slack, length, length_error):
    result, got = kept["again"]
    if got is None or not bool(((got.double() - expected).abs() <= slack).all()):
        _refuse_again(played, rank, got, expected)
    if not abs((_number(result) or 0) - length) <= length_error:
        fact = "Called once more on the same model, .grad empty, it returns another length."
        raise played.wrong("again", rank, got=result, expected=length, fact=fact)
    result, got = kept["zeros"] or (0.0, 0 * expected)  # None: not tried in this case
    if got is None or not bool((got.abs() < 1e-5).all()):  # as NaN is not
        fact = "The gradient of a window is all zeros, and does not stay so."
        raise played.wrong("zero-length", rank, got=got, fact=fact)
    if not abs(_number(result) or 0) < 1e-5:
        fact = "The gradient of a window is all zeros, so its length is 0."
        raise played.wrong("other-length", rank, got=result, expected=0.0, fact=fact)


def _clipped(window, limit, dtype):
    # A window's gradient, clipped, and its error; then its length before, and its error.
    whole, error = window.right()
    length, most_off = whole.norm().item(), error.norm().item()
    scale = min(1.0, limit / length)
    unit = torch.finfo(dtype).eps / 2
    # The length is off by the gradient's rounding and its own; torch's clip adds 1e-6 to it.
    length_error = most_off + len(whole) * unit * length
    scale_error = scale * (length_error + (1e-6 if scale < 1 else 0)) / (length - length_error)
    slack = scale * error + whole.abs() * scale_error + 4 * unit * whole.abs()
    return scale * whole, slack, length, length_error


def _number(result):
    try:
        return float(result)
    except (TypeError, ValueError, RuntimeError):
        return None


def _clip(numbers, limit):
    return numbers * min(1.0, limit / numbers.norm().item())


def _clip_mistake(played, window, got, limit, rank):
    whole, num_ranks = window.right()[0], window.num_ranks
    own = [window.of(window.own(one))[0] for one in range(num_ranks)]
    sums = torch.zeros_like(window.gradients[:, 0])  # (w, G)
    for number in range(window.k):
        sums = sums + window.gradients[:, number] / window.k
        if number < window.k - 1:
            sums = torch.stack([_clip(one, limit) for one in sums])
    late, length = sums.mean(0), whole.norm()
    parts = whole[:-1], whole[-1:]  # the weight's and the bias's
    results = [
        ("not-clipped", whole),
        ("scaled-up", whole * limit / length),
        ("each-parameter", torch.cat([_clip(part, limit) for part in parts])),
        ("each-number", whole.clamp(-limit, limit)),
        ("before-sync", sum(_clip(one, limit) for one in own) / num_ranks),
        ("each-time", late),
        ("each-time", _clip(late, limit)),
        ("own-length", whole * min(1.0, limit / own[rank].norm())),
        ("length-shared", whole * min(1.0, limit / length / num_ranks)),
        ("length-shared", whole * min(1.0, limit / length / math.sqrt(num_ranks))),
        ("sum-of-lengths", whole * min(1.0, limit / sum(part.norm() for part in parts))),
        ("no-root", whole * min(1.0, limit / length**2)),
        ("no-sync", _clip(own[rank], limit)),
    ]
    found = next((name for name, numbers in results if _is_near(got, numbers)), None)
    if found is None and _is_rough(got, _clip(whole, limit)):
        found = "digits"
    if found is None and _is_parallel(got, whole):
        found = window.mistake(got, rank) or "scaled"
    if found is None:
        weights = played.seen[0].kept["first"]
        other = _met_by_all(played.case, weights, range(window.k), window)
        found = "shapes" if _is_near(got, _clip(other, limit)) else window.mistake(got, rank)
    return found


def _judge_length(played, rank, result, length, most_off, limit):
    got = _number(result)
    if got is None:
        fact = "It must return one number."
        raise played.wrong("no-length", rank, got=result, fact=fact)
    if abs(got - length) <= most_off:
        return
    num_ranks, k = played.case.world_size, len(played.case["sizes"])
    lengths = {
        "length-after": limit,
        "undivided": k * length,
        "no-root": length**2,
        "length-shared": num_ranks * length,
    }
    near = [name for name, one in lengths.items() if math.isclose(got, one, rel_tol=1e-3)]
    if math.isclose(got, length, rel_tol=FEWER_DIGITS) or got in map(int, (length, length + 0.5)):
        near = ["digits"]
    both = {"got": result, "expected": length}
    fact = "The gradient is right; what is returned is not its length before."
    raise played.wrong([*near, "other-length"][0], rank, **both, fact=fact)


def _draw_lengths(played):
    names = ["length before", "limit", "length after", "collectives"]
    rows = []
    for seen, result, events in zip(played.seen, played.results, played.traces, strict=True):
        kept = seen.kept
        after = None if kept["gradient"] is None else kept["gradient"].norm()
        numbers = map(_number, (result, kept["limit"], after))
        texts = ["no number" if number is None else f"{number:.2f}" for number in numbers]
        texts.append(str(len(collectives(events))))
        rows.append(dict(zip(names, texts, strict=True)))
    return holdings_picture(names, rows)


clipped_window = Task(
    number="07.3",
    name="clipped_window",
    cases=_cases_clip,
    act=_act_clip,
    judge=_judge_clip,
    ok="one sync a window, and no message for the length",
    draw=_draw_lengths,
    hints=(
        "What must be shortened is the gradient that the step goes by: the whole window's, "
        "averaged over ranks. When do ranks have it, and which of them?",
        "After the last backward of the window every rank has the same gradient. So each finds "
        "the same length by itself.",
        "The gradients of all parameters are one long vector. Its length is the root of the sum "
        "of all squares, over all parameters.",
        "norm = torch.cat([g.flatten() for g in gradients]).norm(); if norm > max_norm, multiply "
        "each g in place by max_norm / norm. torch.nn.utils.clip_grad_norm_ does the same.",
    ),
    mistakes=WINDOW_MISTAKES
    | AGAIN_MISTAKES
    | {
        "raised": "The line that is named is yours. Some parameters are frozen: their .grad is "
        "None. A gradient may be all zeros: then its length is 0.",
        "zero-length": "A gradient of zeros stays as it is. Divide by a length only if it is above "
        "max_norm.",
        "scaled": "The direction is right, the factor is not: it is max_norm over the length of "
        "the whole gradient, and at most 1.",
        "input-changed": "Leave the micro-batches as they are.",
        "no-gradient": "Leave the clipped gradient in .grad.",
        "nothing": "Return the length that the gradient had before it was clipped.",
        "no-length": "Return the length as a float or as a tensor of one number.",
        "not-clipped": "The gradient is longer than max_norm. Change .grad in place; a new tensor "
        "alone changes nothing.",
        "scaled-up": "A gradient that is short enough stays as it is.",
        "each-parameter": "All parameters together are one vector: scale them by one factor.",
        "each-number": "Clipping each number turns the gradient another way. Scale them all by "
        "one factor.",
        "each-time": "Clip once, after the last micro-batch: what comes later would count more.",
        "before-sync": "Each rank's own sum has another length. Clip after the sync.",
        "own-length": "The length that counts is that of the average over ranks.",
        "length-shared": "After the sync each rank holds the whole gradient, not a part of it. "
        "Nothing is left to add up over ranks.",
        "length-message": "After the sync all ranks have the same gradient: each can find its "
        "length alone.",
        "sum-of-lengths": "Lengths of parts do not add up; their squares do.",
        "no-root": "The length is the root of the sum of squares.",
        "length-after": "Return the length before clipping: it tells whether there was anything "
        "to clip.",
        "other-length": "Return the length of the window's gradient, after the sync, before "
        "clipping.",
        "values": "First make the window's gradient as in task 07.1; then scale it as a whole.",
    },
    allowed=("all_reduce",),
    warm_up=first_ddp,
)

# ---- 07.4 a plateau schedule that all ranks agree on ----

RATE, FACTOR, PATIENCE, NUM_STEPS = 0.8, 0.5, 1, 6
SETTINGS = ("mode", "factor", "patience", "threshold", "cooldown")
MESSAGE_BYTES = 16  # two numbers of float64


def _cases_plateau(draw):
    yield Case(4, {"samples": [5, 1, 3, 2]}, seed=4)
    for world_size in (1, 2, 3):
        samples = [draw.randint(1, 9) for _ in range(world_size)]
        yield Case(world_size, {"samples": samples})
    samples = [0, draw.randint(1, 4), draw.randint(5, 9)]
    yield Case(3, {"samples": samples, "no loss on rank": 2})
    samples = [draw.randint(1, 9) for _ in range(2)]
    yield Case(2, {"samples": samples, "losses": "a millionth as large"})


def _totals(case, rank):
    # The sum of a rank's losses at each step: whole eighths, so that sums are exact.
    means = torch.randint(1, 240, (NUM_STEPS,), generator=generator(case, rank))
    if rank == case.data.get("no loss on rank"):
        means[1] = 0  # its samples count all the same
    part = 2.0**-23 if "losses" in case.data else 2.0**-3
    pairs = zip(means.tolist(), _counts(case, rank), strict=True)
    return [mean * num * part for mean, num in pairs]


def _counts(case, rank):
    # Every other time one more. A rank without samples stays so.
    num_samples = case["samples"][rank]
    return [num_samples and num_samples + step % 2 for step in range(NUM_STEPS)]


def _act_plateau(here, plateau_step):
    weight = torch.zeros(1, device=here.device, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=RATE)
    schedule = ReduceLROnPlateau(optimizer, factor=FACTOR, patience=PATIENCE)
    noted = []
    both = (of(here.case, here.rank) for of in (_totals, _counts))
    for total, num_samples in zip(*both, strict=True):
        here.call(plateau_step, schedule, total, num_samples)
        noted.append(_noted(optimizer, schedule))
    return noted


def _noted(optimizer, schedule):
    rate = optimizer.param_groups[0]["lr"]
    state = schedule.state_dict()
    settings = {name: state[name] for name in SETTINGS}
    best = float(state["best"])
    return {"rate": rate, "steps": state["last_epoch"], "best": best, "settings": settings}


def _right_plateau(metrics):
    # What one process notes that has all samples.
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=RATE)
    schedule = ReduceLROnPlateau(optimizer, factor=FACTOR, patience=PATIENCE)
    noted = []
    for metric in metrics:
        schedule.step(metric)
        noted.append(_noted(optimizer, schedule))
    return noted


def _judge_plateau(played):
    case = played.case
    totals = [_totals(case, rank) for rank in range(case.world_size)]
    counts = [_counts(case, rank) for rank in range(case.world_size)]
    steps = list(zip(zip(*totals, strict=True), zip(*counts, strict=True), strict=True))
    means = [sum(total) / sum(count) for total, count in steps]
    right = _right_plateau(means)
    for number, (mean, step, expected) in enumerate(zip(means, steps, right, strict=True)):
        for seen in played.seen:
            _judge_mean(played, seen, number, mean, *step)
        for seen in played.seen:
            _judge_schedule(played, seen, number, expected, totals)
    for seen in played.seen:
        for call in seen.calls:
            _judge_message(played, seen.rank, call)


def _judge_mean(played, seen, number, mean, totals, counts):
    rank, result = seen.rank, seen.calls[number].result
    if _number(result) is None:
        raise played.wrong("no-mean", rank, got=result, fact="It must return one number.")
    # The sums are exact, also in float32. What may round are the means and weights of w ranks.
    most_off = (played.case.world_size + 3) * torch.finfo(torch.float32).eps * mean
    numbers = [_number(other.calls[number].result) for other in played.seen]
    are_right = [one is not None and abs(one - mean) <= most_off for one in numbers]
    if are_right[rank]:
        return
    mistake = _mean_mistake(played, seen, number, numbers[rank], totals, counts)
    if math.isclose(seen.kept[number]["best"], mean, rel_tol=1e-5):
        mistake = "fed-otherwise"
    elif any(are_right) and any(event.is_communication for event in seen.calls[number].events):
        mistake = "not-everywhere"
    both = {"got": result, "expected": mean}
    fact = f"Call {number + 1} returns another number. The sums of losses are {list(totals)}, the "
    fact += f"numbers of samples {list(counts)}."
    raise played.wrong(mistake, rank, **both, fact=fact)


def _mean_mistake(played, seen, number, got, totals, counts):
    rank, num_samples = seen.rank, sum(counts)
    means = [total / max(count, 1) for total, count in zip(totals, counts, strict=True)]
    filled = [mean for mean, count in zip(means, counts, strict=True) if count]
    mean = sum(totals) / num_samples
    first_calls = range(number + 1)
    so_far = [
        sum(of(played.case, one)[call] for one in range(len(totals)) for call in first_calls)
        for of in (_totals, _counts)
    ]
    shared = [
        ("kept", so_far[0] / so_far[1]),
        ("kept", so_far[0] / num_samples),
        ("worst-rank", max(means)),
        ("worst-rank", min(filled)),
        ("mean-of-means", sum(means) / len(means)),
        ("mean-of-means", sum(filled) / len(filled)),
        ("not-a-mean", sum(totals)),
        ("not-a-mean", sum(totals) / len(totals)),
        ("not-a-mean", sum(means)),
        ("not-a-mean", sum(totals) / sum(max(count, 1) for count in counts)),
        *(("one-rank", mean) for mean in means),
        ("old-count", sum(totals) / sum(played.case["samples"])),  # those of the first call
        *(("rounded", float(one)) for one in (round(mean), math.floor(mean), math.ceil(mean))),
        ("rounded", sum(map(math.floor, totals)) / num_samples),
        ("rounded", sum(map(round, totals)) / num_samples),
    ]
    own = [("alone", means[rank]), ("not-a-mean", totals[rank])]
    if len({other.kept[number]["rate"] for other in played.seen}) == 1 and any(
        event.is_communication for event in seen.calls[number].events
    ):
        own = [("rate-only", one) for _, one in own]
    is_alike = len({repr(other.calls[number].result) for other in played.seen}) == 1
    names = shared if is_alike else [*own, *shared]
    found = [name for name, one in names if math.isclose(got, one, rel_tol=1e-5)]
    if not found and math.isclose(got, mean, rel_tol=0.01):
        found = ["rounded"]
    return found[0] if found else "values"


def _judge_schedule(played, seen, number, expected, totals):
    got, rank = seen.kept[number], seen.rank
    if got == expected:
        return
    others = {other.kept[number]["steps"] for other in played.seen}
    fact = f"After call {number + 1}, the number of steps that the schedule made is {got['steps']}."
    if got["steps"] < number + 1:
        mistake = "one-steps" if len(others) > 1 else "not-stepped"
        raise played.wrong(mistake, rank, fact=fact)
    if got["steps"] > number + 1:
        raise played.wrong("stepped-twice", rank, fact=fact)
    for name, wanted in expected["settings"].items():
        if got["settings"][name] != wanted:
            fact = f"The schedule's {name} was {wanted}, and is {got['settings'][name]}."
            raise played.wrong("rate", rank, fact=fact)
    if not math.isclose(got["best"], expected["best"], rel_tol=1e-5):
        fact = "What is returned is right, but the schedule was fed with another number."
        both = {"got": got["best"], "expected": expected["best"]}
        raise played.wrong("fed-otherwise", rank, **both, fact=fact)
    if got["rate"] != expected["rate"]:
        both = {"got": got["rate"], "expected": expected["rate"]}
        raise played.wrong("rate", rank, **both, fact="The rate is not the one expected.")


def _judge_message(played, rank, call):
    events = [event for event in call.events if event.is_communication]
    if len(events) > 1:
        names = ", ".join(event.name for event in events)
        fact = f"A step makes {len(events)} calls ({names}); 1 would do."
        raise played.wrong("cost", rank, fact=fact)
    for event in events:
        if event.input_bytes > MESSAGE_BYTES:
            fact = f"A step sends {event.input_bytes} bytes; {MESSAGE_BYTES} would do."
            raise played.wrong("bytes", rank, fact=fact)


def _draw_rates(played):
    names = [f"step {number + 1}" for number in range(NUM_STEPS)]
    rates = [[f"{noted['rate']:g}" for noted in seen.kept] for seen in played.seen]
    return holdings_picture(names, [dict(zip(names, row, strict=True)) for row in rates])


plateau_step = Task(
    number="07.4",
    name="plateau_step",
    cases=_cases_plateau,
    act=_act_plateau,
    judge=_judge_plateau,
    ok="one collective of at most 16 bytes a step, the same rates on all ranks",
    draw=_draw_rates,
    hints=(
        "Schedules that get the same number at each step do the same at each step. Which number "
        "is fair to all samples?",
        "The mean over all samples is the sum of all losses by the number of all samples. Both "
        "are sums over ranks.",
        "Two sums need one message: put both numbers into one tensor.",
        "both = torch.tensor([total, num_samples], dtype=torch.float64, device=rank_device()); "
        "dist.all_reduce(both); then divide, feed the schedule, and return what you fed.",
    ),
    mistakes={
        "alone": "Each rank goes by its own loss, so their rates part. Let ranks talk first.",
        "rate-only": "Equal rates are not enough: the schedules still remember different losses. "
        "Agree on the loss, and each schedule finds the rate.",
        "one-rank": "One rank's loss decides. The samples of the others must count too.",
        "mean-of-means": "Ranks have unequally many samples: weigh them, or add up sums and "
        "divide once.",
        "worst-rank": "The mean over all samples is wanted, not the best or the worst rank.",
        "old-count": "num_samples may change from call to call: send it each time.",
        "not-a-mean": "Divide the sum of all losses by the number of all samples, once.",
        "no-mean": "Return the mean: a float, or a tensor of one number.",
        "rounded": "Do not round: neither the mean nor what you send. float32 and float64 keep "
        "enough digits, whole numbers and halves do not.",
        "nothing": "Return the mean that you fed to the schedule.",
        "not-stepped": "Call schedule.step(mean) in every call, whether the mean is better or "
        "worse.",
        "not-everywhere": "Some ranks have the mean, others do not. reduce gives a sum to one "
        "rank, all_reduce to all.",
        "one-steps": "Every rank has a schedule and an optimizer of its own: each must step.",
        "stepped-twice": "Call schedule.step once for each call.",
        "fed-otherwise": "Feed the schedule with the same number that you return.",
        "rate": "Leave the rate to the schedule, and its settings as they are.",
        "cost": "Both numbers fit into one tensor, and so into one collective.",
        "bytes": "Two numbers are enough: a sum and how many samples it is over.",
        "raised": "The line that is named is yours. A rank may have no samples at all: then it "
        "cannot divide by its own number.",
        "deadlock": "Every rank makes the same call in the default group. A rank without samples "
        "makes it too: its sum and its number are 0.",
        "values": "Take two ranks, one with 1 sample and one with 3, and go through your lines. At "
        "the next call, they may have other numbers of samples.",
    },
    warm_up=first_ddp,  # the first optimizer imports the same
)
