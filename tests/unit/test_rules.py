"""
The rules of notebooks: each refuses its fault and names the cell, and a good lesson passes.
"""

import pytest
from toy_lesson import TEXT_BEFORE, cell_of, display, error, run_notebook, stream

from ddp_lessons.course import rules
from ddp_lessons.course.notebooks.cell_roles import tags_of
from ddp_lessons.course.rules import reading_time
from ddp_lessons.errors import NotebookRefused


@pytest.fixture
def lesson(tmp_path):
    return run_notebook(tmp_path)


@pytest.fixture
def lesson_before(tmp_path):
    return run_notebook(tmp_path, TEXT_BEFORE)


def broken(notebook, **options):
    return {finding.rule for finding in rules.findings(notebook, **options)}


def test_findings_good_lesson_has_none(lesson, lesson_before):
    """
    A good lesson passes all rules, because authors would work around a rule that refuses it.
    """
    assert rules.findings(lesson) == []
    assert rules.findings(lesson_before) == []
    rules.refuse("00_toy.ipynb", [])


def test_refuse_names_cell_role_and_rule(lesson):
    """
    A refusal names the cell, its role and the rule, so that the author finds the cell without
    counting.
    """
    cell_of(lesson, "run")["outputs"] = [stream("41\n<object at 0x7f1234567890>\n")]
    with pytest.raises(NotebookRefused) as refused:
        rules.refuse("00_toy.ipynb", rules.findings(lesson))
    assert str(refused.value) == (
        "00_toy.ipynb, cell 8 (run), address: expected no memory address "
        "(got '0x7f1234567890' in stream). Give the object a __repr__, or print a part of it."
    )


OUTPUTS = [
    ("address", stream("41 <object at 0x7f1234567890>\n")),
    ("path", stream("41 /tmp/tmpab12/store\n")),
    ("path", stream("41 /home/someone/course\n")),
    ("path", stream("41 file:///var/folders/zz/store\n")),
    ("path", stream("41 ~/course/run.py\n")),
    ("ansi", stream("41 \x1b[31mred\x1b[0m\n")),
    ("stderr", stream("41 UserWarning: careful\n", name="stderr")),
    ("time", stream("41 2026-11-21\n")),
    ("time", stream("41 at 10:42:59\n")),
    ("uuid", stream("41 1e697ee8-440c-4904-a27d-0e2280f7b007\n")),
    ("uuid", stream("41 3ed9bea9-a4b97fdb1e8e3d5153805866\n")),
    ("uuid", stream("41 3ed9bea9a4b97fdb1e8e3d5153805866\n")),
    ("long-float", stream("41 0.1234567\n")),
    ("long-float", display("text/plain", "41 1.1920928955078125e-07")),
    ("control", stream("41\r\n")),
    ("mime", display("application/vnd.jupyter.widget-view+json", "41")),
    ("mime", display("image/jpeg", "41")),
    ("svg-date", display("image/svg+xml", "<svg>41<title>t</title><dc:date>2026</dc:date></svg>")),
    ("svg-title", display("image/svg+xml", "<svg><text>41</text></svg>")),
    ("svg-title", display("text/html", "<div><svg>41</svg></div>")),
    ("px-result", display("text/plain", "Out[0:1]: 41")),
]


@pytest.mark.parametrize(("rule", "output"), OUTPUTS)
def test_findings_refuses_output(lesson, rule, output):
    """
    Outputs that differ between runs or machines are refused, because nbval would fail on them
    without a fault in the lesson.
    """
    cell_of(lesson, "run")["outputs"] = [output]
    assert broken(lesson) == {rule}


@pytest.mark.parametrize(
    "text", ["0xff", "0.123456", "1:02", "1/2", "3 of 4 s", "10:20", "v1.2.3", "torch/nn/x.py"]
)
def test_findings_lets_ordinary_output_pass(lesson, text):
    """
    Ordinary output passes, because a pattern that is too wide would refuse good lessons.
    """
    cell_of(lesson, "run")["outputs"] = [stream(f"41 {text}\n")]
    assert broken(lesson) == set()


