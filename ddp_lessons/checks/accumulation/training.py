"""
The common part of tasks 07.1 to 07.3: a small training run, and how its windows are judged.
"""

import torch

from ddp_lessons.checks.accumulation.windows import Watched, WindowGradients, batches_of
from ddp_lessons.checks.kit import equal
from ddp_lessons.checks.kit.shared.regression import batch_gradients, gradient
from ddp_lessons.trace import collectives

MOST_HELD = 1.5  # micro-batches whose activations may be held at once

FEWER_DIGITS = 2.0**-7  # the epsilon of bfloat16


class WatchedTraining(Watched):
    """
    A watched training run that also notes the model's state before and after the answer.

    The state is the weights, the modes, `requires_grad` of each parameter, and the optimizer's
    settings.
    """

    def call(self, context, answer, *args):
        before = self._state()
        return super().call(context, answer, *args) | {"before": before, "left": self._state()}

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


def judge_trained(case_result):
    """
    Refuse an answer that changes `requires_grad` of a parameter.
    """
    for rank, seen in enumerate(case_result.seen):
        if seen.output["left"]["trained"] != seen.output["before"]["trained"]:
            fact = "The call changes which parameters are trained (requires_grad)."
            raise case_result.wrong("thawed", rank, fact=fact)


def judge_left(case_result):
    """
    Refuse an answer that leaves the model changed, or that gives frozen parameters a gradient.
    """
    for rank, seen in enumerate(case_result.seen):
        before, left = seen.output["before"], seen.output["left"]
        if left["modes"] != before["modes"]:
            fact = "The call leaves the model, or a part of it, in another mode (train or eval)."
            raise case_result.wrong("mode", rank, fact=fact)
        if any(state["frozen gradients"] for state in (*seen.output["steps"], left)):
            raise case_result.wrong(
                "frozen-gradient", rank, fact="A frozen parameter has a gradient."
            )
        if "weights" in case_result.task.mistakes and not equal(left["weights"], before["weights"]):
            raise case_result.wrong("weights", rank, fact="The call changes the weights, too.")
        changes = seen.calls[-1].changes
        if "hooks" in case_result.task.mistakes and "hooks" in changes:
            raise case_result.wrong("hooks", rank, fact=changes["hooks"])


def first_known(case_result, *names):
    """
    Return the first of these mistakes that the task names, or "values".
    """
    return next((name for name in names if name in case_result.task.mistakes), "values")


def judge_talk(case_result, num_syncs):
    """
    Refuse an answer that syncs too often, holds too many activations, or leaves the sync off.

    Args:
        case_result: The CaseResult.
        num_syncs: The most collectives that a rank may make.
    """
    for rank, (seen, events) in enumerate(zip(case_result.seen, case_result.traces, strict=True)):
        num_calls = len(collectives(events))
        if num_calls > num_syncs:
            fact = f"Rank {rank} makes {num_calls} collectives, and needs only {num_syncs}."
            raise case_result.wrong(
                _name_cost(case_result, seen, events, num_syncs), rank, fact=fact
            )
        most, one = seen.output["peak_bytes"], seen.output["one_bytes"]
        if most > MOST_HELD * one:
            times = f"{most / one:.1f} times the activations of one micro-batch"
            fact = f"Rank {rank} holds {times} at a time."
            is_alone = not any(forward["is one of many"] for forward in seen.output["forwards"])
            num_samples = [len(forward["samples"]) for forward in seen.output["forwards"]]
            if is_alone and max(num_samples, default=0) <= max(case_result.case["sizes"]):
                fact += " Yet each forward is followed by its backward."
                raise case_result.wrong("graph-kept", rank, fact=fact)
            raise case_result.wrong("memory", rank, fact=fact)
        if not seen.output["syncs"]:
            fact = "The model stays inside of no_sync: no later backward would average gradients."
            raise case_result.wrong("left-off", rank, fact=fact)


def _name_cost(case_result, seen, events, num_syncs):
    if any(one["forward"] and one["backward"] is False for one in seen.output["forwards"]):
        return first_known(case_result, "forward-outside", "cost")
    num_made = sum(event.is_communication and event.backward is not None for event in events)
    return "own-message" if num_made <= num_syncs else "cost"


def name_gradient(case_result, window, rank, got, weights, places):
    """
    Return the mistake that explains a wrong gradient, found by its numbers.

    Args:
        case_result: The CaseResult.
        window: The WindowGradients.
        rank: The rank.
        got: The wrong gradient, (G,).
        weights: (G,), the trained weights.
        places: Positions of the window's batches.
    """
    named = window.mistake(got, rank)
    if named is not None:
        return first_known(case_result, named)
    if case_result.case.world_size > 1 and not case_result.call_names[rank]:
        return "no-sync"  # no other mistake is possible: no rank made a call
    sizes = [case_result.case["sizes"][place] for place in places]
    alike = torch.ones_like(window.all()) * max(sizes) / sum(sizes) / window.num_ranks
    if window.agrees(got, alike):
        return first_known(case_result, "mean-of-means")
    if is_near(got.double(), met_by_all(case_result.case, weights, places, window)):
        return "shapes"
    if is_rough(got.double(), window.right()[0]):
        return "digits"
    return "scaled" if is_parallel(got.double(), window.right()[0]) else "values"


