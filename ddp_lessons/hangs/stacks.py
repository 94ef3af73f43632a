"""
Read the stacks that faulthandler writes, and find who is somewhere else than the others.

Legend: a stack is a list of frames, innermost first; a dump is the text of one or more stacks. Of a
dump of several threads the main thread's stack is the last.
"""

import linecache
import os
import re
import signal
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

LOOK_SIGNAL = signal.SIGUSR1
"""
What `look` sends. The process has to have said so: `faulthandler.register(signal.SIGUSR1, file=...,
all_threads=False)`. Without that the signal ends it.
"""

_HEADING = re.compile(r"^(Current thread|Thread|Stack)\b.*\(most recent call first\):$", re.M)
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')
_WRAPPERS = ("wrapper", "_fn", "decorate_context")  # of torch's, around what was called
_LOOK_EVERY_S = 0.01
_APART_S = 0.1  # two looks: what moves has gone on by then


@dataclass(frozen=True)
class Frame:
    """
    Hold one line of a stack: a function, and the line of it that is running.

    Args:
        file: The file's path, as the dump has it.
        line: The line, from 1; 0 if it is not known.
        function: The function's name, "<module>" outside of any.
    """

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.name}:{self.line} in {self.function}"

    @property
    def name(self) -> str:
        """
        The file's name, without its folder.
        """
        return Path(self.file).name

    @property
    def code(self) -> str:
        """
        The text of the line, if the file can be read here; or "".
        """
        return linecache.getline(self.file, self.line).strip()


def read_stacks(dump: str) -> list[list[Frame]]:
    """
    Return all stacks of a dump, in the order of its text.
    """
    stacks: list[list[Frame]] = []
    for text in dump.splitlines():
        frame = _FRAME.match(text)
        if _HEADING.match(text):
            stacks.append([])
        elif frame and stacks:
            line = int(frame["line"]) if frame["line"].isdigit() else 0
            stacks[-1].append(Frame(frame["file"], line, frame["function"]))
    return stacks


def read_stack(dump: str) -> list[Frame]:
    """
    Return the stack of the main thread: the last one in a dump. Empty if there is none.
    """
    return (read_stacks(dump) or [[]])[-1]


def own_frames(stack: Iterable[Frame], script: str | None = None) -> list[Frame]:
    """
    Return the frames of a learner's own code, innermost first.

    Args:
        stack: A list of Frame.
        script: The name of a file, such as "train.py", for its frames alone. Default: of all files
            that are no library's.
    """
    return [frame for frame in stack if _is_own(frame, script)]


def called(stack: Iterable[Frame], script: str | None = None) -> str:
    """
    Return the function that the innermost own line has called, such as "all_reduce".

    Empty if the line calls nothing that has a frame: what is written in C has none.

    Args:
        stack: A list of Frame.
        script: As for `own_frames`.
    """
    name = ""
    for frame in stack:
        if _is_own(frame, script):
            return name
        name = name if frame.function in _WRAPPERS else frame.function
    return ""


def _is_own(frame, script):
    return not is_of_a_library(frame.file) if script is None else frame.name == script


def odd_frames(
    stacks: Mapping[int, Iterable[Frame]], script: str | None = None
) -> dict[int, Frame | None]:
    """
    Find the ranks that are somewhere else than most, and where each of them has left their way.

    That is their innermost own line that no other rank's stack holds. Most are more than
    half: of two ranks that are at two places, nobody can say by their stacks whose fault it is.

    Args:
        stacks: {rank: its stack}.
        script: As for `own_frames`.

    Returns:
        dict: {rank: Frame} of those ranks. Empty if all are at one place, or if no place has most.

    Lesson: 10_hangs.
    """
    ways = {rank: tuple(own_frames(stack, script)) for rank, stack in stacks.items()}
    common, number = Counter(ways.values()).most_common(1)[0]
    if 2 * number <= len(ways):
        return {}
    odd = {}
    for rank in sorted(rank for rank, way in ways.items() if way != common):
        others = {frame for other, way in ways.items() if other != rank for frame in way}
        odd[rank] = next((frame for frame in ways[rank] if frame not in others), None)
    return odd


def look(pid: int, path: Path | str, patience_s: float = 10.0) -> list[Frame] | None:
    """
    Ask a process for its stack until two answers in a row are the same, a moment apart.

    One answer says where a process is. Two equal ones say that it stays there.

    Args:
        pid: The process, which has registered LOOK_SIGNAL.
        path: The file that it writes its stack to.
        patience_s: Seconds after which the process is taken for one that moves.

    Returns:
        list: The stack of its main thread; None if it moves.

    Lesson: 10_hangs.
    """
    give_up_at = time.monotonic() + patience_s
    num_asked = len(_HEADING.findall(Path(path).read_text()))
    while time.monotonic() < give_up_at:
        os.kill(pid, LOOK_SIGNAL)
        num_asked += 1
        while len(_HEADING.findall(Path(path).read_text())) < num_asked:
            if time.monotonic() >= give_up_at:
                return None
            time.sleep(_LOOK_EVERY_S)
        time.sleep(_APART_S)
        # The last one may not be at its end; those before are.
        whole = read_stacks(Path(path).read_text())[:-1]
        if len(whole) > 1 and whole[-1] == whole[-2]:
            return whole[-1]
    return None


def own_line(thread_id: int) -> Frame | None:
    """
    Return the innermost Frame of a thread of this process that is no library's, or None.

    Args:
        thread_id: The thread's `ident`.
    """
    frame = sys._current_frames().get(thread_id)
    while frame is not None and is_of_a_library(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return None
    return Frame(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name)


def is_of_a_library(file: str) -> bool:
    """
    Tell whether a file is Python's own or an installed package's.
    """
    places = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return file.startswith("<frozen") or any(Path(place) in Path(file).parents for place in places)