def test_findings_png_is_not_read_as_text(lesson):
    """
    A PNG is not searched as text, because base64 text may contain any pattern.
    """
    cell_of(lesson, "run")["outputs"].append(display("image/png", "iVBORw0/tmp/0x123456789"))
    assert broken(lesson) == set()


def test_findings_refuses_path_of_this_machine(lesson):
    """
    Paths of this machine are refused. The rules are given the checkout's folder, because it may be
    anywhere.
    """
    cell_of(lesson, "run")["outputs"] = [stream("41 /srv/course/x\n")]
    assert broken(lesson, machine_paths=["/srv/course"]) == {"path"}


@pytest.mark.parametrize(
    ("rule", "output"),
    [
        ("address", error("ValueError", "no <object at 0x7f1234567890>")),
        ("long-float", error("ValueError", "off by 0.33333333")),
        ("path", error("ValueError", "no file", ["File /home/me/x.py:3"])),
        ("ansi", error("ValueError", "bad", ["\x1b[31mbad\x1b[0m"])),
    ],
)
def test_findings_reads_errors_too(lesson, rule, output):
    """
    Errors are searched like outputs: nbval compares their name and value, and a traceback may show
    the machine's paths.
    """
    cell_of(lesson, "break")["outputs"] = [output]
    assert broken(lesson) == {rule}


def test_findings_error_must_be_tagged_and_tag_must_be_true(lesson):
    """
    An error without a tag is refused, because it was not intended, and so is a tag without an
    error, because it would hide a later one.
    """
    cell_of(lesson, "mend")["outputs"].append(error("ValueError", "oops"))
    assert broken(lesson) == {"error"}
    cell_of(lesson, "mend")["outputs"].pop()
    cell_of(lesson, "break")["outputs"] = []
    assert broken(lesson) == {"no-error"}


def test_findings_refuses_counts_that_are_null_or_out_of_order(lesson):
    """
    Counts that are null or out of order are refused, because nbval does not compare a cell with a
    null count.
    """
    cell_of(lesson, "run")["execution_count"] = None
    assert broken(lesson) == {"null-count"}
    assert [finding.rule for finding in rules.uncompared(lesson)] == ["null-count"]
    cell_of(lesson, "run")["execution_count"] = 7
    assert broken(lesson) == {"count"}


LONG_DEF = "def f():\n" + "    x = 1\n\n" * 8
SOURCES = [
    ("semicolon", "print(41);"),
    ("semicolon", "print(41);  # quiet\n# and a comment"),
    ("semicolon", "%%px\nprint(41);"),
    ("px-expression", "%%px\nx"),
    ("px-expression", "%%px --targets 0\ny = 1\nx.shape, 3"),
    ("px-expression", "%%px\n%time print(41)\nf'{x}'"),
    ("columns", "x = 3  # " + 80 * "x"),
    ("cell-lines", "x = 3\n" * 26),
    ("syntax", "x = (3"),
    ("nbval-mark", "# NBVAL_IGNORE_OUTPUT\nprint(41)"),
]


@pytest.mark.parametrize(("rule", "source"), SOURCES)
def test_findings_refuses_source(lesson, rule, source):
    """
    Sources in a bad style are refused, whether the notebook has been run or not, because learners
    read them.
    """
    cell_of(lesson, "run")["source"] = source
    assert broken(lesson) == {rule}
    assert broken(lesson, has_run=False) == {rule}


@pytest.mark.parametrize(
    "source",
    [
        "print('a;b')  # ;",
        "%%px\nprint(x)",
        "%%px\nx = 3",
        "%%px\n%matplotlib inline\nimport torch",
        "%%bash\nls; echo;\necho",
        "ranks[0].x",
        "x = !echo",
    ],
)
def test_findings_lets_ordinary_source_pass(lesson, source):
    """
    Ordinary sources pass, such as a call at the end of a %%px cell, and a bare expression in the
    kernel.
    """
    cell_of(lesson, "run")["source"] = source
    assert broken(lesson) == set()


