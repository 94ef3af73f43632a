"""
A check gives each rank its own iteration order of sets, as ranks that torchrun starts have.

Each process hashes strings in its own way, and most objects by their address, but forks of one
process do not differ in that.
"""

import linecache
import types

import pytest
import torch

from ddp_lessons.checks.kit.on_rank.hash_order import noting_orders
from ddp_lessons.checks.kit.on_rank.snapshots import plain

TEXTS = "abcdefghij"

WAYS = {
    "a set": "return list({t for t in texts})",
    "a call": "return list(set(texts))",
    "a display": "return [*{'a', 'b', 'c', 'd', 'e', *texts}]",
    "a frozen one": "return list(frozenset(texts))",
    "a union": "return list(set(texts[:3]) | set(texts))",
    "a method": "return list({'a'}.union(texts))",
    "a difference": "return list(set(texts) - {'x'})",
    "keys": "return list(dict.fromkeys(texts).keys() & dict.fromkeys(texts).keys())",
    "changed in place": "s = {'a'}\n    s |= set(texts)\n    s.add('y')\n    return list(s)",
    "a dictionary of sets": (
        "from collections import defaultdict\n    d = defaultdict(set)\n"
        "    for t in texts: d[0].add(t)\n    return list(d[0])"
    ),
    "pop": "s = set(texts)\n    return [s.pop() for _ in range(len(s))]",
    "pairs": "return [t for _, t in {(1, t) for t in texts}]",
    "a lambda": "return (lambda: list(set(texts)))()",
    "hash": "return sorted(texts, key=hash)",
    "a hash of a pair": "return sorted(texts, key=lambda t: hash((1, t)))",
}
NO_WAYS = {
    "numbers": "return list({1, 2, 3})",
    "sorted": "return sorted(texts)",
    "a dictionary": "return list(dict.fromkeys(texts))",
    "one's own hash": "return sorted(texts, key=own)",
    "a hash of numbers": "return [hash((1, 2.5))]",
    "a set of one": "return list({texts}) + list({len})",
}


def _here(rank):
    return types.SimpleNamespace(rank=rank)


def _names(source):
    """
    Return the names that a cell with this source defines, as in a learner's notebook.
    """
    file, names = f"<cell {hash(source)}>", {"__name__": "__main__"}
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    exec(compile(source, file, "exec"), names)
    return names


def _answer(body):
    return _names(f"own = len\n\ndef answer(texts):\n    {body}\n")


@pytest.mark.parametrize("way", WAYS)
def test_texts_have_an_order_of_each_rank(way):
    """
    An order of strings differs between ranks, whatever way an answer made its set, and is the same
    again on the same rank.
    """
    names, found = _answer(WAYS[way]), []
    usual = names["answer"](TEXTS)
    for rank in (0, 1, 0):
        with noting_orders(_here(rank), names, is_own=True) as orders:
            found.append(names["answer"](TEXTS))
        assert orders.num_asked
        assert sorted(map(str, found[-1])) == sorted(map(str, usual))
    assert found[0] == found[2] != found[1]
    with noting_orders(_here(1), names, is_own=False) as orders:
        assert names["answer"](TEXTS) == usual
    assert orders.num_asked
    assert names["answer"](TEXTS) == usual


THINGS = {
    "tensors": [torch.zeros(()) for _ in TEXTS],  # equal values, different objects
    "parameters": [torch.nn.Parameter(torch.zeros(2)) for _ in TEXTS],
    "modules": [torch.nn.Identity() for _ in TEXTS],
    "dtypes": [
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    ],
    "pairs": [(place, torch.zeros(())) for place in range(10)],
}


@pytest.mark.parametrize("kind", THINGS)
@pytest.mark.parametrize("body", ["return list(set(texts))", "return sorted(texts, key=hash)"])
def test_things_hashed_by_their_address_have_an_order_of_each_rank(kind, body):
    """
    Sets of objects that are hashed by address have another order on each rank, also where forks
    made the objects alike.
    """
    names, found = _answer(body), []
    for rank in (0, 1, 0):
        with noting_orders(_here(rank), names, is_own=True) as orders:
            found.append(list(map(id, names["answer"](THINGS[kind]))))
        assert orders.num_asked
        assert sorted(found[-1]) == sorted(map(id, THINGS[kind]))
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize("way", NO_WAYS)
def test_what_has_one_order_everywhere_is_left_alone(way):
    """
    An answer that sorts, or that uses numbers, has one order everywhere and need not be run again.
    """
    names = _answer(NO_WAYS[way])
    usual = names["answer"](TEXTS)
    with noting_orders(_here(1), names, is_own=True) as orders:
        assert names["answer"](TEXTS) == usual
    assert not orders.num_asked


SEVERAL = """
import functools

def helper(texts):
    return list(set(texts))

@functools.lru_cache
def cached(texts):
    return list(set(texts))

class Answer(list):
    def __init__(self, texts):
        super().__init__(helper(texts))

    @staticmethod
    def still(texts):
        return list(set(texts))

    @property
    def mine(self):
        return list(set(self))

def hash(text):
    return ord(text)

def by_hash(texts):
    return sorted(texts, key=hash)
"""


def test_helpers_methods_and_wrapped_functions_count_and_are_given_back():
    """
    Helpers, methods and wrapped functions of a cell count too, and are restored. A `hash` that the
    cell defines stays as it is.
    """
    names = _names(SEVERAL)
    own = names["Answer"]
    ways = {
        "helper": lambda: names["helper"](TEXTS),
        "cached": lambda: names["cached"].__wrapped__(TEXTS),
        "made": lambda: list(own(TEXTS)),
        "still": lambda: own.still(TEXTS),
        "mine": lambda: own(sorted(TEXTS)).mine,
    }
    usual = {name: way() for name, way in ways.items()}
    with noting_orders(_here(1), names, is_own=True):
        for name, way in ways.items():
            assert way() != usual[name], name
        assert names["by_hash"](TEXTS) == sorted(TEXTS)
    assert {name: way() for name, way in ways.items()} == usual
    assert not [name for name in names if "ddp_lessons" in name]


def test_a_set_that_has_an_own_order_is_a_set_still():
    """
    A set with its own order still behaves as a set, so that answers run, and can be sent as a plain
    set.
    """
    body = "s = set(texts)\n    return s, isinstance(s, set), s == set('abcdefghij'), len(s)"
    names = _answer(body)
    with noting_orders(_here(1), names, is_own=True):
        result = names["answer"](TEXTS)
    assert result[1:] == (True, True, 10)
    assert type(plain(result)[0]) is set
    names = _answer("s = set(texts)\n    for t in s: s.add(t + t)")
    with (
        noting_orders(_here(1), names, is_own=False),
        pytest.raises(RuntimeError, match="changed size during iteration"),
    ):
        names["answer"](TEXTS)
