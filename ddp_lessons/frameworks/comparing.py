"""
Count in what two tellings of a run differ: lines, losses, models, collectives.

Shapes: none; a run is a list of losses and a list of events.
"""

import ast
import difflib
import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ..trace import Event, collectives


@dataclass(frozen=True)
class Tally:
    """
    Hold the collectives of a run, counted.

    Args:
        all_reduces: How many there were.
        others: All other collectives.
        num_bytes: What all of them wrote into this rank's tensors.
    """

    all_reduces: int
    others: int
    num_bytes: int

    def __str__(self) -> str:
        return f"{self.all_reduces} all-reduces, {self.others} others, {self.num_bytes} bytes"


def tally(events: Sequence[Event]) -> Tally:
    """
    Count the collectives of one rank, as a Tally.

    Args:
        events: What `trace` has recorded on it.

    Lesson: 16_frameworks.
    """
    names = collectives(events)
    num_bytes = sum(event.output_bytes for event in events if event.is_communication)
    all_reduces = names.count("all_reduce")
    return Tally(all_reduces, len(names) - all_reduces, num_bytes)


def num_different_losses(losses: Sequence[float], others: Sequence[float]) -> int:
    """
    Return how many losses of two runs differ, if every bit counts.

    Args:
        losses: The one run's.
        others: The other's, as many.
    """
    return sum(one != other for one, other in zip(losses, others, strict=True))


def num_models(model: torch.nn.Module, group: dist.ProcessGroup | None = None) -> int:
    """
    Return how many different models the ranks have, if every bit counts.

    Collective: every rank must call it.

    Args:
        model: This rank's.
        group: The process group, or None for the default group.
    """
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    everyone: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, weights.cpu().numpy().tobytes(), group=group)
    return len(set(everyone))


def changes(function: Callable[..., object], other: Callable[..., object]) -> str:
    """
    Return the lines of code in which two functions differ, as a diff. Docstrings do not count.

    Args:
        function: Its lines are marked by "-".
        other: Its lines are marked by "+".

    Lesson: 16_frameworks.
    """
    lines = difflib.ndiff(_code_of(function), _code_of(other))
    return "\n".join(line for line in lines if line.startswith(("- ", "+ ")))


def _code_of(function):
    source = textwrap.dedent(inspect.getsource(function))
    (told,) = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    first = told.body[1 if ast.get_docstring(told) else 0]
    code = source.splitlines()[first.lineno - 1 :]
    return [line[4:] for line in code if line.strip()]
