"""
A cell ends and the ranks keep their variables, whatever the cell does to its streams, and whatever
it awaits.
"""

import asyncio
import json
import sys
import threading

import pytest
from ipyparallel.error import RemoteError
from waiting import HANGS_AFTER_S, wait_until

from ddp_lessons import start_ranks, stop_ranks
from ddp_lessons.errors import BadInput, CellFailed, CellStopped
from ddp_lessons.ranks.kernel.cell_transport import unpack
from ddp_lessons.ranks.kernel.cells import CellRun, run_cell
from ddp_lessons.ranks.rank.output_limit import CellStreams
from ddp_lessons.ranks.rank.rank_kernel import pack
from ddp_lessons.ranks.rank.tracebacks import text_of_error

TEE = """
import sys
class Tee:
    def __init__(self, stream): self.stream = stream
    def write(self, text): self.stream.write(text)
sys.stdout = Tee(sys.stdout)
"""
CLOSED = """
import os, sys
sys.stdout = sys.stderr = open(os.devnull, "w")
sys.stdout.close()
"""

SLOW_TO_END = """
import time
class SlowToEnd:
    def __iter__(self): return self
    def __next__(self): return 1
    def __del__(self): time.sleep(60)
"""


class WriteOnly:
    """
    A stream that a cell puts in place of `sys.stdout` to log what is printed.
    """

    def write(self, text):
        """
        Accept a text.
        """


@pytest.fixture(scope="module")
def ranks():
    """
    Start two ranks for all cells.
    """
    ranks = start_ranks(2)
    run_cell(ranks, "import asyncio, torch, torch.distributed as dist\nrank = dist.get_rank()")
    yield ranks
    stop_ranks()


@pytest.fixture
def usable(ranks):
    """
    Return the ranks. After the test, assert that they have their variables, and that their next
    collective works.
    """
    run_cell(ranks, "import sys\nkept, streams = rank, (sys.stdout, sys.stderr)")
    yield ranks
    run_cell(ranks, "sys.stdout, sys.stderr = streams")
    run_cell(ranks, "total = torch.ones(1)\ndist.all_reduce(total)\nassert total.item() == 2")
    assert ranks.view["kept"] == [0, 1]


@pytest.mark.parametrize("cell", [TEE, CLOSED, "import sys\nsys.stdout = sys.stderr = None"])
def test_a_cell_ends_that_replaces_its_streams(usable, cell, capsys):
    """
    A cell may replace its streams: it ends although ipykernel flushes both before it replies, which
    raises. The next cell has the same streams.
    """
    run_cell(usable, cell)
    run_cell(usable, "assert sys.stdout is not streams[0]")
    with pytest.raises(CellFailed, match="ranks 0 and 1 raised ValueError: told at line 1"):
        run_cell(usable, "raise ValueError('told')")
    with pytest.raises(CellFailed, match="ranks 0 and 1 raised SyntaxError: "):
        run_cell(usable, "print(")
    shown = "from IPython.display import display\n"
    run_cell(usable, f"{shown}display({{'of': rank}})")
    assert capsys.readouterr().out.endswith("[0] {'of': 0}\n[1] {'of': 1}\n")
    cell = CellRun(usable, "import time\ntime.sleep(0.5)", range(2))
    cell.submit()
    for answer in usable.control.ask_state([0, 1]).values():  # in another thread of the rank
        answer.result(HANGS_AFTER_S)
    assert cell.wait() is None
    capsys.readouterr()
    run_cell(usable, "'a result'")
    assert capsys.readouterr().out == "[0] 'a result'\n[1] 'a result'\n"
    run_cell(usable, "sys.stdout, sys.stderr = streams\nprint('seen')")
    assert capsys.readouterr().out.endswith("[0] seen\n[1] seen\n")


def test_text_that_is_not_utf_8_is_shown_with_the_replacement_sign(usable, capsys):
    """
    On disks that older systems have written, names of files may not be UTF-8. The replacement
    character stands for what is not UTF-8 in such a text, and the cell ends.
    """
    run_cell(usable, r"print('name \udce9', 'half \ud800')")
    assert capsys.readouterr().out == "[0] name \ufffd half \ufffd\n[1] name \ufffd half \ufffd\n"
    with pytest.raises(CellFailed, match="raised ValueError: name \ufffd half \ufffd at line 1"):
        run_cell(usable, r"raise ValueError('name \udce9 half \ud800')")


