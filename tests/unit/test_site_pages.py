"""
The pages that Sphinx reads: one for each file of the course, with links that still lead to their
targets.
"""

import importlib
import json
import re

import nbformat
import pytest
import yaml
from paths import ROOT

from ddp_lessons.course.notebooks.notebook_paths import all_notebooks
from ddp_lessons.errors import BadInput

REPOSITORY = "https://github.com/someone/course"
GIVEN = {"repository": REPOSITORY, "branch": "main", "hub": "https://hub.example.org"}
HUB_LINK = (
    "https://hub.example.org/hub/user-redirect/git-pull?"
    "repo=https%3A%2F%2Fgithub.com%2Fsomeone%2Fcourse&branch=main"
    "&urlpath=lab%2Ftree%2Fmy-course%2F"
)


@pytest.fixture
def site(monkeypatch):
    """
    Return a function that imports a module of the site's builder, as running it does.
    """
    monkeypatch.syspath_prepend(ROOT / "docs" / "site")
    return importlib.import_module


@pytest.fixture
def stage(site, tmp_path):
    """
    Return a function from settings to the folder with all pages of the course.
    """

    def run(**given):
        folder = tmp_path / f"pages-{len(given)}"
        written = site("site_pages").stage(ROOT, folder, site("site_settings").Settings(**given))
        files = {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")}
        assert {path for path in files if not path.startswith("files/")} == set(written)
        return folder

    return run


def texts(page):
    """
    Return the Markdown of a page, or that of a notebook page's cells.
    """
    text = page.read_text()
    if page.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    return "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


@pytest.fixture
def links(site, tmp_path):
    """
    Return the Links of a small repository that is not on the web.
    """
    for path in ("README.md", "docs/a.md", "notebooks/00.ipynb", "ddp_lessons/ring/steps.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    pages = {"docs/a.md": "a.md", "notebooks/00.ipynb": "lessons/00.ipynb"}
    modules = {"ddp_lessons/ring/steps.py": "ddp_lessons.ring.steps"}
    return site("site_links").Links(tmp_path, pages, modules, site("site_settings").Settings())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](docs/a.md) and [b](https://x.org/)", "[a](../a.md) and [b](https://x.org/)"),
        ("[here](docs/a.md#part)", "[here](../a.md#part)"),
        ("[below](#part)", "[below](#part)"),
        ("[00](notebooks/00.ipynb)", "[00](../lessons/00.ipynb)"),
        ("[run](notebooks/00.ipynb)", "{download}`run </files/notebooks/00.ipynb>`"),
        ("[x](ddp_lessons/ring/steps.py)", "{py:mod}`x <ddp_lessons.ring.steps>`"),
        ("[all](ddp_lessons/ring)", "all"),
        ("[`me`](README.md)", "{download}`me </files/README.md>`"),
        ("![it](README.md)", "![it](/files/README.md)"),
        ("`[a](no)`", "`[a](no)`"),
        ("```\n[a](no)\n```\n[a\nb](docs/a.md)", "```\n[a](no)\n```\n[a\nb](../a.md)"),
    ],
)
def test_links_lead_where_they_led(links, text, expected):
    """
    Links lead to the same targets as in the repository: a page, a part of a page, or a file to
    download.
    """
    assert links.rewrite(text, "README.md", "sub/page.md") == expected


@pytest.mark.parametrize("target", ["no.md", "../outside.md", "docs/b.md#part"])
def test_links_to_nothing_are_refused(links, target):
    """
    A link to a missing file is refused, because a reader would distrust the rest of the site.
    """
    with pytest.raises(BadInput, match=r"README.md, link: expected a file of the course"):
        links.rewrite(f"[a]({target})", "README.md", "page.md")


def test_links_name_what_a_page_needs(links):
    """
    The links record the files that a page needs, so that no picture is missing.
    """
    links.rewrite("[run](../notebooks/00.ipynb) ![it](a.md)", "docs/a.md", "a.md")
    assert links.files == {"notebooks/00.ipynb", "docs/a.md"}


