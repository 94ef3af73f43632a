"""
Wake a thread that Gloo has forgotten, from another thread of the rank.

A connection that is cut, or that a dead peer leaves, ends every wait that Gloo knows of. Gloo does
not know of two kinds of waits: for a message that was written only in part, and for a message that
was read only in part (`Pair::signalException` informs neither `tx_` nor `rx_`). A thread that waits
for such a message waits until the group's time limit, half an hour. Stop in the middle of a healthy
training does that to one rank in ten.

Gloo has a function that ends such a wait, `UnboundBuffer::abortWaitSend`, but no function that
returns the buffer. We find the buffer through the waiting thread. The futex that the thread sleeps
on is inside the buffer, and the buffer's address is on the thread's stack. The buffer is an object
that begins with the address of its class's table of virtual functions, and ends after the futex.
Where the system does not show stacks, or torch lacks these names, no thread is woken.

Source: gloo, transport/tcp/pair.cc and unbound_buffer.cc; proc(5), syscall and mem of a task.
Lesson: 02_collectives.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from pathlib import Path

from ddp_lessons.private.reaching import register_private_name

_CLASS = "N4gloo9transport3tcp13UnboundBuffer"  # the class's name, as C++ compilers mangle it
_TABLE = f"_ZTV{_CLASS}E"
_WAITS = {
    f"_Z{_CLASS}8waitSendEPiNSt6chrono8durationIlSt5ratioILl1ELl1000EEEE": (
        f"_Z{_CLASS}13abortWaitSendEv"
    ),
    f"_Z{_CLASS}8waitRecvEPiNSt6chrono8durationIlSt5ratioILl1ELl1000EEEE": (
        f"_Z{_CLASS}13abortWaitRecvEv"
    ),
}
_LONGEST_WAIT_BYTES = 0x400
"""
The largest size of a wait function in bytes of machine code. torch 2.13 has 0x290 and 0x2a0.
"""
_WORD = 8
_STACK_WORDS = 128
"""
Words of the stack to read: from the system call to the end of `waitSend`'s frame are about 60.
"""
_MOST_BUFFER_BYTES = 0x200
"""
The largest size of a buffer in bytes. It holds two condition variables, a mutex and some numbers.
"""
_BEFORE_FIRST_FUNCTION = 2 * _WORD
"""
Bytes from the start of a table of virtual functions to the place that objects point to. The table
begins with an offset and a type, and objects point behind them.
"""


def wake_forgotten_threads() -> int:
    """
    End every wait of this process for a message of Gloo's. Call it once all connections are cut.

    A woken thread goes on as if the message had come. It fails at its next message, because the
    connection is cut, or it finishes the collective. So the tensors of that collective are invalid.

    Returns:
        int: Number of threads that were woken.
    """
    gloo = _gloo()
    if gloo is None:
        return 0
    table, waits = gloo
    found: list[tuple[ctypes._NamedFuncPointer, int]] = []
    try:
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            for task in os.listdir("/proc/self/task"):
                found += _waits_of(task, memory.fileno(), table, waits)
    except OSError:
        return 0
    for abort, buffer in found:  # a buffer exists as long as its thread waits, and we end the wait
        abort(buffer)
    return len(found)


@functools.cache
def _gloo() -> tuple[int, dict[int, ctypes._NamedFuncPointer]] | None:
    """
    Return the address to which buffers point in their class's table, and the wait functions.

    Returns:
        (int, dict) or None: The address, and for each wait function's address the function that
        ends the wait. None if torch has no such functions.
    """
    import torch

    if struct.calcsize("P") != _WORD:
        return None
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        table = ctypes.c_void_p.in_dll(library, _TABLE)
        waits: dict[int, ctypes._NamedFuncPointer] = {}
        for wait, abort in _WAITS.items():
            address = ctypes.cast(getattr(library, wait), ctypes.c_void_p).value
            waits[address] = getattr(library, abort)  # type: ignore[index]  # of a function
    except (OSError, ValueError, AttributeError):
        return None  # another system, or another Gloo
    for abort in waits.values():  # type: ignore[assignment]  # above, it is a name
        abort.argtypes, abort.restype = [ctypes.c_void_p], None  # type: ignore[attr-defined]  # as above
    return ctypes.addressof(table) + _BEFORE_FIRST_FUNCTION, waits


def _waits_of(
    task: str, memory: int, table: int, waits: dict[int, ctypes._NamedFuncPointer]
) -> list[tuple[ctypes._NamedFuncPointer, int]]:
    """
    Return [(function that ends the wait, address of the buffer)] for one thread: one pair or none.
    """
    futex, words = _sleep_of(task, memory)
    around = [word for word in words if 0 < futex - word < _MOST_BUFFER_BYTES]
    buffers = [word for word in around if _word_at(memory, word) == table]
    for word in words if buffers else ():
        for begin, abort in waits.items():
            if begin < word < begin + _LONGEST_WAIT_BYTES:
                return [(abort, max(buffers))]
    return []


def _sleep_of(task: str, memory: int) -> tuple[int, tuple[int, ...]]:
    """
    Return the first argument of a thread's system call, and the words above its stack pointer.

    The argument is the futex if the thread waits for a condition. Return 0 and no words if the
    thread is in no system call.
    """
    try:
        with open(f"/proc/self/task/{task}/syscall") as f:
            _, first, *_, pointer, _ = f.read().split()
        stack = os.pread(memory, _STACK_WORDS * _WORD, int(pointer, 16))
        futex = int(first, 16)
    except (OSError, ValueError):
        return 0, ()  # the thread runs, has ended, or its stack ends here
    return futex, struct.unpack(f"={len(stack) // _WORD}Q", stack[: len(stack) // _WORD * _WORD])


def _word_at(memory: int, address: int) -> int | None:
    if address % _WORD:
        return None
    try:
        word: int = struct.unpack("=Q", os.pread(memory, _WORD, address))[0]
    except (OSError, OverflowError, struct.error):
        return None  # the word is no valid address
    return word


register_private_name(
    "torch.lib.libtorch_cpu.UnboundBuffer::abortWaitSend",
    oldest_promised="torch 2.11",
    lost="Stop in the middle of a training replaces one rank in ten, whose variables are lost",
    probe=lambda: _gloo() is not None,
)