def test_an_error_without_a_text_ends_its_cell(usable):
    """
    The cell ends although ipykernel asks each error for its text when it makes the reply, and this
    error has none.
    """
    cell = "class Odd(Exception):\n    def __str__(self): raise TypeError('no text')\nraise Odd"
    with pytest.raises(CellFailed, match="ranks 0 and 1 raised"):
        run_cell(usable, cell)


def test_a_reply_that_cannot_be_made_is_sent_as_its_error(usable):
    """
    A cell can break what ipykernel calls after the cell's last line. The reply then has that error.
    """
    cell = "get_ipython().payload_manager.read_payload = lambda: 1 / 0"
    says = "raised ZeroDivisionError: the cell ended, and its result cannot be sent: division by"
    with pytest.raises(CellFailed, match=says):
        run_cell(usable, cell)
    run_cell(usable, "del get_ipython().payload_manager.read_payload")


def test_await_works_at_the_top_of_a_cell(usable, capsys):
    """
    `await` works outside functions, as in a notebook's kernel. A task that one cell makes can be
    awaited in the next.
    """
    run_cell(usable, "async def five():\n    await asyncio.sleep(0.01)\n    return 5")
    run_cell(usable, "x = await five()\nprint(x)\ntask = asyncio.create_task(five())")
    run_cell(usable, "print(await task)")
    assert capsys.readouterr().out == "[0] 5\n[1] 5\n[0] 5\n[1] 5\n"


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("await asyncio.sleep(0)\n1 / 0", "ranks 0 and 1 raised ZeroDivisionError.* at line 2"),
        (
            "if rank: raise LookupError('gone')\nawait asyncio.Event().wait()",
            r"rank 1 raised LookupError: gone at line 1.*\nrank 0 was released at line 2",
        ),
        (
            "await asyncio.sleep(0)\nif rank: dist.barrier()",
            r"Deadlock: rank 0 finished the cell without barrier \d; rank 1 waits",
        ),
    ],
)
def test_a_fault_after_an_await_or_beside_one_is_told(usable, cell, says):
    """
    The message names the right rank and its line, and no rank is replaced.
    """
    with pytest.raises(CellFailed, match=says):
        run_cell(usable, cell)


def test_stop_ends_an_await(usable, tmp_path):
    """
    Stop ends an await. The cell's code does not run at that moment, so the event loop's wait must
    be interrupted.
    """
    cell = f"open(f'{tmp_path}/{{rank}}', 'w').close()\nawait asyncio.Event().wait()"
    run = CellRun(usable, cell, [0, 1])
    stopping = threading.Thread(
        target=lambda: (
            wait_until(lambda: len(list(tmp_path.iterdir())) == 2, HANGS_AFTER_S, "both ranks"),
            run.stop(),
        )
    )
    stopping.start()
    error = run.run()
    stopping.join()
    assert isinstance(error, CellStopped)
    assert "at line 2: await asyncio.Event().wait()" in str(error)


@pytest.mark.parametrize("end", ["", "\nraise ValueError('own')"])
def test_a_reply_encloses_what_a_cell_has_kept(usable, end):
    """
    The reply has what the cell enclosed, however the cell ends. The next reply has nothing
    enclosed, and functions given to `before_next_run` run before that cell.
    """
    cell = (
        "from ddp_lessons.ranks.rank.rank_agent import current_agent\n"
        "left = ['to do']\n"
        "current_agent().enclose(lambda: [rank, len(left)])\n"
        "current_agent().before_next_run(left.clear)"
    )
    run = CellRun(usable, cell + end, [0, 1])
    assert (run.run() is None) == (end == "")
    assert {rank: run.outcomes[rank].enclosed for rank in (0, 1)} == {0: [0, 1], 1: [1, 1]}
    after = CellRun(usable, "assert not left", [0, 1])
    assert after.run() is None
    assert [after.outcomes[rank].enclosed for rank in (0, 1)] == [None, None]


