"""
See what an answer takes of a message that may still be on its way, and what it writes into one.

Its numbers do not tell: whenever the message was faster, they are right.
"""

from ddp_lessons.checks.kit.on_rank.snapshots import tensors_in
from ddp_lessons.private.dispatcher import dispatch_mode, schema_of
from ddp_lessons.trace import trace


class PrematureUse(dispatch_mode()):
    """
    Note the first call that meets a message before the wait for it.

    Attributes:
        taken_by: The name of the call, such as "add" or "send", that takes a tensor into which a
            message is still being received; None: there was none.
        written_by: The name of the call that writes into a tensor which is still being sent.
    """

    def __init__(self):
        super().__init__()
        self.taken_by: str | None = None
        self.written_by: str | None = None
        self._events = trace()
        self._coming: list = []  # (tensor, the event of its receive)
        self._leaving: list = []  # (tensor, the event of its send)

    def __enter__(self):
        self._events.start()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._events.stop()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, given = schema_of(func).name.partition("::")[2], tensors_in([args, kwargs or {}])
        # A view, or a tensor that is like another one, takes no numbers.
        if not (func.is_view or name.startswith("new_") or name.endswith("_like")):
            self._coming, self._leaving = map(_under_way, (self._coming, self._leaving))
            if _meet(given, self._coming):
                self.taken_by = self.taken_by or name
            written = given if name.startswith("recv_") else _written(func, args, kwargs or {})
            if _meet(written, self._leaving):
                self.written_by = self.written_by or name
        result = func(*args, **(kwargs or {}))
        if name.startswith("recv_"):
            self._coming += [(tensor, self._last("is_receive")) for tensor in given]
        if name == "send":
            self._leaving += [(tensor, self._last("is_send")) for tensor in given]
        return result

    def _last(self, kind):
        # Another thread may have made a call meanwhile, of the other kind.
        return next(event for event in reversed(list(self._events)) if getattr(event, kind))


def _under_way(messages):
    return [one for one in messages if one[1].wait_index is None]


def _written(func, args, kwargs):
    """
    Return the tensors into which a call writes.
    """
    arguments = schema_of(func).arguments
    values = {one.name: value for one, value in zip(arguments, args, strict=False)} | kwargs
    return tensors_in(
        [
            values.get(one.name)
            for one in arguments
            if one.alias_info is not None and one.alias_info.is_write
        ]
    )


def _meet(tensors, messages):
    return any(_overlap(one, other) for one in tensors for other, _ in messages)


def _overlap(one, other):
    # One with gaps may leave out what another fills.
    if not (one.is_contiguous() and other.is_contiguous() and one.numel() and other.numel()):
        return False
    first, second = sorted((one, other), key=lambda tensor: tensor.data_ptr())
    return first.data_ptr() + first.nbytes > second.data_ptr()