@pytest.mark.parametrize(
    ("repository", "provider"),
    [
        ("https://github.com/someone/course", "gh/someone/course"),
        ("https://git.example.org/a/course", "git/https%3A%2F%2Fgit.example.org%2Fa%2Fcourse"),
    ],
)
def test_addresses_are_those_of_the_services(site, repository, provider):
    """
    The addresses for Binder and nbgitpuller are escaped as these services expect.
    """
    settings = site("site_settings").Settings(
        repository=repository,
        branch="a/b",
        hub="https://hub.example.org",
        hub_path="lab/tree/{folder}/{notebook}",
    )
    binder = settings.binder_address("notebooks/00.ipynb")
    assert binder == (
        f"https://mybinder.org/v2/{provider}/a%2Fb?urlpath=lab%2Ftree%2Fnotebooks%2F00.ipynb"
    )
    hub = settings.hub_address("notebooks/00.ipynb")
    assert hub.endswith("&branch=a%2Fb&urlpath=lab%2Ftree%2Fcourse%2Fnotebooks%2F00.ipynb")
    assert settings.source_address("a.md") == f"{repository}/blob/a/b/a.md"


def test_settings_come_from_the_file_and_from_outside(site, tmp_path):
    """
    Settings come from the file and from the environment, because a workflow knows its repository
    and nobody should repeat it.
    """
    settings = site("site_settings")
    file = tmp_path / "settings.toml"
    file.write_text('hub = "https://hub.example.org/"\nbranch = "other"\n')
    outside = {"DDP_LESSONS_SITE_REPOSITORY": f"{REPOSITORY}.git", "DDP_LESSONS_SITE_BRANCH": ""}
    read = settings.read_settings(file, outside)
    assert (read.repository, read.hub) == (REPOSITORY, "https://hub.example.org")
    assert read.branch == "other"
    assert settings.read_settings(environment={}) == settings.Settings()
    for wrong, told in (
        ('hub = "hub.example.org"', "expected an address"),
        ("hub = 3", "expected a text"),
        ('hubs = ""', "Setting 'hubs'"),
    ):
        file.write_text(wrong)
        with pytest.raises(BadInput, match=told):
            settings.read_settings(file, {})


def test_pages_of_notebooks_open_in_binder_and_on_a_hub(stage):
    """
    Each notebook's page links to Binder and to a hub, which open the notebook without outputs.
    """
    folder = stage(**GIVEN)
    binder = f"https://mybinder.org/v2/gh/{REPOSITORY.removeprefix('https://github.com/')}/main"
    for place in all_notebooks(ROOT):
        kind = "lessons" if place.is_lesson else "exercises"
        page = texts(folder / kind / f"{place.stem}.ipynb")
        notebook = place.blank.relative_to(ROOT).as_posix()
        assert f"{binder}?urlpath=lab%2Ftree%2F{notebook.replace('/', '%2F')})" in page
        assert f"{HUB_LINK}{notebook.replace('/', '%2F')})" in page
        assert f"{{download}}`The notebook as a file </files/{notebook}>`" in page
        assert f"({REPOSITORY}/blob/main/{place.text.relative_to(ROOT).as_posix()})" in page
        assert (folder / "files" / notebook).read_bytes() == place.blank.read_bytes()


def test_pages_of_texts_lead_to_their_source(stage):
    """
    Each page links to its source, so that a reader who finds a mistake finds the file.
    """
    folder = stage(**GIVEN)
    for page, source in (
        ("index.md", "README.md"),
        ("words.md", "README.md"),
        ("claims.md", "notebooks/claims.md"),
        ("plans.md", "exercises/README.md"),
        ("teaching.md", "docs/teaching.md"),
        ("api/ring.rst", "ddp_lessons/ring/__init__.py"),
    ):
        assert f"{REPOSITORY}/blob/main/{source}" in (folder / page).read_text()


def test_pages_without_a_repository_have_no_link_that_is_made_up(stage):
    """
    Without a repository in the settings the pages have no links to one, because an invented address
    may be a stranger's.
    """
    folder = stage()
    for place in all_notebooks(ROOT):
        kind = "lessons" if place.is_lesson else "exercises"
        page = texts(folder / kind / f"{place.stem}.ipynb")
        assert "{download}`The notebook as a file" in page
        assert "mybinder" not in page
        assert "/blob/" not in "".join(line for line in page.splitlines() if "Its source" in line)


def test_pages_of_exercises_have_tasks_and_no_solution(site, stage):
    """
    Pages of exercises have the tasks and no solutions, because a learner who reads the answer first
    has lost the task.
    """
    folder = stage()
    for place in all_notebooks(ROOT):
        if place.is_lesson:
            continue
        page = (folder / "exercises" / f"{place.stem}.ipynb").read_text()
        tasks = [line for line in place.text.read_text().splitlines() if line.startswith("# ## ")]
        assert tasks
        assert all(json.dumps(line[2:])[1:-1] in page for line in tasks)
        assert "is still blank" in page
        assert "# solution" not in page
    assert not [path for path in folder.rglob("*") if "solutions" in path.parts]


