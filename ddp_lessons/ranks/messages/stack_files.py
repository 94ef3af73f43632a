"""
The stack file of a rank: the rank writes its stacks there, and the kernel reads them.
"""

import os
import signal
from pathlib import Path

STACK_SIGNAL = signal.SIGUSR2
"""
The signal that makes a rank write its main thread's stack to its stack file. It works even while C
code holds the GIL.
"""
CRASH = "Fatal Python error: "
"""
The first words that faulthandler writes when a process crashes.
"""
OWN_WILL = "Ends itself.\n\n"
"""
The first words that a process writes before it ends itself.
"""


def stack_file(folder: str | os.PathLike[str], rank: int) -> Path:
    """
    Return the path of the file to which a rank writes its stacks.

    Args:
        folder: The runtime folder of the ranks.
        rank: The rank.
    """
    return Path(folder) / f"rank-{rank}.stack"
