"""
The messages between the kernel and a host agent: orders one way, answers the other.

They travel as lines of JSON through an SSH login.
"""

from dataclasses import dataclass
from typing import Any

from ddp_lessons.ranks.messages.json_messages import message_from_json

MARK = "ddp-lessons "
"""
The beginning of each line that is an answer. Other lines may be a greeting of the host.
"""


@dataclass(frozen=True)
class StartProcess:
    """
    An order: start a process, and answer with ProcessStarted, or with ProcessEnded if that failed.

    Args:
        key: Name of the process in orders and answers.
        words: The command line.
        variables: Environment variables to set. A variable with an empty value is removed.
        log: Path of the file for the output.
        folder: A folder that is made if it is missing.
    """

    key: str
    words: list[str]
    variables: dict[str, Any]
    log: str
    folder: str


@dataclass(frozen=True)
class SendLog:
    """
    An order: answer with the LogTail of a process, if it runs.
    """

    key: str


@dataclass(frozen=True)
class SignalProcess:
    """
    An order: send a signal to a process, unless it has ended.
    """

    key: str
    number: int


@dataclass(frozen=True)
class KeepProcesses:
    """
    An order: keep all processes running when the login ends.
    """


@dataclass(frozen=True)
class AskHost:
    """
    An order: answer with HostAnswers.
    """


@dataclass(frozen=True)
class HostAnswers:
    """
    An answer: this host can be reached.
    """

    key: None = None


@dataclass(frozen=True)
class ProcessStarted:
    """
    An answer: a process exists.
    """

    key: str
    pid: int


@dataclass(frozen=True)
class LogTail:
    """
    An answer: the last part of a process's output.
    """

    key: str
    text: str


@dataclass(frozen=True)
class ProcessEnded:
    """
    An answer: a process has ended, or could not be started.

    Args:
        key: Name of the process.
        code: Its exit code, or minus the signal; None if it could not be started.
        text: The last part of its output, or the reason why it could not be started.
    """

    key: str
    code: int | None
    text: str


HostOrder = StartProcess | SendLog | SignalProcess | KeepProcesses | AskHost
HostAnswer = HostAnswers | ProcessStarted | LogTail | ProcessEnded
_ORDERS: dict[str, type[HostOrder]] = {each.__name__: each for each in HostOrder.__args__}
_ANSWERS: dict[str, type[HostAnswer]] = {each.__name__: each for each in HostAnswer.__args__}


def host_order_from_json(content: dict[str, Any]) -> HostOrder:
    """
    Return the HostOrder that `message_to_json` has made a dictionary of.

    Raises:
        KeyError: There is no order of that name.
        TypeError: It lacks a field, or has one too many.
    """
    return message_from_json(content, _ORDERS)


def host_answer_from_json(content: dict[str, Any]) -> HostAnswer:
    """
    Return the HostAnswer that `message_to_json` has made a dictionary of.

    Raises:
        KeyError: There is no answer of that name.
        TypeError: It lacks a field, or has one too many.
    """
    return message_from_json(content, _ANSWERS)
