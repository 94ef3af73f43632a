"""
What a check does on a rank: set up a case, run the learner's answer in it, keep what was seen.

Legend: a case of n ranks runs on ranks 0 to n - 1, and their subgroup is the default group as long
as it lasts. So an answer calls `dist.get_rank()` and `dist.all_reduce(tensor)` as in a world of n.
"""

import contextlib
import importlib
import inspect
import io
import linecache
import pickle
import random
import types
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from ddp_lessons.checks.kit.plain import plain, share_memory, tensors_in
from ddp_lessons.checks.kit.tasks import Case
from ddp_lessons.process_group import rank_device
from ddp_lessons.ranks.guard import current_guard
from ddp_lessons.trace import trace

MAX_PRINTED = 1000
_GROUP = "ddp-lessons check of {} ranks"
_MISSING = object()
_watching = ExitStack()
_kept: list = []  # of the last play, until the kernel takes it: what was printed, a pickled Seen


@dataclass
class Call:
    """
    Hold one call of the answer, as one rank saw it.

    Args:
        before: Copies of the arguments before the call: the positional, then the named ones.
        after: Copies of the same arguments after it.
        result: A copy of what came back.
        shares_input: Whether what came back is an argument, or lies in the memory of one.
        events: The trace of the call, a list of Event.
    """

    before: tuple
    after: tuple = ()
    result: object = None
    shares_input: bool = False
    events: list = field(default_factory=list)


@dataclass
class Seen:
    """
    Hold what one rank saw in one case.

    Args:
        rank: The rank.
        calls: A Call for each `here.call`.
        kept: A copy of what the task's `act` returned.
    """

    rank: int
    calls: list
    kept: object = None


class Here:
    """
    What a rank knows in a case; `act` of a task gets it.

    Attributes:
        case: The Case; `here["length"]` is one of its data.
        rank: This rank.
        world_size: Number of ranks of the case.
        device: The torch.device of this rank.
        folder: A folder that all cases of this check share; it is removed afterwards.
        calls: A Call for each call of the answer so far.
    """

    def __init__(self, case, rank, folder):
        self.case = case
        self.rank = rank
        self.world_size = case.world_size
        self.device = rank_device()
        self.folder = Path(folder)
        self.calls = []

    def __getitem__(self, name):
        return self.case[name]

    def call(self, answer, *args, watch=(), **kwargs):
        """
        Call the answer and keep what it did: its trace, its result, what became of its arguments.

        Args:
            answer: What the learner has defined, or made of it.
            args: Its arguments.
            watch: Models whose gradients the trace records as they become ready.
            kwargs: Its named arguments.

        Returns:
            What it returned.
        """
        given = (*args, *kwargs.values())
        seen = Call(before=plain(given))
        with trace(*watch) as events:
            result = answer(*args, **kwargs)
        seen.events = list(events)
        seen.after = plain(given)
        seen.result = plain(result)
        seen.shares_input = share_memory(given, result) or any(
            result is one for one in tensors_in(given)
        )
        self.calls.append(seen)
        return result


def look(module, name):
    """
    Say whether an answer can be run here. The kernel asks it first, so that no rank runs alone.

    Returns:
        dict: `defined`; `replaced`: names in torch.distributed that are not torch's own; `sizes`:
        the numbers of ranks for which this rank has a group.
    """
    importlib.import_module(module)
    return {
        "defined": callable(current_guard().shell.user_ns.get(name)),
        "replaced": replaced_names(),
        "sizes": [size for size in range(1, 65) if _find_group(size) is not None],
    }


def replaced_names():
    """
    Return what of torch.distributed was put in place of torch's own functions.
    """
    return sorted(
        name
        for module in (dist, dist.distributed_c10d)
        for name in (*dist.distributed_c10d.__all__, "new_group", "get_rank", "get_world_size")
        if not _is_torchs(getattr(module, name, None))
    )


