"""
Task 14.2: local SGD.

On each rank: `_Watched`, `_modes_of`, `_act`. In the kernel: the rest.
"""

from itertools import pairwise

import torch

from ddp_lessons.checks.asynchronous.meetings import (
    batches_of,
    dtype_of,
    is_within,
    mean_of,
    model_of,
    num_samples,
)
from ddp_lessons.checks.kit import Case, Mistake, Task, equal
from ddp_lessons.checks.kit.on_rank.snapshots import plain
from ddp_lessons.checks.kit.shared.numbers import words_of_both
from ddp_lessons.checks.kit.shared.regression import batch_gradients, gradient, trained
from ddp_lessons.checks.kit.shared.warm_up import first_ddp
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
    A model and an optimizer that note each step's gradient, and the weights around it.
    """

    def __init__(self, model):
        self.model, self.steps = model, []
        self.modes = [_modes_of(model)]  # now, and then at each forward
        model.register_forward_pre_hook(lambda *_: self.modes.append(_modes_of(model)))
        # Each parameter has its own group: an answer may not assume that one group has them all.
        groups = [{"params": [p]} for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(groups, lr=RATE, momentum=MOMENTUM)
        self.optimizer.register_step_pre_hook(self._note_before)
        self.optimizer.register_step_post_hook(self._note_after)

    def _note_before(self, *_):
        note = {"before": trained(self.model), "gradient": gradient(self.model)}
        self.steps.append(note | {"remembered": self._remembered()})

    def _note_after(self, *_):
        self.steps[-1] |= {"after": trained(self.model), "remembered after": self._remembered()}

    def _remembered(self):
        return plain(self.optimizer.state_dict()["state"])


def _modes_of(model):
    return {name: part.training for name, part in model.named_modules()}


def _act(context, local_sgd):
    model, kept = model_of(context), []
    watched = _Watched(model)
    pairs = batches_of(context.case, context.rank)
    batches = [(inputs.to(context.device), targets.to(context.device)) for inputs, targets in pairs]
    if "left over" in context.case.data:  # as after a backward without a step
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.grad = torch.full_like(parameter, LEFT_OVER)
    for _ in range(NUM_CALLS):
        note: dict = {"left": gradient(model)}
        context.call(local_sgd, model, watched.optimizer, batches, context["every"])
        note |= {"steps": list(watched.steps), "modes": list(watched.modes)}
        kept.append(note | {"last": trained(model)})
        watched.steps.clear()
    return kept


def _wrong_gradients(view):
    # Yield each step with a wrong gradient: its number, the gradient, the one left in `.grad`
    # before, the right one, and its error.
    batches, num_terms = batches_of(view.case, view.rank), num_samples(view.case, view.rank)
    for note in view.output:
        left = note["left"]
        for place, step in enumerate(note["steps"]):
            got, weights = step["gradient"], step["before"].cpu()
            (right,), (error,) = batch_gradients(weights, [batches[place]], num_terms)
            if got is None or not is_within(got, right, error):
                yield place + 1, got, left, right, error
            left = got


def _adds_to_what_is_left(view):
    for step, got, left, right, error in _wrong_gradients(view):
        if got is not None and left is not None:
            slack = 4 * (error + torch.finfo(got.dtype).eps * got.double().abs())
            if is_within(got - left, right, slack):
                return f"Step {step} goes by its gradient and what was left in .grad."
    return ""


def _goes_by_another(view):
    for step, got, _, right, _ in _wrong_gradients(view):
        told = words_of_both(got, right.to(dtype_of(view.case)))
        return f"Step {step} goes by the gradient {told[0]}; that of its own batch is {told[1]}."
    return ""


def _changes_the_rest(view):
    for note in view.output:
        if any(modes != note["modes"][0] for modes in note["modes"]):
            return "In a forward, the model or a part of it is in another mode than it was."
        for step, (left, found) in enumerate(pairwise(note["steps"]), start=1):
            if not equal(found["remembered"], left["remembered after"]):
                return f"After step {step} the optimizer remembers what the step has not left."
    return ""


def _moments(view):
    # Yield for each step whether ranks should meet after it, and the weights before and after then.
    last = view.case["batches"]
    for number in range(NUM_CALLS):
        notes = [seen.output[number] for seen in view.case_result.seen]
        for step in range(1, last + 1):
            rows = [note["steps"][step - 1]["after"] for note in notes]
            found = [note["last"] for note in notes]
            if step < last:
                found = [note["steps"][step]["before"] for note in notes]
            yield step, step == last or step % view.case["every"] == 0, rows, found


def _moves_alone(view):
    for step, is_due, rows, nexts in _moments(view):
        if not is_due and not torch.equal(rows[view.rank], nexts[view.rank]):
            return f"After step {step} weights change; ranks meet after each {view.case['every']}."
    return ""


def _meets(tells):
    # Return a function of a View that finds a meeting after which a rank does not have the mean, if
    # `tells` agrees: a function of the View, the step, and all ranks' weights before and after it.

    def shows(view):
        for step, is_due, rows, nexts in _moments(view):
            got, (mean, slack) = nexts[view.rank], mean_of(rows)
            if is_due and not is_within(got, mean, slack) and tells(view, step, rows, nexts):
                told = words_of_both(got, mean.to(got.dtype))
                return f"After step {step} it has the weights {told[0]}; their mean is {told[1]}."
        return ""

    return shows


def _trains_alone(view, step, rows, nexts):
    return step % view.case["every"] == 0 and equal(rows, nexts)


def _adds_up(view, _step, rows, nexts):
    num_ranks, (mean, slack) = len(rows), mean_of(rows)
    return is_within(nexts[view.rank], num_ranks * mean, num_ranks * slack)


def _differs_in_bits(view):
    for step, is_due, _, nexts in _moments(view):
        if is_due and not torch.equal(nexts[view.rank], nexts[0]):
            return f"After step {step} its weights are nearly equal to those of rank 0, not equal."
    return ""


def _costs(view):
    most, num_bytes = (
        -(-view.case["batches"] // view.case["every"]),
        view.output[0]["last"].nbytes,
    )
    for call in view.seen.calls:
        sent = [event.input_bytes for event in call.events if event.is_communication]
        if len(sent) > most:
            return f"The weights are right, but it makes {len(sent)} calls; {most} will do."
        if max(sent, default=0) > num_bytes:
            return f"The weights are right, but a call takes in {max(sent)} bytes; {num_bytes} do."
    return ""


def _draw(case_result):
    kept = [seen.output[0] for seen in case_result.seen]
    names = ["start", *(f"step {step + 1}" for step in range(case_result.case["batches"]))]
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
    mistakes=(
        Mistake(
            "num-steps",
            "One step of the optimizer for each batch, also for those that are left over.",
            "It makes another number of steps of the optimizer than there are batches.",
            shows=lambda view: any(len(n["steps"]) != view.case["batches"] for n in view.output),
        ),
        Mistake(
            "not-zeroed",
            "A backward adds to .grad. Empty it before the next batch, also before the first one "
            "of a call.",
            shows=_adds_to_what_is_left,
        ),
        Mistake(
            "gradient",
            "Each step goes by the mean loss, `mse_loss`, of this rank's own batch: call backward "
            "on it, then step. Gradients stay on their rank.",
            shows=_goes_by_another,
        ),
        Mistake(
            "left-changed",
            "Only steps and meetings change the model, and each part keeps its mode, train or "
            "eval. The optimizer's rate stays, and what it remembers, as its steps leave it.",
            shows=_changes_the_rest,
        ),
        Mistake(
            "too-often",
            "Count the steps of this call from 1: ranks meet after step `every`, after twice as "
            "many, and so on. In between only the optimizer moves weights.",
            shows=_moves_alone,
        ),
        Mistake(
            "no-meeting",
            "Average the weights of all ranks, and put the mean back into the model.",
            shows=_meets(_trains_alone),
        ),
        Mistake(
            "left-over",
            "Steps may be left over in the end: after the last one ranks meet, too.",
            shows=_meets(lambda view, step, rows, nexts: equal(rows, nexts)),
        ),
        Mistake(
            "sum", "An all-reduce adds up: divide by how many they are.", shows=_meets(_adds_up)
        ),
        Mistake(
            "wrong-mean",
            "Every rank goes on with the mean: all trained weights of all ranks, added up in their "
            "own dtype, and divided by how many ranks there are.",
            shows=_meets(lambda *_: True),
        ),
        Mistake(
            "not-alike",
            "In the end of a meeting all ranks must hold the same bits: let all of them take the "
            "mean from one sum.",
            shows=_differs_in_bits,
        ),
        Mistake(
            "cost",
            "Put all trained weights, and nothing else, into one tensor of their own dtype, and "
            "meet only when it is time.",
            shows=_costs,
        ),
        Mistake(
            "unwaited",
            "Wait for what you begin. A model that is wrapped in DDP sends messages of its own: "
            "train the plain one.",
        ),
        Mistake(
            "raised",
            "The line that is named is yours. Some parameters are frozen, and weights that "
            "autograd watches are changed under torch.no_grad().",
        ),
    ),
    must_return=False,
    in_place=True,
    may_mutate=("weights", "grad", "momentum"),
    warm_up=first_ddp,
)
