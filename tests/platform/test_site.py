"""
Tests of the built site: lessons are complete, answers are folded, and nothing loads from elsewhere.
"""

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from bs4 import BeautifulSoup
from built_site import built_site
from paths import ROOT

from ddp_lessons.course.notebooks.cell_roles import role_of
from ddp_lessons.course.notebooks.notebook_paths import all_notebooks

PLACES = all_notebooks(ROOT)
LESSONS = [place for place in PLACES if place.is_lesson]
EXERCISES = [place for place in PLACES if not place.is_lesson]
pytestmark = pytest.mark.timeout(600)  # the first test builds the site, on busy cores


@pytest.fixture
def site():
    """
    Return the folder of the built site, which the first test builds. The fixture's scope is one
    test, so that the build is part of a test and cannot run beside tests that measure time.
    """
    return built_site()


@cache
def page(path):
    """
    Return a page of the site, parsed.
    """
    return BeautifulSoup(path.read_text(), "html.parser")


def plain(text):
    """
    Return a text without whitespace, which differs between a notebook and its page.
    """
    return re.sub(r"\s+", "", text)


def all_pages(site):
    """
    Return the paths of all pages.
    """
    found = sorted(site.rglob("*.html"))
    assert len(found) > len(PLACES)
    return found


@pytest.mark.parametrize("place", LESSONS, ids=lambda place: place.stem)
def test_site_has_every_cell_and_output_of_a_lesson(site, place):
    """
    A lesson's page has the source and the outputs of every code cell, and each picture has a
    description.
    """
    html = page(site / "lessons" / f"{place.stem}.html")
    shown = plain(html.article.get_text())
    notebook = nbformat.read(place.notebook, as_version=4)
    num_pictures = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert plain(cell["source"]) in shown
            for output in cell["outputs"]:
                num_pictures += any(m.startswith("image/") for m in output.get("data", {}))
                told = output.get("text") or "\n".join(output.get("traceback", ()))
                assert plain(told) in shown
    pictures = html.select(".cell_output img")
    assert len(pictures) == num_pictures
    for picture in pictures:
        assert (site / "lessons" / picture["src"]).resolve().stat().st_size > 100
        assert len(picture["alt"]) > 10
        assert not picture["alt"].startswith(("<", ".."))


@pytest.mark.parametrize("place", LESSONS, ids=lambda place: place.stem)
def test_site_folds_what_answers_a_prediction(site, place):
    """
    The answer to each prediction is folded, so that readers can think before they see it.
    """
    html = page(site / "lessons" / f"{place.stem}.html")
    notebook = nbformat.read(place.notebook, as_version=4)
    roles = [role_of(cell) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    folds = html.select("details.answer")
    assert len(folds) == roles.count("predict") == roles.count("check")
    assert len(html.select("details.answer .tag_check")) == len(folds)
    assert html.select("details.answer .tag_predict, details.answer .tag_teardown") == []
    for fold in folds:
        assert not fold.has_attr("open")
        assert fold.find(recursive=False).name == "summary"
        assert fold.find_previous_sibling("div", class_="tag_predict")
        assert fold.select(".tag_run, .tag_break, .tag_mend")
        told = fold.select(".tag_check")[-1].select_one(".cell_output").get_text()
        assert told.strip().startswith("ok")


def test_site_shows_nothing_of_an_answer_outside_of_its_fold(site):
    """
    No output outside of a fold shows the answer to a prediction. A cell before the question may be
    shown, because it answers nothing.
    """
    for place in LESSONS:
        html = BeautifulSoup((site / "lessons" / f"{place.stem}.html").read_text(), "html.parser")
        for fold in html.select("details.answer"):
            fold.decompose()
        assert "it was" not in "".join(o.get_text() for o in html.select(".cell_output"))
        assert html.select(".tag_check, .tag_predict ~ .tag_run") == []
        assert html.select(".tag_predict ~ .tag_break, .tag_predict ~ .tag_mend") == []


def solution_lines(place):
    """
    Return the lines between the marks of solutions, which a learner has to write.
    """
    lines, inside = [], False
    for line in map(str.strip, place.text.read_text().splitlines()):
        if line in ("# solution", "# end of solution"):
            inside = line == "# solution"
        elif inside and not line.startswith("# | "):
            lines.append(line)
    return lines


@pytest.mark.parametrize("place", EXERCISES, ids=lambda place: place.stem)
def test_site_has_the_tasks_of_an_exercise_and_no_solution(site, place):
    """
    The page of an exercise has every cell of the starter and no line of its solution, which a
    search would show to learners too early.
    """
    shown = plain(page(site / "exercises" / f"{place.stem}.html").article.get_text())
    blank = nbformat.read(place.blank, as_version=4)
    for cell in blank["cells"]:
        if cell["cell_type"] == "code":
            assert plain(cell["source"]) in shown
    given = plain("".join(cell["source"] for cell in blank["cells"]))
    secret = [line for line in map(plain, solution_lines(place)) if line not in given]
    assert secret
    assert [line for line in secret if line in shown] == []


def test_site_gives_no_file_with_a_solution(site):
    """
    Every notebook to download is a starter.
    """
    notebooks = list(site.rglob("*.ipynb"))
    assert len(notebooks) == len(PLACES)
    blanks = {place.blank.read_bytes() for place in PLACES}
    assert {path.read_bytes() for path in notebooks} == blanks


def dead_links(site):
    """
    Return (page, address) of all links to files or places of the site that do not exist.
    """
    dead = []
    for path in all_pages(site):
        for link in page(path).select("a[href]"):
            target = urlsplit(link["href"])
            if target.scheme or target.netloc:
                continue
            file = (path.parent / unquote(target.path)).resolve() if target.path else path
            name = unquote(target.fragment)
            is_there = file.is_file()
            if is_there and name and file.suffix == ".html":
                is_there = page(file).find(id=name) is not None
            if not is_there:
                dead.append((path.name, link["href"]))
    return dead


def test_site_links_end_somewhere(site):
    """
    No link within the site is dead. Sphinx checks only its own links, not those of the theme and of
    the pages.
    """
    assert dead_links(site) == []


def links_to(site, address):
    """
    Return a dict from each page's path to its links that begin with an address.
    """
    found = {}
    for path in all_pages(site):
        links = [link["href"] for link in page(path).select("a[href]")]
        found[path.relative_to(site)] = [link for link in links if link.startswith(address)]
    return found


def test_site_without_a_repository_links_to_none(site):
    """
    A site that is built without a repository's name has no links to Binder or to source code.
    """
    assert not any(links_to(site, "https://mybinder.org").values())
    assert not [link for path in all_pages(site) for link in page(path).select(".viewcode-link")]


def test_site_with_a_repository_links_to_it(tmp_path):
    """
    A site that is built with a repository and a hub, as a workflow builds it, links each notebook
    to its source, to Binder and to the hub, without dead links.
    """
    repository = "https://github.com/someone/course"
    told = {"REPOSITORY": repository, "HUB": "https://hub.example.org"}
    build = "import sys, pathlib, build_site as site; sys.exit(site.build(out=pathlib.Path({!r})))"
    done = subprocess.run(
        [sys.executable, "-c", build.format(str(tmp_path / "site"))],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "docs" / "site"), str(ROOT)]),
            **{f"DDP_LESSONS_SITE_{name}": value for name, value in told.items()},
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    html = tmp_path / "site" / "html"
    assert dead_links(html) == []
    source, binder = links_to(html, f"{repository}/blob/main/"), links_to(html, "https://mybinder")
    hub = links_to(html, "https://hub.example.org/hub/user-redirect/git-pull?")
    for place in PLACES:
        name = Path("lessons" if place.is_lesson else "exercises", f"{place.stem}.html")
        text = place.text.relative_to(ROOT).as_posix()
        assert f"{repository}/blob/main/{text}" in source[name]
        assert len(binder[name]) == len(hub[name]) == 1
    module = f"{repository}/blob/main/ddp_lessons/ring/steps.py"
    assert module in source[Path("api/ring.html")]
    named = {link.partition("/blob/main/")[2] for links in source.values() for link in links}
    assert [path for path in named if not (ROOT / unquote(urlsplit(path).path)).exists()] == []


