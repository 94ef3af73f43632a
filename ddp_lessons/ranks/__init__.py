"""
Ranks for a notebook: launch, start, watch, diagnose, recover. ipyparallel is the engine room.

    kernel ======= link ======= supervisor           JSON over a socket pair: start, watch, signal, end
      |                        /      \\ forks
      |              controller        rank 0, rank 1, ...
      |                  |   |            |
      +== shell channel =+   +============+      ipyparallel's: cells in, output and errors back
      +== control channel ==== ... =======+      to each rank's agent: where are you, let go

Four kinds of processes, three lines between them. A cell goes over the shell channel, and a rank
that is stuck in it cannot read there. So its agent, a thread, listens on the control channel. A
process that is stuck in C, or dead, answers on neither: of that the supervisor tells, over the link.

    kernel/      the notebook's process: start, cells, waiting, freeing, joining
    diagnosis/   who waits for whom, and the words for it
    supervisor/      the parent of all ranks, and the controller
    rank/        inside a rank: the engine, its agent, its group
    system/      what all stand on

Imports point down this list only.
"""

from ddp_lessons.ranks.kernel.session import current_ranks, start_ranks, stop_ranks

__all__ = ["current_ranks", "start_ranks", "stop_ranks"]