@pytest.mark.parametrize(
    "closes", ["os.close(0)", "os.close(1)", "os.close(2)", "os.closerange(0, 3)"]
)
def test_descriptors_that_a_cell_closes_are_there_in_the_next(usable, closes):
    """
    Descriptors 0 to 2 are open again in the next cell, because programs that cells start read and
    write there. This works twice in a row.
    """
    for _ in range(2):
        run_cell(usable, f"import os, subprocess\n{closes}")
        told = "echo here && echo there >&2 && cat"
        run_cell(usable, f"assert subprocess.run({told!r}, shell=True).returncode == 0")


@pytest.mark.parametrize(
    ("inner", "told"),
    [
        ("if rank: raise ValueError('own')\ndist.barrier()", "^rank 1 raised ValueError: own"),
        ("if rank: dist.barrier()", r"^Deadlock: rank 0 finished the cell without barrier \d"),
    ],
)
def test_capture_hides_no_error(usable, inner, told):
    """
    IPython keeps an error of the cell that `%%capture` runs inside that cell, and goes on. The
    error is reported nevertheless.
    """
    with pytest.raises(CellFailed, match=told):
        run_cell(usable, f"%%capture out\nprint('inside')\n{inner}")
    run_cell(usable, "assert out.stdout == 'inside\\n'")


def test_no_interrupt_hits_the_callbacks_of_an_inner_cell(usable):
    """
    IPython catches what its callbacks raise, and prints it: a release that came while they ran once
    stood in the output that `%%capture` keeps.
    """
    run_cell(
        usable,
        "import signal\n"
        "def interrupt(result): signal.raise_signal(signal.SIGRTMIN)\n"
        "get_ipython().events.register('post_run_cell', interrupt)",
    )
    run_cell(usable, "%%capture out\nprint('inside')")
    run_cell(
        usable,
        "get_ipython().events.unregister('post_run_cell', interrupt)\n"
        "assert out.stdout == 'inside\\n', out.stdout",
    )


def test_an_interrupt_reaches_what_follows_an_inner_error(usable):
    """
    An interrupt reaches code after an inner cell's error: the inner cell has ended, but the outer
    one has not.
    """
    told = (
        r"^rank 0 raised ZeroDivisionError: .*\nrank 1 was released at line 2; variables are kept"
    )
    with pytest.raises(CellFailed, match=told):
        run_cell(usable, "get_ipython().run_cell('1/0')\nwhile rank: pass")


@pytest.mark.parametrize("wait", ["time.sleep(60)", "threading.Event().wait()"])
def test_a_rank_that_waits_again_when_it_is_freed_keeps_its_variables(usable, wait):
    """
    A rank may wait again when it is released: in a `finally`, or while it closes files. It keeps
    its variables. One such rank in five was once taken for asleep and replaced.
    """
    wait = (
        f"import threading, time\ntry:\n    if rank: dist.barrier()\nfinally:\n    if rank: {wait}"
    )
    for _ in range(5):
        with pytest.raises(CellFailed, match="\nrank 1 was released at line 5; variables are kept"):
            run_cell(usable, wait)


def test_an_object_that_is_freed_as_it_ends_says_nothing(usable, capsys):
    """
    A DataLoader waits for its workers when it is deleted. If the rank is released there, the
    interrupt prints nothing, since it is not the learner's.
    """
    run_cell(usable, SLOW_TO_END)
    told = (
        r"^Deadlock: rank 0 finished .*(\n.*)*\nrank 1 was released at line 2; variables are kept"
    )
    with pytest.raises(CellFailed, match=told):
        run_cell(usable, "for _ in SlowToEnd() if rank else ():\n    dist.barrier()")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "")
    run_cell(usable, "print(rank); del SlowToEnd.__del__")
    assert capsys.readouterr().out == "[0] 0\n[1] 1\n"


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("class Report: pass\nvalue = Report()", "a Report: Can't get attribute 'Report'"),
        ("value = dist.distributed_c10d._get_default_store()", "a PrefixStore: cannot pickle"),
    ],
)
def test_a_variable_that_cannot_leave_its_rank_is_told_in_one_sentence(usable, variable, told):
    """
    A variable that cannot be sent raises an error of one sentence. The first case's class is
    unknown here, and reading such a value once waited for ever.
    """
    run_cell(usable, variable)
    for view, rank in ((usable[1], 1), (usable.view, 0)):
        with pytest.raises(BadInput, match=rf"got 'value' of rank {rank}, {told}.*print\(value\)$"):
            view["value"]
    with pytest.raises(RemoteError, match="NameError"):
        usable[1]["nobody"]


