"""
The rank quota: how many ranks a learner may hold in all notebooks together, DDP_LESSONS_MAX_RANKS.

Each kernel that holds ranks writes their number to a file in its runtime folder, and keeps the file
locked. A kernel loses its lock when it ends, in whatever way, so nothing has to be cleaned up.
"""

import contextlib
import fcntl
import os
from pathlib import Path
from typing import TextIO

from ddp_lessons.errors import BadInput
from ddp_lessons.ranks.system.resource_limits import setting
from ddp_lessons.ranks.system.runtime_folder import open_private

_NAME = "MAX_RANKS"
_FILE = "held"


def hold(folder: Path | str, num_ranks: int) -> TextIO | None:
    """
    Record that this process holds some ranks, until the returned file is closed.

    Args:
        folder: The runtime folder of these ranks.
        num_ranks: Number of these ranks.

    Returns:
        file or None: None where no quota is set.

    Raises:
        BadInput: The ranks would be more than this user may hold.
    """
    if setting(f"DDP_LESSONS_{_NAME}") is None:
        return None
    file = os.fdopen(open_private(Path(folder) / _FILE), "a")
    fcntl.flock(file, fcntl.LOCK_EX)
    file.write(str(num_ranks))
    file.flush()
    try:
        # Check after the record: if two kernels start at once, at least one sees the other.
        check(num_ranks, folder)
    except BadInput:
        file.close()
        raise
    return file


def check(num_ranks: int, folder: Path | str) -> None:
    """
    Check that this user may hold a number of ranks in addition to those of other notebooks.

    Args:
        num_ranks: Number of ranks that are requested.
        folder: A runtime folder. Its own ranks are not counted, those of its neighbours are.

    Raises:
        BadInput: All ranks together would be more than DDP_LESSONS_MAX_RANKS.
    """
    most = setting(f"DDP_LESSONS_{_NAME}")
    if most is None:
        return
    held = _held_beside(Path(folder))
    if num_ranks + held <= most:
        return
    elsewhere = f", beside {held} in your other notebooks" if held else ""
    left = int(most) - held
    fewer = f"Try start_ranks({left})" if left > 0 else "There is room for none"
    others = ", or shut down notebooks that you no longer use." if held else "."
    raise BadInput(
        f"Too many ranks: this server gives {int(most)} to each user (got {num_ranks}{elsewhere}). "
        f"{fewer}{others}"
    )


def _held_beside(folder):
    """
    Return how many ranks the other kernels of this user hold.
    """
    held = 0
    for path in folder.parent.glob(f"*/{_FILE}"):
        if path.parent != folder:
            with contextlib.suppress(OSError, ValueError), path.open() as file:
                held += _number_if_locked(file)
    return held


def _number_if_locked(file):
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(file.read())
    return 0
