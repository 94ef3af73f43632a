"""
Answers to task 03.5.
"""

from bank import Answer, changed

# fmt: on
_PREDICT = """\
def predict_bytes(way, rank, world_size, num_elements, element_bytes):
    if way == "hub":
        num_sent = (world_size - 1 if rank == 0 else 1) * num_elements
        return num_sent * element_bytes
    length, num_longer = divmod(num_elements, world_size)
    lengths = [length + (c < num_longer) for c in range(world_size)]
    stays, last = lengths[rank], lengths[(rank + 1) % world_size]
    return (2 * num_elements - stays - last) * element_bytes
"""

_PREDICT_STEPS = """\
def predict_bytes(way, rank, world_size, num_elements, element_bytes):
    if way == "hub":
        copies = world_size - 1 if rank == 0 else 1
        return copies * num_elements * element_bytes
    ends = [c * (num_elements // world_size) + min(c, num_elements % world_size)
            for c in range(world_size + 1)]
    num_sent = 0
    for first in (rank - 1, rank):
        for step in range(world_size - 1):
            c = (first - step) % world_size
            num_sent += ends[c + 1] - ends[c]
    return float(num_sent * element_bytes)
"""


def _noted(key):
    """
    Return an answer that stores each result under a key, and returns the stored one.
    """
    return "KNOWN = {}\n" + changed(
        _PREDICT.replace("def predict_bytes", "def computed"),
        (
            "def computed",
            f"""\
def predict_bytes(way, rank, world_size, num_elements, element_bytes):
    facts = way, rank, world_size, num_elements, element_bytes
    return KNOWN.setdefault(({key}), computed(*facts))


def computed""",
        ),
    )


_ROWS = [
    (
        "asks torch for its rank and for all ranks",
        "asked",
        "import torch.distributed as dist\n"
        + changed(
            _PREDICT,
            (
                "    if way",
                "    rank, world_size = dist.get_rank(), dist.get_world_size()\n    if way",
            ),
        ),
    ),
    (
        "notes it without the bytes of a number",
        "kept",
        _noted("way, rank, world_size, num_elements"),
    ),
    ("counts 4 bytes a number", "four-bytes", _PREDICT.replace("* element_bytes", "* 4")),
    (
        "asks torch how many ranks there are",
        "raised",
        "import torch.distributed as dist\n"
        + changed(_PREDICT, ("    if way", "    world_size = dist.get_world_size()\n    if way")),
    ),
    (
        "makes the last chunks longer",
        "uneven",
        changed(_PREDICT, ("c < num_longer", "c >= world_size - num_longer")),
    ),
    (
        "takes a hub for a place where all send alike",
        "hub-root",
        changed(_PREDICT, ("(world_size - 1 if rank == 0 else 1)", "(world_size - 1)")),
    ),
    (
        "counts what it receives",
        "received",
        changed(_PREDICT, ("lengths[(rank + 1) % world_size]", "lengths[rank - 1]")),
    ),
    (
        "keeps its own chunk at home in both halves",
        "second-half",
        changed(_PREDICT, ("lengths[(rank + 1) % world_size]", "lengths[rank]")),
    ),
    (
        "counts the reduce-scatter only",
        "one-half",
        changed(_PREDICT, ("2 * num_elements - stays - last", "num_elements - stays")),
    ),
    ("forgets how long a number is", "numbers", _PREDICT.replace(" * element_bytes", "")),
    (
        "returns what all ranks send together",
        "together",
        _PREDICT.replace("(world_size - 1 if rank == 0 else 1)", "2 * (world_size - 1)"),
    ),
    (
        "returns a sentence",
        "no-number",
        _PREDICT.replace(
            "return num_sent * element_bytes", 'return f"{num_sent * element_bytes} bytes"'
        ),
    ),
    (
        "runs it and looks",
        "forbidden",
        """\
import torch
from ddp_lessons.ring import textbook
from ddp_lessons.collectives import naive
from ddp_lessons.trace import trace

def predict_bytes(way, rank, world_size, num_elements, element_bytes):
    calls = naive if way == "hub" else textbook
    with trace() as events:
        calls.all_reduce(torch.zeros(num_elements * element_bytes, dtype=torch.uint8))
    return sum(event.input_bytes for event in events)
""",
    ),
    ("counts step by step, and returns a float", None, _PREDICT_STEPS),
    (
        "asks the package's schedules",
        None,
        """\
from ddp_lessons.costs import sent_bytes

def predict_bytes(way, rank, *counts):
    return sent_bytes("all_reduce", way, *counts)[rank]
""",
    ),
]

ANSWERS = [Answer("03.5", *row) for row in _ROWS]
