"""
Detection of tensors that an answer uses while their message may still be under way.

The answer's values cannot show this: they are right whenever the message was fast enough.
"""

from collections.abc import Collection
from typing import Any, Self

from ddp_lessons.checks.kit.on_rank.snapshots import tensors_in
from ddp_lessons.private.dispatcher import dispatch_mode, schema_of
from ddp_lessons.trace import trace


class PrematureUse(dispatch_mode()):  # type: ignore[misc]  # a class of torch
    """
    A mode that records the first call that uses a message's tensor before the wait for the message.

    Attributes:
        taken_by: The name of the call, such as "add" or "send", that reads or writes a tensor into
            which a message is still being received; None: there was no such call.
        written_by: The name of the call that writes into a tensor that is still being sent; None:
            there was no such call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.taken_by: str | None = None
        self.written_by: str | None = None
        self._events = trace()
        self._coming: list = []  # (tensor, the event of its receive)
        self._leaving: list = []  # (tensor, the event of its send)

    def __enter__(self) -> Self:
        self._events.start()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._events.stop()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Collection[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        name, given = schema_of(func).name.partition("::")[2], tensors_in([args, kwargs or {}])
        # Views, and new tensors made like another tensor, do not read its elements.
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
        # Another thread may have made a call of the other kind meanwhile.
        return next(event for event in reversed(list(self._events)) if getattr(event, kind))


def _under_way(messages):
    return [one for one in messages if one[1].wait_index is None]


def _written(func, args, kwargs):
    """
    Return the tensors that a call writes into.
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
    # A tensor with gaps in memory may leave out the bytes that another one fills.
    if not (one.is_contiguous() and other.is_contiguous() and one.numel() and other.numel()):
        return False
    first, second = sorted((one, other), key=lambda tensor: tensor.data_ptr())
    return first.data_ptr() + first.nbytes > second.data_ptr()
