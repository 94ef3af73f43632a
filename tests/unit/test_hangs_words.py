"""
The one-line summaries of torch's errors, which are the same on every run.
"""

import pytest
from waiting import HANGS_AFTER_S

from ddp_lessons.hangs import NaiveWatchdog, attempt, read_stack, short
from ddp_lessons.hangs.stacks import own_frames

DETAIL = (
    "Detected mismatch between collectives on ranks. Rank 1 is running collective: "
    "CollectiveFingerPrint(SequenceNumber=0, OpType=ALLREDUCE), but Rank 0 is running another."
    "Collectives differ in the following aspects: \t Tensor Tensor shapes: 4vs 3"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting "
            "2000ms for recv operation to complete",
            "Timed out waiting 2000ms for recv operation to complete",
        ),
        (
            "[/x/pair.cc:5] Connection reset by peer [::1]:157. This is typically caused by x",
            "Connection closed by peer",
        ),
        ("[Rank 0]: Rank 1 failed\n Original exception: 0x7f", "[Rank 0]: Rank 1 failed"),
        (DETAIL, "calls differ: Tensor Tensor shapes: 4 vs 3"),
    ],
)
def test_short_leaves_out_what_differs(text, said):
    """
    `short` leaves out ports and addresses, because a line that holds a port cannot be compared.
    """
    assert short(RuntimeError(text)).removesuffix(".").strip() == said


def test_attempt_says_how_a_call_ended(monkeypatch, capsys):
    """
    `attempt` prints the rank, whether the call ended at once or late, and its error.
    """
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 3)

    def fail():
        raise RuntimeError("[/a.cc:1] no such luck")

    attempt("calm", lambda: None, soon_s=HANGS_AFTER_S)
    attempt("storm", fail, soon_s=-1)
    assert capsys.readouterr().out == (
        "calm, rank 3: at once, no error\nstorm, rank 3: late, no such luck\n"
    )


def test_naive_watchdog_barks_once_when_no_beat_comes(tmp_path):
    """
    The naive watchdog writes the stacks once if no heartbeat comes, so twenty lines are enough to
    detect a hang.
    """
    path = tmp_path / "stacks.txt"
    with path.open("w") as file:
        dog = NaiveWatchdog(0.2, file)
        dog.beat()
        dog._thread.join()  # the thread ends after its dump
    stack = read_stack(path.read_text())
    assert own_frames(stack, "test_hangs_words.py")[0].function.startswith("test_naive_watchdog")


def test_naive_watchdog_is_silent_when_it_is_let_go(tmp_path, capfd):
    """
    A closed watchdog is silent, because a training that ends is no hang.
    """
    dog = NaiveWatchdog(60)
    dog.beat()
    dog.close()
    assert not dog._thread.is_alive()
    assert capfd.readouterr().err == ""