def test_pictures_on_pages_have_words(stage):
    """
    Pictures on pages have a text, which screen readers read.
    """
    page = json.loads((stage() / "lessons" / "00_ranks.ipynb").read_text())
    named = [cell["metadata"]["mystnb"] for cell in page["cells"] if "mystnb" in cell["metadata"]]
    told = [one["image"]["alt"] for one in named]
    assert "What each process holds under the names secret" in told
    assert len(told) == 3


def test_index_names_every_page(stage):
    """
    The index names every page, because a page in no list cannot be found. It names the subject of a
    lesson before its question, because readers search for subjects.
    """
    folder = stage()
    index = (folder / "index.md").read_text() + (folder / "api" / "index.md").read_text()
    assert "\n02 collectives: What moves when ranks talk? <lessons/02_collectives>\n" in index
    pages = [path.relative_to(folder) for path in folder.rglob("*.*") if "files" not in path.parts]
    for page in pages:
        if page.name != "index.md":
            name = page.stem if page.parts[0] == "api" else page.with_suffix("").as_posix()
            assert f"\n{name}\n" in index or f"<{name}>\n" in index, page


def test_index_is_the_readme_without_its_words(stage):
    """
    The index is the README without its glossary, which has a page of its own. Nothing else is left
    out.
    """
    folder = stage()
    readme = (ROOT / "README.md").read_text()
    headings = [line for line in readme.splitlines() if line.startswith("## ")]
    index = (folder / "index.md").read_text().splitlines()
    assert [line for line in headings if line not in index] == ["## Words"]
    assert "| **rank** |" in (folder / "words.md").read_text()
    assert "| **rank** |" not in index


def test_subjects_are_the_packages_that_lessons_teach(site):
    """
    The subjects are found from the folders, so that a new lesson's package, if it has one, gets its
    page automatically.
    """
    found = site("site_pages").subjects(ROOT)
    names = {place.stem[3:] for place in all_notebooks(ROOT)} - {"ranks"}
    assert {name for name in names if (ROOT / "ddp_lessons" / name).is_dir()} <= set(found)
    assert {"costs", "trace", "pictures", "workloads"} <= set(found)
    assert not {"checks", "course", "ranks"} & set(found)
    assert found["ring"][0].name == "__init__.py"


@pytest.mark.parametrize(
    ("plain", "expected"),
    [
        ("Take `x` and `y_`.", "Take ``x`` and ``y_``."),
        ("`x`s, 2**24 and a * b|c", r"``x``\ s, 2\*\*24 and a \* b\|c"),
        ("A *place* of mean_ and n_r.", r"A *place* of mean\_ and n_r."),
        ("Code `in\ntwo lines`.", "Code ``in\ntwo lines``."),
        ("Legend:\n\n    a | b\n\nAfter.", "Legend:\n\n::\n\n    a | b\n\nAfter."),
        ("- one\n\n  more of it", "- one\n\n  more of it"),
        ("Args:\n    x: *y\n\n    z: it", "Args:\n    x: \\*y\n\n    z: it"),
    ],
)
def test_docstrings_are_read_as_they_are_written(site, plain, expected):
    """
    Docstrings keep their drawings and stars when they are converted to reStructuredText.
    """
    assert "\n".join(site("plain_docstrings").plain_to_rst(plain.split("\n"))) == expected


def test_cells_of_ranks_are_coloured_as_python(site):
    """
    %%px cells are coloured as Python, because lessons show mostly code that runs on ranks.
    """
    lexer = site("px_lexer").PxLexer()

    def kinds(text):
        told = lexer.get_tokens(text)
        return {str(kind).partition(".")[2] for kind, part in told if part.strip()}

    assert kinds("%%px --targets 0\nimport torch\n") > {"Keyword.Namespace", "Name.Namespace"}
    assert "Keyword.Namespace" in kinds("import torch\n")
    assert "Keyword.Namespace" not in kinds("%%bash\nimport this\n")
    for place in all_notebooks(ROOT):
        for cell in nbformat.read(place.blank, as_version=4)["cells"]:
            if cell["cell_type"] == "code":
                assert "Error" not in kinds(cell["source"])


