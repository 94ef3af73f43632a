"""
Find the best mesh: try all that there are, leave out what does not fit, and take the fastest.

Legend: that of `prices`. Of 1,024 ranks there are 66 meshes, so nobody needs to be clever.
"""

from ...errors import BadInput
from .prices import Job, held_bytes, step_s


def meshes(num_ranks: int) -> list[tuple[int, int, int]]:
    """
    Return all (data, tensor, pipeline) whose product is the number of ranks.

    Args:
        num_ranks: Ranks, 1 or more.

    Raises:
        BadInput: There is no rank.

    Lesson: 15_beyond_ddp.
    """
    if num_ranks < 1:
        raise BadInput(f"No ranks: 1 or more expected (got {num_ranks}). Take some.")
    return [
        (num_ranks // (tensor * pipeline), tensor, pipeline)
        for tensor in range(1, num_ranks + 1)
        for pipeline in range(1, num_ranks // tensor + 1)
        if num_ranks % (tensor * pipeline) == 0
    ]


def is_possible(job: Job, data: int, tensor: int, pipeline: int) -> bool:
    """
    Tell whether a mesh can train a job at all: heads and layers divide, and the state fits.
    """
    divides = job.num_heads % tensor == 0 and job.num_layers % pipeline == 0
    return divides and held_bytes(job, data, tensor, pipeline) <= job.memory_bytes


def best_mesh(job: Job) -> tuple[int, int, int] | None:
    """
    Return the (data, tensor, pipeline) with the shortest step of those that are possible.

    Args:
        job: The Job.

    Returns:
        tuple: The sizes; None if no mesh is possible.

    Lesson: 15_beyond_ddp, task 15.4.
    """
    possible = [mesh for mesh in meshes(job.num_ranks) if is_possible(job, *mesh)]
    return min(possible, key=lambda mesh: step_s(job, *mesh), default=None)
