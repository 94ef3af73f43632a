"""
The wait of a Python line inside C++: for the handle of a collective or a message, or a store's key.

This wait has no stack frame of its own. The current instruction of the Python frame shows which
call it is, and the frame's variables show the object whose method is called.
"""

import ast
import codeop
import inspect
import itertools
import linecache
import sys
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType

from ddp_lessons.private.process_groups import operation_number

WAIT, STORE = "wait", "store"
_OPERATIONS = {12: "send", 13: "recv", 14: "recv"}  # torch's OpType, in c10d/Types.hpp
_UNKNOWN = object()


@dataclass(frozen=True)
class PendingWait:
    """
    A wait inside C++.

    Args:
        call: WAIT for a handle, STORE for a store's key, or "" if the wait is no communication.
        operation: "send" or "recv" if the handle belongs to a message, else "".
        timeout_s: The wait's own time limit in seconds. 0 if there is a limit that cannot be read,
            None if there is no limit.
    """

    call: str = ""
    operation: str = ""
    timeout_s: float | None = None


def pending_wait_at(frame: FrameType) -> PendingWait:
    """
    Return the PendingWait of a thread, from its innermost frame.
    """
    call = _call_at(frame)
    if call is None:
        line = linecache.getline(
            frame.f_code.co_filename, frame.f_lineno or 0
        )  # None between lines
        return PendingWait(WAIT if ".wait(" in line else "")
    is_wait = call.func.attr == "wait"
    receiver = _value(call.func.value, frame)
    if _is_a(receiver, "Store") and call.func.attr in ("wait", "get"):
        limit_s = _limit_s(call, 1, frame)
        return PendingWait(
            STORE, "", receiver.timeout.total_seconds() if limit_s is None else limit_s
        )
    if receiver is _UNKNOWN and is_wait and call.args and isinstance(call.args[0], ast.List):
        return PendingWait(STORE, "", _limit_s(call, 1, frame))  # only a store takes a list of keys
    if not is_wait or inspect.ismodule(receiver):
        return PendingWait()
    number = operation_number(receiver) if _is_a(receiver, "Work") else -1
    return PendingWait(WAIT, _OPERATIONS.get(number, ""), _limit_s(call, 0, frame))


def _is_a(value, name):
    # Compare the type only: `isinstance` would ask the object, and would load a lazy object.
    kind = getattr(sys.modules.get("torch.distributed"), name, None)
    return kind is not None and issubclass(type(value), kind)


def _call_at(frame):
    """
    Return the method call that a frame currently executes, as a syntax tree, or None.
    """
    positions = frame.f_code.co_positions()
    at = next(itertools.islice(positions, frame.f_lasti // 2, None), (None,) * 4)
    first, last, begin, end = at
    if first is None or last is None or begin is None or end is None:
        return None
    lines = linecache.getlines(frame.f_code.co_filename)[first - 1 : last]
    if not lines:
        return None
    raw = [line.encode() for line in lines]  # columns are counted in bytes
    raw[-1] = raw[-1][:end]
    raw[0] = raw[0][begin:]
    if _makes_a_tree(frame):
        return None
    try:
        tree = ast.parse(b"(" + b"".join(raw) + b")", mode="eval").body
    except SyntaxError:
        return None
    return tree if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Attribute) else None


def _makes_a_tree(frame):
    # Up to 3.11.7 and 3.12.1, Python counts the depth of a syntax tree for all threads together. If
    # we made a tree while the main thread is making one (and runs a finalizer in the middle of it),
    # that thread would fail: "SystemError: AST constructor recursion depth mismatch".
    while frame is not None:
        if frame.f_code.co_filename in (ast.__file__, codeop.__file__):
            return True
        frame = frame.f_back
    return False


def _value(tree, frame):
    """
    Return the value of a name, or of an attribute of a name, without running any code for it.
    """
    if isinstance(tree, ast.Name):
        for names in (frame.f_locals, frame.f_globals):
            if tree.id in names:
                return names[tree.id]
    if isinstance(tree, ast.Attribute):
        owner = _value(tree.value, frame)
        if owner is not _UNKNOWN:
            found = inspect.getattr_static(owner, tree.attr, _UNKNOWN)
            return _UNKNOWN if hasattr(type(found), "__get__") else found
    return _UNKNOWN


def _limit_s(call, position, frame):
    """
    Return the time limit of a call in seconds: its argument at `position`, or `timeout`.
    """
    given = [word.value for word in call.keywords if word.arg == "timeout"]
    given += call.args[position : position + 1]
    if not given:
        return None
    limit = _value(given[0], frame)
    return limit.total_seconds() if isinstance(limit, timedelta) else 0.0