def test_site_loads_nothing_from_elsewhere(site):
    """
    The site loads no script, style or image from another server, so that it works without a
    network.
    """
    loaded = []
    for path in all_pages(site):
        html = page(path)
        for tag in html.select("script, img, iframe, source, object, embed"):
            loaded += [tag.get(name, "") for name in ("src", "srcset", "data")]
        kinds = ("canonical", "search", "next", "prev", "index", "license")
        loaded += [tag["href"] for tag in html.select("link[href]") if tag["rel"][0] not in kinds]
    for path in site.rglob("*.css"):
        loaded += re.findall(r"url\(\s*[\"']?([^)\"']+)", path.read_text())
        loaded += re.findall(r"@import\s+[\"']([^\"']+)", path.read_text())
    assert any("site.css" in address for address in loaded)
    elsewhere = [a for a in loaded if a.startswith("//") or urlsplit(a).scheme not in ("", "data")]
    assert elsewhere == []


def test_site_explains_what_lessons_import(site):
    """
    Every module that a lesson imports has an entry on an API page, with its docstring.
    """
    missing = []
    for place in LESSONS:
        for name in re.findall(
            r"^from (ddp_lessons\.\w+) import", place.text.read_text(), re.MULTILINE
        ):
            subject = name.partition(".")[2]
            if subject not in ("checks", "ranks", "jobs", "progress", "errors"):
                html = page(site / "api" / f"{subject}.html")
                if html.find(id=f"module-{name}") is None:
                    missing.append(name)
    assert missing == []
    ring = page(site / "api" / "ring.html")
    for name in ("steps.all_reduce", "steps.reduce_scatter", "textbook"):
        assert ring.find(id=f"ddp_lessons.ring.{name}") is not None
    drawing = ring.find(id="module-ddp_lessons.ring.steps").find_next("pre").get_text()
    assert "all-reduce = reduce-scatter, w - 1 steps" in drawing


def test_site_lesson_leads_to_its_module(site):
    """
    The page of a lesson links to the module that it is about.
    """
    link = page(site / "lessons" / "03_ring.html").find("a", href=re.compile("ring.steps"))
    assert link["href"] == "../api/ring.html#module-ddp_lessons.ring.steps"


def test_site_can_be_searched(site):
    """
    The site's search works without a service: its index is a file with the words of all lessons.
    """
    text = (site / "searchindex.js").read_text()
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    lesson = index["docnames"].index("lessons/03_ring")
    found = index["terms"]["busiest"]
    assert lesson in (found if isinstance(found, list) else [found])
