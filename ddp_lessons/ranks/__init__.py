"""
Ranks for a notebook: start, watch, diagnose, recover. ipyparallel carries cells and output.

    kernel ===== JSON pipe ==== supervisor       start, signal and end processes, report deaths
      |                        /      \\ forks
      |              controller        rank 0, rank 1, ...
      |                  |   |            |
      +== shell channel =+   +============+      ipyparallel's: cells in, output and errors back
      +== control channel ==== ... =======+      to each rank agent: take a snapshot, release

There are four kinds of processes, and three ways from the kernel to the others. A cell goes over
the shell channel, which a rank cannot read while it is stuck in a cell. So a thread of the rank,
its rank agent, listens on the control channel. A process that is dead, or stuck in C code, answers
on neither channel. The kernel learns about it through the supervisor, over the JSON pipe.

    kernel/      the notebook's process: it starts ranks, runs cells, releases and regroups ranks
    diagnosis/   which rank waits for which, and the messages about that
    supervisor/  the parent of all ranks, and the controller
    rank/        inside a rank: the engine, the rank agent, the group
    system/      helpers that all other folders use

A folder imports only from itself and from folders below it in this list.
"""

from ddp_lessons.ranks.kernel.session import current_ranks, start_ranks, stop_ranks

__all__ = ["current_ranks", "start_ranks", "stop_ranks"]
