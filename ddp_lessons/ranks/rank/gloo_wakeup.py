"""
Wake a thread that Gloo has forgotten. Called from another thread of the rank.

A connection that is cut, or that a dead peer leaves, ends every wait that Gloo knows of. Of two it
does not know: a message that is written halfway or could not be written any more, and one that was
read halfway (`Pair::signalException` tells neither `tx_` nor `rx_`). Whoever waits for such a
message waits until the group's time limit, half an hour. Stop in the middle of a training that runs
well does that to one rank in ten.

Gloo has a function that ends one such wait, `UnboundBuffer::abortWaitSend`, and nobody that can be
asked for the buffer. But who waits tells it. The futex that a thread sleeps on lies inside the
buffer, and the buffer's address is on its stack: that of an object which begins with the address of
the class's table of virtual functions, and ends after the futex. Where the system shows no stacks,
or torch has no such names, nobody is woken.

Source: gloo, transport/tcp/pair.cc and unbound_buffer.cc; proc(5), syscall and mem of a task.
Lesson: 02_collectives.
"""

import ctypes
import functools
import os
import struct
from pathlib import Path

_CLASS = "N4gloo9transport3tcp13UnboundBuffer"  # as C++ compilers write its name
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
Bytes of machine code that such a function has at most. The two have 0x290 and 0x2a0 in torch 2.13.
"""
_WORD = 8
_STACK_WORDS = 128
"""
From the system's call up to the end of `waitSend`'s own frame there are about 60.
"""
_MOST_BUFFER_BYTES = 0x200
"""
Bytes of a buffer, at most: two condition variables, a mutex and some numbers.
"""
_BEFORE_FIRST_FUNCTION = 2 * _WORD
"""
A table of virtual functions begins with an offset and a type, and objects point behind them.
"""


def wake_forgotten_threads():
    """
    End every wait of this process for a message of Gloo's. Call it once all connections are cut.

    What is woken goes on as if the message had come, and meets the cut connection at its next
    message, or is through. So nothing that a tensor holds afterwards counts.

    Returns:
        int: Number of threads that were woken.
    """
    gloo = _gloo()
    if gloo is None:
        return 0
    table, waits = gloo
    found = []
    try:
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            for task in os.listdir("/proc/self/task"):
                found += _waits_of(task, memory.fileno(), table, waits)
    except OSError:
        return 0
    for abort, buffer in found:  # at once: nobody else can wake these threads, and free a buffer
        abort(buffer)
    return len(found)


@functools.cache
def _gloo():
    """
    Return the table of virtual functions, and {address of a wait: function that ends it}, or None.
    """
    import torch

    if struct.calcsize("P") != _WORD:
        return None
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        table = ctypes.c_void_p.in_dll(library, _TABLE)
        waits = {}
        for wait, abort in _WAITS.items():
            address = ctypes.cast(getattr(library, wait), ctypes.c_void_p).value
            waits[address] = getattr(library, abort)
    except (OSError, ValueError, AttributeError):
        return None  # another system, or another Gloo
    for abort in waits.values():
        abort.argtypes, abort.restype = [ctypes.c_void_p], None
    return ctypes.addressof(table) + _BEFORE_FIRST_FUNCTION, waits


def _waits_of(task, memory, table, waits):
    """
    Return [(function that ends its wait, address of the buffer)] of one thread: one or none.
    """
    futex, words = _sleep_of(task, memory)
    around = [word for word in words if 0 < futex - word < _MOST_BUFFER_BYTES]
    buffers = [word for word in around if _word_at(memory, word) == table]
    for word in words if buffers else ():
        for begin, abort in waits.items():
            if begin < word < begin + _LONGEST_WAIT_BYTES:
                return [(abort, max(buffers))]
    return []


def _sleep_of(task, memory):
    """
    Return what a thread's system call was given first, which is the futex of one that waits for a
    condition, and the words above its stack pointer; 0 and none if it is in no system call.
    """
    try:
        with open(f"/proc/self/task/{task}/syscall") as f:
            _, first, *_, pointer, _ = f.read().split()
        stack = os.pread(memory, _STACK_WORDS * _WORD, int(pointer, 16))
        futex = int(first, 16)
    except (OSError, ValueError):
        return 0, ()  # it runs, has ended, or its stack ends here
    return futex, struct.unpack(f"={len(stack) // _WORD}Q", stack[: len(stack) // _WORD * _WORD])


def _word_at(memory, address):
    if address % _WORD:
        return None
    try:
        return struct.unpack("=Q", os.pread(memory, _WORD, address))[0]
    except (OSError, OverflowError, struct.error):
        return None  # no address
