"""
The sentences about a failed cell. nbval compares them, so they are tested to the character.
"""

import signal

import pytest

from ddp_lessons.ranks.diagnosis.cell_report import (
    Recovery,
    died_message,
    given_up_message,
    how_it_died,
    raised_message,
    released_sentence,
    replaced_sentence,
    stale_sentence,
)
from ddp_lessons.ranks.messages.outcome import DIED, GIVEN_UP, OK, RAISED, RELEASED, Outcome
from ddp_lessons.ranks.system import clocks


def raised(ename, evalue, line=None, code="", traceback=""):
    """
    Return the outcome of a rank that raised.
    """
    return Outcome(RAISED, ename=ename, evalue=evalue, line=line, code=code, traceback=traceback)


def test_raised_message_names_the_culprit_and_its_line():
    """
    The message's first line names the culprit and its line. The traceback below it is the culprit's
    alone.
    """
    outcomes = {
        0: Outcome(RELEASED, line=5),
        1: Outcome(RELEASED, line=5),
        2: raised("ValueError", "bad shard", 3, "load(shard)", "Traceback\n  ...\nValueError"),
    }
    message, traceback = raised_message(outcomes)
    assert message == "rank 2 raised ValueError: bad shard at line 3: load(shard)"
    assert traceback == ["Traceback", "  ...", "ValueError"]
    assert released_sentence(outcomes) == (
        "ranks 0 and 1 were released at line 5; variables are kept."
    )


def test_raised_message_says_the_same_thing_once():
    """
    An error that all ranks raise alike is printed once, because four equal lines would hide a typo.
    """
    outcomes = {rank: raised("NameError", "name 'x' is not defined", 1, "x") for rank in range(4)}
    message, _ = raised_message(outcomes)
    assert message == "ranks 0-3 raised NameError: name 'x' is not defined at line 1: x"


def test_raised_message_is_in_rank_order():
    """
    Errors are listed in rank order, whatever the order of the replies, so that the message is the
    same on every run.
    """
    outcomes = {
        3: raised("ValueError", "three", 2, "f(3)", "of 3"),
        1: raised("ValueError", "one", 2, "f(1)", "of 1"),
        2: raised("ValueError", "three", 2, "f(3)", "of 2"),
    }
    message, traceback = raised_message(outcomes)
    assert message.splitlines() == [
        "rank 1 raised ValueError: one at line 2: f(1)",
        "ranks 2 and 3 raised ValueError: three at line 2: f(3)",
    ]
    assert traceback == ["of 1"]


def test_raised_message_without_text_or_line():
    """
    An error without a text or line still gets a message: `raise KeyboardInterrupt` has no text, and
    an error before the cell has no line.
    """
    assert raised_message({0: raised("AssertionError", "")})[0] == "rank 0 raised AssertionError"


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (
            -signal.SIGKILL,
            "its process was ended by SIGKILL (Linux or a hub does this when memory runs out)",
        ),
        (-signal.SIGSEGV, "its process was ended by SIGSEGV"),
        (-(signal.SIGRTMIN + 1), f"its process was ended by signal {signal.SIGRTMIN + 1}"),
        (3, "its process exited with code 3"),
        (0, "its process exited with code 0"),
        (None, "its process has ended"),
    ],
)
def test_how_it_died_names_the_signal(exit_code, words):
    """
    The message names the signal, because a number means nothing to a learner, and says that Linux
    or a hub sends SIGKILL when memory runs out.
    """
    assert how_it_died(exit_code) == words


def test_died_message_has_a_line_for_each():
    """
    Each dead rank gets a line, in rank order, with the line of code where it died or was last seen,
    if known.
    """
    seen = Outcome(DIED, exit_code=-9, line=2, code="train()", is_last_seen=True)
    meant = Outcome(DIED, exit_code=-9, line=3, code="os.kill(me, 9)", ended_itself=True)
    outcomes = {
        3: seen,
        4: meant,
        2: Outcome(DIED, exit_code=1),
        0: Outcome(OK),
        1: Outcome(DIED, exit_code=-signal.SIGSEGV, line=4, code="crash()"),
    }
    assert died_message(outcomes).splitlines() == [
        "rank 1 died: its process was ended by SIGSEGV at line 4: crash()",
        "rank 2 died: its process exited with code 1",
        "rank 3 died: its process was ended by SIGKILL (Linux or a hub does this when memory runs "
        "out); last seen at line 2: train()",
        "rank 4 died: its process was ended by SIGKILL at line 3: os.kill(me, 9)",
    ]


