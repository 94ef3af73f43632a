"""
The state of the models and optimizers that an answer gets, and what of it the answer changed.

    mode      train or eval, of every module
    frozen    requires_grad, of every parameter
    hooks     how many hooks modules and parameters have
    grad      which .grad are there, and their numbers
    weights   the numbers of parameters
    place     which objects the parameters are; an optimizer holds the same objects
    buffers   the numbers of buffers
    rates     the options of an optimizer's groups, such as learning rates
    momentum  the names in an optimizer's state
"""

from collections.abc import Iterable

import torch

from ddp_lessons.checks.kit.on_rank.snapshots import same_bits
from ddp_lessons.private.autograd import num_hooks


class ArgumentState:
    """
    The state of the models and optimizers among an answer's arguments, before the call.

    Args:
        given: The arguments, a tuple.
    """

    def __init__(self, given: Iterable[object]) -> None:
        self._things = [one for one in given if _notes_of(one) is not None]
        self._before = [_notes_of(one) for one in self._things]

    def changes(self) -> dict[str, str]:
        """
        Return what has changed since.

        Returns:
            dict: {name of what changed, as in the module's text: a sentence about the first place}.
        """
        found: dict[str, str] = {}
        for before, thing in zip(self._before, self._things, strict=True):
            after = _notes_of(thing) or {}
            for key in (*before, *(after.keys() - before.keys())):
                kind, place = key
                was, now = before.get(key), after.get(key)
                if key not in before or key not in after:
                    told = "it is gone" if key in before else "it was not there before"
                    found.setdefault(kind, f"It leaves {place} changed: {told}.")
                elif not _alike(was, now):
                    found.setdefault(kind, f"It leaves {place} changed: {_told(kind, was, now)}.")
        return found


def _notes_of(thing):
    if isinstance(thing, torch.nn.Module):
        return _notes_of_module(thing)
    if isinstance(thing, torch.optim.Optimizer):
        return _notes_of_optimizer(thing)
    return None


def _notes_of_module(module):
    notes: dict = {}
    for name, part in module.named_modules():
        place = name or "the model"
        notes["mode", place] = part.training
        notes["hooks", place] = num_hooks(part)
    for name, parameter in module.named_parameters():
        notes["frozen", name] = parameter.requires_grad
        notes["hooks", name] = num_hooks(parameter)
        notes["weights", name] = parameter.detach().clone()
        notes["place", name] = id(parameter)
        gradient = parameter.grad
        notes["grad", f"{name}.grad"] = None if gradient is None else gradient.detach().clone()
    for name, buffer in module.named_buffers():
        notes["buffers", name] = buffer.detach().clone()
    return notes


def _notes_of_optimizer(optimizer):
    notes: dict = {}
    for number, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            if name != "params":
                kept = value.clone() if isinstance(value, torch.Tensor) else value
                notes["rates", f"{name} of the optimizer's group {number}"] = kept
        for place, parameter in enumerate(group["params"]):
            where = f"parameter {place} of the optimizer's group {number}"
            notes["frozen", where] = parameter.requires_grad
    noted = sorted(str(name) for state in optimizer.state.values() for name in state)
    notes["momentum", "the optimizer's state"] = noted
    return notes


def _alike(was, now):
    if isinstance(was, torch.Tensor) and isinstance(now, torch.Tensor):
        return same_bits(was.cpu(), now.cpu())
    if isinstance(was, torch.Tensor) or isinstance(now, torch.Tensor):
        return False
    return was == now


def _told(kind, was, now):
    if kind == "mode":
        return f"it is in {'train' if now else 'eval'} mode"
    if kind == "place":
        return "another parameter has replaced it"
    if kind == "frozen":
        return f"requires_grad was {was} and is {now}"
    if kind == "hooks":
        return f"it had {was or 0} hooks and has {now or 0}"
    if kind == "grad":
        if (was is None) != (now is None):
            return (
                f"it was {'None' if was is None else 'a tensor'}, and now is "
                f"{'None' if now is None else 'a tensor'}"
            )
        return "it holds other numbers"
    if kind == "rates":
        return f"it was {was} and is {now}"
    if kind == "momentum":
        return "an entry is gone" if len(was or ()) > len(now or ()) else "an entry is new"
    return "it holds other numbers"
