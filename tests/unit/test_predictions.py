"""
Predictions: a learner's number or letter before a run, and the comparison after it.
"""

from fractions import Fraction

import numpy as np
import pytest

from ddp_lessons import ok, predict
from ddp_lessons.errors import BadInput
from ddp_lessons.progress import notes


@pytest.fixture(autouse=True)
def state_folder(tmp_path, monkeypatch):
    """
    Use a state folder of the test's own.
    """
    monkeypatch.setenv("DDP_LESSONS_STATE_DIR", str(tmp_path / "state"))


def test_a_number_is_noted_and_told_after_the_run(capsys):
    """
    A prediction is noted, and compared with the result after the run, because learners learn from
    the difference.
    """
    predict("lines", 1)
    ok("4 ranks answered", lines=4)
    assert capsys.readouterr().out == "noted: 1\nok: 4 ranks answered\nyou said 1; it was 4\n"
    told = notes.predictions()["lines"]
    assert (told["said"], told["first"], told["before"], told["was"]) == (1, 1, 1, 4)
    assert told["said_s"] <= told["was_s"]


def test_the_argument_of_an_earlier_version_is_noted_and_its_new_name_is_told(capsys):
    """
    Learners keep edited copies of old lessons. The keyword of version 0.1.0 works for one version
    more, and says its new name.
    """
    with pytest.warns(
        FutureWarning, match=r"Write predict\(name, prediction=\.\.\.\)\.$"
    ) as warned:
        predict("lines", number=1)
    assert [one.filename for one in warned] == [__file__]
    assert capsys.readouterr().out == "noted: 1\n"


def test_a_question_left_open_costs_nothing(capsys):
    """
    A question without an answer prints only the result, so that Run All works, and prints the same
    for everybody.
    """
    predict("lines", ...)
    ok("4 ranks answered", lines=4)
    assert capsys.readouterr().out == "ok: 4 ranks answered\nit was 4\n"
    assert notes.predictions() == {}


def test_what_was_said_before_the_run_is_kept_apart(capsys):
    """
    Predictions before and after the run are kept apart, because a teacher wants to know what
    learners thought before they saw the answer.
    """
    predict("lines", 1)
    predict("lines", 2)
    ok("4 ranks answered", lines=4)
    predict("lines", 4)
    told = notes.predictions()["lines"]
    assert (told["first"], told["before"], told["said"]) == (1, 2, 4)


def test_numbers_that_json_does_not_have_are_noted_as_numbers(capsys):
    """
    Fractions and NumPy numbers are noted as plain numbers, which JSON can hold.
    """
    predict("share", Fraction(1, 4))
    predict("lines", np.int64(3))
    told = notes.predictions()
    assert (told["share"]["said"], told["lines"]["said"]) == (0.25, 3)


def test_an_open_question_forgets_what_was_said_at_an_earlier_run(capsys):
    """
    An open question in a fresh copy of a lesson does not print the number of an earlier run. The
    first number stays noted.
    """
    predict("lines", 1)
    ok("4 ranks answered", lines=4)
    predict("lines", ...)
    capsys.readouterr()
    ok("4 ranks answered", lines=4)
    assert capsys.readouterr().out == "ok: 4 ranks answered\nit was 4\n"
    predict("lines", 4)
    assert notes.predictions()["lines"]["first"] == 1


@pytest.mark.parametrize("letter", ["b", "B", "(b)", " b "])
def test_the_letter_of_a_choice_is_noted_and_compared(letter, capsys):
    """
    The letter of a choice is noted as the question writes it, however the learner types it.
    """
    predict("what_get_does", letter)
    ok("get waits", what_get_does="c")
    assert capsys.readouterr().out == "noted: b\nok: get waits\nyou said b; it was c\n"
    told = notes.predictions()["what_get_does"]
    assert (told["said"], told["first"], told["before"], told["was"]) == ("b", "b", "b", "c")


def test_a_choice_left_open_costs_nothing(capsys):
    """
    The dots in quotes, as a question with choices has them, leave it open, too.
    """
    predict("what_get_does", "...")
    ok("get waits", what_get_does="c")
    assert capsys.readouterr().out == "ok: get waits\nit was c\n"


@pytest.mark.parametrize("prediction", ["4", None, True, [4], 1j, "wait", ""])
def test_what_is_neither_a_number_nor_a_letter_is_refused(prediction):
    """
    Another prediction is refused at once, and not with a traceback three cells later.
    """
    with pytest.raises(BadInput, match=r"^Neither a number nor a letter: .* for lines \(got "):
        predict("lines", prediction)


def test_a_check_without_a_prediction_says_ok_only(capsys):
    """
    A check without a prediction prints only "ok", because not every check answers a question.
    """
    ok("4 ranks answered")
    assert capsys.readouterr().out == "ok: 4 ranks answered\n"


def test_tasks_and_predictions_share_a_file_and_nothing_else():
    """
    Tasks and predictions are in one file, but kept apart.
    """
    notes.note_check("00.1", passed=True)
    predict("lines", 1)
    assert (notes.row_of("00.1")["checks"], notes.row_of("00.1")["is_passed"]) == (1, True)
    assert list(notes.predictions()) == ["lines"]


def test_a_folder_that_cannot_be_written_to_stops_no_lesson(tmp_path, monkeypatch, capsys):
    """
    A state folder that cannot be written to stops no lesson. Then nothing is stored.
    """
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DDP_LESSONS_STATE_DIR", str(tmp_path / "file"))
    predict("lines", 1)
    ok("4 ranks answered", lines=4)
    assert capsys.readouterr().out == "noted: 1\nok: 4 ranks answered\nit was 4\n"
