"""
Sets and hashes as under torchrun, where each process has its own order of a set of texts, or of
objects that are hashed by their address.

Python draws new hashes of texts for each process, and a tensor's hash is its address. The ranks of
a notebook are forks of one process and share both. So a learner's functions are compiled again:
where they make a set or call `hash`, they use a set or a hash of ours. It notes texts and such
objects, and uses this rank's own order if that is wanted.
"""

import ast
import builtins
import linecache
import types
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ddp_lessons.checks.kit.on_rank.patching import patched

if TYPE_CHECKING:
    from ddp_lessons.checks.kit.on_rank.rank_record import RankContext

_T = TypeVar("_T")

_OWN, _OWN_SET, _OWN_HASH = "_ddp_lessons_own", "_ddp_lessons_set", "_ddp_lessons_hash"
_FRESH = ("union", "intersection", "difference", "symmetric_difference", "copy")
_MERGING = (ast.BitOr, ast.BitAnd, ast.BitXor, ast.Sub)
_ASKS_OF_KIND = ("isinstance", "issubclass")
_BY_ADDRESS = (object.__hash__, torch.Tensor.__hash__)


class Orders:
    """
    A maker of sets and hashes that notes whether they hold texts or objects hashed by address.

    Args:
        rank: The rank whose order they have.
        is_own: Whether the order is this rank's own; else it is the one that Python gives.
        names: The learner's names. A `hash` among them replaces Python's.

    Attributes:
        num_asked: How often the answer used the order of such values, or the hash of one.
    """

    def __init__(self, rank: int, is_own: bool, names: Mapping[str, Any]) -> None:
        self._rank, self._is_own, self._names = rank, is_own, names
        self.num_asked = 0
        self.kinds: dict[type, type[Any]] = {
            kind: _kind_of_set(self, kind) for kind in (set, frozenset)
        }

    def own(self, value: _T) -> _T:
        """
        Return a set with the same elements in this rank's order; return other values unchanged.
        """
        kind = self.kinds.get(type(value))
        return value if kind is None else kind(value)

    def own_hash(self, value: object) -> int:
        """
        Return the hash that a value has on this rank.
        """
        if "hash" in self._names or not _differs(value):
            return self._names.get("hash", builtins.hash)(value)
        self.num_asked += 1
        if not self._is_own:
            return hash(value)
        if not _has_text(value) and isinstance(value, tuple | frozenset):
            return hash(type(value)(map(self.own_hash, value)))
        mark = repr(value) if _has_text(value) else id(value)
        return Random(f"{self._rank} {mark}").getrandbits(60)

    def in_order(self, values: list[_T]) -> list[_T]:
        """
        Return the elements of a set in the order that they have on this rank.
        """
        if len(values) < 2 or not any(map(_differs, values)):
            return values
        self.num_asked += 1
        if not self._is_own:
            return values
        if any(map(_has_text, values)):
            return sorted(values, key=lambda one: Random(f"{self._rank} {one!r}").random())
        first = self._rank % len(values)  # so that two elements swap places on the next rank
        return [*values[first:], *values[:first]]


def _has_text(value):
    if isinstance(value, tuple | frozenset):
        return any(map(_has_text, tuple(value)))
    return isinstance(value, str | bytes)


def _differs(value):
    """
    Tell whether a value's hash differs between processes: it holds a text, or is hashed by address.
    """
    if isinstance(value, tuple | frozenset):
        return any(map(_differs, tuple(value)))
    return _has_text(value) or type(value).__hash__ in _BY_ADDRESS


def _kind_of_set(orders, base):
    class Own(base):  # type: ignore[valid-type, misc]
        def __iter__(self):
            there = list(base.__iter__(self))
            # If the order is Python's, use the set's own iterator: it raises if the set is changed.
            mine = orders.in_order(there)
            return base.__iter__(self) if mine is there else iter(mine)

        def pop(self):
            for one in self:
                self.remove(one)
                return one
            raise KeyError("pop from an empty set")

        def __reduce__(self):
            return base, (list(self),)

    Own.__name__ = Own.__qualname__ = base.__name__
    return Own


@contextmanager
def noting_orders(context: "RankContext", names: dict[str, Any], is_own: bool) -> Iterator[Orders]:
    """
    Make the learner's functions create sets that note whether texts are in them, in a `with` block.

    Args:
        context: The RankContext of a case.
        names: The learner's names, a dictionary.
        is_own: Whether these sets have this rank's own order.

    Yields:
        Orders: Its `num_asked` says how often an order or a hash was used.
    """
    orders = Orders(context.rank, is_own, names)
    codes = [(function, _noting_code(function.__code__)) for function in _functions(names)]
    with ExitStack() as stack:
        for function, code in codes:
            if code is not None:
                stack.enter_context(patched(function, __code__=code))
        names |= {_OWN: orders.own, _OWN_SET: orders.kinds[set], _OWN_HASH: orders.own_hash}
        try:
            yield orders
        finally:
            for name in (_OWN, _OWN_SET, _OWN_HASH):
                names.pop(name, None)


