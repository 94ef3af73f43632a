"""
The facts that must agree across all lessons: claims, links, terms, and the tables in the READMEs.
"""

import re
from itertools import pairwise

import pytest
from lessons import NOTEBOOKS, STEMS, sources, title_of
from paths import ROOT

from ddp_lessons.course.notebooks.canonical import read_notebook
from ddp_lessons.course.notebooks.cell_roles import EITHER_ROLES, MARKDOWN_ROLES, ROLES, role_of
from ddp_lessons.course.notebooks.notebook_paths import all_notebooks

README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_TERMS = 40

every_lesson = pytest.mark.parametrize("stem", STEMS)


def claims_in(text):
    """
    Return the numbers of the claims that a text names.
    """
    return {int(number) for number in re.findall(r"\bC(\d\d)\b", text)}


def rows_of_claims():
    """
    Return (number, verdict, lesson id) of each row on the page of claims.
    """
    page = (ROOT / "notebooks" / "claims.md").read_text(encoding="utf-8")
    row = r"^\| C(\d\d) \| .+ \| (true|half true|false) \| .+ \| \[(\d\d_\w+)\]\(\3\.ipynb\) \|$"
    return re.findall(row, page, re.MULTILINE)


def test_lessons_are_numbered_without_a_gap():
    """
    Every lesson has a notebook and a number of its own, because a learner would miss one.
    """
    assert sorted(NOTEBOOKS) == STEMS
    assert [stem[:2] for stem in STEMS] == [f"{number:02}" for number in range(len(STEMS))]


@every_lesson
def test_lesson_names_the_claims_of_its_rows(stem):
    """
    Each claim on the page of claims is named in its lesson, and a lesson names no other claim than
    those of the page.
    """
    named = claims_in("\n".join(sources(stem)))
    assert named >= {int(number) for number, _, lesson in rows_of_claims() if lesson == stem}
    assert named <= {int(number) for number, _, _ in rows_of_claims()}


@every_lesson
def test_claim_is_judged_by_a_cell_that_asserts(stem):
    """
    Each claim is judged in a check cell that asserts, because a verdict without an assertion is an
    opinion.
    """
    judged = set()
    for source in sources(stem, "check"):
        if "assert" in source:
            judged |= claims_in(source)
    assert judged == claims_in("\n".join(sources(stem)))


@every_lesson
def test_claim_is_judged_in_the_section_that_speaks_of_it(stem):
    """
    A claim is tested in the section that describes it, so that its reader finds the test there.
    """
    cells = NOTEBOOKS[stem]["cells"]
    starts = [at for at, cell in enumerate(cells) if role_of(cell) == "question"]
    for start, stop in pairwise([*starts, len(cells)]):
        section = cells[start:stop]
        read = [cell["source"] for cell in section if role_of(cell) == "read"]
        check = [cell["source"] for cell in section if role_of(cell) == "check"]
        assert claims_in("\n".join(read)) == claims_in("\n".join(check))


@every_lesson
def test_claims_in_the_text_lead_to_the_page_of_claims(stem):
    """
    A claim's number links to the page of claims, where a reader can look it up.
    """
    text = "\n".join(sources(stem, *MARKDOWN_ROLES, *EITHER_ROLES))
    assert not claims_in(re.sub(r"\[[^\]]*\bC\d\d\]\(claims\.md\)", "", text))


def test_page_of_claims_says_what_the_lessons_found():
    """
    The page of claims has the verdicts that the lessons found.
    """
    rows = rows_of_claims()
    assert [int(number) for number, _, _ in rows] == list(range(1, len(rows) + 1))
    for number, verdict, stem in rows:
        (told,) = {
            match
            for source in sources(stem, "check")
            for match in re.findall(rf"C{number} is (half true|true|false)", source)
        }
        assert told == verdict


def test_no_two_predictions_share_a_name():
    """
    No two predictions have one name, because a prediction of one lesson would appear in another.
    """
    asked = re.findall(
        r'predict\("(\w+)", "?\.\.\."?\)', "\n".join(map("\n".join, map(sources, STEMS)))
    )
    assert len(set(asked)) == len(asked)


@every_lesson
def test_title_says_question_minutes_ranks_and_what_it_builds_on(stem):
    """
    The title states the question, the minutes, the ranks and the lessons that it builds on, by
    which learners choose and teachers plan.
    """
    minutes = int(title_of(stem)["minutes"])
    assert 20 <= minutes <= 60, "split a longer lesson, and join a shorter one to its neighbour"


@every_lesson
def test_links_inside_the_course_lead_somewhere(stem):
    """
    Links within the course lead to files that exist.
    """
    text = "\n".join(sources(stem, *MARKDOWN_ROLES, *EITHER_ROLES))
    links = re.findall(r"\]\((?!https?:)([^)\s]+)\)", text)
    missing = [link for link in links if not (ROOT / "notebooks" / link.partition("#")[0]).exists()]
    assert missing == []


@every_lesson
def test_links_of_a_lesson_with_outputs_lead_somewhere(stem):
    """
    Links of the lessons with outputs lead to files that exist, for readers on the web.
    """
    folder = ROOT / "notebooks" / "executed"
    cells = read_notebook(folder / f"{stem}.ipynb").cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\((?!https?:)([^)\s]+)\)", text)
    assert [link for link in links if not (folder / link.partition("#")[0]).exists()] == []


@every_lesson
def test_lesson_names_sources_by_https(stem):
    """
    Every lesson names at least two sources, by https, for its facts.
    """
    links = re.findall(r"\]\((https?://[^)\s]+)\)", "\n".join(sources(stem, "next")))
    assert len(links) >= 2, "link two sources or more in the cell `next`"
    assert all(link.startswith("https://") for link in links)


