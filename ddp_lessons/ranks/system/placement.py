"""
Placement: the device, backend and number of threads of each rank, chosen from plain numbers.
"""

from dataclasses import dataclass

from ddp_lessons.errors import BadInput
from ddp_lessons.whole import whole_number

DEFAULT_CPU_RANKS = 4
MAX_RANKS_PER_CORE = 32
BYTES_PER_RANK = 200 << 20
"""
Memory that a new rank may need: 65 to 100 MiB were measured, doubled for its first tensors.
"""


@dataclass(frozen=True)
class MachineResources:
    """
    The resources of a machine that a placement depends on.

    Args:
        num_cores: Number of CPU cores that this process may use.
        num_gpus: Number of GPUs that torch can use.
        memory_bytes: Bytes of memory that are free now.
        has_nccl: Whether torch was built with NCCL.
    """

    num_cores: int
    num_gpus: int
    memory_bytes: int
    has_nccl: bool = True


@dataclass(frozen=True)
class Placement:
    """
    The devices on which ranks run, and their backend.

    Args:
        devices: One device name for each rank, such as ("cuda:0", "cuda:1") or ("cpu", "cpu").
        backend: "nccl" or "gloo".
        num_threads: Number of CPU threads for each rank.
        reason: The reason for this placement, in a few words.
    """

    devices: tuple[str, ...]
    backend: str
    num_threads: int
    reason: str

    @property
    def world_size(self) -> int:
        """
        The number of ranks.
        """
        return len(self.devices)

    def __str__(self) -> str:
        kinds = sorted({device.partition(":")[0] for device in self.devices})
        threads = "1 thread" if self.num_threads == 1 else f"{self.num_threads} threads"
        return f"{'/'.join(kinds)}, {self.backend}, {threads} each ({self.reason})"


def _plural(count, word):
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def choose_placement(num_ranks: int | None, device: str, machine: MachineResources) -> Placement:
    """
    Choose the placement of ranks. The function is pure: the same numbers give the same placement.

    Args:
        num_ranks: Number of ranks. None stands for one rank a GPU, or for 4 ranks on the CPU.
        device: "auto", "cpu" or "cuda".
        machine: The MachineResources on which the ranks run.

    Returns:
        Placement: NCCL with a GPU for each rank if there are enough GPUs. Gloo with shared GPUs if
        there are fewer. Gloo on the CPU if there are none. Two ranks never share a GPU with NCCL.

    Raises:
        BadInput: The device is unknown or missing, or the number of ranks is wrong or too large.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise BadInput(
            f'Unknown device: expected "auto", "cpu" or "cuda" (got {device!r}). '
            "Leave device out to have one chosen."
        )
    if device == "cuda" and machine.num_gpus == 0:
        raise BadInput(
            'No GPU for device="cuda": torch must see at least one (got 0). '
            'Run "ddp-lessons doctor" to see why, or leave device out to use the CPU.'
        )
    use_gpus = device != "cpu" and machine.num_gpus > 0
    if num_ranks is None:
        num_ranks = machine.num_gpus if use_gpus else DEFAULT_CPU_RANKS
    num_ranks = _checked_count(num_ranks, machine)
    num_threads = max(1, machine.num_cores // num_ranks)
    cores = _plural(machine.num_cores, "core")
    if not use_gpus:
        reason = f"{cores}, no GPU" if machine.num_gpus == 0 else f"{cores}, device={device!r}"
        return Placement(("cpu",) * num_ranks, "gloo", num_threads, reason)
    devices = tuple(f"cuda:{rank % machine.num_gpus}" for rank in range(num_ranks))
    gpus = _plural(machine.num_gpus, "GPU")
    if num_ranks <= machine.num_gpus and machine.has_nccl:
        return Placement(devices, "nccl", num_threads, f"{gpus}, one each")
    if num_ranks <= machine.num_gpus:
        return Placement(devices, "gloo", num_threads, f"{gpus}, this torch has no NCCL")
    return Placement(devices, "gloo", num_threads, f"{gpus} shared by {num_ranks} ranks")


def _checked_count(asked, machine):
    num_ranks = whole_number(asked)
    if num_ranks is None or num_ranks < 1:
        raise BadInput(
            f"Wrong number of ranks: expected a whole number from 1 (got {asked!r}). "
            "Try start_ranks(4)."
        )
    most = min(
        machine.num_cores * MAX_RANKS_PER_CORE, max(1, machine.memory_bytes // BYTES_PER_RANK)
    )
    if num_ranks > most:
        raise BadInput(
            f"Too many ranks: this machine can hold {most} (got {num_ranks}). "
            f"Try start_ranks({min(DEFAULT_CPU_RANKS, most)})."
        )
    return num_ranks
