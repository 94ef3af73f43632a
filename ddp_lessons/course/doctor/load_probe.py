"""
The measurement of a learner's needs: real kernels run a lesson's cells side by side, on ranks.
"""

import os
import subprocess
import tempfile
import threading
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from jupyter_core.utils import ensure_event_loop

from ddp_lessons.course.building.kernels import start_kernel
from ddp_lessons.course.doctor.capacity import Learner, ServerResources, judge_room
from ddp_lessons.course.doctor.machine import others_stop_at
from ddp_lessons.course.notebooks.cell_roles import RAISES, tags_of
from ddp_lessons.course.notebooks.notebook_paths import choose, find_course
from ddp_lessons.course.notebooks.starters import read_blank
from ddp_lessons.course.rules.reading_time import minutes
from ddp_lessons.errors import DDPLessonsError
from ddp_lessons.ranks.system.processes import descendants_of, tree_cpu_seconds
from ddp_lessons.ranks.system.resource_limits import memory, usable_cores

STEM = "06_ddp"
"""
Id of the lesson that needs most: four ranks train models, which are wrapped several times.
"""
LIMIT_S = 300.0
"""
Seconds that a kernel's start, or a cell, may take. On a server that is too small, cells are slow.
"""
_NOT_INHERITED = ("DDP_LESSONS_MAX_RANKS", "DDP_LESSONS_PARK_AFTER")


class NotMeasured(DDPLessonsError, RuntimeError):
    """
    A learner's cells did not run, so nothing can be said of a room of them.
    """


def measure(paths, num_learners=2, num_cells=None):
    """
    Run a lesson's cells as several learners at once, and return what one learner needed.

    Args:
        paths: The lesson's NotebookPaths.
        num_learners: Number of learners that run the lesson side by side.
        num_cells: Number of code cells to run, from the first one; default: all.

    Returns:
        Learner: Each of its numbers is the largest among the learners.

    Raises:
        NotMeasured: A cell failed, or took too long.
    """
    notebook = read_blank(paths)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"][:num_cells]
    runs = [_Run(cells) for _ in range(num_learners)]
    threads = [threading.Thread(target=run.run) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for run in runs:
        if run.error is not None:
            raise NotMeasured(
                f"No learner could be measured: all cells of {paths.stem} must run here "
                f"(got {run.error}). Run ddp-lessons doctor, and mend what it names."
            )
    dearest = max(runs, key=lambda run: max(run.cell_cpu_s))
    return Learner(
        stem=paths.stem,
        minutes=minutes(notebook),
        memory_bytes=max(run.memory_bytes for run in runs),
        cpu_s=max(run.cpu_s for run in runs),
        dearest_cpu_s=max(dearest.cell_cpu_s),
        dearest_cell=1 + dearest.cell_cpu_s.index(max(dearest.cell_cpu_s)),
    )


def look_at_room(num_learners, stem=STEM):
    """
    Measure a lesson with two learners, and judge a room of them on this server.

    Args:
        num_learners: Number of learners in the room.
        stem: The lesson id.

    Returns:
        list[Finding]: One for each thing that a room needs (see `judge_room`).

    Raises:
        NotMeasured: A cell failed, or took too long.
    """
    _, free_bytes = memory()  # before anything runs
    server = ServerResources(usable_cores(), free_bytes, others_stop_at())
    (paths,) = [paths for paths in choose(find_course(), [stem]) if paths.is_lesson]
    return judge_room(num_learners, measure(paths), server)


class _Run:
    """
    One learner's run of some cells.
    """

    def __init__(self, cells):
        self._cells = cells
        self.cell_cpu_s = []
        self.cpu_s = 0.0
        self.memory_bytes = 0
        self.error = None

    def run(self):
        try:
            with ExitStack() as undo:
                self._run_all(undo)
        except NotMeasured as error:
            self.error = error

    def _run_all(self, undo):
        undo.enter_context(closing(ensure_event_loop()))  # jupyter_client needs one in each thread
        folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="ddp-doctor-"))
        options = {"cwd": folder, "env": _environment(folder), "stderr": subprocess.DEVNULL}
        try:
            manager, client = start_kernel(LIMIT_S, **options)
            undo.callback(manager.shutdown_kernel, now=True)
            undo.callback(client.stop_channels)
            for number, cell in enumerate(self._cells, start=1):
                self._run_cell(client, number, cell, manager.provisioner.pid)
        except (RuntimeError, TimeoutError) as error:
            raise NotMeasured(str(error)) from error
        self.cpu_s = max(sum(self.cell_cpu_s), tree_cpu_seconds(manager.provisioner.pid) or 0.0)

    def _run_cell(self, client, number, cell, pid):
        before_s = tree_cpu_seconds(pid) or 0.0
        reply = client.execute_interactive(
            cell["source"], timeout=LIMIT_S, allow_stdin=False, output_hook=lambda message: None
        )["content"]
        if reply["status"] != "ok" and RAISES not in tags_of(cell):
            raise NotMeasured(f"code cell {number}: {reply.get('ename')}: {reply.get('evalue')}")
        # The CPU time of a rank that has ended is lost, and its successor begins at 0 again.
        self.cell_cpu_s.append(max(0.0, (tree_cpu_seconds(pid) or 0.0) - before_s))
        held = sum(map(pss_bytes, [pid, *descendants_of(pid)]))
        self.memory_bytes = max(self.memory_bytes, held)


def _environment(folder):
    # Keep the measured predictions out of this user's state. This user's limits on ranks do not
    # apply, because two learners run at once.
    environment = {name: v for name, v in os.environ.items() if name not in _NOT_INHERITED}
    return {**environment, "DDP_LESSONS_STATE_DIR": folder, "IPYTHONDIR": folder}


def pss_bytes(pid):
    """
    Return a process's memory in bytes, with shared pages divided; 0 if the process is gone.
    """
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
