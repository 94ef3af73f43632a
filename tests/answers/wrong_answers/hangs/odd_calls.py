"""
Answers to task 10.3.
"""

from bank import Answer, changed

ODD = """\
import torch
import torch.distributed as dist

def odd_calls(name, tensor, root, store, number):
    parts = (tensor.numel(), tensor.dtype) if tensor is not None else None
    store.set(f"{number}/{dist.get_rank()}", repr((name, parts, root)))
    keys = [f"{number}/{rank}" for rank in range(dist.get_world_size())]
    calls = [store.get(key) for key in keys]
    usual = max(calls, key=calls.count)
    return [rank for rank, call in enumerate(calls) if call != usual]
"""

_SET = '    store.set(f"{number}/{dist.get_rank()}", repr((name, parts, root)))\n'
_TEXT = "repr((name, parts, root))"
_GET = "    calls = [store.get(key) for key in keys]\n"


def _altered(name, mistake, *pairs):
    return Answer("10.3", name, mistake, changed(ODD, *pairs))


ANSWERS = [
    _altered(
        "unusual: leaves a hash of hashlib",
        None,
        ("import torch\n", "import hashlib, torch\n"),
        (
            "repr((name, parts, root))",
            "hashlib.sha256(repr((name, parts, root)).encode()).hexdigest()",
        ),
    ),
    _altered("compares names only", "unseen", ("(name, parts, root)", "name")),
    _altered("takes root 0 for none", "root-0", (_TEXT, "repr((name, parts, root or None))")),
    _altered("compares shapes", "shape", ("tensor.numel()", "tensor.shape")),
    _altered("compares with rank 0", "first", ("max(calls, key=calls.count)", "calls[0]")),
    _altered(
        "compares with itself",
        "not-the-same",
        ("max(calls, key=calls.count)", "calls[dist.get_rank()]"),
    ),
    _altered("returns those that are like most", "wrong-side", ("!= usual", "== usual")),
    _altered("lets the alphabet decide", "draw", ("max(calls,", "max(sorted(calls),")),
    _altered(
        "writes down the tensor",
        "heavy",
        (
            "(name, parts, root)",
            "(name, parts, root, tensor if tensor is None else tensor.tolist())",
        ),
    ),
    _altered(
        "gathers objects",
        "forbidden",
        (_SET, ""),
        (
            _GET,
            "    calls = [None for _ in keys]\n"
            "    dist.all_gather_object(calls, repr((name, parts, root)))\n",
        ),
    ),
    _altered(
        "leaves a hash of the text",
        "own-order",
        (_TEXT, f"str(hash({_TEXT}))"),
    ),
    _altered("reads before it writes", "raised", (_SET, ""), (_GET, _GET + _SET)),
    _altered(
        "returns a tuple",
        "no-list",
        (
            "return [rank for rank, call in enumerate(calls) if call != usual]",
            "return tuple(rank for rank, call in enumerate(calls) if call != usual)",
        ),
    ),
    _altered("begins with the highest", "order", ("if call != usual]", "if call != usual][::-1]")),
    _altered(
        "adds rank 0",
        "values",
        ("if call != usual]", "if call != usual or (rank == 0 and len({*calls}) > 1)]"),
    ),
    Answer(
        "10.3",
        "hashes, and waits for all keys at once",
        None,
        """\
import hashlib
from collections import Counter
import torch.distributed as dist

def odd_calls(name, tensor, root, store, number):
    size, mine = dist.get_world_size(), dist.PrefixStore(f"odd calls {number}", store)
    words = [name, str(root)]
    if tensor is not None:
        words += [str(tensor.dtype), str(tensor.nelement())]
    mine.set(str(dist.get_rank()), hashlib.sha256("|".join(words).encode()).hexdigest())
    mine.wait([str(rank) for rank in range(size)])
    prints = [mine.get(str(rank)) for rank in range(size)]
    ((usual, _),) = Counter(prints).most_common(1)  # of equals the first that was counted
    return [rank for rank in range(size) if prints[rank] != usual]
""",
    ),
    _altered(
        "asks again and again",
        None,
        (
            _GET,
            """\
    while not all(store.check([key]) for key in keys):
        pass
"""
            + _GET,
        ),
    ),
]
