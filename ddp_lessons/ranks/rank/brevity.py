"""
Leave out of a cell what nobody needs: messages that nobody reads, and work that is done already.

Each message is made, sealed, passed on and opened. The last of a cell says that all of its output
has come; a cell that has put out nothing says so in its reply.

The kernel, the shell and the guard of a rank each transform a cell and name its code. And each rank
would turn the same magics into the same Python, token by token, which takes longer than a short
cell runs: the notebook's kernel does that for all of them.
"""

from ipykernel import ipkernel
from IPython.core.inputtransformer2 import TransformerManager

BRIEF = "ddp_lessons_brief"
"""
In a request's metadata: whoever asks waits by `has_said_all`, and wants no times.
"""
TRANSFORMED = "ddp_lessons_transformed"
"""
In a request's metadata: the cell as IPython's own transformers leave it.
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


def transformed(source):
    """
    Return the metadata that saves ranks their work: none for a cell whose fault they should tell.

    Args:
        source: A cell's text.

    Returns:
        dict: What to add to the metadata of its requests.
    """
    try:
        return {TRANSFORMED: TransformerManager().transform_cell(source)}
    except SyntaxError:
        return {}


def do_once(kernel):
    """
    Have an engine's kernel, its shell and its guard do once a cell what each would do again.

    Args:
        kernel: The engine's ipyparallel kernel, before any cell.
    """
    shell = kernel.shell
    _take_over(kernel, shell.input_transformer_manager)
    shell.transform_cell = _once_a_cell(shell, shell.transform_cell)
    shell.compile.get_code_name = _once_a_cell(shell, shell.compile.get_code_name)
    ipkernel._accepts_parameters = _once(ipkernel._accepts_parameters)


def _take_over(kernel, manager):
    given: dict = {}  # from a cell's text to what it becomes
    init_metadata, transform = kernel.init_metadata, manager.transform_cell
    as_they_come = _transformers(manager)

    def note(parent):
        given.clear()
        if TRANSFORMED in parent["metadata"]:
            given[parent["content"]["code"]] = parent["metadata"][TRANSFORMED]
        return init_metadata(parent)

    def take(cell):
        # A cell may have added transformers of its own on this rank.
        is_given = cell in given and _transformers(manager) == as_they_come
        return given[cell] if is_given else transform(cell)

    kernel.init_metadata, manager.transform_cell = note, take


def _transformers(manager):
    return [*manager.cleanup_transforms, *manager.line_transforms, *manager.token_transformers]


def _once_a_cell(shell, work):
    last: dict = {}

    def once(*args):
        if args not in last:
            last.clear()
            last[args] = work(*args)
        return last[args]

    shell.events.register("post_execute", last.clear)  # what comes next may have other magics
    return once


def _once(ask):
    # Which arguments the shell's method takes: ipykernel reads its signature anew for each cell.
    answers: dict = {}

    def answer(method, names):
        question = getattr(method, "__func__", method), *names
        if question not in answers:
            answers[question] = ask(method, names)
        return answers[question]

    return answer
