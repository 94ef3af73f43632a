"""
Read what ranks answer: the dates in a message take longer than all else in it.
"""

import json
from datetime import datetime


def unpack(packed):
    """
    Return what a message's part stands for, its own date as a datetime.

    jupyter_client looks for dates itself, by a parser that knows many ways to write one. What is a
    datetime already it leaves alone.

    Args:
        packed: bytes, JSON in UTF-8.

    Returns:
        Any: What `json.loads` gives, with a datetime under "date".

    Source: https://jupyter-client.readthedocs.io/en/stable/messaging.html, general message format.
    """
    value = json.loads(packed)
    if isinstance(value, dict) and isinstance(value.get("date"), str):
        value["date"] = datetime.fromisoformat(value["date"])
    return value
