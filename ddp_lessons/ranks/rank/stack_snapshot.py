"""
The snapshot of a rank as plain data: its line in the cell, the call it blocks in, its collectives.

It is taken by another thread of the same process, while the main thread may wait inside C++.
"""

import itertools
import pickle
import re
import sys
import sysconfig
from datetime import timedelta
from pathlib import Path
from typing import Any

from ddp_lessons.private import process_groups, stack_names
from ddp_lessons.ranks.messages.snapshot import Collective, FormingGroup, RankSnapshot
from ddp_lessons.ranks.rank.pending_wait import pending_wait_at

_LIBRARIES = (f"{sysconfig.get_path('stdlib')}/", f"{Path(__file__).parents[2]}/")
_NOT_A_LEARNERS = re.compile(r"^<|/(site|dist)-packages/|/ipykernel_\d+/")  # the last: cells
_C10D = "/torch/distributed/distributed_c10d.py"
_DDP = "/torch/nn/parallel/distributed.py"
_WAITS = "/ddp_lessons/trace/awaiting.py"
_TRACED_WAITS = ("_wait", "_future_wait", "wait_tensor")
_WAITING_CALLS = {
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "gather",
    "scatter", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single",
    "barrier", "monitored_barrier", "send", "recv", "isend", "irecv", "batch_isend_irecv",
    "all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list",
    "send_object_list", "recv_object_list", "init_process_group", "new_group", "new_subgroups",
    "split_group",
}  # fmt: skip
_ROOTED_CALLS = {
    "broadcast", "reduce", "gather", "scatter", "broadcast_object_list", "gather_object",
    "scatter_object_list",
}  # fmt: skip
_MESSAGES = {"send": "", "recv": "", "isend": "send", "irecv": "recv"}
"""
Calls that send or receive one message. For an asynchronous call, the operation that it starts.
"""
_FORMING_FRAMES = (stack_names.FORMING, "init_process_group")
_SHORT_NAMES = {
    "_allgather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "nccl:_all_gather_base": "all_gather_into_tensor",
}


def waiting_call(file: str, function: str) -> str:
    """
    Return the name of the communication call that a stack frame belongs to, or "".
    """
    file = file.replace("\\", "/")
    if file.endswith(_C10D) and function in _WAITING_CALLS:
        return function
    if function == stack_names.BACKWARD:
        return "backward"
    if file.endswith(_DDP) and function == stack_names.DDP_FORWARD:
        return "DDP forward"
    if file.endswith(_WAITS) and function in _TRACED_WAITS:
        return "wait"
    return ""


def _line_of_module(frame):
    """
    Return a frame's line as "helpers.py:12" if it is in a learner's own module, else "".
    """
    file = frame.f_code.co_filename
    if file.startswith(_LIBRARIES) or _NOT_A_LEARNERS.search(file):
        return ""
    return f"{Path(file).name}:{frame.f_lineno}"


def _frames(frame):
    while frame is not None:
        yield frame
        frame = frame.f_back


def _peer(frame):
    """
    Return the global rank of a message's peer, or of a collective's root; None for any source.
    """
    names = frame.f_locals
    for name in ("dst", "src"):
        if isinstance(names.get(name), int):
            return names[name]
    for name in ("group_dst", "group_src"):
        if isinstance(names.get(name), int):
            distributed = sys.modules["torch.distributed"].distributed_c10d
            group = names.get("group") or distributed.GroupMember.WORLD
            return distributed.get_global_rank(group, names[name])
    return None


def _group_name(frame):
    group = frame.f_locals.get("group")
    return getattr(group, "group_name", None)


def _forming(frame):
    """
    Return the FormingGroup that a frame of torch makes; None if its members are not known yet.
    """
    names = frame.f_locals
    if frame.f_code.co_name == "init_process_group":
        world_size = names.get("world_size")
        known = isinstance(world_size, int) and world_size > 0
        count = str(names.get("group_name") or "")
        return FormingGroup("", list(range(world_size)), count) if known else None
    ranks = names.get("global_ranks_in_group")
    return FormingGroup(str(names["group_name"]), sorted(ranks)) if ranks else None


def source_line(cell_source: str, line: int | None) -> str:
    """
    Return the text of a line of a cell, counted from 1; "" if there is no such line.
    """
    lines = cell_source.splitlines()
    return lines[line - 1].strip() if line and line <= len(lines) else ""


def _timeout_s(frame):
    timeout = frame.f_locals.get("timeout")
    return timeout.total_seconds() if isinstance(timeout, timedelta) else None


def _awaiting_frames(coroutine):
    """
    Return the frames of a coroutine that waits in an `await`, the innermost first.
    """
    frames = []
    while getattr(coroutine, "cr_frame", None) is not None:
        frames.append(coroutine.cr_frame)
        coroutine = coroutine.cr_await
    return reversed(frames)


