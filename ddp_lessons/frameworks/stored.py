"""
What came out of the lesson's runs on a machine that has the frameworks, for one that has not.

Shapes: none; a result is what a run of the lesson returned on one rank, in plain numbers and text.
"""

import importlib.util
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypedDict, TypeVar

import torch.distributed as dist

from ..errors import BadInput
from .telling import quiet

FRAMEWORKS = {"accelerate": "Accelerate", "lightning_fabric": "Lightning Fabric"}
"""
Module -> what it is called. They are the extra `frameworks` of this package.
"""
_Result = TypeVar("_Result")
_FILE = Path(__file__).with_name("stored.json")


class _StoredRun(TypedDict):
    needs: str
    ranks: list[list]


@cache
def stored() -> dict[str, _StoredRun]:
    """
    Return name of a run -> its module, and what it returned on each of 4 ranks.
    """
    return json.loads(_FILE.read_text(encoding="utf-8"))


def is_here(module: str) -> bool:
    """
    Tell whether a framework is installed, without importing it.

    Args:
        module: One of FRAMEWORKS.
    """
    return importlib.util.find_spec(module) is not None


def real_or_stored(name: str, run: Callable[[], list[_Result]]) -> list[_Result]:
    """
    Run with a framework, or say that it is not here and return what came out elsewhere.

    Args:
        name: What is run: one that is stored.
        run: Function without arguments that does it. It returns a list.

    Returns:
        list: What the run returned.

    Raises:
        BadInput: Nothing is stored of such a run, or not for as many ranks.

    Lesson: 16_frameworks.
    """
    if name not in stored():
        raise BadInput(
            f"Nothing stored: expected one of {', '.join(stored())} (got {name!r}). Name one of "
            "them."
        )
    module, results = stored()[name]["needs"], stored()[name]["ranks"]
    if is_here(module):
        quiet()
        return run()
    if dist.get_world_size() != len(results):
        raise BadInput(
            f"Nothing stored: expected {len(results)} ranks (got {dist.get_world_size()}). Run "
            f"start_ranks({len(results)}), or install the frameworks: "
            "pip install 'ddp-lessons[frameworks]'."
        )
    if dist.get_rank() == 0:
        print(
            f"stored | {FRAMEWORKS[module]} is not installed here, and this came out where it is: "
            "pip install 'ddp-lessons[frameworks]'"
        )
    return results[dist.get_rank()]
