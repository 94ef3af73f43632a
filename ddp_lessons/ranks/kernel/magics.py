"""
The magics `%%px` and `%px`: names and arguments are ipyparallel's, the run of a cell is ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipyparallel.client.asyncresult import AsyncResult
from ipyparallel.client.magics import ParallelMagics
from IPython.core.error import UsageError
from IPython.core.magic import no_var_expand

from ddp_lessons.ranks.kernel.cells import CellRun, run_cell
from ddp_lessons.ranks.kernel.recovery import ensure_ready

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from ddp_lessons.ranks.kernel.ranks import Ranks


class RankMagics(ParallelMagics):
    """
    ipyparallel's parallel magics on the current ranks.

    Args:
        shell: IPython's shell.
        ranks: The running Ranks.
    """

    def __init__(self, shell: InteractiveShell, ranks: Ranks) -> None:
        self.ranks = ranks
        super().__init__(shell, ranks.view)

    @no_var_expand
    def px(self, line: str = "") -> AsyncResult | None:
        """
        Run one line of code on all ranks.

        Raises:
            CellFailed: A rank raised, died, or was stopped.
            UsageError: The line begins with an option, which only `%%px` takes.
        """
        option = line.split(maxsplit=1)[0] if line.strip() else ""
        if option.startswith("-") and not _is_python(line):
            raise UsageError(
                f"No options here: expected one line of code after %px (got {option!r}). Use %%px "
                f"{option} ... as the first line of a cell, and write the code below it."
            )
        return self.parallel_execute(line)

    def parallel_execute(
        self,
        cell: str,
        block: bool | None = None,
        save_name: str | None = None,
        **shown: object,
    ) -> AsyncResult | None:
        """
        Run a cell on the view's targets. ipyparallel's `%px` and `%%px` call this.

        Args:
            cell: The cell's text.
            block: Whether to wait for the ranks. Default: as the view does.
            save_name: Name in the notebook under which to store the AsyncResult.
            shown: ipyparallel's options for output, without effect: it is always in rank order.

        Returns:
            AsyncResult or None: The result if `block` is false, else None.

        Raises:
            CellFailed: A rank raised, died, or was stopped.
        """
        block = self.view.block if block is None else block
        targets = self._target_ranks()
        if not block or save_name:
            return self._run_with_result(cell, targets, block, save_name)
        run_cell(self.ranks, cell, targets)
        return None

    def _target_ranks(self):
        targets = self.view.targets
        if isinstance(targets, int):
            targets = [targets]
        targets = list(range(len(self.ranks))) if targets == "all" else list(targets)
        unknown = [rank for rank in targets if rank not in range(len(self.ranks))]
        if unknown:
            raise UsageError(
                f"Unknown rank: expected 0 to {len(self.ranks) - 1} (got {unknown[0]}). "
                "Correct --targets."
            )
        return targets

    def _run_with_result(self, cell, targets, block, save_name):
        ensure_ready(self.ranks)
        run = CellRun(self.ranks, cell, targets, is_brief=False)
        run.submit()
        result = AsyncResult(
            self.view.client, list(run.futures.values()), fname="%px", targets=targets, owner=True
        )
        self.last_result = result
        if save_name:
            self.shell.user_ns[save_name] = result
        if not block:
            run.leave_alone()
            return result
        error = run.wait()
        if error is not None:
            raise error
        return None


def _is_python(line):
    try:
        compile(line.strip(), "<%px>", "exec")
    except SyntaxError:
        return False
    return True
