"""
What `os.environ` says in a rank while an answer is tried, and what the answer has made of it.
"""

import inspect
import linecache
import os
from contextlib import contextmanager, suppress


@contextmanager
def told(words):
    """
    Have `os.environ` say something for a while; what an answer changes in it is put back as well.

    Args:
        words: {name: text} of what it is to say.

    Yields:
        Callable: Returns the names that do not say any more what they were told, in order.
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


def defined_anew(answer, name):
    """
    Run the cell that defines an answer once more, in names of its own, and return what it defines.

    So what a cell reads while it runs is read anew.

    Args:
        answer: The learner's function.
        name: The name under which it is called.

    Returns:
        Callable: The new function; `answer` itself if its source is not known.
    """
    function = inspect.unwrap(answer)
    code, names = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    if code is None:
        return answer
    names = dict(names)
    # A cell may go on and try its function out, in an environment that it did not expect.
    with suppress(Exception):
        exec(compile("".join(linecache.getlines(code.co_filename)), "anew", "exec"), names)
    return names.get(name, answer)
