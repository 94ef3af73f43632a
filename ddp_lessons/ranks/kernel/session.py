"""
The current ranks of a notebook, of which there is one set at most: start, return and stop them.
"""

from __future__ import annotations

import atexit
import sys
from typing import TYPE_CHECKING

from ddp_lessons.errors import BadInput, RanksGone, StartStopped
from ddp_lessons.ranks.kernel.launchers.registry import RANK_LAUNCHERS
from ddp_lessons.ranks.system import clocks, version_check
from ddp_lessons.ranks.system.processes import can_fork

if TYPE_CHECKING:
    from ddp_lessons.ranks.kernel.ranks import Ranks

_current: Ranks | None = None


def start_ranks(
    n: int | None = None,
    *,
    device: str = "auto",
    launcher: str = "auto",
    join: bool = True,
    timeout_s: float = clocks.START_S,
) -> Ranks:
    """
    Start ranks that `%%px` reaches, joined to one process group, and print what was chosen.

    A second call with the same arguments returns the running ranks. A call with other arguments
    ends them and starts new ones.

    Args:
        n: Number of ranks. Default: every GPU, or 4 ranks on the CPU.
        device: "auto", "cpu" or "cuda".
        launcher: "auto", "fork" (import torch once, then fork), "spawn" (a fresh interpreter
            each), or one of ipyparallel's: "local", "slurm", "ssh", "mpi".
        join: Whether to join all ranks to the default process group. If not, a lesson does that.
        timeout_s: Seconds to wait for the ranks before giving up.

    Returns:
        Ranks: The running ranks.

    Raises:
        BadInput: An argument is wrong.
        StartFailed: The ranks could not be started. Nothing is left running.
        StartStopped: Stop was pressed meanwhile. Nothing is left running.
    """
    start_args = (n, device, launcher, join)
    _answer_px()
    _check_launcher(launcher)
    if said := version_check.news():
        print(said)
    if _current is not None and _current.alive and _current.start_args == start_args:
        if _current.dead or not _current.is_consistent or _current.has_left_its_group():
            print("\n".join(_current.recover().sentences()))
        print(_current)
        return _current
    try:
        return _start_anew(start_args, timeout_s)
    except KeyboardInterrupt:
        raise StartStopped(
            "Stop was pressed before the ranks had started. Run this cell again to start them."
        ) from None


def _start_anew(start_args: tuple[int | None, str, str, bool], timeout_s: float) -> Ranks:
    global _current
    from ddp_lessons.ranks.kernel.bootstrap import check_early

    n, device, *_ = start_args
    check_early(n, device, _current)
    if _current is not None:
        if _current.alive:
            print(
                f"Other ranks were asked for: {len(_current)} ranks end, their variables with them."
            )
        elif _current.parked_after_min is not None:
            print(f"{_current.parked_after_min:g} min without a cell had ended the ranks before.")
        stop_ranks()
    if said := version_check.difference():
        print(said)
    _current = _start(start_args, timeout_s)
    try:
        _current.activate()
        print(_current)
    except BaseException:  # such as Stop: the caller will never get these ranks
        stop_ranks()
        raise
    return _current


def _start(start_args: tuple[int | None, str, str, bool], timeout_s: float) -> Ranks:
    from ddp_lessons.ranks.kernel.bootstrap import starting

    n, device, launcher, join = start_args
    with starting(launcher, timeout_s) as begun:
        # Import this while the supervisor and the controller import their libraries.
        from ddp_lessons.ranks.kernel.ranks import Ranks

        ranks = Ranks(start_args, begun.connect(n, device))
        begun.undo.callback(ranks.stop)
        ranks.engines.launch(timeout_s)
        if join:
            ranks.join()
    return ranks


def current_ranks() -> Ranks:
    """
    Return the running ranks.

    Raises:
        RanksGone: No ranks are running.
    """
    if _current is not None and _current.parked_after_min is not None:
        from ddp_lessons.ranks.kernel.recovery import ranks_are_gone

        raise ranks_are_gone(_current)
    if _current is None or not _current.alive:
        raise RanksGone("No ranks are running: start some first (got none). Run start_ranks().")
    return _current


def stop_ranks() -> None:
    """
    End the current ranks, if there are any.
    """
    global _current
    if _current is not None:
        ranks, _current = _current, None
        ranks.stop()


atexit.register(stop_ranks)


def _answer_px():
    # Before the first start, and after a refused one, `%%px` says that no ranks are running, and
    # what to do.
    if "IPython" not in sys.modules:
        return
    shell = sys.modules["IPython"].get_ipython()
    if shell is not None and shell.find_cell_magic("px") is None:
        for kind in ("line", "cell"):
            shell.register_magic_function(lambda *_: current_ranks(), kind, "px")
        if not shell.custom_exceptions:
            shell.set_custom_exc((NameError, ValueError, RuntimeError), _show_with_a_hint)


def _show_with_a_hint(shell, kind, error, traceback, tb_offset=None):
    from ddp_lessons.ranks.diagnosis.wrong_side_hints import hint_in_the_notebook

    is_up = _current is not None and _current.alive and _current.is_consistent and not _current.dead
    if hint := hint_in_the_notebook(error, _current.has_variable if is_up else None):
        error.add_note(hint)
    shell.showtraceback((kind, error, traceback), tb_offset=tb_offset)


def _check_launcher(launcher):
    if launcher not in RANK_LAUNCHERS:
        names = ", ".join(f'"{name}"' for name in RANK_LAUNCHERS)
        next_step = "Leave launcher out to have one chosen."
        if launcher == "kubernetes":  # ipyparallel has no launcher for it; pods run scripts
            next_step = '"ddp-lessons script NOTEBOOK --kubernetes" makes a job of tagged cells.'
        raise BadInput(f"Unknown launcher: expected one of {names} (got {launcher!r}). {next_step}")
    if RANK_LAUNCHERS[launcher].must_fork and not can_fork()[0]:
        fault = f'launcher="{launcher}" cannot be used: {can_fork()[1]}'
        raise BadInput(f'{fault}. Use launcher="spawn".')


_answer_px()
