"""
Leave out of a cell's messages what nobody reads: each is made, sealed, passed on and opened.

The last message of a cell says that all of its output has come. A cell that has put out nothing
says so in its reply.
"""

BRIEF = "ddp_lessons_brief"
"""
In a request's metadata: whoever asks waits by `has_said_all`, and wants no times.
"""
_SAID_ALL = "said_all"


def has_said_all(reply):
    """
    Tell whether no output of a cell can come after its reply, and no message that says so.

    Args:
        reply: What an execute request's future gives: a reply, or an error.
    """
    content = getattr(reply, "_content", None) or {}
    return content.get("ddp_lessons", {}).get(_SAID_ALL, False)


class Brevity:
    """
    Let a rank's kernel send less.

    Args:
        kernel: The engine's ipyparallel kernel, with the guard's report in its replies.
        pub_thread: ipykernel's thread through which all output goes.
        bound: The PrintBound of what is printed.
    """

    def __init__(self, kernel, pub_thread, bound):
        self._bound = bound
        self._num_sent = self._num_sent_before = 0
        self._was_brief = False
        self._finish, kernel.finish_metadata = kernel.finish_metadata, self._finish_metadata
        self._publish, kernel._publish_status = kernel._publish_status, self._publish_status
        # The cell's own text, which nobody reads either.
        kernel._publish_execute_input = lambda *args: None
        self._send, pub_thread.send_multipart = pub_thread.send_multipart, self._count
        kernel.shell.events.register("pre_run_cell", self._begin)

    def _begin(self, _):
        self._num_sent_before = self._num_sent

    def _count(self, *args, **kwargs):
        self._num_sent += 1
        self._send(*args, **kwargs)

    def _finish_metadata(self, parent, metadata, reply):
        metadata = self._finish(parent, metadata, reply)
        self._was_brief = False
        if parent["metadata"].get(BRIEF) and "ddp_lessons" in reply:
            metadata.pop("started", None)  # a date, which takes long to read
            has_sent = self._num_sent > self._num_sent_before
            self._was_brief = not (self._bound.has_printed or has_sent)
            reply["ddp_lessons"][_SAID_ALL] = self._was_brief
        return metadata

    def _publish_status(self, status, channel, parent=None):
        was_brief = channel == "shell" and self._was_brief
        if was_brief:
            self._was_brief = False
        elif status != "busy":
            self._publish(status, channel, parent)
