"""
A process, started by `build`, that runs a notebook in a fresh kernel of this interpreter.

It writes its results into two files: the notebook, with the outputs so far, and the number of the
last cell that has begun.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from ddp_lessons.course.building.kernels import AsyncKernelOnSockets, ThisInterpreter

TIMEOUT_STATUS = 3
DEAD_KERNEL_STATUS = 4


def _main():
    parser = argparse.ArgumentParser(description="Run a notebook in a fresh kernel.")
    parser.add_argument("notebook", type=Path, help="read from here, and written back")
    parser.add_argument("--folder", type=Path, required=True, help="where its kernel runs")
    parser.add_argument("--cell-timeout-s", type=float, required=True)
    options = parser.parse_args()
    notebook = nbformat.read(options.notebook, as_version=4)
    progress = options.notebook.with_suffix(".cell")

    def note(cell, cell_index):
        progress.write_text(str(cell_index + 1))

    manager = AsyncKernelOnSockets(kernel_spec_manager=ThisInterpreter())
    client = NotebookClient(
        notebook,
        km=manager,
        timeout=options.cell_timeout_s,
        on_cell_start=note,
        record_timing=False,
        store_widget_state=False,
    )
    try:
        # The kernel's own messages on stderr are no part of the notebook.
        client.execute(cwd=str(options.folder), stderr=subprocess.DEVNULL, cleanup_kc=True)
    except CellExecutionError:
        return 0  # the error is in the cell's outputs, where a rule refuses it
    except CellTimeoutError:
        return TIMEOUT_STATUS
    except DeadKernelError:
        return DEAD_KERNEL_STATUS
    finally:
        nbformat.write(notebook, options.notebook)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
