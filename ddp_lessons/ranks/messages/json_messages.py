"""
The form in which messages travel as JSON: a dictionary of a message's fields and its class's name.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar

_Message = TypeVar("_Message")
_TYPE = "type"


def message_to_json(message: Any) -> dict[str, Any]:
    """
    Return a message, which is a dataclass, as a dictionary of what JSON knows.
    """
    return {_TYPE: type(message).__name__, **asdict(message)}


def message_from_json(
    content: Mapping[str, Any], classes: Mapping[str, type[_Message]]
) -> _Message:
    """
    Return the message that `message_to_json` has made a dictionary of.

    Args:
        content: The dictionary.
        classes: The classes that may come, by their names.

    Raises:
        KeyError: There is no message of that name.
        TypeError: It lacks a field, or has one too many.
    """
    fields = dict(content)
    return classes[fields.pop(_TYPE)](**fields)
