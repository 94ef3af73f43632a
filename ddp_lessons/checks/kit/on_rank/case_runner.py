"""
The rank's side of a check: set up a case, run the learner's answer in it, and record what it did.

Legend: a case of n ranks runs on ranks 0 to n - 1, and their subgroup is the default group during
the case. So an answer calls `dist.get_rank()` and `dist.all_reduce(tensor)` as in a world of n.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import inspect
import io
import linecache
import os
import pickle
import types
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from ddp_lessons.checks.kit.cases import Case
from ddp_lessons.checks.kit.on_rank.case_environment import (
    find_group,
    fresh_store,
    names_of_groups,
    random_states,
    smaller_default_group,
    usual_modes,
)
from ddp_lessons.checks.kit.on_rank.hash_order import noting_orders
from ddp_lessons.checks.kit.on_rank.patching import restore_patched
from ddp_lessons.checks.kit.on_rank.rank_record import RankContext, RankRecord
from ddp_lessons.checks.kit.on_rank.simulated_world import simulate_world
from ddp_lessons.checks.kit.on_rank.snapshots import pickled, plain
from ddp_lessons.ranks.messages.outcome import RAISED, Outcome
from ddp_lessons.ranks.rank.rank_agent import current_agent
from ddp_lessons.ranks.rank.tracebacks import line_of_error, text_of_error
from ddp_lessons.trace import trace

MAX_PRINTED = 1000
_TORCH = os.path.join(os.path.dirname(torch.__file__), "")


class _Bounded(io.TextIOBase):
    """
    A text stream that keeps only the first MAX_PRINTED characters.
    """

    def __init__(self):
        self.text = ""

    def writable(self):
        return True

    def write(self, text):
        if len(self.text) < MAX_PRINTED:
            self.text += str(text)[: MAX_PRINTED - len(self.text)]
        return len(text)


@dataclass
class Kept:
    """
    A rank's record of one case, until the cell ends and the record is sent with its reply.

    Args:
        printed: The beginning of what the answer printed.
        pickled: The pickled RankRecord, or for a simulated case the pickled value of
            `_simulate_case`. None if the answer did not end.
    """

    printed: _Bounded = field(default_factory=_Bounded)
    pickled: bytes | None = None

    def enclosed(self) -> tuple[str | None, str, bool]:
        """
        Return the record as plain data, for `opened`.
        """
        restore_patched()
        pickled = self.pickled and base64.b64encode(self.pickled).decode()
        return pickled, self.printed.text, dist.is_initialized()  # type: ignore[return-value]


def opened(enclosed: tuple[str | None, str, bool] | None) -> tuple[Any, str, bool]:
    """
    Unpack in the kernel what a rank enclosed in its reply.

    Args:
        enclosed: The value of `Kept.enclosed`; None if the rank died.

    Returns:
        tuple: The unpickled object or None; the printed text; whether the rank was in a group.
    """
    pickled, printed, is_in_group = enclosed or (None, "", True)
    return pickled and pickle.loads(base64.b64decode(pickled)), printed, is_in_group


def preflight(module: str, name: str) -> dict[str, Any]:
    """
    Return whether an answer can be run on this rank.

    The kernel calls this on all ranks first, so that no rank runs alone.

    Returns:
        dict: `defined`: whether the answer is there; `replaced`: names in torch.distributed that
        are not torch's own; `sizes`: the world sizes for which this rank has a group.
    """
    importlib.import_module(module)
    restore_patched()
    return {
        "defined": callable(current_agent().shell.user_ns.get(name)),
        "replaced": replaced_names(),
        "sizes": [size for size in range(1, 65) if find_group(size) is not None],
    }


def replaced_names() -> list[str]:
    """
    Return the names in torch.distributed that hold something other than torch's own functions.
    """
    return sorted(
        name
        for module in (dist, dist.distributed_c10d)
        for name in (*dist.distributed_c10d.__all__, "new_group", "get_rank", "get_world_size")
        if not _is_torchs(getattr(module, name, None))
    )


def _is_torchs(thing):
    # Judge by the code that would run: a `__wrapped__` or a copied name cannot change it.
    if isinstance(thing, types.FunctionType):
        if thing.__code__.co_filename == contextlib.__file__:  # a context manager of torch's
            thing = inspect.unwrap(thing)
        return thing.__code__.co_filename.startswith(_TORCH)
    is_instance = type(thing).__module__.partition(".")[0] == "torch"
    return is_instance or not callable(thing) or thing.__module__.partition(".")[0] == "torch"


def run_case(
    module: str,
    number: str,
    case: tuple[int, dict[str, Any], int | None, bool],
    folder: str,
    has_own_orders: bool = False,
) -> None:
    """
    Run an answer in one case, and send the record along with the cell's reply (see `Kept`).

    Collective: every rank of the case must call it.

    Args:
        module: Name of the module that defines the task.
        number: The task's number.
        case: A tuple (world_size, data, seed, is_simulated), the arguments of `Case`.
        folder: Path of a folder for all cases.
        has_own_orders: Whether sets of texts have a different order on each rank.
    """
    agent, kept = current_agent(), Kept()
    agent.enclose(kept.enclosed)
    # A trace holds the handles that were not waited for. This trace stays open until all ranks have
    # ended: a handle dropped earlier may cancel a message that another rank waits for.
    watching = ExitStack()
    agent.before_next_run(watching.close)
    watching.enter_context(trace())
    found = vars(importlib.import_module(module)).values()
    task = next(task for task in found if getattr(task, "number", None) == number)
    answer = agent.shell.user_ns[task.name]
    file = file_of(answer)
    if file is not None:
        agent.tell_lines_of(file, "".join(linecache.getlines(file)))
    context = RankContext(Case(*case), agent.rank, folder, task.twice, task.must_join_threads)
    if context.case.is_simulated:
        with usual_modes():
            kept.pickled = pickled(_simulate_case(task, answer, context.case, folder))
        return
    with random_states(context), redirect_stdout(kept.printed), redirect_stderr(kept.printed):
        with (
            smaller_default_group(context.world_size if task.in_group else None),
            fresh_store(folder),
            names_of_groups(context),
            usual_modes(),
            noting_orders(context, agent.shell.user_ns, has_own_orders) as orders,
        ):
            found = plain(task.act(context, answer))
        seen = RankRecord(context.rank, context.calls, found, num_orders=orders.num_asked)
        kept.pickled = pickled(seen)


def _simulate_case(task, answer, case, folder):
    printed = {}

    def play_as(rank):
        context, printed[rank] = (
            RankContext(case, rank, folder, task.twice, task.must_join_threads),
            _Bounded(),
        )
        with random_states(context), redirect_stdout(printed[rank]), redirect_stderr(printed[rank]):
            return RankRecord(rank, context.calls, plain(task.act(context, answer)))

    case_result = simulate_world(case.world_size, play_as)
    if case_result is None:
        return None
    seen, stops = case_result
    file = file_of(answer)
    told = {
        rank: _outcome(why, file) if isinstance(why, Exception) else str(why)
        for rank, why in stops.items()
    }
    return seen, [printed[rank].text for rank in sorted(printed)], told


def _outcome(error, file):
    line = line_of_error(error, file)
    code = linecache.getline(file, line).strip() if line else ""
    return Outcome(RAISED, type(error).__name__, text_of_error(error), line, code)


def file_of(answer: Callable[..., object]) -> str | None:
    """
    Return the name under which the code of a function or class was compiled, or None.
    """
    members = vars(answer).values() if inspect.isclass(answer) else [answer]
    for member in members:
        code = getattr(inspect.unwrap(member), "__code__", None) if callable(member) else None
        if code is not None:
            return code.co_filename
    return None