PRINTS_LATE = """
import threading, time
def wait_and_print():
    while not os.path.exists(f"{folder}/over"):
        time.sleep(0.01)
    print("two words\\nof a thread")
    open(f"{folder}/printed-{rank}", "w").close()
thread = threading.Thread(target=wait_and_print)
thread.start()
"""


def test_what_a_thread_prints_after_its_cell_comes_with_the_next(usable, capsys, tmp_path):
    """
    No cell is there to show a text that a thread prints after its cell. The next cell shows it, so
    that it is not lost.
    """
    run_cell(usable, f"import os\nfolder = {str(tmp_path)!r}\n{PRINTS_LATE}")
    assert capsys.readouterr().out == ""
    (tmp_path / "over").touch()
    wait_until(lambda: len(list(tmp_path.iterdir())) == 3, HANGS_AFTER_S, "both threads")
    run_cell(usable, "print('of the cell')")
    told = "Printed by a thread after the cell before:\ntwo words\nof a thread\nof the cell\n"
    shown = "".join(f"[{rank}] {line}" for rank in (0, 1) for line in told.splitlines(True))
    assert capsys.readouterr().out == shown


LOSES_ITS_REPLY = """
kernel = get_ipython().kernel
send = kernel.session.send
def lose(stream, kind, content=None, *args, **options):
    if kind != "execute_reply":
        return send(stream, kind, content, *args, **options)
    kernel.session.send = send
    return kernel.session.msg(kind, content)
if rank == 1:
    kernel.session.send = lose
"""


@pytest.mark.parametrize("others", ["", "else:\n    dist.barrier()"])
def test_a_reply_that_is_lost_ends_its_cell(usable, others):
    """
    A cell whose reply is lost ends. The rank says that it has replied, and answers later questions,
    so no reply is on its way.
    """
    with pytest.raises(CellFailed, match=r"ReplyLost: .* was lost on its way"):
        run_cell(usable, LOSES_ITS_REPLY + others)


def test_streams_of_cells_are_kept_from_what_runs_between_cells(monkeypatch):
    """
    Between cells the process has its own streams, and inside a cell those of cells. A function that
    a view sends while a cell awaits has the cell's streams.
    """
    own, tee = sys.stdout, WriteOnly()
    streams = CellStreams()
    with streams.own():
        assert sys.stdout is own
    with streams.of_cells():
        monkeypatch.setattr(sys, "stdout", tee)
        with streams.of_cells():
            assert sys.stdout is tee
        with streams.own():
            assert sys.stdout is own
        assert sys.stdout is tee
    assert sys.stdout is own
    with streams.of_cells():
        assert sys.stdout is tee
        sys.stdout = own
    with streams.of_cells():
        assert sys.stdout is own


@pytest.mark.parametrize("text", ["plain", "umlaut \u00fc", "name \udce9", "half \ud800"])
def test_every_text_can_be_packed_and_unpacked(text):
    """
    Every text can be packed and unpacked. A text that cannot be packed would never arrive, and one
    that cannot be unpacked would end the client's thread.
    """
    known = text.encode("utf-8", "replace").decode()
    shown = unpack(pack({"text": text}))["text"]
    assert shown == known.replace("?", "\ufffd")
    json.dumps(shown).encode("utf-8")


def test_text_of_an_error_that_has_none():
    """
    An exception whose text raises is reported at least by name.
    """

    class Odd(Exception):
        def __str__(self):
            raise asyncio.InvalidStateError

    assert "InvalidStateError in __str__" in text_of_error(Odd())
