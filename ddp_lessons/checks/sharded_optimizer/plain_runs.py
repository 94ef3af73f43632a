"""
Runs of one optimizer with the mean gradient: the right run, and runs with common mistakes.

Legend: a script is a list of what happens to an optimizer: "step" (backward, then step), "closure"
(a step with a closure), "rate" (a schedule sets the first group's lr and momentum), "add" (a group
is added), "load" (other weights are written into the parameters, as from a checkpoint), "freeze"
(one more parameter is frozen, and has no gradient from then on).
Gradients are whole numbers. A number has the same sign on all ranks, so that no mean is near 0.
"""

import torch
from torch import nn

from ddp_lessons.checks.kit import generator, normal_numbers
from ddp_lessons.checks.kit.comparing import find_difference

ADDED_RATE = 0.5  # lr of the group that is added, as a share of the others' lr
LATER_MOMENTUM = 0.75


def params_of(case, device="cpu"):
    """
    Return a case's parameters, the same on every rank. Number `case["frozen"]`, if any, is frozen.
    """
    dtype = getattr(torch, case["dtype"])
    made = [
        nn.Parameter(normal_numbers(case, ("parameter", place), shape, dtype).to(device))
        for place, shape in enumerate(case["shapes"])
    ]
    if "frozen" in case.data:
        made[case["frozen"]].requires_grad_(False)
    return made


def groups_of(case, params):
    """
    Return (parameters or groups to make the optimizer with, the group that is added later or None).

    `case["groups"]` has a pair for each group: its number of parameters, and its lr or None for
    the lr of the settings.
    """
    settings = case["settings"]
    added = None
    if "add" in case["script"]:
        added = {"params": [params[-1]], "lr": ADDED_RATE * settings["lr"]}
        params = params[:-1]
    if "groups" not in case.data:
        return params, added
    groups, start = [], 0
    for num, rate in case["groups"]:
        own = {} if rate is None else {"lr": rate}
        groups.append({"params": params[start : start + num], **own})
        start += num
    return groups, added


def freeze(case, params):
    """
    Freeze parameter number `case["later"]`, as a user who fine-tunes does between two steps.
    """
    params[case["later"]].requires_grad_(False)
    params[case["later"]].grad = None


def load_weights(case, params):
    """
    Write other numbers into the parameters in place, as loading a checkpoint does.
    """
    for place, parameter in enumerate(params):
        other = normal_numbers(case, ("loaded", place), parameter.shape, parameter.dtype)
        parameter.data.copy_(other)


def gradients_of(case, step, rank):
    """
    Return a rank's gradients in a step, one for each parameter, on the CPU.
    """
    dtype, found = getattr(torch, case["dtype"]), []
    for place, shape in enumerate(case["shapes"]):
        signs = torch.randint(0, 2, shape, generator=generator(case, ("sign", place, step))) * 2 - 1
        own = generator(case, ("amount", place, step, rank))
        found.append((signs * torch.randint(1, 10, shape, generator=own)).to(dtype))
    return found


def backward(case, params, step, rank):
    """
    Add a rank's gradients to `.grad` by a real backward. Return the loss.
    """
    losses = [
        (parameter * gradient.to(parameter.device)).sum()
        for parameter, gradient in zip(params, gradients_of(case, step, rank), strict=True)
        if parameter.requires_grad
    ]
    loss = torch.stack(losses).sum()
    loss.backward()
    return loss.detach()


def plain_run(case, mean="mean", only=None, lost=()):
    """
    Return the parameters after each entry of the script, in a run with one optimizer.

    Args:
        case: The Case.
        mean: "mean" or "sum" of all ranks' gradients, or the rank whose own gradients are used.
        only: "step" or "closure", the entries to which `mean` applies; None: to both. Other entries
            use the mean.
        lost: Names of things that the run leaves out: "settings", "all but lr", "groups", "rate",
            "momentum", "added", "state", "load" or "closure".
    """
    params = params_of(case)
    given, added = groups_of(case, params)
    if "groups" in lost and isinstance(given[0], dict):
        given = [parameter for group in given for parameter in group["params"]]
    if "added" in lost and isinstance(given[0], dict):
        given = given[:1]
    make = getattr(torch.optim, case["class"])
    settings = {} if "settings" in lost else case["settings"]
    if "all but lr" in lost:
        settings = {"lr": settings["lr"]}
    optimizer, step, after = make(given, **settings), 0, []
    for entry in case["script"]:
        if entry == "add" and "added" not in lost:
            optimizer.add_param_group({**added, "params": list(added["params"])})
            if "groups" in lost:
                optimizer.param_groups[-1]["lr"] = case["settings"]["lr"]
        elif entry == "rate" and "rate" not in lost:
            optimizer.param_groups[0]["lr"] /= 2
            if "momentum" not in lost:
                optimizer.param_groups[0]["momentum"] = LATER_MOMENTUM
        elif entry == "load" and "load" not in lost:
            load_weights(case, params)
        elif entry == "freeze":
            freeze(case, params)
        elif entry in ("step", "closure"):
            if not (entry == "closure" and "closure" in lost):
                _step(case, params, optimizer, step, mean if only in (None, entry) else "mean")
            if "state" in lost:
                optimizer.state.clear()
            step += 1
        after.append([parameter.detach().clone() for parameter in params])
    return after


def _step(case, params, optimizer, step, mean):
    ranks = range(case.world_size) if isinstance(mean, str) else [mean]
    own = [gradients_of(case, step, rank) for rank in ranks]
    for place, parameter in enumerate(params):
        if parameter.requires_grad:
            total = sum(gradients[place] for gradients in own)
            parameter.grad = total / case.world_size if mean == "mean" else total
    optimizer.step()


def most_off(case, num_steps):
    """
    Return how far a number may be off after this many steps.

    A step rounds some twenty times: in the mean, the state, the update and the new number. All of
    these are below 32 here. The limit allows 64 roundings a step, each of a number of up to 32.
    """
    return 64 * 32 * max(num_steps, 1) * torch.finfo(getattr(torch, case["dtype"])).eps / 2


def is_near(got, expected, slack):
    """
    Tell whether two lists of parameters are equal within a slack.
    """
    return find_difference(list(got), list(expected), slack) is None