def test_who_died_elsewhere_is_named_with_its_host():
    """
    A rank that died on another host is named with its host, because the log, the full disk or the
    process that took the memory is there.
    """
    outcomes = {
        2: Outcome(GIVEN_UP, line=1, code="spin()", host="node1"),
        3: Outcome(DIED, exit_code=1, host="node2"),
    }
    assert died_message(outcomes) == "rank 3 on node2 died: its process exited with code 1"
    assert given_up_message(outcomes) == (
        "rank 2 on node1 could not be released at line 1: spin(), so its process was ended"
    )


@pytest.mark.parametrize("silent", ["node2", "it"])
def test_who_is_silent_is_lost_and_not_dead(silent):
    """
    A silent rank is reported as lost, and not as dead: its fate behind a broken network is not
    known.
    """
    lost = Outcome(DIED, line=2, code="step()", is_last_seen=True, host="node2", silent=silent)
    silence_s = clocks.ELSEWHERE_MISSES * clocks.HEARTBEAT_EVERY_MS / 1000
    assert died_message({1: lost}) == (
        f"rank 1 on node2 is lost: {silent} has not answered for {silence_s:.0f} s; "
        "last seen at line 2: step()"
    )


def test_who_was_given_up_while_halted_is_told_with_what_halted_it():
    """
    A rank that was ended while it was stopped is reported with the reason of the stop, because a
    stopped process is not the cell's fault.
    """
    outcomes = {1: Outcome(GIVEN_UP, line=1, code="save()", halt="waiting for a disk")}
    assert given_up_message(outcomes) == (
        "rank 1 was waiting for a disk at line 1: save() and did not go on within 5 s, "
        "so its process was ended"
    )


@pytest.mark.parametrize(
    ("outcomes", "sentence"),
    [
        ({0: Outcome(OK), 1: Outcome(RAISED)}, ""),
        ({1: Outcome(RELEASED)}, "rank 1 was released; variables are kept."),
        ({1: Outcome(RELEASED, line=2)}, "rank 1 was released at line 2; variables are kept."),
        (
            {0: Outcome(RELEASED, line=2), 3: Outcome(RELEASED, line=4)},
            "ranks 0 and 3 were released; variables are kept.",
        ),
    ],
)
def test_released_sentence_folds_the_others(outcomes, sentence):
    """
    Released ranks are reported in one line, and no line is printed where there are none.
    """
    assert released_sentence(outcomes) == sentence


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ([], ""),
        (["model"], "`model` holds the old group: run the cell that makes it again."),
        (
            ["model", "pair"],
            "`model`, `pair` hold the old group: run the cell that makes them again.",
        ),
    ],
)
def test_stale_sentence_names_what_to_make_again(names, sentence):
    """
    The message names the variables that hold the old group, because torch does not say that a DDP
    model's group is gone.
    """
    assert stale_sentence(names) == sentence


@pytest.mark.parametrize(
    ("recovery", "lines"),
    [
        (Recovery([], False, True, []), []),
        (Recovery([], True, True, []), ["The ranks have joined a new group."]),
        (
            Recovery([], True, False, []),
            ["The group is gone: run the cell that makes it again."],
        ),
        (
            Recovery([1], True, True, ["model"]),
            [
                "A new rank 1 is in place; its variables are gone.",
                "The ranks have joined a new group. "
                "`model` holds the old group: run the cell that makes it again.",
            ],
        ),
    ],
)
def test_recovery_says_what_became_of_ranks_and_group(recovery, lines):
    """
    The message names replaced ranks and the new group. In lesson 01 the learner makes the group, so
    the message says to make it again.
    """
    assert recovery.sentences() == lines


@pytest.mark.parametrize(
    ("replaced", "sentence"),
    [
        ([], ""),
        ([1], "A new rank 1 is in place; its variables are gone."),
        ([1, 3], "New ranks 1 and 3 are in place; their variables are gone."),
    ],
)
def test_replaced_sentence_says_what_was_lost(replaced, sentence):
    """
    A replaced rank keeps its number and loses its variables, so the learner must run earlier cells
    again.
    """
    assert replaced_sentence(replaced) == sentence
