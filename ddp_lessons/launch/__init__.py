"""
From a cell to a job: who starts ranks, what it tells them, and what is left when one fails.

Read the files in this order:

- `environment` finds rank, world size and meeting place in what any launcher has set.
- `naive` does it for torchrun alone, to be compared with.
- `running` runs a script under any launcher: `python -m ddp_lessons.launch train.py`.
- `commands` is what one types for each of them.
- `lives` joins a group after a restart, and reads nothing of the life before.
- `joining` lets a second node join a job that runs, and leave it.
- `batch` says what a batch file of Slurm asks for, and writes one.
- `rehearsal` runs a batch file without a cluster, and says which ranks there would be.
- `reports` reads what torchrun says of a job that failed.

Of these, `running`, `lives` and `joining` need torch, and are imported by their own names.

Lesson: 09_launch.
"""

from .batch import Cluster, Wish, batch_text, read_options, refusal, wish_of
from .commands import LAUNCHERS, command_of, is_here
from .environment import Place, adopt, first_host, free_port, launcher_of, place_of
from .rehearsal import Rank, Rehearsal, rehearse
from .reports import exit_codes, last_error, recorded_error, root_cause, who_failed

__all__ = [
    "LAUNCHERS",
    "Cluster",
    "Place",
    "Rank",
    "Rehearsal",
    "Wish",
    "adopt",
    "batch_text",
    "command_of",
    "exit_codes",
    "first_host",
    "free_port",
    "is_here",
    "last_error",
    "launcher_of",
    "place_of",
    "read_options",
    "recorded_error",
    "refusal",
    "rehearse",
    "root_cause",
    "who_failed",
    "wish_of",
]
