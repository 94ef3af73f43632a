"""
What a sharded optimizer takes, and what it refuses before the first message.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, cast

from torch.optim import Optimizer

from ..errors import BadInput
from ..replicas import check_alike
from ..replicas.alike import tensor_facts

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import Tensor

WHOLE_MATRIX = ("Adafactor", "LBFGS", "Muon", "SparseAdam")
"""
Classes of torch whose update of a number depends on other numbers of its parameter.
"""


def check_class(optimizer_class: object, refused: Collection[str] = ()) -> None:
    """
    Refuse what is no class of optimizer, such as an optimizer that was made already.

    Args:
        optimizer_class: What must be a class of optimizer.
        refused: Names of torch's classes that will not do; nor will what inherits from them.

    Raises:
        BadInput: It is none, or refused.
    """
    if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, Optimizer)):
        raise BadInput(
            "Not a class: a class of optimizer expected, such as torch.optim.Adam (got a value of "
            f"type {type(optimizer_class).__name__}). Pass the class, and its settings by name."
        )
    for known in optimizer_class.__mro__:
        if known.__name__ in refused and known.__module__.startswith("torch."):
            raise BadInput(
                "Needs whole parameters: a class expected whose update of a number looks at that "
                f"number alone (got {optimizer_class.__name__}). Use OwnerOptimizer."
            )


def check_group(
    optimizer_class: type[Optimizer],
    param_group: Mapping[str, object],
    group: dist.ProcessGroup | None = None,
) -> None:
    """
    Refuse, on every rank, parameters or settings that are not the same on all of them.

    Collective: every rank must call it.

    Args:
        optimizer_class: The class of optimizer.
        param_group: A group of parameters, as an optimizer keeps it.
        group: The process group; None is the default group.

    Raises:
        BadInput: Two ranks differ. The message names what, and the rank.
    """
    params = cast("list[Tensor]", param_group["params"])
    settings = {name: value for name, value in param_group.items() if name != "params"}
    check_alike(
        {
            "optimizer": optimizer_class.__name__,
            "number of parameters": len(params),
            **{name: str(value) for name, value in settings.items()},
            **tensor_facts((f"parameter {number}", p) for number, p in enumerate(params)),
        },
        group,
    )
