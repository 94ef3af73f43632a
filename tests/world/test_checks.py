"""
A check ends, whatever the answer does, and leaves the ranks as they were.
"""

import functools

import pytest

from ddp_lessons import start_ranks, stop_ranks
from ddp_lessons.checks.kit import Case, CaseResult, checking
from ddp_lessons.checks.kit.case_failures import wrong_end
from ddp_lessons.checks.kit.checking import run_and_judge
from ddp_lessons.checks.kit.deadline import Deadline
from ddp_lessons.checks.kit.on_rank.rank_record import AnswerCall, RankRecord
from ddp_lessons.checks.kit.task_registry import find_task
from ddp_lessons.errors import CellFailed, PrivateNameGone, WrongAnswer
from ddp_lessons.ranks.kernel.cells import run_cell
from ddp_lessons.ranks.messages.outcome import RAISED, Outcome
from ddp_lessons.trace.events import COLLECTIVE, Event

RIGHT = """
    total = tensor.clone()
    dist.reduce(total, dst=0)
    dist.broadcast(total, src=0)
    return total
"""
ANSWERS = {
    # name: (mistake, part of the message, the answer's body)
    "deadlocks": (
        "deadlock",
        "ranks 1-3 called",
        "if dist.get_rank(): dist.barrier()\n    else: dist.reduce(tensor.clone(), dst=0)",
    ),
    "waits where nobody comes": (
        "deadlock",
        "rank 0",
        "total = tensor.clone()\n    if dist.get_rank() == 0: dist.reduce(total, dst=0)\n"
        "    return total",
    ),
    "raises on one rank": (
        "raised",
        "rank 1 raised ValueError: no idea",
        "if dist.get_rank() == 1: raise ValueError('no idea')" + RIGHT,
    ),
    "has a gap left": (
        "blank",
        "the line that raises NotImplementedError is still in it",
        "total = tensor.clone()\n    dist.reduce(total, dst=0)\n"
        "    raise NotImplementedError('Task 02.1 is still blank')",
    ),
    "calls another task's gap": (
        "blank",
        "all_reduce calls another answer, which is missing: Task 01.9 is still blank.",
        "raise NotImplementedError('Task 01.9 is still blank')",
    ),
    "returns nothing": ("nothing", "returns nothing", "dist.reduce(tensor.clone(), dst=0)"),
    "returns a view": ("view", "the argument itself", "return tensor"),
    "changes its input": (
        "input-changed",
        "changes an argument in place",
        "tensor.zero_()" + RIGHT,
    ),
    "leaves a handle": (
        "unwaited",
        "may still be under way",
        "total = tensor.clone()\n    dist.reduce(total, dst=0)\n"
        "    dist.broadcast(total, src=0, async_op=True)\n    return total",
    ),
    "calls what it may not": (
        "forbidden",
        "calls all_reduce",
        "total = tensor.clone()\n    dist.all_reduce(total)\n    return total",
    ),
    "prints ten megabytes": (
        "not-everywhere",
        "[0] xxx",
        "print('x' * 10_000_000)\n    total = tensor.clone()\n    dist.reduce(total, dst=0)\n"
        "    return total",
    ),
    "keeps its buffer": (
        "kept",
        "A second call with the same arguments changes what the first one returned.",
        "import builtins\n    if not hasattr(builtins, 'kept'): builtins.kept = {}\n"
        "    total = builtins.kept.setdefault(tensor.shape, torch.empty_like(tensor))\n"
        "    total.copy_(tensor)\n"
        "    dist.reduce(total, dst=0)\n    dist.broadcast(total, src=0)\n    return total",
    ),
    "adds up in a second call": (
        "not-everywhere",
        "The fault is in a second call with equal arguments.",
        "import builtins\n    builtins.num_calls = getattr(builtins, 'num_calls', 0) + 1\n"
        "    total = tensor.clone()\n    dist.reduce(total, dst=0)\n"
        "    if builtins.num_calls % 2: dist.broadcast(total, src=0)\n"
        "    else: dist.broadcast(total.clone(), src=0)\n    return total",
    ),
    "talks through the store": (
        "store",
        "It puts keys into the group's store",
        "store = dist.distributed_c10d._get_default_store()\n"
        "    store.set(f'said by {dist.get_rank()}', '1')" + RIGHT,
    ),
    "loops for ever on one rank": (
        "late",
        "rank 1 is at line",
        "while dist.get_rank() == 1: pass" + RIGHT,
    ),
    "calls itself for ever": (
        "raised",
        "raised RecursionError",
        "return all_reduce(tensor)",
    ),
    "leaves the group": (
        "group-left",
        "no group",
        "dist.destroy_process_group()\n    return tensor",
    ),
}


