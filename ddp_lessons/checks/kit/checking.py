"""
The kernel's side of a check: run the cases of a task on the ranks, judge them, print the ok line.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from concurrent.futures import wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ddp_lessons.checks.kit import judging
from ddp_lessons.checks.kit.case_failures import simulate_case, wrong_end
from ddp_lessons.checks.kit.deadline import Deadline
from ddp_lessons.checks.kit.on_rank import case_runner
from ddp_lessons.checks.kit.on_rank.case_environment import make_groups
from ddp_lessons.errors import CellStopped, RanksGone, StartFailed, WrongAnswer
from ddp_lessons.progress import notes
from ddp_lessons.ranks.kernel.cells import CellRun
from ddp_lessons.ranks.kernel.recovery import ensure_ready
from ddp_lessons.ranks.kernel.session import current_ranks
from ddp_lessons.ranks.system.load_aware_timeout import LoadAwareTimeout

if TYPE_CHECKING:
    from ddp_lessons.checks.kit.judging import CaseResult
    from ddp_lessons.checks.kit.tasks import Task
    from ddp_lessons.ranks.kernel.ranks import Ranks

DEADLINE_S = 6.0
"""
Seconds that all cases of one check may take together, without those in which no core was free (see
`Deadline`).
"""
_IMPORT_WITHIN_S = 30.0  # the first call of `preflight` imports the task's module
_READY_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.1


@dataclass
class CheckRun:
    """
    One check of an answer.

    Args:
        task: The Task.
        ranks: The Ranks.
        folder: Path of a folder that all cases share.
        deadline: The Deadline of all cases together.
        own_orders: Whether sets of texts have a different order on each rank.
        case_result: A list with a CaseResult for each case that all of its ranks finished, in
            order.
    """

    task: Task
    ranks: Ranks
    folder: str
    deadline: Deadline
    own_orders: bool = False
    case_result: list[CaseResult] = field(default_factory=list)


def check(task: Task, ranks: Ranks | None = None) -> None:
    """
    Check an answer and print the ok line, or raise an error that says what is wrong.

    Args:
        task: The Task.
        ranks: The Ranks. Default: the running ones.

    Raises:
        WrongAnswer: The answer is not right yet.
        CellStopped: The user pressed Stop.
        RanksGone: No ranks are running.
    """
    task.last_run.clear()
    try:
        said = run_and_judge(task, ranks or current_ranks())
    except WrongAnswer as error:
        notes.note_check(task.number, passed=False, mistake=error.mistake)
        raise
    notes.note_check(task.number, passed=True, version=task.changed_in)
    print(f"ok: {task.number} {task.name}, {said}")


def run_and_judge(task: Task, ranks: Ranks) -> str:
    """
    Run an answer in new cases and return the end of its ok line.

    Args:
        task: The Task.
        ranks: The Ranks.

    Raises:
        WrongAnswer: The answer is not right yet.
    """
    ensure_ready(ranks)
    _ = ranks.store_folder  # raises here if there is none, before anything has changed
    cases = task.new_cases(len(ranks))
    preflights = _ask(ranks, case_runner.preflight, task.module, task.name)
    judging.judge_preflights(task, preflights)
    start = Deadline(_READY_WITHIN_S, lambda: _processes_of(ranks))
    if task.in_group:
        sizes = {case.world_size for case in cases if not case.is_simulated}
        sizes -= {len(ranks), *preflights[0]["sizes"]}
        if sizes:
            _prepare(ranks, start, make_groups, sorted(sizes))
        if task.warm_up is not None:
            _prepare(ranks, start, task.warm_up)
    run = _run_all(task, ranks, start, cases)
    if any(seen.num_orders for case_result in run.case_result for seen in case_result.seen):
        try:
            on_ranks = [case for case in cases if not case.is_simulated]
            _run_all(task, ranks, start, on_ranks, own_orders=True)
        except WrongAnswer as error:
            raise judging.wrong_by_order(task, error) from None
    task.last_run[:] = [run]
    return task.ok(run.case_result) if callable(task.ok) else task.ok


def _processes_of(ranks):
    # The kernel counts, too: if it gets no core, it takes longer to find that ranks wait for ever.
    return [os.getpid(), *ranks.supervisor.pids.values()]


def _run_all(task, ranks, start, cases, own_orders=False):
    folder = tempfile.mkdtemp(prefix="check-", dir=ranks.store_folder)
    if not task.in_group:
        # Leave before the clock starts: the group's threads end, and their waits leave the sums.
        ranks.leave()
    run = CheckRun(task, ranks, folder, start.anew(DEADLINE_S + task.extra_time_s), own_orders)
    task.last_run[:] = [run]
    try:
        for case in cases:
            case_result = _run_case(run, case)
            if case_result is not None:
                run.case_result.append(case_result)
                with run.deadline.paused():  # a judge may train a model to compare with
                    judging.judge_case(case_result)
    except WrongAnswer as error:
        if task.is_left_under_way(error.mistake) and task.in_group:
            # A dropped handle may close a connection, and a late message may meet a later call.
            ranks.join()
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if not task.in_group:
            ranks.join()
    return run


def _prepare(ranks, start, function, *args):
    source = _call(function, *args)
    error, *_ = _run_cell(ranks, range(len(ranks)), source, start.anew(_READY_WITHIN_S))
    if error is not None:
        raise error


def _run_case(run, case):
    """
    Run one case and return its CaseResult. Raise a WrongAnswer if the case did not end.

    Return None for a simulated case whose answer sends from a thread: such an answer cannot be
    simulated, and the case is not judged.
    """
    task, members = run.task, range(1 if case.is_simulated else case.world_size)
    told = (case.world_size, case.data, case.seed, case.is_simulated)
    source = _call(case_runner.run_case, task.module, task.number, told, run.folder, run.own_orders)
    error, outcomes, is_late = _run_cell(run.ranks, members, source, run.deadline)
    if run.ranks.dead:  # the cell does not replace a dead rank itself
        run.ranks.recover()
    kept = [case_runner.opened(outcomes[rank].enclosed) for rank in members]
    if error is not None:
        printed = [text for _, text, _ in kept]
        raise wrong_end(task, case, error, outcomes, is_late, printed)
    if task.in_group and not all(is_in_group for *_, is_in_group in kept):
        run.ranks.join()
        what = "After the call, at least one rank is in no group."
        raise judging.wrong(task, "group-left", [f"Tried with {case}.", what])
    seen = [found for found, *_ in kept]
    if case.is_simulated:
        return simulate_case(task, case, *seen[0]) if seen[0] else None
    return judging.CaseResult(task, case, seen, [text for _, text, _ in kept])


def _call(function, *args):
    # The source is one expression, so that it leaves no name in the learner's namespace.
    module = f"__import__({function.__module__!r}, fromlist=['{function.__name__}'])"
    return f"{module}.{function.__name__}(*{args!r})"


def _run_cell(ranks, members, source, deadline):
    cell = CellRun(ranks, source, members)
    late = threading.Event()

    def stop():
        late.set()
        cell.stop()

    watch = deadline.watch(stop)
    try:
        error = cell.run()
    finally:
        watch.set()
    if isinstance(error, RanksGone) or (isinstance(error, CellStopped) and not late.is_set()):
        raise error
    return error, cell.outcomes, late.is_set()


def _ask(ranks, function, *args):
    everyone = range(len(ranks))
    futures = [ranks.client.direct_view(rank).apply_async(function, *args) for rank in everyone]
    patience = LoadAwareTimeout(_IMPORT_WITHIN_S, lambda: ranks.control.pids(everyone))
    while (silent := wait(futures, timeout=_LOOK_EVERY_S).not_done) and not patience.is_over:
        pass
    if silent:
        raise StartFailed(
            f"Ranks did not answer within {_IMPORT_WITHIN_S:.0f} s: all must "
            f"({len(futures) - len(silent)} of {len(futures)} did). Restart them with "
            "ranks.stop() and start_ranks()."
        )
    return [future.result() for future in futures]
