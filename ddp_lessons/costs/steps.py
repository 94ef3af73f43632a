"""
From the cost of a collective to the time of a training step and the speed-up of many ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ddp_lessons.costs.chunks import need_count
from ddp_lessons.errors import BadInput


def amdahl_speedup(serial_share: float, world_size: int) -> float:
    """
    Return how many times faster a fixed amount of work gets on several ranks.

    Args:
        serial_share: Share of the time on one rank that does not divide, from 0 to 1.
        world_size: Number of ranks.

    Raises:
        BadInput: The share is not from 0 to 1, or there is no rank.

    Source: Amdahl, "Validity of the single processor approach to achieving large scale computing
    capabilities", 1967. Lesson: 11_speed.
    """
    _need_share("serial_share", serial_share)
    need_count("world_size", world_size, at_least=1)
    return 1 / (serial_share + (1 - serial_share) / world_size)


@dataclass(frozen=True)
class StepModel:
    """
    The time of one DDP step: compute, and the communication that compute does not hide.

    Args:
        forward_s: Seconds of the forward pass.
        backward_s: Seconds of the backward pass, without communication.
        optimizer_s: Seconds of the optimizer's step.
        communication_s: Seconds that the gradients' all-reduce takes, on its own.
        overlap_share: Share of the communication that runs beside backward, from 0 (after it) to
            1. No more can be hidden than backward lasts.

    Raises:
        BadInput: A number is negative, or the share is above 1.

    Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
    VLDB 2020. Lesson: 11_speed.
    """

    forward_s: float
    backward_s: float
    optimizer_s: float
    communication_s: float
    overlap_share: float = 0.0

    def __post_init__(self) -> None:
        for name in ("forward_s", "backward_s", "optimizer_s", "communication_s"):
            if not getattr(self, name) >= 0:
                raise BadInput(
                    f"Bad {name}: expected a number of at least 0 (got {getattr(self, name)!r}). "
                    "Pass seconds."
                )
        _need_share("overlap_share", self.overlap_share)

    @property
    def compute_s(self) -> float:
        """
        Seconds of the step on one rank alone.
        """
        return self.forward_s + self.backward_s + self.optimizer_s

    @property
    def hidden_s(self) -> float:
        """
        Seconds of communication that run beside backward.
        """
        return min(self.overlap_share * self.communication_s, self.backward_s)

    @property
    def step_s(self) -> float:
        """
        Seconds of the step.
        """
        return self.compute_s + self.communication_s - self.hidden_s

    def speedup(self, world_size: int) -> float:
        """
        Return how many times more samples a second several ranks see than one, each with the
        same batch per rank.

        Args:
            world_size: Number of ranks, that which `communication_s` is for.
        """
        need_count("world_size", world_size, at_least=1)
        if self.step_s == 0:
            raise BadInput("Nothing to do: expected a step that takes time (got 0 s). Pass times.")
        return world_size * self.compute_s / self.step_s


def overlapped_finish_s(ready_s: Sequence[float], bucket_s: Sequence[float]) -> float:
    """
    Return when the last bucket has arrived, if each is sent once it is ready and the link free.

    Args:
        ready_s: For each bucket, in the order of sending, when its gradients are ready: seconds
            from the start of backward.
        bucket_s: For each bucket, the seconds of its all-reduce.

    Returns:
        float: Seconds from the start of backward; 0 for no bucket.

    Raises:
        BadInput: The two lists differ in length.

    Source: Li et al., VLDB 2020, on overlapping computation with communication. Lessons:
    05_replicas, 11_speed.
    """
    if len(ready_s) != len(bucket_s):
        raise BadInput(
            "Lists differ: expected one time of each kind a bucket "
            f"(got {len(ready_s)} and {len(bucket_s)}). Pass lists of one length."
        )
    free_s = 0.0
    for ready, seconds in zip(ready_s, bucket_s, strict=True):
        free_s = max(free_s, ready) + seconds
    return free_s


def _need_share(name, value):
    if not 0 <= value <= 1:
        raise BadInput(
            f"Bad {name}: expected a number from 0 to 1 (got {value!r}). Pass a share of the whole."
        )