def test_teaching_names_sections_that_are_there():
    """
    The page for teachers names sections that exist, in their order, because a teacher in class has
    no time to search.
    """
    page, lessons = (ROOT / "docs" / "teaching.md").read_text(), {}
    for part in page.split("\n## ")[1:]:
        heading, *sections = re.split(r"\n### \"", part)
        if found := re.match(r"Lesson (\d\d)", heading):
            lessons.setdefault(found[1], []).extend(s.partition('"')[0] for s in sections)
    assert set(lessons) == {"00", "02", "05"}
    for place in all_notebooks(ROOT):
        text, number = place.text.read_text(), place.stem[:2]
        if place.is_lesson and number in lessons:
            places = [text.index(f"# ## {name}\n") for name in lessons[number]]
            assert len(places) >= 2
            assert places == sorted(places)


def answers_by_heading(path):
    """
    Return {heading of a section: the answers that its cells have printed} of an executed lesson.
    """
    answers, heading = {}, ""
    for cell in nbformat.read(path, as_version=4)["cells"]:
        if cell["source"].startswith("## "):
            heading = cell["source"].partition("\n")[0].removeprefix("## ")
        printed = "".join(output.get("text", "") for output in cell.get("outputs", ()))
        answers.setdefault(heading, []).extend(re.findall(r"^it was (\S+)$", printed, re.MULTILINE))
    return answers


def test_teaching_gives_the_answers_that_cells_print():
    """
    The page for teachers says the answer of a prediction as "it is 84" or "it is (b)". It is the
    answer that the lesson has printed, because a teacher says it before a class.
    """
    page, num_found = (ROOT / "docs" / "teaching.md").read_text(), 0
    lessons = {place.stem[:2]: place for place in all_notebooks(ROOT) if place.is_lesson}
    for part in page.split("\n## Lesson ")[1:]:
        answers = answers_by_heading(lessons[part[:2]].notebook)
        for section in part.partition("\n## ")[0].split('\n### "')[1:]:
            heading = section.partition('"')[0]
            for said in re.findall(r"\b[Ii]t is \(?(\d[\d.]*\b|[a-z](?=\)))", section):
                assert said in answers[heading], f"{heading}: say one of {answers[heading]}"
                num_found += 1
    assert num_found >= 3


def test_site_is_made_anew_when_anything_of_it_differs(site, monkeypatch, tmp_path):
    """
    The site is rebuilt when any of its inputs changes. A site that only seems current would show an
    old lesson.
    """
    build, Settings = site("build_site"), site("site_settings").Settings
    monkeypatch.setattr(build, "NEEDED", ())  # their versions count too where they are installed
    lesson = tmp_path / "notebooks" / "executed" / "00.ipynb"
    lesson.parent.mkdir(parents=True)
    lesson.write_text("{}")
    one = build.fingerprint(tmp_path, Settings())
    assert build.fingerprint(tmp_path, Settings()) == one
    assert build.fingerprint(tmp_path, Settings(hub="https://hub.example.org")) != one
    lesson.write_text("[]")
    other = build.fingerprint(tmp_path, Settings())
    assert other != one
    lesson.rename(lesson.with_name("01.ipynb"))
    assert build.fingerprint(tmp_path, Settings()) not in (one, other)


def test_site_says_what_it_lacks(site, monkeypatch, tmp_path):
    """
    Without Sphinx the error says how to install it, instead of a traceback.
    """
    build = site("build_site")
    monkeypatch.setattr(build, "NEEDED", ("json", "no_such_theme"))
    with pytest.raises(BadInput, match=r"No site without no_such_theme: .* Run make setup"):
        build.build(ROOT, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_workflow_builds_what_we_build():
    """
    The workflow builds the site by `make site`, as developers do, and has only the permissions to
    publish it.
    """
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "site.yml").read_text())
    assert workflow[True] == {"push": {"branches": ["main"]}, "workflow_dispatch": None}  # "on"
    assert workflow["permissions"] == {"contents": "read"}
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    (command,) = [step for step in build["steps"] if "run" in step]
    assert command["run"] == "make site"
    names = ("REPOSITORY", "BRANCH", "HUB")
    assert {f"DDP_LESSONS_SITE_{name}" for name in names} <= set(command["env"])
    assert {"path": "build/site/html"} in [step.get("with") for step in build["steps"]]
    assert publish["needs"] == "build"
    assert publish["permissions"] == {"pages": "write", "id-token": "write"}