def _is_torchs(thing):
    # By the code that would run, which no `__wrapped__` and no borrowed name can hide.
    if isinstance(thing, types.FunctionType):
        if thing.__code__.co_filename == contextlib.__file__:  # torch has a context manager there
            thing = inspect.unwrap(thing)
        return Path(torch.__file__).parent in Path(thing.__code__.co_filename).parents
    is_instance = type(thing).__module__.partition(".")[0] == "torch"
    return is_instance or not callable(thing) or thing.__module__.partition(".")[0] == "torch"


def make_groups(sizes):
    """
    Make a group of ranks 0 to n - 1 for each n. Collective: every rank must call it.
    """
    for size in sizes:
        dist.new_group(list(range(size)), group_desc=_GROUP.format(size))


def play(module, number, case, folder):
    """
    Run an answer in one case, and keep what was seen for `take`.

    Collective: every rank of the case must call it.

    Args:
        module: The module that defines the task.
        number: The task's number.
        case: (world_size, data, seed).
        folder: A folder for all cases.
    """
    _kept.clear()
    _watch_on()
    task = next(
        value
        for value in vars(importlib.import_module(module)).values()
        if getattr(value, "number", None) == number
    )
    guard = current_guard()
    answer = guard.shell.user_ns[task.name]
    file = file_of(answer)
    if file is not None:
        guard.tell_lines_of(file, "".join(linecache.getlines(file)))
    here = Here(Case(*case), guard.rank, folder)
    printed = _Bounded()
    _kept.append(printed)
    with _random_states(here), redirect_stdout(printed), redirect_stderr(printed):
        with _default_group(here.world_size if task.in_group else None):
            kept = task.act(here, answer)
        _kept.append(pickle.dumps(Seen(here.rank, here.calls, plain(kept))))


def take():
    """
    Give what was kept of the last `play`, once.

    Returns:
        tuple: The pickled Seen, or None; what was printed; and whether the rank is in a group.
    """
    printed, seen = ([*_kept, None, None])[:2]
    _kept.clear()
    _watching.close()
    return seen, getattr(printed, "text", ""), dist.is_initialized()


def _watch_on():
    # A trace holds the handles that nobody waited for. This one is open until all ranks are
    # through: a handle dropped earlier may take a message with it that another rank waits for.
    _watching.close()
    _watching.enter_context(trace())


def file_of(answer):
    """
    Return the name under which the code of a function or class was compiled, or None.
    """
    members = vars(answer).values() if inspect.isclass(answer) else [answer]
    for member in members:
        code = getattr(inspect.unwrap(member), "__code__", None) if callable(member) else None
        if code is not None:
            return code.co_filename
    return None


def _find_group(size):
    # By its description, so that nothing here keeps a group alive after the ranks have left it.
    if not dist.is_initialized():
        return None
    for group in list(dist.distributed_c10d._world.pg_map):
        if group.group_desc == _GROUP.format(size):
            return group
    return None


@contextmanager
def _default_group(size):
    c10d = dist.distributed_c10d
    whole = c10d._world.default_pg
    if size is None or size == whole.size():
        yield
        return
    c10d._update_default_pg(_find_group(size))
    try:
        yield
    finally:
        # What the answer destroyed, it destroyed for all.
        c10d._update_default_pg(whole if whole in c10d._world.pg_map else None)


@contextmanager
def _random_states(here):
    # Every rank draws its own numbers, and the learner's go on afterwards as if nothing had been.
    python, cpu = random.getstate(), torch.get_rng_state()
    random.seed(f"{here.case.seed} {here.rank}")
    torch.manual_seed(here.case.seed * 64 + here.rank)
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(cpu)


class _Bounded(io.TextIOBase):
    """
    Take all that is printed and keep the beginning.
    """

    def __init__(self):
        self.text = ""

    def writable(self):
        return True

    def write(self, text):
        if len(self.text) < MAX_PRINTED:
            self.text += str(text)[: MAX_PRINTED - len(self.text)]
        return len(text)