def test_findings_setup_has_six_lines(lesson):
    """
    The setup has at most six lines, because it runs before anything is shown.
    """
    cell_of(lesson, "setup")["source"] = "x = 3\n" * 7
    assert broken(lesson) == {"cell-lines"}


def test_findings_budget_of_code_cells(lesson_before):
    """
    A lesson has a limited number of code cells. A longer one should be two lessons.
    """
    where = lesson_before["cells"].index(cell_of(lesson_before, "run"))
    lesson_before["cells"][where:where] = [dict(cell_of(lesson_before, "run")) for _ in range(17)]
    assert broken(lesson_before, has_run=False) == {"code-cells"}


def test_findings_budget_of_what_may_be_skipped(lesson):
    """
    Cells in a section headed "More" do not count, but four such sections are refused, because they
    should be a lesson of their own.
    """
    cells = lesson["cells"]
    numbers = [n for n, cell in enumerate(cells) if "question" in cell["metadata"]["tags"]]
    recap = cells.index(cell_of(lesson, "recap"))
    last = cells[numbers[-1] : recap]
    more = [dict(cell, source=cell["source"].replace("## ", "## More: ", 1)) for cell in last]
    where = next(n for n, cell in enumerate(more) if "run" in cell["metadata"]["tags"])
    longer = [*more[:where], *([more[where]] * 20), *more[where:]]
    names = [dict(cell, metadata=dict(cell["metadata"])) for cell in longer]
    lesson["cells"] = [*cells[:recap], *names, *cells[recap:]]
    assert "sections" not in broken(lesson, has_run=False)
    assert "code-cells" not in broken(lesson, has_run=False)
    lesson["cells"] = [*cells[:recap], *more, *more, *more, *more, *cells[recap:]]
    assert "sections" in broken(lesson, has_run=False)


def test_findings_budget_of_the_median_cell(lesson_before):
    """
    The median length of code cells is limited, because a learner can predict short cells only.
    """
    for cell in lesson_before["cells"]:
        if cell["cell_type"] == "code" and not {"setup", "predict"} & set(tags_of(cell)):
            cell["source"] += "\nx = 3" * 7
    assert broken(lesson_before) == {"median-lines", "minutes"}


def test_findings_two_cells_may_be_ignored_besides_the_setup(lesson):
    """
    Two cells besides the setup may have ignored outputs, and no more, because ignored outputs are
    not checked.
    """
    for role in ("setup", "run", "mend"):
        cell_of(lesson, role)["metadata"]["tags"].append("nbval-ignore-output")
    assert broken(lesson) == set()
    cell_of(lesson, "check")["metadata"]["tags"].append("nbval-ignore-output")
    assert broken(lesson) == {"ignored-output"}


@pytest.mark.parametrize("tag", ["nbval-skip", "pytest-validate-ignore-output"])
def test_uncompared_refuses_other_marks_of_nbval(lesson, tag):
    """
    nbval's other marks are refused. A lesson may use only two of its ways to ignore an output.
    """
    cell_of(lesson, "run")["metadata"]["tags"].append(tag)
    assert [finding.rule for finding in rules.uncompared(lesson)] == ["nbval-mark"]


def test_findings_refuses_tags_that_nothing_reads(lesson):
    """
    Unknown tags are refused, because a misspelt tag has no effect and looks as if it had.
    """
    cell_of(lesson, "run")["metadata"]["tags"].append("raise-exception")
    assert broken(lesson) == {"unknown-tag"}


@pytest.mark.parametrize("roles", [[], ["run", "check"]])
def test_findings_every_cell_has_one_role(lesson, roles):
    """
    Every cell has exactly one role, because the roles define the order of a lesson's cells.
    """
    cell_of(lesson, "mend")["metadata"]["tags"] = roles
    assert "role" in broken(lesson)


def test_findings_role_fits_the_type_of_the_cell(lesson):
    """
    A role fits the cell's type: a check cell of text would check nothing.
    """
    cell = cell_of(lesson, "recap")
    cell["metadata"]["tags"] = ["teardown"]
    assert "cell-type" in broken(lesson)