def _functions(names):
    """
    Return each function that the learner has defined, also methods and wrapped functions.
    """
    found: dict = {}
    things = list(names.values())
    while things:
        thing = things.pop()
        if isinstance(thing, staticmethod | classmethod):
            thing = thing.__func__
        if isinstance(thing, property):
            things += [thing.fget, thing.fset]
        elif isinstance(thing, type):
            if thing.__module__ == names.get("__name__") and id(thing) not in found:
                found[id(thing)] = None
                things += vars(thing).values()
        elif isinstance(thing, types.FunctionType) and id(thing) not in found:
            found[id(thing)] = thing if thing.__globals__ is names else None
            things.append(getattr(thing, "__wrapped__", None))
        elif callable(thing):
            things.append(vars(thing).get("__wrapped__") if hasattr(thing, "__dict__") else None)
    return [function for function in found.values() if function is not None]


def _noting_code(code):
    """
    Return a function's code, compiled so that it makes sets through `own`; None if it makes none.
    """
    text = "".join(linecache.getlines(code.co_filename))
    codes = _noting_codes(text, code.co_filename)
    alike = codes.get((code.co_name, code.co_firstlineno), [])
    # Two functions of one name on one line cannot be told apart.
    return alike[0] if len(alike) == 1 and alike[0].co_freevars == code.co_freevars else None


@lru_cache(maxsize=16)
def _noting_codes(text, file):
    try:
        tree = ast.parse(text)
    except SyntaxError:  # the cell has a magic: leave its functions unchanged
        return {}
    if not any(map(_makes_set, ast.walk(tree))):
        return {}
    is_hash_theirs = any(_names_hash(node) for node in ast.walk(tree))
    noting = ast.fix_missing_locations(_Noting(is_hash_theirs).visit(tree))
    return _codes_in(compile(noting, file, "exec"))


def _makes_set(node):
    if isinstance(node, ast.Name):
        return node.id in ("set", "frozenset", "hash")
    is_of_keys = isinstance(node, ast.Attribute) and node.attr == "keys"
    return is_of_keys or isinstance(node, ast.Set | ast.SetComp)


def _names_hash(node):
    if isinstance(node, ast.arg):
        return node.arg == "hash"
    if isinstance(node, ast.FunctionDef):
        return node.name == "hash"
    return isinstance(node, ast.Name) and node.id == "hash" and isinstance(node.ctx, ast.Store)


def _codes_in(code):
    found: dict = {}
    codes = [code]
    while codes:
        for one in codes.pop().co_consts:
            if isinstance(one, types.CodeType):
                found.setdefault((one.co_name, one.co_firstlineno), []).append(one)
                codes.append(one)
    return found


class _Noting(ast.NodeTransformer):
    """
    A transformer of source: it wraps new sets in `own(...)` and replaces Python's `hash`.
    """

    def __init__(self, is_hash_theirs):
        self._is_hash_theirs = is_hash_theirs

    def visit_Set(self, node):
        return _owned(self.generic_visit(node))

    visit_SetComp = visit_Set

    def visit_BinOp(self, node):
        node = self.generic_visit(node)
        return _owned(node) if isinstance(node.op, _MERGING) else node

    def visit_Call(self, node):
        asked = node.func.id if isinstance(node.func, ast.Name) else None
        node = self.generic_visit(node)
        if asked not in _ASKS_OF_KIND:  # defaultdict(set)
            node.args = [_class_in_place(one) for one in node.args]
            for keyword in node.keywords:
                keyword.value = _class_in_place(keyword.value)
        is_fresh = isinstance(node.func, ast.Attribute) and node.func.attr in _FRESH
        return _owned(node) if is_fresh or asked in ("set", "frozenset") else node

    def visit_Name(self, node):
        if node.id == "hash" and not self._is_hash_theirs:
            return ast.copy_location(ast.Name(_OWN_HASH, node.ctx), node)
        return node


def _owned(node):
    name = ast.copy_location(ast.Name(_OWN, ast.Load()), node)
    return ast.copy_location(ast.Call(name, [node], []), node)


def _class_in_place(node):
    if isinstance(node, ast.Name) and node.id == "set":
        return ast.copy_location(ast.Name(_OWN_SET, ast.Load()), node)
    return node
