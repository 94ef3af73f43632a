"""
A rank's IPython kernel and shell: every request gets a reply, whatever a cell has done.

ipykernel flushes `sys.stdout` before it replies, asks an exception for its text, and packs the
reply as JSON. A cell can make each of these raise. Then ipykernel sends no reply, and the notebook
would wait for one forever.
"""

import asyncio
import contextlib
import json
import re
import sys
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ipykernel import displayhook, kernelbase, zmqshell
from ipykernel.jsonutil import json_clean
from ipykernel.zmqshell import ZMQInteractiveShell
from ipyparallel.engine.kernel import IPythonParallelKernel
from jupyter_client.jsonutil import json_default
from jupyter_client.session import json_packer
from traitlets import Instance, Type

from ddp_lessons.ranks.messages.cell_requests import BRIEF, RankTransformers
from ddp_lessons.ranks.messages.report import add_report
from ddp_lessons.ranks.rank.output_limit import CellStreams, SysOfRank
from ddp_lessons.ranks.rank.tracebacks import text_of_error

if TYPE_CHECKING:
    from ipykernel.iostream import IOPubThread
    from IPython.core.interactiveshell import ExecutionResult
    from zmq.eventloop.zmqstream import ZMQStream

    from ddp_lessons.ranks.rank.output_limit import OutputLimit

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class RankShell(ZMQInteractiveShell):
    """
    The shell of a rank, whose kernel runs the cells that `await`.
    """

    input_transformer_manager = Instance(RankTransformers, ())
    awaited_result: "ExecutionResult | None" = None
    """
    The result of a cell with an `await`, which the next `run_cell` returns; else None.
    """
    agent: Any = None
    """
    The RankAgent of this rank; None until the engine has made it.
    """
    num_cells: int = 0
    """
    Number of nested cells that run: `%%capture` and `get_ipython().run_cell` run a cell in a cell.
    """
    inner_error: BaseException | None = None
    """
    The first error of a cell nested in the running cell, which IPython does not pass on; else None.
    """

    def showtraceback(self, *args: object, **kwargs: object) -> None:
        """
        Show the current exception in the form that the rank agent chooses.
        """
        self.agent.show_error(super().showtraceback, args, kwargs)

    def _format_exception_for_storage(self, exception, filename=None, running_compiled_code=False):
        # IPython would render each traceback once more, for a history that a rank does not keep.
        name, text = type(exception).__name__, text_of_error(exception)
        return {"ename": name, "evalue": text, "traceback": []}

    def should_run_async(self, raw_cell: str, **options: object) -> bool:
        """
        Return False: else ipykernel would run the cell in a thread that ipyparallel does not start.
        """
        return False

    def has_await(self, raw_cell: str) -> bool:
        """
        Return whether a cell has an `await` outside of every function.
        """
        try:
            transformed = self.transform_cell(raw_cell)
        except Exception:
            return False  # `run_cell` transforms it again, and shows the error
        if "await" not in transformed and "async" not in transformed:
            return False  # answered without the compiler, which takes longer
        return super().should_run_async(raw_cell, transformed_cell=transformed)

    async def run_awaiting_cell(self, raw_cell: str, **options: bool) -> None:
        """
        Run a cell that has an `await`, and keep its result for the next `run_cell`.
        """
        transformed = self.transform_cell(raw_cell)
        with self._counted():
            result = await self.run_cell_async(raw_cell, transformed_cell=transformed, **options)
            self.events.trigger("post_execute")
            self.events.trigger("post_run_cell", result)
        self.awaited_result = result

    def run_cell(self, *args: object, **kwargs: object) -> "ExecutionResult":
        """
        Run a cell, or return the result of a cell with an `await` that has just run.
        """
        result, self.awaited_result = self.awaited_result, None
        if result is not None:
            return result
        with self._counted():
            result = super().run_cell(*args, **kwargs)
            if self.num_cells > 1 and self.inner_error is None:
                self.inner_error = result.error_before_exec or result.error_in_exec
        return result

    @contextlib.contextmanager
    def _counted(self):
        was_busy = self.num_cells > 0 and self.agent.busy
        self.inner_error = self.inner_error if self.num_cells else None
        self.num_cells += 1
        try:
            yield
        finally:
            self.num_cells -= 1
            if self.num_cells:  # the outer cell's code goes on, and can be interrupted again
                self.agent.busy = was_busy

    @contextlib.contextmanager
    def _tee(self, channel):
        # IPython's own method replaces each stream's `write`, which a stream may lack, and keeps
        # all output for `%history -o`, so that a rank's memory grows. This override does nothing.
        yield