@pytest.mark.parametrize(("before", "stem"), [*pairwise(STEMS)])
def test_lesson_before_leads_to_a_lesson_of_the_new_template(before, stem):
    """
    The lesson before one of the new template, which has a `why`, links to it.
    """
    if sources(stem, "why"):
        assert f"({stem}.ipynb)" in "\n".join(sources(before, "next")), (
            f"link {stem}.ipynb in the cell `next` of {before}"
        )


def glossary():
    """
    Return the rows of the glossary: (term, meaning, lesson id).
    """
    row = r"^\| \*\*(.+?)\*\* \| (.+?) \| \[\d\d\]\(notebooks/(\d\d_\w+)\.ipynb\) \|$"
    return re.findall(row, README, re.MULTILINE)


def test_glossary_is_short_and_each_term_stands_once():
    """
    The glossary has 20 to 40 terms, each once, so that it is read to its end.
    """
    terms = [term.lower() for term, _, _ in glossary()]
    assert 20 <= len(terms) <= MOST_TERMS
    assert len(set(terms)) == len(terms)


@pytest.mark.parametrize(("term", "meaning", "stem"), glossary())
def test_term_is_explained_in_the_lesson_that_the_glossary_names(term, meaning, stem):
    """
    A term's first use in bold is in the lesson that the glossary names, where it is explained.
    """
    bold = re.compile(rf"\*\*{re.escape(term)}(?:e?s)?\*\*", re.IGNORECASE)
    roles = set(ROLES) - {"goal"}  # the goal's verbs are bold
    first = next((at for at in STEMS if bold.search("\n".join(sources(at, *roles)))), None)
    assert first == stem


def readme_rows():
    """
    Return the rows of the README's table of lessons: (lesson id, question, minutes, builds on,
    seconds).
    """
    files = r"\[run\]\(notebooks/\1\.ipynb\), \[read\]\(notebooks/executed/\1\.ipynb\)"
    row = rf"^\| (\d\d_\w+): {files} \| (.+?) \| (\d+) \| (.+?) \| (\d+) \|$"
    return re.findall(row, README, re.MULTILINE)


def test_readme_lists_every_lesson_as_its_title_says_it():
    """
    The README lists every lesson with the question and the minutes of its title, because a visitor
    sees the course there.
    """
    said = [(stem, question, int(minutes)) for stem, question, minutes, _, _ in readme_rows()]
    titles = [(stem, title_of(stem)["question"], int(title_of(stem)["minutes"])) for stem in STEMS]
    differ = sorted(set(said) ^ set(titles))
    assert said == titles, (
        f"edit the table of lessons in README.md, in the form of its other rows: {differ}"
    )


def test_readme_says_what_a_lesson_builds_on_and_that_no_lesson_takes_a_minute():
    """
    The README names earlier lessons that a lesson builds on. Each lesson runs in at most a minute,
    because a learner who must wait does not run it again.
    """
    for stem, _, _, builds_on, seconds in readme_rows():
        needed = re.findall(r"\d\d", builds_on)
        assert all(number < stem[:2] for number in needed)
        assert bool(needed) == (stem != STEMS[0])
        assert 0 < int(seconds) <= 60


def exercises():
    """
    Return {lesson id: the first cell of its exercise}.
    """
    places = [place for place in all_notebooks(ROOT) if not place.is_lesson]
    return {place.stem: read_notebook(place.blank)["cells"][0]["source"] for place in places}


def exercise_rows():
    """
    Return the rows of the table of exercises: (lesson id, minutes).
    """
    text = (ROOT / "exercises" / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^\| \[(\d\d_\w+)\]\(\1\.ipynb\) \| .+? \| (\d+) \|$", text, re.MULTILINE)


def test_table_of_exercises_says_what_their_titles_say():
    """
    The table of exercises has the minutes of their titles, by which a teacher plans a day.
    """
    rows = exercise_rows()
    said = {
        stem: re.search(r"^(\d+) minutes", title, re.M)[1] for stem, title in exercises().items()
    }
    differ = sorted(set(rows) ^ set(said.items()))
    assert dict(rows) == said, (
        f"edit the table in exercises/README.md, in the form of its other rows: {differ}"
    )
    assert list(said) == STEMS


def test_readme_says_how_many_hours_the_core_takes():
    """
    The README's hours are the sums of its tables to half an hour, because a learner plans by them.
    """
    core = STEMS[:9]
    lessons = {stem: int(minutes) for stem, _, minutes, _, _ in readme_rows()}
    exercises = {stem: int(minutes) for stem, minutes in exercise_rows()}
    minutes = [sum(table[stem] for stem in core) for table in (lessons, exercises)]
    said = re.search(
        r"about ([\d.]+) hours to do the core, lessons 00 to 08: "
        r"the lessons take about ([\d.]+) hours, and their exercises about ([\d.]+)\.",
        " ".join(README.split()),
    )
    assert said, "README: say the hours of lessons 00 to 08, and of their exercises"
    hours = [round(number / 30) / 2 for number in (sum(minutes), *minutes)]
    assert [float(number) for number in said.groups()] == hours


def test_exercises_link_to_no_file():
    """
    Exercises link to no files, because learners copy them into folders without the course's files.
    """
    for place in all_notebooks(ROOT):
        if not place.is_lesson:
            assert not re.search(r"\]\((?!https:)", place.text.read_text(encoding="utf-8"))