def met_by_all(case, weights, places, window):
    """
    Return the gradient of a loss that compares outputs (n,) with targets (n, 1).

    By broadcasting, each output is compared with each target.
    """
    gradients = []
    for rank in range(case.world_size):
        batches = [batches_of(case, rank)[place] for place in places]
        level = [(inputs, targets.mean().expand_as(targets)) for inputs, targets in batches]
        gradients.append(batch_gradients(weights, level, num_terms=1)[0])
    return (window.all()[..., None] * torch.stack(gradients)).sum((0, 1))


def is_near(one, other, share=5e-5):
    """
    Tell whether two gradients are near each other.

    It only serves to name a mistake that was found already: the error of float32 is far less.
    """
    return bool((one - other).norm() <= share * other.norm())


def is_rough(one, other):
    """
    Tell whether a gradient looks as if its digits were lost in a smaller dtype.

    Its distance from the right one is at most 2**-7 of the length. If it has the right direction,
    the limit is 1e-6, which is about the error of float32.
    """
    share = 1e-6 if is_parallel(one, other) else FEWER_DIGITS
    return is_near(one, other, share)


def is_parallel(one, other):
    """
    Tell whether one gradient is a positive multiple of the other.
    """
    lengths = one.norm() * other.norm()
    return bool(lengths > 0) and bool(one @ other >= (1 - 1e-8) * lengths)


WINDOW_MISTAKES = {
    "cost": "All micro-batches but the last belong inside of the model's no_sync.",
    "no-sync": "The last micro-batch of a window belongs outside of no_sync: its backward averages "
    "the gradients that have added up.",
    "undivided": "Each backward adds a whole mean. Weight each loss, so that the sum of all is a "
    "mean.",
    "memory": "Call forward and backward for one micro-batch before the forward of the next: "
    "backward frees its activations.",
    "graph-kept": "backward frees the activations, unless retain_graph=True keeps them.",
    "own-message": "You need no message of your own. DDP's all-reduce averages the gradients of "
    "all parameters, and batches have the same sizes on all ranks.",
    "left-off": "Use no_sync in a with statement: it switches the averaging on again when it ends.",
    "shapes": "Outputs and targets must both have the shape (n, 1). If one of them has the shape "
    "(n,), mse_loss compares each output with each target.",
    "fixed-size": "A group may have any number of ranks. If you divide by that number, ask for it.",
    "digits": "The gradient is nearly right, but its error is too large for its dtype. Compute in "
    "the dtype of the parameters, and round nothing.",
    "thawed": "Leave requires_grad as it is: a frozen parameter stays frozen.",
    "mode": "Leave the mode as it was. In eval mode, dropout and BatchNorm do something else in "
    "every step that follows.",
    "frozen-gradient": "A frozen parameter's .grad stays None. With zeros there, an optimizer with "
    "weight decay would move the parameter.",
}


BY_HAND_MISTAKES = WINDOW_MISTAKES | {
    "forward-outside": "DDP plans the all-reduce in the forward. So the forward, too, belongs "
    "inside of no_sync.",
    "zeroed": "Do not empty .grad between the micro-batches of a window.",
    "divided-twice": "DDP already divides by the number of ranks.",
}


AGAIN_MISTAKES = {
    "weights": "Make no step: leave the weights as they are.",
    "hooks": "A hook that stays on the model also runs in the next call. Remove the hooks that you "
    "register.",
    "again": "Count the micro-batches anew in each call, and keep nothing for the next call.",
}


def window_of(case, weights):
    """
    Return the WindowGradients of all micro-batches of a case.
    """
    return WindowGradients(case, weights, range(len(case["sizes"])), len(case["sizes"]))


def fewer_of(case, weights):
    """
    Return the WindowGradients of a second call: all micro-batches but the first.
    """
    places = range(len(case["sizes"]))[1:] or range(1)
    return WindowGradients(case, weights, places, len(places))


def refuse_again(case_result, rank, got, expected):
    """
    Refuse the gradient that a second call leaves.
    """
    fact = "A second call on the same model, with .grad empty, leaves another gradient, or none."
    expected = expected.to((expected if got is None else got).dtype)
    raise case_result.wrong("again", rank, got=got, expected=expected, fact=fact)


def number_of(result):
    """
    Return a result as a float, or None if it is not a number.
    """
    try:
        return float(result)
    except (TypeError, ValueError, RuntimeError):
        return None
