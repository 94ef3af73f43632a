"""
One rank writes for TensorBoard, four ranks write too much, and TensorBoard is shown in the
notebook.
"""

import os
import subprocess
import sys
import urllib.error
from pathlib import Path

import psutil
import pytest
from waiting import HANGS_AFTER_S, wait_until
from worlds import run_world

from ddp_lessons.errors import StartFailed
from ddp_lessons.metrics import RankZeroWriter, board, open_board, read_scalars

pytestmark = [
    pytest.mark.filterwarnings("default"),  # TensorBoard's warnings are not ours to repair
]


def _write(rank, world_size, folder):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(f"{folder}/four") as each, RankZeroWriter(f"{folder}/one") as one:
        for step in range(5):
            each.add_scalar("loss", 10 * rank + step, step)
            one.add_scalar("loss", step / 4, step)


def test_one_writer_writes_what_tensorboard_reads(tmp_path):
    """
    TensorBoard's own reader finds each step once if one rank writes, and four times if four ranks
    do.
    """
    run_world(4, _write, str(tmp_path))
    assert read_scalars(tmp_path / "one", "loss") == [(step, step / 4) for step in range(5)]
    assert len(list((tmp_path / "one").iterdir())) == 1
    points = read_scalars(tmp_path / "four", "loss")
    right = [(step, 10.0 * rank + step) for rank in range(4) for step in range(5)]
    assert sorted(points) == sorted(right)
    assert len(list((tmp_path / "four").iterdir())) == 4
    with pytest.raises(KeyError):
        read_scalars(tmp_path / "one", "accuracy")


def _run(folder, name):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / name)) as writer:
        writer.add_scalar("loss", 0.5, 3)


def test_board_shows_runs_and_ends(tmp_path, monkeypatch):
    """
    TensorBoard listens only on loopback, on its own port and behind a secret path, and is gone
    after the block.
    """
    _run(tmp_path, "first")
    with open_board(tmp_path) as one, open_board(tmp_path) as other:
        assert one.port != other.port
        wait_until(lambda: one.runs() == ["first"], HANGS_AFTER_S, "the run")
        assert one.scalars("first", "loss") == [(3, 0.5)]
        processes = one._job.processes()
        places = {
            place.laddr.ip
            for process in processes
            for place in process.net_connections()
            if place.status == psutil.CONN_LISTEN
        }
        assert places == {"127.0.0.1"}
        secret = one.url.rpartition("/")[2]
        assert len(secret) == 32
        assert not any(secret in word for process in processes for word in process.cmdline())
        for guess in ("", "data/runs", f"{'0' * 32}/data/runs"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                one._open(f"http://127.0.0.1:{one.port}/{guess}")
        assert repr(one) == "<Board: on this machine only>"
        monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
        assert one._repr_html_() is None
        monkeypatch.setenv("JPY_SESSION_NAME", "12_metrics.ipynb")
        assert f'<iframe src="{one.url}/" title="TensorBoard"' in one._repr_html_()
    assert not any(process.is_running() for process in processes)
    assert one._repr_html_() is None
    assert repr(one) == "<Board: ended>"


def test_board_ends_with_its_kernel(tmp_path):
    """
    TensorBoard and its files are gone after its kernel was killed, although a killed kernel can end
    and remove nothing.
    """
    holder = (
        "import sys, time\nfrom ddp_lessons.metrics import open_board\n"
        "board = open_board(sys.argv[1])\n"
        "processes = board._job.processes()\n"
        "print(processes[0].environ()['TMPDIR'], *[p.pid for p in processes], flush=True)\n"
        "time.sleep(600)"
    )
    command = [sys.executable, "-c", holder, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as kernel:
        scratch, *pids = kernel.stdout.readline().split()
        assert Path(scratch, ".tensorboard-info").is_dir()
        assert Path(scratch).stat().st_mode & 0o077 == 0
        kernel.kill()
    pids = [int(pid) for pid in pids]
    assert pids
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), HANGS_AFTER_S, "their end")
    wait_until(lambda: not Path(scratch).exists(), HANGS_AFTER_S, "the end of what they wrote")


def test_board_that_cannot_start_says_why(tmp_path, monkeypatch):
    """
    If TensorBoard is not installed, the error ends with the missing module's name.
    """

    def without(words, **options):
        return started(["python", "-c", "import no_such_board"], **options)

    started = board.start_job
    monkeypatch.setattr(board, "start_job", without)
    with pytest.raises(StartFailed, match=r"did not start: .*No module named 'no_such_board'"):
        open_board(tmp_path)


def test_board_is_asked_past_a_proxy(tmp_path, monkeypatch):
    """
    TensorBoard is asked without a proxy: many clusters set one in the environment, and it does not
    know this machine's ports.
    """
    _run(tmp_path, "first")
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setitem(os.environ, name, "http://127.0.0.1:9")
    with open_board(tmp_path) as one:
        wait_until(lambda: one.runs() == ["first"], HANGS_AFTER_S, "the run")
        told = iter([[], ["first"]])  # TensorBoard has not read the folder at the first request
        monkeypatch.setattr(one, "runs", lambda: next(told))
        assert one.scalars("first", "loss") == [(3, 0.5)]
