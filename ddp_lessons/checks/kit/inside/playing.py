"""
What a check does on a rank: set up a case, run the learner's answer in it, keep what was seen.

Legend: a case of n ranks runs on ranks 0 to n - 1, and their subgroup is the default group as long
as it lasts. So an answer calls `dist.get_rank()` and `dist.all_reduce(tensor)` as in a world of n.
"""

import contextlib
import copy
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

from ddp_lessons.checks.kit.cases import Case
from ddp_lessons.checks.kit.lent import Lent
from ddp_lessons.checks.kit.on_paper import play_on_paper
from ddp_lessons.checks.kit.plain import equal, plain, share_memory, tensors_in
from ddp_lessons.checks.kit.replacing import give_back
from ddp_lessons.process_group import rank_device
from ddp_lessons.ranks.diagnosis.report import RAISED, Outcome
from ddp_lessons.ranks.rank.guard import current_guard
from ddp_lessons.ranks.rank.where import line_of_error, text_of_error
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
        num_keys: How many keys it has put into the group's store, less those that it took out.
        changes: What of the models and optimizers it was lent is not as it was: see `lent`.
        again: The second call with the same arguments, of a task that is called twice.
        kept_room: Of a second call: whether its result lies in the memory of the first one's, or
            the first one's has changed meanwhile.
    """

    before: tuple
    after: tuple = ()
    result: object = None
    shares_input: bool = False
    events: list = field(default_factory=list)
    num_keys: int = 0
    changes: dict = field(default_factory=dict)
    again: object = None
    kept_room: bool = False


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
        twice: Whether each call is made once more with the same arguments.
    """

    def __init__(self, case, rank, folder, twice=False):
        self.case = case
        self.twice = twice
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
        spare = copy.deepcopy((args, kwargs)) if self.twice else (args, kwargs)
        was_in_group = dist.is_initialized()
        result, seen = self._call(answer, args, kwargs, watch)
        if self.twice and dist.is_initialized() == was_in_group:
            if not equal(seen.before, seen.after):  # it is refused for that; ranks stay in step
                args, kwargs = spare
            second, seen.again = self._call(answer, args, kwargs, watch)
            seen.again.kept_room = share_memory(result, second) or not equal(
                plain(result), seen.result
            )
        self.calls.append(seen)
        return result

    def _call(self, answer, args, kwargs, watch):
        given = (*args, *kwargs.values())
        lent, was_in_group, num_keys = Lent(given), dist.is_initialized(), _num_keys()
        seen = Call(before=plain(given))
        with trace(*watch) as events:
            result = answer(*args, **kwargs)
        seen.events = list(events)
        if was_in_group:  # a new group's store may be a file that the answer has removed
            seen.num_keys = _num_keys() - num_keys
        seen.changes = lent.changes()
        seen.after = plain(given)
        seen.result = plain(result)
        seen.shares_input = share_memory(given, result) or any(
            result is one for one in tensors_in(given)
        )
        return result, seen


def _num_keys():
    # Rank 0 alone counts what all have put there: others may be in the middle of it.
    if not dist.is_initialized() or dist.get_rank() != 0:
        return 0
    return dist.distributed_c10d._get_default_store().num_keys()


def look(module, name):
    """
    Say whether an answer can be run here. The kernel asks it first, so that no rank runs alone.

    Returns:
        dict: `defined`; `replaced`: names in torch.distributed that are not torch's own; `sizes`:
        the numbers of ranks for which this rank has a group.
    """
    importlib.import_module(module)
    give_back()
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
        case: (world_size, data, seed, on_paper).
        folder: A folder for all cases.
    """
    _kept.clear()
    _watch_on()
    found = vars(importlib.import_module(module)).values()
    task = next(task for task in found if getattr(task, "number", None) == number)
    guard = current_guard()
    answer = guard.shell.user_ns[task.name]
    file = file_of(answer)
    if file is not None:
        guard.tell_lines_of(file, "".join(linecache.getlines(file)))
    here = Here(Case(*case), guard.rank, folder, task.twice)
    printed = _Bounded()
    _kept.append(printed)
    if here.case.on_paper:
        _kept.append(pickle.dumps(_play_on_paper(task, answer, here.case, folder)))
        return
    with _random_states(here), redirect_stdout(printed), redirect_stderr(printed):
        with (
            _default_group(here.world_size if task.in_group else None),
            _fresh_store(folder),
            _names_of_groups(here),
        ):
            kept = task.act(here, answer)
        _kept.append(pickle.dumps(Seen(here.rank, here.calls, plain(kept))))


def _play_on_paper(task, answer, case, folder):
    printed = {}

    def play_as(rank):
        here, printed[rank] = Here(case, rank, folder, task.twice), _Bounded()
        with _random_states(here), redirect_stdout(printed[rank]), redirect_stderr(printed[rank]):
            return Seen(rank, here.calls, plain(task.act(here, answer)))

    played = play_on_paper(case.world_size, play_as)
    if played is None:
        return None
    seen, stops = played
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


def take():
    """
    Give what was kept of the last `play`, once.

    Returns:
        tuple: The pickled Seen, or None; what was printed; and whether the rank is in a group.
    """
    printed, seen = ([*_kept, None, None])[:2]
    _kept.clear()
    give_back()
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
def _fresh_store(name):
    # A key that an earlier check has left would hide that an answer puts it there again.
    if not dist.is_initialized():
        yield
        return
    c10d = dist.distributed_c10d
    stores, group = c10d._world.pg_map, c10d._get_default_group()
    backend, store = stores[group]
    stores[group] = backend, dist.PrefixStore(name, store)
    try:
        yield
    finally:
        if group in stores:
            stores[group] = backend, store


@contextmanager
def _names_of_groups(here):
    # torch names a new group by how many its process has made: ranks that were in other cases than
    # this one would wait for groups of different names.
    if not dist.is_initialized():
        yield
        return
    world = dist.distributed_c10d._world
    count = world.group_count
    world.group_count = random.Random(f"{here.folder} {here.case!r}").getrandbits(48)
    try:
        yield
    finally:
        if dist.is_initialized():  # or it counts from 0, as it does on ranks that leave later
            world.group_count = count


@contextmanager
def _random_states(here):
    # Every rank draws its own numbers, and the learner's go on afterwards as if nothing had been.
    python, cpu = random.getstate(), torch.get_rng_state()
    gpus = [here.device] if here.device.type == "cuda" else []
    on_gpus = [torch.cuda.get_rng_state(gpu) for gpu in gpus]
    random.seed(f"{here.case.seed} {here.rank}")
    torch.manual_seed(here.case.seed * 64 + here.rank)
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(cpu)
        for gpu, state in zip(gpus, on_gpus, strict=True):
            torch.cuda.set_rng_state(state, gpu)


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