def cell(body):
    """
    Return a cell that defines the answer with this body.
    """
    return (
        f"import torch\nimport torch.distributed as dist\n\ndef all_reduce(tensor):\n    {body}\n"
    )


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """
    Start four ranks for all answers.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DDP_LESSONS_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        ranks = start_ranks(4)
        yield ranks
    stop_ranks()


def check_it(ranks, source):
    """
    Run a cell, then check its answer. Return the WrongAnswer, or None if the answer is right.
    """
    run_cell(ranks, source)
    try:
        run_and_judge(find_task("02.1"), ranks)
    except WrongAnswer as error:
        return error
    return None


def assert_usable(ranks):
    """
    Assert that the ranks have their variables, and that their next collective works.
    """
    run_cell(ranks, "import torch, torch.distributed as dist\nsum_ = torch.ones(1)")
    run_cell(ranks, "dist.all_reduce(sum_)\nassert sum_.item() == 4")
    assert ranks.view["kept"] == [0, 1, 2, 3]


@pytest.mark.parametrize(("number", "is_told"), [("00.1", False), ("02.1", True)])
def test_message_says_that_nothing_was_called_where_something_may_be(number, is_told):
    """
    The message says "called: nothing" only for a task with messages: in any other task the words
    would puzzle.
    """
    seen = [RankRecord(0, [AnswerCall(before=())])]
    error = CaseResult(find_task(number), Case(1), seen, [""]).wrong("nothing", 0)
    assert ("rank 0 of 1 called: nothing" in str(error)) is is_told


def test_message_lists_a_dozen_calls_and_counts_the_rest():
    """
    The message lists a dozen calls and counts the others. A save of every rank's part makes twenty
    calls, and as a list they would hide the fault.
    """
    events = [Event(COLLECTIVE, f"call-{n}", 0, n, 0) for n in range(20)]
    seen = [RankRecord(0, [AnswerCall(before=(), events=events)])]
    error = CaseResult(find_task("02.1"), Case(1), seen, [""]).wrong("nothing", 0)
    assert "call-11, 8 more" in str(error)
    assert "call-12" not in str(error)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_deadlock_is_told_as_one_also_when_the_time_is_over(is_late):
    """
    A deadlock is reported as a deadlock, also when the time has run out: which comes first is
    chance.
    """
    error = CellFailed("Deadlock: ranks 0 and 1 wait for each other.")
    found = wrong_end(find_task("02.1"), Case(2), error, {}, is_late, ["", ""])
    assert found.mistake == "deadlock"


def test_a_private_name_that_is_gone_is_no_fault_of_the_answer():
    """
    If the course's own code lacks a private name of torch, the check says so, and gives the learner
    no hint about the answer.
    """
    outcome = Outcome(RAISED, ename="PrivateNameGone", evalue="`torch._x` is gone")
    with pytest.raises(PrivateNameGone, match=r"torch\._x"):
        wrong_end(find_task("02.1"), Case(2), CellFailed("raised"), {0: outcome}, False, ["", ""])


@pytest.mark.parametrize("name", ANSWERS)
def test_check_ends_and_leaves_the_ranks_usable(ranks, name, monkeypatch):
    """
    After every mistake the ranks are usable, because the learner tries again.
    """
    mistake, says, body = ANSWERS[name]
    if mistake == "late":  # the answer computes until its time is over
        monkeypatch.setattr(checking, "DEADLINE_S", 2.0)
    run_cell(ranks, "import torch.distributed as dist\nkept = dist.get_rank()")
    error = check_it(ranks, cell(body))
    assert (error and error.mistake) == mistake, error
    assert says in str(error)
    assert len(str(error)) < 5_000
    assert_usable(ranks)


def test_check_survives_an_answer_that_ends_its_process(ranks):
    """
    Dead ranks are replaced, and the next answer is checked as any other.
    """
    error = check_it(ranks, "import os" + cell("os._exit(3)").replace("import torch\n", "\n", 1))
    assert error.mistake == "died"
    assert check_it(ranks, cell(RIGHT.strip())) is None


def test_check_neither_takes_nor_leaves_a_mode_of_torch(ranks):
    """
    A check leaves torch's modes as they were. If an answer turned gradients off, they would be
    missing in the learner's next cell.
    """
    usual = "assert torch.is_grad_enabled() and torch.ones(1).dtype == torch.float32"
    odd = "assert not torch.is_grad_enabled() and torch.ones(1).dtype == torch.float64"
    change = "torch.set_grad_enabled(False); torch.set_default_dtype(torch.float64)"
    change_back = "torch.set_grad_enabled(True); torch.set_default_dtype(torch.float32)"
    assert check_it(ranks, cell(change + RIGHT)) is None
    run_cell(ranks, usual)
    run_cell(ranks, change)
    try:
        assert check_it(ranks, cell(usual + RIGHT)) is None
        run_cell(ranks, odd)
    finally:
        run_cell(ranks, change_back)


def test_the_time_for_which_a_case_is_judged_is_not_the_answers(ranks, monkeypatch):
    """
    The time of judging a case does not count as the answer's. Some judges train a model to compare
    with, and on a crowded machine a right answer ran out of time.
    """
    clock, judge = [0.0], checking.judging.judge_case

    def judge_for_long(case_result):
        clock[0] += 100.0
        judge(case_result)

    monkeypatch.setattr(checking, "Deadline", functools.partial(Deadline, clock=lambda: clock[0]))
    monkeypatch.setattr(checking.judging, "judge_case", judge_for_long)
    assert check_it(ranks, cell(RIGHT.strip())) is None
    assert clock[0] > 100.0
    assert not find_task("02.1").last_run[0].deadline.is_over


def test_check_refuses_what_is_not_defined(ranks):
    """
    An answer that is not defined on the ranks is refused: its cell was not run, or ran only in the
    kernel.
    """
    run_cell(ranks, "globals().pop('all_reduce', None)")
    assert check_it(ranks, "pass").mistake == "missing"


@pytest.mark.parametrize(
    "fake",
    [
        "lambda tensor, dst: dist.all_reduce(tensor)",
        "functools.wraps(real)(lambda tensor, dst: dist.all_reduce(tensor))",
        "functools.partial(dist.all_reduce)",
        "Fake()",
    ],
)
def test_check_is_not_fooled_by_a_replaced_function(ranks, fake):
    """
    A learner who replaces torch's reduce by an all-reduce has not solved the task. The check
    notices replaced functions.
    """
    run_cell(ranks, "import functools, torch.distributed as dist\nreal = dist.reduce")
    run_cell(ranks, "class Fake:\n    def __call__(self, tensor, dst): dist.all_reduce(tensor)")
    error = check_it(ranks, cell(RIGHT.strip()) + f"\ndist.reduce = {fake}\n")
    run_cell(ranks, "dist.reduce = real")
    assert error.mistake == "replaced"
    assert "not torch's own: reduce." in str(error)
    assert check_it(ranks, cell(RIGHT.strip())) is None


def test_check_is_not_fooled_by_answers_learned_by_heart(ranks):
    """
    An answer that replays earlier results is refused, because sizes and numbers are drawn anew for
    each check.
    """
    learned = """
import torch, torch.distributed as dist
if "seen" not in globals():
    seen = []

def all_reduce(tensor):
    if replay:
        return seen.pop(0)
    total = tensor.clone()
    dist.reduce(total, dst=0)
    dist.broadcast(total, src=0)
    seen.append(total.clone())
    return total
"""
    ranks.stop()
    fresh = start_ranks(4)
    assert check_it(fresh, "replay = False" + learned) is None
    assert check_it(fresh, "replay = True" + learned) is not None
    fresh.stop()
