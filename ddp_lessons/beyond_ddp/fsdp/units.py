"""
Which parameters are gathered together: those of a unit.

A unit is a module that is gathered before its forward and freed after it, such as one block of a
transformer. Small units need less memory at a time and more messages.

What no unit has, and what two units share, as tied weights, belongs to the root: the whole module.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from ...errors import BadInput
from ...private.dispatcher import tree_leaves
from .flat import Flat

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def plan_units(module: nn.Module) -> list[nn.Module]:
    """
    Return the modules that are units if nobody says otherwise: the children that have parameters,
    and of containers such as Sequential their children in turn.

    Args:
        module: The module that is to be sharded.

    Lesson: 15_beyond_ddp.
    """
    found = []
    for child in module.children():
        if isinstance(child, _CONTAINERS):
            found += plan_units(child)
        elif next(child.parameters(), None) is not None and child not in found:
            found.append(child)
    return found


def owners(
    module: nn.Module, units: Sequence[nn.Module]
) -> list[tuple[nn.Module, list[nn.Parameter]]]:
    """
    Say which unit each parameter belongs to: the innermost that has it, if only one has.

    Args:
        module: The root.
        units: Modules inside it.

    Returns:
        list: (unit's module, its parameters) for each unit that has some, the root last.

    Raises:
        BadInput: A unit is no part of the module.
    """
    parts = list(module.modules())
    for unit in units:
        if unit is module or not any(unit is part for part in parts):
            raise BadInput(
                "No unit: modules inside the one that is sharded expected (got "
                f"{type(unit).__name__}). Pass parts of it, such as its layers."
            )
    inside = {}  # id of a module -> the innermost unit around it
    for unit in sorted(units, key=lambda one: len(list(one.modules())), reverse=True):
        inside.update({id(part): unit for part in unit.modules()})
    users: dict = {}
    for part in parts:
        for parameter in part.parameters(recurse=False):
            users.setdefault(parameter, set()).add(inside.get(id(part), module))
    owned: dict = {unit: [] for unit in [*units, module]}
    for parameter, found in users.items():
        owned[found.pop() if len(found) == 1 else module].append(parameter)
    return [(unit, parameters) for unit, parameters in owned.items() if parameters]


@dataclass(eq=False)
class Unit:
    """
    Hold a module whose parameters are gathered together.

    Args:
        module: The module.
        flats: Its parameters, a Flat for each dtype, trained and frozen apart.
        places: (module, name, parameter) wherever one of them is used.
        is_root: Whether it is the whole module.
        is_needed: Whether a backward has begun to use it.
    """

    module: nn.Module
    flats: list[Flat]
    places: list[tuple[nn.Module, str, nn.Parameter]]
    is_root: bool = False
    is_needed: bool = False

    @property
    def trained(self) -> list[Flat]:
        """
        The flats that get gradients.
        """
        return [flat for flat in self.flats if flat.is_trained]

    @property
    def gathered_bytes(self) -> int:
        """
        How many bytes of parameters are gathered now.
        """
        return sum(flat.gathered_bytes for flat in self.flats)

    def start_gather(self) -> None:
        """
        Ask for all of its parameters.

        Collective: every rank must call it.
        """
        for flat in self.flats:
            flat.start_gather()

    def wait(self) -> None:
        """
        Wait for them, and let the modules have them under their names.
        """
        for flat in self.flats:
            flat.wait()
        for module, name, parameter in self.places:
            module.__dict__[name] = parameter

    def free(self) -> None:
        """
        Give their memory back, and take the names away: who asks now gets an AttributeError.
        """
        for flat in self.flats:
            flat.free()
        for module, name, _ in self.places:
            module.__dict__.pop(name, None)
        self.is_needed = False


def make_units(
    module: nn.Module,
    units: Sequence[nn.Module],
    group: dist.ProcessGroup | None,
    compute_dtype: torch.dtype | None,
    reduce_dtype: torch.dtype | None,
) -> list[Unit]:
    """
    Shard the parameters of a module, unit by unit. Afterwards no module has parameters of its own.

    Args:
        module: The root.
        units: Modules inside it.
        group: The process group.
        compute_dtype: As Flat takes it.
        reduce_dtype: As Flat takes it.

    Returns:
        list: A Unit for each that has parameters, the root last.
    """
    made = []
    for unit, parameters in owners(module, units):
        kinds: dict = {}
        for p in parameters:
            kinds.setdefault((p.dtype, p.device, p.requires_grad), []).append(p)
        places = [
            (part, name, own)
            for part in module.modules()
            for name, own in part.named_parameters(recurse=False, remove_duplicate=False)
            if any(own is p for p in parameters)
        ]
        for part, name, _ in places:
            delattr(part, name)
        flats = [Flat(ps, group, compute_dtype, reduce_dtype) for ps in kinds.values()]
        made.append(Unit(unit, flats, places, unit is module))
    return made


def tensors_of(value: object) -> list[torch.Tensor]:
    """
    Return the tensors in what a module got or returned: in tuples, lists and dictionaries.
    """
    leaves = tree_leaves(value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
