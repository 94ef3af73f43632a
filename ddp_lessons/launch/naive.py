"""
The place of a process as many scripts read it. `environment` has the function that mends it.

Kept to be compared with: it works under torchrun, and under nothing else.
"""

from collections.abc import Mapping

from .environment import Place


def place_of(environ: Mapping[str, str]) -> Place:
    """
    Return the place of a process that torchrun has started.

    Args:
        environ: Its environment, such as os.environ.

    Raises:
        KeyError: Something else has started it.

    Lesson: 09_launch, beside `launch.place_of`.
    """
    return Place(
        rank=int(environ["RANK"]),
        world_size=int(environ["WORLD_SIZE"]),
        local_rank=int(environ["LOCAL_RANK"]),
        address=environ["MASTER_ADDR"],
        port=int(environ["MASTER_PORT"]),
    )