@pytest.mark.parametrize(
    ("role", "rules_broken"),
    [
        ("title", {"order"}),
        ("why", {"order"}),
        ("cluster", set()),
        ("goal", {"order"}),
        ("setup", {"order", "count"}),
        ("question", {"order", "sections"}),
        ("predict", {"section"}),
        ("run", {"order", "section", "answer", "count", "read-quote"}),
        ("read", {"section"}),
        ("check", {"order", "section", "answer", "count"}),
        ("break", {"break-and-mend", "count"}),
        ("mend", {"break-and-mend", "answer", "count", "read-quote"}),
        ("recap", {"order"}),
        ("next", {"order"}),
        ("teardown", {"order"}),
    ],
)
def test_findings_misses_each_cell_of_the_rhythm(lesson, role, rules_broken):
    """
    Each missing role is reported by its rule.
    """
    lesson["cells"].remove(cell_of(lesson, role))
    assert broken(lesson) == rules_broken


def test_findings_order_inside_a_section(lesson):
    """
    The order in a section is checked: a prediction after the run predicts nothing.
    """
    cells = lesson["cells"]
    first = cells.index(cell_of(lesson, "run"))
    cells[first - 1], cells[first] = cells[first], cells[first - 1]
    assert broken(lesson, has_run=False) == {"order"}


def test_findings_predict_has_one_place_for_one_number(lesson):
    """
    A prediction is one text cell with the question and one code cell with `predict`. A third cell
    would be another question.
    """
    cells = lesson["cells"]
    question = cells.index(cell_of(lesson, "predict"))
    place = cells.pop(question + 1)
    assert broken(lesson, has_run=False) == {"section", "answer"}
    cells[question + 1 : question + 1] = [place, place]
    assert broken(lesson, has_run=False) == {"section", "answer"}


PLACES = [
    'predict("first", 4)',
    'predict("first")',
    'x = predict("first", ...)',
    "predict(first, ...)",
    'predict("first", "b")',
]


@pytest.mark.parametrize("source", PLACES)
def test_findings_the_place_for_a_number_holds_none(lesson, source):
    """
    A prediction's code cell holds no number, because that would give the answer away.
    """
    cells = lesson["cells"]
    cells[cells.index(cell_of(lesson, "predict")) + 1]["source"] = source
    assert "predict" in broken(lesson, has_run=False)


def test_findings_each_prediction_is_answered_where_it_was_made(lesson):
    """
    Each prediction is answered in its own section: a question without an answer teaches nothing,
    and one in another section confuses.
    """
    cell_of(lesson, "check")["source"] = 'assert x == 3\nok("it came out", second=41)'
    assert broken(lesson, has_run=False) == {"answer"}


def test_findings_the_answer_of_a_prediction_was_printed(lesson):
    """
    The answer to a prediction was printed before. A learner would not have seen a number that only
    the last line shows.
    """
    cell_of(lesson, "check")["outputs"][0]["text"] = "ok: it came out\nit was 43\n"
    assert broken(lesson) == {"answer"}


def test_findings_the_answer_of_a_prediction_is_one_of_its_choices(lesson):
    """
    A question with choices is answered by the letter of one of them, and by no other letter.
    """
    asking = cell_of(lesson, "predict")
    asking["source"] = "What comes out: (a) a sum, (b) an error?"
    cells = lesson["cells"]
    cells[cells.index(asking) + 1]["source"] = 'predict("first", "...")'
    outcome = cell_of(lesson, "check")["outputs"][0]
    outcome["text"] = "ok: it came out\nit was b\n"
    assert broken(lesson) == set()
    outcome["text"] = "ok: it came out\nit was c\n"
    assert broken(lesson) == {"answer"}


def test_a_text_that_was_changed_since_it_was_read_gives_a_warning(lesson):
    """
    A text that has grown by a quarter of an hour since its readers were timed gives a warning, and
    no finding: an estimate is no measurement.
    """
    assert reading_time.warning(lesson) == ""
    cell_of(lesson, "read")["source"] += " A sum adds." * 750
    assert "looks like 25 minutes, and its readers needed 10:" in reading_time.warning(lesson)
    assert "minutes" not in broken(lesson, has_run=False)
    del lesson["cells"][0]["metadata"]["minutes"]
    assert reading_time.warning(lesson) == ""


