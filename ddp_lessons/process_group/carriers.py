"""
Backends: what carries the messages of a group. Which exist here, and why the others do not.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ddp_lessons.errors import BadInput


@dataclass(frozen=True)
class BackendState:
    """
    Whether a backend exists in this process.

    Attributes:
        name: Its name in `init_process_group`.
        exists: Whether a group can be made with it here.
        reason: Why it exists, or why not.
        cure: Advice on how to get it; empty if it exists.
    """

    name: str
    exists: bool
    reason: str
    cure: str = ""


@dataclass(frozen=True)
class _Known:
    is_built: Callable[[], bool]
    carries: str
    build_cure: str
    device_type: str = "cpu"


_KNOWN = {
    "gloo": _Known(dist.is_gloo_available, "CPU tensors", "Install torch from its wheels."),
    "nccl": _Known(
        dist.is_nccl_available,
        "GPU tensors, one NVIDIA or AMD GPU a rank",
        "Install a torch for CUDA or ROCm, on a machine with GPUs.",
        "cuda",
    ),
    "mpi": _Known(
        dist.is_mpi_available,
        "what the machine's MPI carries",
        "Build torch from source where MPI is installed.",
    ),
    "ucc": _Known(
        dist.is_ucc_available,
        "CPU and GPU tensors",
        "Build torch from source with UCC.",
    ),
    "xccl": _Known(
        dist.is_xccl_available,
        "tensors of Intel GPUs",
        "Install a torch for XPU, on a machine with Intel GPUs.",
        "xpu",
    ),
}


def backends() -> list[BackendState]:
    """
    Return the state of each backend that torch knows, in the order gloo, nccl, mpi, ucc, xccl.

    Asks torch what it was built with, and the machine for the devices that the backend needs.

    Returns:
        list[BackendState]: One for each backend.

    Source: torch.distributed documentation, "Backends". Lesson: 01_process_group.
    """
    return [_state(name, known) for name, known in _KNOWN.items()]


def backends_table(states: Iterable[BackendState] | None = None) -> str:
    """
    Return the backends as lines of text: name, yes or no, and why.

    Args:
        states: The states that `backends` returned; None asks it.
    """
    rows = [("backend", "here", "why")]
    for state in backends() if states is None else states:
        rows.append((state.name, "yes" if state.exists else "no", f"{state.reason} {state.cure}"))
    return "\n".join(f"{name:<8} {here:<5} {why}".rstrip() for name, here, why in rows)


def check_backend(name: str) -> None:
    """
    Refuse a backend that does not exist here, before any rank waits for another.

    Args:
        name: "gloo", or what else `init_process_group` takes; "cpu:gloo,cuda:nccl" names two.

    Raises:
        BadInput: It does not exist here; the message says why, and what to do.
    """
    states = {state.name: state for state in backends()}
    here = ", ".join(name for name, state in states.items() if state.exists)
    for part in str(name).lower().split(","):
        wanted = part.rpartition(":")[2]
        if wanted not in dist.Backend.backend_list:
            raise BadInput(
                f"There is no backend {wanted}: one of {here} (got {name!r}). Correct the name."
            )
        state = states.get(wanted)
        if state is not None and not state.exists:
            raise BadInput(
                f"The backend {wanted} does not exist here: one of {here} (got {name!r}). "
                f"{state.reason} {state.cure}"
            )


def _state(name, known):
    if not known.is_built():
        return BackendState(name, False, "This torch was built without it.", known.build_cure)
    # torch.cuda and torch.xpu answer alike.
    if known.device_type != "cpu" and not getattr(torch, known.device_type).is_available():
        reason = "This torch has it, and finds no device for it."
        return BackendState(name, False, reason, "Use a machine with such devices.")
    return BackendState(name, True, f"It carries {known.carries}.")
