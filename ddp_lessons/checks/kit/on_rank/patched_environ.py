"""
Other contents of `os.environ` in a rank while an answer is tried, and what the answer changed.
"""

import inspect
import linecache
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def told(words: Mapping[str, str]) -> Iterator[Callable[[], list[str]]]:
    """
    Set variables in `os.environ` for a `with` block. Undo them and the answer's changes afterwards.

    Args:
        words: {name: text} of the variables.

    Yields:
        Callable: Returns the names of the variables that changed in the block, sorted.
    """
    before = dict(os.environ)
    os.environ.update(words)
    said = dict(os.environ)

    def changed():
        names = {*said, *os.environ}
        return sorted(name for name in names if said.get(name) != os.environ.get(name))

    try:
        yield changed
    finally:
        for name in {*os.environ} - {*before}:
            del os.environ[name]
        os.environ.update(before)


def redefine(answer: Callable[..., Any], name: str) -> Callable[..., Any]:
    """
    Run the cell that defines an answer again, in a new namespace, and return the new answer.

    So the cell reads again what it reads at its top level, such as `os.environ`.

    Args:
        answer: The learner's function.
        name: The name under which the cell defines it.

    Returns:
        Callable: The new function; `answer` itself if its source is not known.
    """
    function = inspect.unwrap(answer)
    code, names = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    if code is None:
        return answer
    names = dict(names)
    # The cell may also call its function, which can fail in this environment.
    with suppress(Exception):
        exec(compile("".join(linecache.getlines(code.co_filename)), "anew", "exec"), names)
    return names.get(name, answer)