def test_a_lesson_above_three_quarters_of_an_hour_gives_a_warning(lesson):
    """
    A lesson for which readers needed more than 45 minutes gives a warning: what not everybody needs
    should stand under "More".
    """
    lesson["cells"][0]["metadata"]["minutes"] = [40, 50]
    assert "needed more than 45" not in reading_time.warning(lesson)
    lesson["cells"][0]["metadata"]["minutes"] = [50, 55]
    assert "needed more than 45 minutes:" in reading_time.warning(lesson)


def test_findings_three_to_five_sections(lesson):
    """
    A lesson has three to five sections. Six questions are too many for one sitting.
    """
    cells = lesson["cells"]
    first, second = cells.index(cell_of(lesson, "question")), cells.index(cell_of(lesson, "check"))
    cells[first:first] = cells[first : second + 1] * 2
    assert "sections" not in broken(lesson, has_run=False)
    cells[first:first] = cells[first : second + 1]
    assert broken(lesson, has_run=False) == {"sections"}


def test_findings_an_explanation_may_stand_anywhere_in_a_section(lesson):
    """
    An explanation may come before the question, if the question needs it, and after each run.
    """
    cells = lesson["cells"]
    text = {"cell_type": "markdown", "metadata": {"tags": ["explain"]}, "source": "A sum adds."}
    for role in ("check", "read", "run", "predict"):
        cells.insert(cells.index(cell_of(lesson, role)), dict(text))
    assert broken(lesson) == set()


def test_findings_three_to_six_sections(lesson_before):
    """
    A lesson has three to six sections. Seven questions are too many.
    """
    cells = lesson_before["cells"]
    first, second = (
        cells.index(cell_of(lesson_before, "question")),
        cells.index(cell_of(lesson_before, "check")),
    )
    cells[first:first] = cells[first : second + 1] * 4
    assert broken(lesson_before, has_run=False) == {"sections", "minutes"}


TEXTS = [
    ("title", "title", "# What is it?\n\n4 ranks, builds on nothing."),
    ("title", "title", "# What is it?\n\n10 minutes, builds on nothing."),
    ("title", "title", "# What is it?\n\n10 minutes, 4 ranks."),
    ("title", "title", "# It is\n\n10 minutes, 4 ranks, builds on nothing."),
    ("goal", "goal", "- Add\n- Subtract"),
    ("goal", "goal", "- Add\n- Subtract\n- Divide\n- Multiply"),
    ("question", "question", "## Division?"),
    ("question", "question", "### What divides by zero?"),
    ("predict", "predict", "Guess."),
    ("read-quote", "read", "It printed 43."),
    ("heading", "next", "## Six words are a whole sentence"),
    ("exclamation", "next", "It works!"),
    ("emoji", "next", "It works \u2705"),
]


@pytest.mark.parametrize(("rule", "role", "text"), TEXTS)
def test_findings_refuses_words(lesson, rule, role, text):
    """
    Texts that break a rule of style or length are refused.
    """
    cell_of(lesson, role)["source"] = text
    assert broken(lesson) == {rule}


TEXTS_BEFORE = [
    ("read-words", "read", "41 " + "word " * 80),
    ("read-number", "read", "It printed a number."),
    ("def-lines", "run", LONG_DEF),
    ("cell-lines", "run", "x = 3\n" * 16),
]


@pytest.mark.parametrize(("rule", "role", "text"), TEXTS_BEFORE)
def test_findings_older_lessons_keep_their_limits(lesson, lesson_before, rule, role, text):
    """
    Limits that led to clipped sentences hold for older lessons only, until these are rewritten.
    """
    cell_of(lesson_before, role)["source"] = text
    assert broken(lesson_before) == {rule}
    cell_of(lesson, role)["source"] = text
    assert broken(lesson) == set()


def test_findings_heading_gives_nothing_away(lesson):
    """
    A heading asks and does not state the result, which would answer its own question.
    """
    cell_of(lesson, "question")["source"] = "## The answer is 41."
    assert broken(lesson) == {"question"}
    cell_of(lesson, "question")["source"] = "## Which answer is it"
    assert broken(lesson) == {"question", "heading"}


