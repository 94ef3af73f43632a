"""
Hints about code that ran on the wrong side: in the notebook's own process instead of on the ranks,
or the other way round.
"""

import re
from collections.abc import Callable, Collection, Mapping

from ddp_lessons.ranks.messages.outcome import RAISED, Outcome

_SET_BY_LESSONS = {"rank", "world_size", "device"}
_NOT_DEFINED = re.compile(r"name '(\w+)' is not defined")
_TWICE = "initialize the default process group twice"
_NO_GROUP = "Default process group has not been initialized"


def hint_in_the_notebook(error: BaseException, rank_has: Callable[[str], bool] | None) -> str:
    """
    Return a hint about an error of a cell that ran in the notebook's own process, or "".

    Args:
        error: The exception.
        rank_has: Function from a name to whether ranks have a variable of that name; None if no
            ranks are running.
    """
    start = "" if rank_has else "run start_ranks() first, then "
    name = error.name if isinstance(error, NameError) else None
    is_there = rank_has or _SET_BY_LESSONS.__contains__
    if name and is_there(name):
        return f"`{name}` lives on the ranks: {start}begin the cell with %%px."
    if _NO_GROUP in str(error):
        return (
            f"The ranks are in a group, and the notebook is not: {start}begin the cell with %%px."
        )
    return ""


def hints_on_ranks(outcomes: Mapping[int, Outcome], known_names: Collection[str]) -> list[str]:
    """
    Return hints, one a line, about names that only the notebook has and about joining twice.

    Args:
        outcomes: For each rank of a cell its Outcome.
        known_names: Names that the notebook defines.

    Returns:
        list[str]: The hints.
    """
    raised = [one.evalue for one in outcomes.values() if one.kind == RAISED]
    missed = {name for text in raised for name in _NOT_DEFINED.findall(text)}
    again = [
        "start_ranks has joined the ranks to a group already: leave this call out, or start them "
        "with start_ranks(join=False)."
    ]
    return (again if any(_TWICE in text for text in raised) else []) + [
        f"`{name}` lives in the notebook, and ranks have variables of their own: define it in a "
        "cell that begins with %%px."
        for name in sorted(missed & set(known_names))
    ]
