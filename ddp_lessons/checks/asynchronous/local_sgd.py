"""
Task 14.2: local SGD.
"""

import torch

from ddp_lessons.checks.asynchronous.meetings import (
    NUM_FEATURES,
    batches_of,
    is_rounded,
    is_within,
    judge_price,
    mean_of,
    model_of,
    num_samples,
)
from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.checks.kit.material.regression import batch_gradients, gradient, trained
from ddp_lessons.checks.kit.material.warm_up import first_ddp
from ddp_lessons.pictures import holdings_picture

RATE, MOMENTUM, NUM_CALLS, LEFT_OVER = 0.05, 0.9, 2, 3.0


def _cases(draw):
    yield Case(4, {"batches": 5, "every": 2, "samples": 3, "dtype": "float32"}, seed=0)
    for world_size in (1, 2, 3):
        every = draw.randint(2, 4)
        batches = every * draw.randint(1, 2) + draw.randint(1, every - 1)
        data = {"batches": batches, "every": every, "samples": draw.randint(2, 4)}
        yield Case(world_size, {**data, "dtype": "float64"})
    data = {"batches": 3, "every": 2, "samples": 2, "dtype": "float64", "eval": "linear"}
    yield Case(2, data)
    every = draw.randint(2, 3)  # nothing is left over
    data = {"batches": 2 * every, "every": every, "samples": 3, "dtype": "float64"}
    yield Case(3, data | {"left over": "gradients"})
    yield Case(2, {"batches": 2, "every": 3, "samples": 2, "dtype": "float64"})  # one short round
    yield Case(2, {"batches": 0, "every": 2, "samples": 2, "dtype": "float64"})


class _Watched:
    """
    Note what each step of an optimizer goes by, and what it makes of the weights.
    """

    def __init__(self, model):
        self.model, self.steps = model, []
        self.modes = []  # of the model and its parts, at each forward
        model.register_forward_pre_hook(lambda *_: self.modes.append(_modes_of(model)))
        # Each parameter is a group of its own: nobody need put all of them into one.
        groups = [{"params": [p]} for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(groups, lr=RATE, momentum=MOMENTUM)
        self.optimizer.register_step_pre_hook(self._note_before)
        self.optimizer.register_step_post_hook(self._note_after)

    def _note_before(self, *_):
        note = {"before": trained(self.model), "gradient": gradient(self.model)}
        self.steps.append(note | {"momentum": self._momentum()})

    def _note_after(self, *_):
        self.steps[-1] |= {"after": trained(self.model), "momentum after": self._momentum()}

    def _momentum(self):
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        kept = [self.optimizer.state.get(p, {}).get("momentum_buffer") for p in parameters]
        if any(one is None for one in kept):
            return None
        return torch.cat([one.flatten() for one in kept])


def _modes_of(model):
    return {name: part.training for name, part in model.named_modules()}


def _act(here, local_sgd):
    model = model_of(here)
    usual = _modes_of(model)
    watched, kept = _Watched(model), []
    batches = [
        (inputs.to(here.device), targets.to(here.device))
        for inputs, targets in batches_of(here.case, here.rank)
    ]
    first = trained(model)
    left = _leave_gradients(here.case, model)
    for _ in range(NUM_CALLS):
        here.call(local_sgd, model, watched.optimizer, batches, here["every"])
        note = {"first": first, "left": left, "steps": list(watched.steps), "last": trained(model)}
        kept.append(note | {"modes": [usual, *watched.modes]})
        first, left = trained(model), gradient(model)
        watched.steps.clear()
        watched.modes.clear()
    return kept


def _leave_gradients(case, model):
    # As an earlier backward leaves them, which nobody has followed by a step.
    if "left over" not in case.data:
        return None
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, LEFT_OVER)
    return gradient(model)


