"""
The messages between the kernel and its supervisor: orders one way, events the other.

They travel through a JSON pipe. `message_to_json` and `from_json` are the two ends of that way.
"""

from dataclasses import dataclass
from typing import Any

from ddp_lessons.ranks.messages.json_messages import message_from_json


@dataclass(frozen=True)
class StartController:
    """
    An order: start ipyparallel's controller.

    Args:
        argv: Its command-line arguments.
    """

    argv: list[str]


@dataclass(frozen=True)
class ImportTorch:
    """
    An order: import what every rank needs, and answer with TorchImported.
    """


@dataclass(frozen=True)
class StartRank:
    """
    An order: start one rank, and answer with RankStarted.

    Args:
        rank: Its number.
        environment: Variables to add to its environment.
        num_threads: CPU threads of torch.
        connection_file: Path of the file by which an engine finds the controller.
        profile_dir: Path of the IPython profile.
    """

    rank: int
    environment: dict[str, str]
    num_threads: int
    connection_file: str
    profile_dir: str


@dataclass(frozen=True)
class SignalRanks:
    """
    An order: send a signal to some ranks.
    """

    ranks: list[int]
    signum: int


@dataclass(frozen=True)
class CutSockets:
    """
    An order: shut down the sockets of some ranks, from outside.

    Args:
        ranks: The ranks.
        spared_ports: TCP ports whose connections stay.
    """

    ranks: list[int]
    spared_ports: list[int]


@dataclass(frozen=True)
class RemoveAtEnd:
    """
    An order: remove some files when the ranks end.
    """

    paths: list[str]


@dataclass(frozen=True)
class RunAtEnd:
    """
    An order: run some commands when the ranks end, in place of those of an earlier order.

    Args:
        commands: Each a list of words.
    """

    commands: list[list[str]]


@dataclass(frozen=True)
class EndAll:
    """
    An order: end the ranks, the controller and the supervisor.
    """


@dataclass(frozen=True)
class ControllerStarted:
    """
    An event: the controller has a process.
    """

    pid: int


@dataclass(frozen=True)
class ControllerDied:
    """
    An event: the controller has ended.

    Args:
        code: Its exit code, or minus the signal.
    """

    code: int


@dataclass(frozen=True)
class TorchImported:
    """
    An event: torch is imported, and what it can do on this machine.
    """

    num_gpus: int
    has_nccl: bool
    torch_version: str = ""


@dataclass(frozen=True)
class RankStarted:
    """
    An event: a rank has a process.
    """

    rank: int
    pid: int


@dataclass(frozen=True)
class RankProcessDied:
    """
    An event: a rank's process has ended.

    Args:
        rank: The rank.
        pid: Its process id.
        code: Its exit code, or minus the signal.
    """

    rank: int
    pid: int
    code: int


@dataclass(frozen=True)
class OrderFailed:
    """
    An event: an order could not be carried out.

    Args:
        error: The error's type and text.
    """

    error: str


@dataclass(frozen=True)
class SupervisorGone:
    """
    An event: the supervisor has ended. The kernel makes it when the pipe closes.
    """


Order = (
    StartController
    | ImportTorch
    | StartRank
    | SignalRanks
    | CutSockets
    | RemoveAtEnd
    | RunAtEnd
    | EndAll
)
Event = (
    ControllerStarted
    | ControllerDied
    | TorchImported
    | RankStarted
    | RankProcessDied
    | OrderFailed
    | SupervisorGone
)
_CLASSES: dict[str, type[Order | Event]] = {
    each.__name__: each for union in (Order, Event) for each in union.__args__
}


def from_json(content: dict[str, Any]) -> Order | Event:
    """
    Return the Order or Event that `message_to_json` has made a dictionary of.

    Raises:
        KeyError: There is no message of that name.
        TypeError: It lacks a field, or has one too many.
    """
    return message_from_json(content, _CLASSES)