def test_findings_minutes_are_what_a_reader_needs(lesson_before):
    """
    The title's minutes agree with the reading time, because a teacher plans with them. The toy has
    60 words, 12 lines and three questions.
    """
    title = cell_of(lesson_before, "title")
    title["source"] = title["source"].replace("10 minutes", "5 minutes")
    assert broken(lesson_before) == {"minutes"}
    title["source"] = title["source"].replace("5 minutes", "15 minutes")
    cell_of(lesson_before, "recap")["source"] = "word " * 1300
    assert reading_time.minutes(lesson_before) == 15
    assert broken(lesson_before) == set()


def test_findings_minutes_are_those_that_readers_reported(lesson):
    """
    The title's minutes are the median of what readers reported, because no formula of words and
    lines fits what they report. A lesson that nobody has read has no minutes to promise.
    """
    title = cell_of(lesson, "title")
    title["metadata"]["minutes"] = [8, 12, 14]
    assert broken(lesson) == {"minutes"}
    title["source"] = title["source"].replace("10 minutes", "15 minutes")
    assert broken(lesson) == set()
    title["metadata"]["minutes"] = []
    assert broken(lesson) == {"minutes"}


def test_findings_no_lesson_is_longer_than_an_hour(lesson):
    """
    A lesson for which readers need more than an hour is refused: the rest belongs into "More".
    """
    title = cell_of(lesson, "title")
    title["metadata"]["minutes"] = [65]
    title["source"] = title["source"].replace("10 minutes", "65 minutes")
    assert broken(lesson) == {"minutes"}


def test_findings_no_lesson_is_longer_than_half_an_hour(lesson_before):
    """
    A lesson takes at most half an hour, not counting "More" sections. A longer one should be two
    lessons.
    """
    cells = lesson_before["cells"]
    read = [cell for cell in cells if "read" in cell["metadata"]["tags"]][-1]
    cells[0]["source"] = cells[0]["source"].replace("10 minutes", "35 minutes")
    read["source"] = "42 " + "word " * 4000
    assert broken(lesson_before) == {"minutes", "read-words"}
    questions = [cell for cell in cells if "question" in cell["metadata"]["tags"]]
    questions[-1]["source"] = "## More: which answer is the second?"
    cells[0]["source"] = cells[0]["source"].replace("35 minutes", "10 minutes")
    assert broken(lesson_before) == {
        "read-words",
        "sections",
    }  # only two sections besides "More" are left


def test_findings_words_in_code_are_code(lesson):
    """
    Code spans and images are not judged as text: `!=` is no exclamation mark.
    """
    cell_of(lesson, "next")["source"] = "`a != b` ![t](t.png)\n```\n# why\nx != y\n```\n"
    assert broken(lesson) == set()


def test_findings_check_asserts_and_says_ok(lesson):
    """
    A check asserts, and prints an ok line. A check that only prints would pass with a wrong answer
    once the notebook is stored.
    """
    cell_of(lesson, "check")["source"] = "ok('it came out', first=41)"
    assert broken(lesson) == {"check-assert"}
    cell_of(lesson, "check")["source"] = "assert x == 3\nok('it came out', first=41)"
    assert broken(lesson) == set()
    cell_of(lesson, "check")["outputs"] = [stream("fine\n")]
    assert broken(lesson) == {"check-ok"}


def test_findings_exercise_has_no_rhythm_and_no_budget(lesson):
    """
    An exercise has no fixed order of cells and no limit on its length, but its outputs must keep
    the same rules.
    """
    lesson["cells"] = [cell_of(lesson, "run")]
    lesson["cells"][0]["execution_count"] = 1
    lesson["cells"][0]["metadata"] = {}
    lesson["cells"][0]["source"] = LONG_DEF
    assert broken(lesson, is_lesson=False) == set()
    lesson["cells"][0]["outputs"] = [stream("0x7f1234567890\n")]
    assert broken(lesson, is_lesson=False) == {"address"}
