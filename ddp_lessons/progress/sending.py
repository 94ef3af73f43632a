"""
The thread that sends the state to the class board, so that no cell waits for the board.

The thread sends the whole state file whenever any notebook or command has changed it. So nothing is
lost while the board is down. If two processes send, the last one sends what both have recorded.
"""

import threading
from contextlib import suppress
from pathlib import Path

from ddp_lessons.progress import state
from ddp_lessons.progress.board_client import UNREACHABLE, Membership, Refused, membership

_LOOK_EVERY_S = 1.0
_LONGEST_PAUSE_S = 30.0
_refused = set()  # memberships that a board has refused in this process


class Sender(threading.Thread):
    """
    A thread that sends a learner's state after each change, until the board refuses it.

    Args:
        member: The Membership.
        path: Path of the state file; default: this learner's.
        look_every_s: Seconds between two looks at the file. While the board does not answer, this
            pause doubles each time, up to 30 s.
    """

    def __init__(
        self, member: Membership, path: Path | None = None, look_every_s: float = _LOOK_EVERY_S
    ) -> None:
        super().__init__(name="ddp-lessons-board", daemon=True)
        self.member = member
        self._look_every_s = look_every_s
        self._path = path or state.state_file()
        self._woken = threading.Event()
        self.is_over = False

    def run(self) -> None:
        """
        Look at the file, send it if it has changed, and wait, again and again.
        """
        sent, pause_s = None, self._look_every_s
        while not (self.is_over or self.member.is_superseded()):
            self._woken.clear()
            mark = _mark(self._path)  # taken before the text, so that a later change counts
            if mark is not None and mark != sent:
                try:
                    self._send()
                except Refused:
                    _refused.add(self.member)
                    return
                except UNREACHABLE:
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                else:
                    sent, pause_s = mark, self._look_every_s
            self._woken.wait(pause_s)

    def wake(self) -> None:
        """
        Make the thread look at the file now.
        """
        self._woken.set()

    def end(self) -> None:
        """
        Make the thread end soon.
        """
        self.is_over = True
        self._woken.set()

    def _send(self):
        text = self._path.read_text(encoding="utf-8")
        with suppress(state.Unreadable):  # the next record moves that file aside
            self.member.send(state.parse(text))


def keep_sending(anew: bool = False) -> None:
    """
    Start the thread that sends the state, or wake it, if the learner is on a board.

    Args:
        anew: Whether to send even to a board that has refused before, but lets the learner in now.
    """
    member = membership()
    if member is None or (member in _refused and not anew):
        return
    _refused.discard(member)
    running = the_sender()
    if running is not None and running.member == member:
        running.wake()
        return
    stop_sending()
    Sender(member).start()


def stop_sending() -> None:
    """
    End the thread of this process that sends.
    """
    running = the_sender()
    if running is not None:
        running.end()


def the_sender() -> Sender | None:
    """
    Return the thread of this process that sends, or None.
    """
    threads = (one for one in threading.enumerate() if isinstance(one, Sender))
    return next((one for one in threads if one.is_alive() and not one.is_over), None)


def _mark(path):
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_mtime_ns, seen.st_size, seen.st_ino