def main_thread_snapshot(
    main_thread_id: int, cell_file: str | None, cell_source: str, coroutine: object = None
) -> RankSnapshot:
    """
    Return a snapshot of the main thread.

    Args:
        main_thread_id: `threading.main_thread().ident`.
        cell_file: The file name under which IPython compiled the running cell.
        cell_source: Source text of the running cell.
        coroutine: The coroutine that runs the cell, if the cell has an `await`; else None.

    Returns:
        RankSnapshot: With the fields that the stack shows; the others have their defaults.
    """
    seen: dict[str, Any] = {}
    inner = sys._current_frames().get(main_thread_id)
    if inner is None:
        return RankSnapshot(**seen)
    seen["function"] = inner.f_code.co_name
    # While the cell waits in an `await`, its frames are not below those of the main thread.
    for frame in itertools.chain(_frames(inner), _awaiting_frames(coroutine)):
        code = frame.f_code
        call = waiting_call(code.co_filename, code.co_name)
        if code.co_name in _FORMING_FRAMES and code.co_filename.endswith(_C10D):
            seen["forming"] = seen.get("forming") or _forming(frame)
        if call in _WAITING_CALLS:
            is_message = call in _MESSAGES
            seen.update(
                call=call,
                peer=_peer(frame) if is_message else None,
                tag=frame.f_locals.get("tag") if is_message else None,
                operation=_MESSAGES.get(call, ""),
                root=_peer(frame) if call in _ROOTED_CALLS else None,
                group=_group_name(frame) or seen.get("group"),
                timeout_s=_timeout_s(frame) or seen.get("timeout_s"),
            )
        elif call:
            seen["call"] = seen.get("call") or call
        elif code.co_filename == cell_file:
            seen["line"] = frame.f_lineno
            seen["code"] = source_line(cell_source, frame.f_lineno)
            break
        else:
            seen["module"] = seen.get("module") or _line_of_module(frame)
    if not seen.get("call"):
        awaited = pending_wait_at(inner)
        seen.update(call=awaited.call, operation=awaited.operation, timeout_s=awaited.timeout_s)
    return RankSnapshot(**seen)


def _collective_name(entry):
    name = entry["profiling_name"].partition(":")[2]
    return _SHORT_NAMES.get(name, name)


def _recorded_entries():
    """
    Return the entries of all of torch's flight recorders. NCCL, where available, has its own.
    """
    entries = {}
    for dump in process_groups.dump_flight_recorders(with_stacks=False):
        told = pickle.loads(dump)
        for entry in told.get("entries", ()):
            # Some versions of torch have one recorder for both names, and return each entry twice.
            entries[entry["profiling_name"], entry["process_group"][0], entry["record_id"]] = entry
    return sorted(entries.values(), key=lambda entry: entry["time_created_ns"])


def recorded_collectives(since_ns: int = 0) -> list[Collective]:
    """
    Return the collectives and messages in torch's flight recorder of this rank, oldest first.

    Args:
        since_ns: Leave out calls before this time, in nanoseconds since 1970.

    Returns:
        list[Collective]: One for each call.

    Source: torch/csrc/distributed/c10d/FlightRecorder.hpp.
    """
    return [
        Collective(
            name=_collective_name(entry),
            number=entry["collective_seq_id"],
            group=entry["process_group"][0],
            sizes=entry["input_sizes"],
            dtypes=entry["input_dtypes"],
            timeout_s=entry["timeout_ms"] / 1000,
            is_p2p=entry["is_p2p"],
            record=entry["record_id"],
        )
        for entry in _recorded_entries()
        if entry["time_created_ns"] >= since_ns
    ]


def is_in_group() -> bool:
    """
    Return whether this rank is in a group. Import nothing: without torch it is in no group.
    """
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_initialized()


def counts_of_groups() -> list[tuple[str, int]] | None:
    """
    Return (name, number of its last collective) for each group; None if this rank is in no group.

    Equal counts before and after a cell show that it communicated nothing, as most cells do. This
    is much cheaper than reading the flight recorder.
    """
    if not is_in_group():
        return None
    return [
        (group.group_name, process_groups.sequence_number(group))
        for group in process_groups.all_groups()
        if process_groups.backend_name(group) in ("gloo", "nccl")
    ]


def members_of_groups() -> dict[str, list[int]]:
    """
    Return for each group's name the sorted ranks of its members.
    """
    if not is_in_group():
        return {}
    ranks = {
        group.group_name: process_groups.ranks_of(group) for group in process_groups.all_groups()
    }
    return {name: members for name, members in ranks.items() if members is not None}


def type_of_variable(name: str) -> str:
    """
    Return the name of the type that a variable of this rank's cells has.
    """
    from IPython import get_ipython

    return type(get_ipython().user_ns[name]).__name__


def has_variable(name: str) -> bool:
    """
    Return whether this rank's cells have a variable of that name.
    """
    from IPython import get_ipython

    return name in get_ipython().user_ns
