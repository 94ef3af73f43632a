"""
The display of what ranks print: always in rank order, and live for one rank at a time.

The lowest rank that still runs is shown live. The output of higher ranks is held back until their
turn. So the output of a cell is the same on every run, and a long run is not silent.
"""

import sys
from collections import deque
from collections.abc import Collection, Container, Mapping
from typing import Any

from ddp_lessons.ranks.diagnosis.wording import rank_names


class RankOutput:
    """
    The output of one rank, in order, as the client's thread collects it.
    """

    def __init__(self) -> None:
        self.items: deque[tuple[str, str | dict[str, Any]]] = deque()
        self.done = False

    def on_message(self, message: Mapping[str, Any]) -> None:
        """
        Add one message from the rank's iopub channel.
        """
        kind = message["header"]["msg_type"]
        content = message["content"]
        if kind == "stream":
            self.items.append((content["name"], content["text"]))
        elif kind in ("display_data", "execute_result"):
            self.items.append((kind, content))


class OrderedDisplay:
    """
    The display of the output of several ranks.

    Args:
        outputs: For each rank its RankOutput.
    """

    def __init__(self, outputs: Mapping[int, RankOutput]) -> None:
        self._outputs = dict(sorted(outputs.items()))
        self._wrote = False
        # (rank, stream) -> text of a line that has no end yet
        self._unfinished: dict[tuple[int, str], str] = {}

    def update(self, finished: Container[int]) -> None:
        """
        Show all output whose turn has come.

        Args:
            finished: Ranks whose output is complete.
        """
        for rank, output in self._outputs.items():
            while output.items:
                self._show(rank, *output.items.popleft())
            if rank not in finished:
                break
            self._end_lines(rank)
        if self._wrote:
            self._wrote = False
            sys.stdout.flush()
            sys.stderr.flush()

    def _show(self, rank, kind, content):
        if kind in ("stdout", "stderr"):
            *lines, rest = (self._unfinished.pop((rank, kind), "") + content).split("\n")
            self._write(rank, kind, lines)
            if rest:
                self._unfinished[rank, kind] = rest
            return
        self._end_lines(rank)
        data = content["data"]
        if kind == "execute_result" or set(data) <= {"text/plain"}:
            self._write(rank, "stdout", data.get("text/plain", "").splitlines())
            return
        from IPython.display import display

        self._write(rank, "stdout", [data.get("text/plain", "output")])
        sys.stdout.flush()
        rich = {mime: value for mime, value in data.items() if mime != "text/plain"}
        display(rich, raw=True, metadata=content.get("metadata") or {})

    def _write(self, rank, stream, lines):
        target = sys.stdout if stream == "stdout" else sys.stderr
        for line in lines:
            shown = line.rstrip("\r").rpartition("\r")[2]  # a progress bar's last state
            target.write(f"[{rank}] {shown}".rstrip() + "\n")
            self._wrote = True

    def _end_lines(self, rank):
        for stream in ("stdout", "stderr"):
            rest = self._unfinished.pop((rank, stream), None)
            if rest is not None:
                self._write(rank, stream, [rest])


def output_is_missing(ranks: Collection[int], waited_s: float) -> str:
    """
    Return the message that some ranks' output is missing or incomplete, and what to do about it.

    Args:
        ranks: Rank numbers.
        waited_s: Seconds since the cell's end.
    """
    return (
        f"The output of {rank_names(ranks)} did not arrive: all of it within {waited_s:g} s of the "
        "cell's end (got a part, or none). Run the cell again; if it says so again, call "
        "ranks.stop(), then start_ranks()."
    )