def _judge(played):
    for number in range(NUM_CALLS):
        kept = [seen.kept[number] for seen in played.seen]
        _judge_steps(played, kept)
        _judge_modes(played, kept)
        for place in range(played.case["batches"]):
            for rank in range(played.case.world_size):
                _judge_step(played, kept, rank, place)
            _judge_meeting(played, kept, place)
        for rank, seen in enumerate(played.seen):
            events, num_bytes = seen.calls[number].events, kept[rank]["last"].nbytes
            num_meetings = -(-played.case["batches"] // played.case["every"])
            judge_price(played, rank, events, num_meetings, num_bytes, "The weights are")


def _judge_steps(played, kept):
    num_batches = played.case["batches"]
    for rank, one in enumerate(kept):
        got = len(one["steps"])
        if got != num_batches:
            fact = f"Of {num_batches} batches, rank {rank} makes {got} steps of the optimizer."
            raise played.wrong("num-steps", rank, fact=fact)


def _judge_modes(played, kept):
    for rank, one in enumerate(kept):
        usual, *modes = one["modes"]
        for number, now in enumerate(modes, start=1):
            other = [name or "the model" for name, mode in usual.items() if now[name] != mode]
            if other:
                fact = (
                    f"In forward {number} of rank {rank}, {other[0]} is in another mode than the "
                )
                raise played.wrong("mode", rank, fact=f"{fact}one that it was given in.")


def _judge_step(played, kept, rank, place):
    step = kept[rank]["steps"][place]
    weights, got = step["before"], step["gradient"]
    which = f"Step {place + 1} of rank {rank}"
    if got is None:
        raise played.wrong("no-gradient", rank, fact=f"{which} has no gradient to go by.")
    gradients, errors = zip(
        *(_gradient(played.case, one, place, weights) for one in range(played.case.world_size)),
        strict=True,
    )
    expected, error = gradients[rank], errors[rank]
    if not is_within(got, expected, error):
        fact = f"{which} goes by another gradient than that of its own batch."
        mistake = "values"
        before = kept[rank]["steps"][place - 1]["gradient"] if place else kept[rank]["left"]
        mean = sum(gradients) / len(gradients)
        if len(kept) > 1 and is_within(got, mean, 2 * sum(errors)):
            mistake = "every-step"
        elif before is not None and is_within(got - before, expected, 4 * error + _slack(got)):
            mistake = "not-zeroed"
        raise played.wrong(mistake, rank, got=got, expected=expected.to(got.dtype), fact=fact)
    kept_momentum = kept[rank]["steps"][place - 1]["momentum after"] if place else None
    if kept_momentum is not None and not _same(step["momentum"], kept_momentum):
        fact = f"Before step {place + 1} the optimizer's momentum is not what its last step left."
        raise played.wrong("optimizer", rank, fact=fact)


def _slack(numbers):
    return 4 * torch.finfo(numbers.dtype).eps * numbers.double().abs()


def _same(one, other):
    return one is not None and torch.equal(one, other)


def _gradient(case, rank, place, weights):
    batch = batches_of(case, rank)[place]
    gradients, errors = batch_gradients(weights.cpu(), [batch], num_samples(case, rank))
    return gradients[0], errors[0]


def _judge_meeting(played, kept, place):
    case = played.case
    rows = [one["steps"][place]["after"] for one in kept]
    is_last = place + 1 == case["batches"]
    nexts = [one["last"] if is_last else one["steps"][place + 1]["before"] for one in kept]
    is_due = is_last or (place + 1) % case["every"] == 0
    mean, slack = mean_of(rows)
    for rank, (own, got) in enumerate(zip(rows, nexts, strict=True)):
        if is_due and not is_within(got, mean, slack):
            fact = f"After step {place + 1} of {case['batches']} all ranks should have the mean of "
            fact += "their weights."
            mistake = _name_meeting(rows, rank, got, nexts)
            if mistake == "no-meeting" and is_last and (place + 1) % case["every"]:
                mistake = "left-over"
            both = {"got": got, "expected": mean.to(got.dtype)}
            raise played.wrong(mistake, rank, **both, fact=fact)
        if not is_due and not torch.equal(own, got):
            fact = f"After step {place + 1} of {case['batches']} ranks should go on alone: they "
            fact += f"meet after each {case['every']} steps."
            mistake = "too-often" if is_within(got, mean, slack) else "moved"
            raise played.wrong(mistake, rank, got=got, expected=own, fact=fact)
    if is_due and any(not torch.equal(got, nexts[0]) for got in nexts):
        fact = f"After step {place + 1} ranks have nearly equal weights, not equal ones."
        raise played.wrong("not-alike", fact=fact)


def _name_meeting(rows, rank, got, nexts):
    if any(all(torch.equal(one, row) for one in nexts) for row in rows):
        return "one-rank"
    if torch.equal(got, rows[rank]):
        has_met = any(not torch.equal(one, own) for one, own in zip(nexts, rows, strict=True))
        return "not-everywhere" if has_met else "no-meeting"
    total, (_, slack) = sum(row.double() for row in rows), mean_of(rows)
    if is_within(got, total, len(rows) * slack):
        return "sum"
    num_weights = NUM_FEATURES
    parts = (slice(0, num_weights), slice(num_weights, None))
    mean, _ = mean_of(rows)
    if any(is_within(got[part], mean[part], slack[part]) for part in parts):
        return "some-weights"
    return "rounded" if is_rounded(got, mean, _sizes(rows)) else "wrong-mean"


def _sizes(rows):
    return torch.stack(rows).double().abs().amax(dim=0)


def _draw(played):
    kept = [seen.kept[0] for seen in played.seen]
    names = ["start", *(f"step {step + 1}" for step in range(played.case["batches"]))]
    rows = []
    for one in kept:
        moments = [*(step["before"] for step in one["steps"]), one["last"]]
        told = [f"{weights[0]:.3f}" for weights in moments]
        rows.append(dict(zip(names, told, strict=True)))
    return holdings_picture(names, rows)


local_sgd = Task(
    number="14.2",
    name="local_sgd",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="one call a meeting, and equal weights in the end",
    draw=_draw,
    hints=(
        "Between two meetings a rank trains as if it were alone. At a meeting weights are "
        "averaged, not gradients.",
        "Count steps from 1. A meeting follows a step whose number `every` divides, and the last "
        "one.",
        "All trained weights go into one tensor, so that one call averages them: "
        "torch.nn.utils.parameters_to_vector helps. Frozen ones stay out.",
        "flat = torch.cat([p.detach().flatten() for p in ps]); dist.all_reduce(flat); flat /= "
        "dist.get_world_size(); then copy each part back under torch.no_grad().",
    ),
    mistakes={
        "no-meeting": "Average the weights of all ranks, and put the mean back into the model.",
        "left-over": "Steps may be left over in the end: after the last one ranks meet, too.",
        "too-often": "Count the steps of this call from 1: ranks meet after step `every`, after "
        "twice as many, and so on.",
        "every-step": "Gradients stay on their rank. Only weights are averaged, and not in every "
        "step.",
        "unwaited": "Wait for what you begin. A model that is wrapped in DDP sends messages of its "
        "own: train the plain one.",
        "sum": "An all-reduce adds up: divide by the number of ranks.",
        "one-rank": "A mean is wanted, not one rank's weights for all.",
        "not-everywhere": "Every rank goes on with the mean. reduce gives its result to one rank.",
        "some-weights": "All trained parameters are averaged: weights and biases, and those of all "
        "of the optimizer's groups.",
        "rounded": "Bits are lost on the way: send weights in the dtype that they have.",
        "wrong-mean": "The mean adds the weights of all ranks and divides by how many ranks there "
        "are in this group.",
        "not-alike": "In the end of a meeting all ranks must hold the same bits: let all of them "
        "take the mean from one sum.",
        "moved": "Between two meetings only the optimizer moves weights.",
        "num-steps": "One step of the optimizer for each batch, also for those that are left over.",
        "no-gradient": "Call backward on the loss of the batch, then step.",
        "not-zeroed": "A backward adds to .grad. Empty it before the next batch, also before the "
        "first one of a call.",
        "mode": "Train in the mode that each part of the model has: what is in eval mode is so "
        "for a reason.",
        "optimizer": "What the optimizer remembers stays as its own steps leave it.",
        "left-changed": "Only steps and meetings change the model, and each part keeps its mode, "
        "train or eval. The optimizer's rate stays.",
        "cost": "Put all trained weights into one tensor, and meet only when it is time.",
        "bytes": "Only trained weights need to travel, once, in their own dtype.",
        "raised": "The line that is named is yours. Some parameters are frozen, and weights that "
        "autograd watches are changed under torch.no_grad().",
        "deadlock": "All ranks have equally many batches, so all meet at the same steps.",
        "values": "Each step goes by the mean loss, `mse_loss`, of this rank's own batch.",
    },
    returns=False,
    in_place=True,
    may_change=("weights", "grad", "momentum"),
    warm_up=first_ddp,
)
