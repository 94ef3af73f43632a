"""
See what an answer takes of a message that may still be on its way.

Its numbers do not tell: whenever the message was faster, they are right.
"""

from torch.utils._python_dispatch import TorchDispatchMode

from ddp_lessons.checks.kit.inside.plain import tensors_in
from ddp_lessons.trace import trace


class Early(TorchDispatchMode):
    """
    Note the first call that takes a tensor into which a message is still being received.

    Attributes:
        taken_by: The name of that call, such as "add" or "send"; None: there was none.
    """

    def __init__(self):
        super().__init__()
        self.taken_by = None
        self._events = trace()
        self._coming: list = []  # (tensor, the event of its receive)

    def __enter__(self):
        self._events.start()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._events.stop()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, given = func._schema.name.partition("::")[2], tensors_in([args, kwargs or {}])
        # A view, or a tensor that is like another one, takes no numbers.
        if not (func.is_view or name.startswith("new_") or name.endswith("_like")):
            self._coming = [one for one in self._coming if one[1].wait_index is None]
            coming = [tensor for tensor, _ in self._coming]
            if any(_overlap(one, other) for one in given for other in coming):
                self.taken_by = self.taken_by or name
        result = func(*args, **(kwargs or {}))
        if name.startswith("recv_"):
            self._coming += [(tensor, self._events[-1]) for tensor in given]
        return result


def _overlap(one, other):
    # One with gaps may leave out what another fills.
    if not (one.is_contiguous() and other.is_contiguous() and one.numel() and other.numel()):
        return False
    first, second = sorted((one, other), key=lambda tensor: tensor.data_ptr())
    return first.data_ptr() + first.nbytes > second.data_ptr()