class RankKernel(IPythonParallelKernel):
    """
    The kernel of one rank.

    It omits messages that the notebook's kernel does not read: the cell's own text, and the status
    "idle" after a reply that says that no output follows.

    Attributes:
        streams: The CellStreams of this process.
        awaiting_cell: The asyncio.Task of the cell that runs, if it has an `await`; else None.
        replied_to: The id of the last cell's request whose reply was handed to the network.
        printed: The OutputLimit of this rank, once its output is redirected.
    """

    shell_class = Type(RankShell)

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.streams = CellStreams()
        for module in (displayhook, kernelbase, zmqshell):
            vars(module)["sys"] = SysOfRank(self.streams)
        self.awaiting_cell: asyncio.Task[None] | None = None
        self.replied_to = ""
        self.printed: OutputLimit | None = None
        self.session.pack = pack
        self._num_sent = self._num_sent_before = 0
        self._has_said_all = False
        self.shell.events.register("pre_run_cell", self._begin)
        self.shell.input_transformer_manager.note_usual()

    def watch_output(self, printed: "OutputLimit", pub_thread: "IOPubThread") -> None:
        """
        Count the messages that carry output.

        Args:
            printed: The OutputLimit of cells.
            pub_thread: ipykernel's thread through which all output goes.
        """
        self.printed = printed
        send = pub_thread.send_multipart

        def count_and_send(*args, **kwargs):
            self._num_sent += 1
            send(*args, **kwargs)

        pub_thread.send_multipart = count_and_send  # type: ignore[method-assign]

    def _begin(self, info):
        self._num_sent_before = self._num_sent

    def pre_handler_hook(self) -> None:
        """
        Leave SIGINT to the agent, which raises only while the learner's code runs.
        """

    def post_handler_hook(self) -> None:
        """
        Leave SIGINT to the agent.
        """

    def init_metadata(self, parent: dict[str, Any]) -> dict[str, Any]:
        """
        Take the transformed cell from a request, and start the metadata of its reply.
        """
        self.shell.input_transformer_manager.take(parent)
        return super().init_metadata(parent)

    def finish_metadata(
        self, parent: dict[str, Any], metadata: dict[str, Any], reply_content: dict[str, Any]
    ) -> dict[str, Any]:
        """
        Add the agent's report to a reply, and whether output can come after it.
        """
        metadata = super().finish_metadata(parent, metadata, reply_content)
        report = self.shell.agent.take_report()
        self.printed.runs = self.awaiting_cell is not None
        self._has_said_all = False
        if report is not None:
            if parent["metadata"].get(BRIEF):
                metadata.pop("started", None)  # a date, which takes the kernel long to parse
                has_sent = self._num_sent > self._num_sent_before
                self._has_said_all = not (self.printed.has_printed or has_sent)
            add_report(replace(report, has_said_all=self._has_said_all), reply_content)
        return metadata

    def _publish_status(self, status, channel, parent=None):
        # Without this override each cell costs two more messages, which the kernel does not need.
        if channel == "shell" and self._has_said_all:
            self._has_said_all = False
        elif status != "busy":
            super()._publish_status(status, channel, parent)

    def _publish_execute_input(self, *args):
        pass  # this message would hold the cell's own text, which is not read either

    async def execute_request(
        self, stream: "ZMQStream", ident: list[bytes], parent: dict[str, Any]
    ) -> None:
        """
        Run a cell and send its reply. If the reply cannot be made or sent, reply with that error.
        """
        try:
            await super().execute_request(stream, ident, parent)
        except (Exception, asyncio.CancelledError) as error:
            content = {
                "status": "error",
                "ename": type(error).__name__,
                "evalue": f"the cell ended, and its result cannot be sent: {text_of_error(error)}",
                "traceback": traceback.format_exception(error),
                "engine_info": self.get_engine_info(method="execute"),
            }
            self.shell.agent.busy = False  # IPython may have failed before its post_run_cell event
            # Leave out the agent's report, which may say that the cell went well.
            metadata = super().finish_metadata(parent, super().init_metadata(parent), content)
            self._has_said_all = False
            self.session.send(
                stream, "execute_reply", content, parent, metadata=metadata, ident=ident
            )
        finally:
            self.replied_to = parent["header"]["msg_id"]

    async def do_execute(
        self, code: str, silent: bool, store_history: bool = True, **options: object
    ) -> dict[str, Any]:
        """
        Run a cell with the streams that earlier cells have left.
        """
        self.printed.runs = True  # set here, as IPython has no event for cells that a view sends
        with self.streams.of_cells():
            if self.shell.has_await(code):
                cell = self.shell.run_awaiting_cell(
                    code, silent=silent, store_history=store_history
                )
                self.awaiting_cell = asyncio.ensure_future(cell)
                try:
                    await self.awaiting_cell
                except asyncio.CancelledError:
                    if self.shell.awaited_result is None:  # else the cell had run its last line
                        raise
                finally:
                    self.awaiting_cell = None
            reply = await super().do_execute(code, silent, store_history, **options)
        if reply["status"] == "error" and reply["ename"] == "NoneType":
            # By this ename ipykernel reports a cell that went well, but whose result has no text.
            error = getattr(sys, "last_value", None)
            shown = f"the cell's result cannot be shown: {text_of_error(error)}"
            reply.update(ename=type(error).__name__, evalue=shown)
        return reply

    def do_apply(self, *args: object, **kwargs: object) -> tuple[dict[str, Any], list[Any]]:
        """
        Run a function that a view has sent, with the streams that earlier cells have left.
        """
        self.printed.runs = True
        with self.streams.of_cells(), self.shell.agent.function_runs():
            return super().do_apply(*args, **kwargs)

    def cancel_await(self) -> bool:
        """
        End the `await` in which the cell waits, by a CancelledError. Call it in the main thread.

        Returns:
            bool: Whether a cell was waiting in an `await`. False also while the cell's code runs.
        """
        task = self.awaiting_cell
        if task is None or asyncio.current_task(task.get_loop()) is task:
            return False
        task.get_loop().call_soon_threadsafe(task.cancel)
        return True


def pack(content: object) -> bytes:
    """
    Return a part of a message as JSON in UTF-8.

    A lone surrogate, as in a file name that is not UTF-8, cannot be encoded in UTF-8. The
    replacement character takes its place.
    """
    try:
        return json_packer(content)
    except UnicodeEncodeError:
        text = json.dumps(
            json_clean(content), default=json_default, ensure_ascii=False, allow_nan=False
        )
        return _LONE_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text).encode()
