"""
Send the state to the class board, in the background: a board that is down costs no cell anything.

What is sent is the whole file, whenever it has changed, by whichever notebook or command. So
nothing is lost while the board is away, and of two that send, the last one sends what both have
done.
"""

import threading
from contextlib import suppress

from ddp_lessons.progress import state
from ddp_lessons.progress.board_client import UNREACHABLE, Refused, membership

_LOOK_EVERY_S = 1.0
_LONGEST_PAUSE_S = 30.0
_refused = set()  # memberships to which a board has said no in this process


class Sender(threading.Thread):
    """
    Send a learner's state whenever it changes, until the process ends or the board says no.

    Args:
        member: The Membership.
        path: The state file; default: this learner's.
        look_every_s: Seconds between two looks at the file, and before a board that was away is
            asked again; that pause doubles each time.
    """

    def __init__(self, member, path=None, look_every_s=_LOOK_EVERY_S):
        super().__init__(name="ddp-lessons-board", daemon=True)
        self.member = member
        self._look_every_s = look_every_s
        self._path = path or state.state_file()
        self._woken = threading.Event()
        self.is_over = False

    def run(self):
        """
        Look, send, and wait, in turns.
        """
        sent, pause_s = None, self._look_every_s
        while not (self.is_over or self.member.is_superseded()):
            self._woken.clear()
            mark = _mark(self._path)  # read before the text: what changes in between is seen again
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

    def wake(self):
        """
        Have it look now.
        """
        self._woken.set()

    def end(self):
        """
        Have it end, soon.
        """
        self.is_over = True
        self._woken.set()

    def _send(self):
        text = self._path.read_text(encoding="utf-8")
        with suppress(state.Unreadable):  # the next note keeps it aside
            self.member.send(state.parse(text))


def keep_sending(anew=False):
    """
    See to it that what this process notes is sent, if the learner is on a board.

    Args:
        anew: Whether to send to a board that has said no as well: it lets the learner in by now.
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


def stop_sending():
    """
    End what sends in this process.
    """
    running = the_sender()
    if running is not None:
        running.end()


def the_sender():
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
