"""
What lesson 09's cells have printed on a machine that has every launcher, for one that has not.

A test holds these texts to the notebook that was run and stored.
"""

from ..errors import BadInput

STORED = {
    "mpiexec": "mpiexec: 0 of 5, 0 losses differ",
    "srun": "srun: 0 of 5, 0 losses differ",
    "sbatch": "exit code 0\nrank 0 of 2: loss 1.23\nrank 1 of 2: loss 1.24",
}


def stored_output(command: str) -> str:
    """
    Return what a cell says where a command is missing, and what it has printed elsewhere.

    Args:
        command: One of STORED.

    Raises:
        BadInput: Nothing is stored of such a command.

    Lesson: 09_launch.
    """
    if command not in STORED:
        raise BadInput(
            f"Nothing stored: expected one of {', '.join(STORED)} (got {command!r}). Name one of "
            "them."
        )
    lines = [f"  stored | {line}" for line in STORED[command].splitlines()]
    return "\n".join([f"{command} is not here. On a machine that has it, this came out:", *lines])
