"""
The pages of the site, which Sphinx reads, made from the files of the course.

    README.md                    ->  index.md, and words.md with its glossary
    notebooks/executed/*.ipynb   ->  lessons/*.ipynb
    exercises/*.ipynb            ->  exercises/*.ipynb, the starters: no solution is on the site
    ddp_lessons/<subject>/       ->  api/<subject>.rst
    and a page each for claims, teachers, security, contributors and changes
"""

import ast
import json
import re
import shutil
from pathlib import Path

from site_links import Links

from ddp_lessons.course.notebooks.notebook_paths import all_notebooks
from ddp_lessons.errors import BadInput

PLAIN_PAGES = {
    "notebooks/claims.md": "claims.md",
    "exercises/README.md": "plans.md",
    "docs/teaching.md": "teaching.md",
    "docs/hosts.md": "hosts.md",
    "docs/ssh.md": "ssh.md",
    "docs/slurm.md": "slurm.md",
    "docs/mpi.md": "mpi.md",
    "docs/board.md": "board.md",
    "docs/security.md": "security.md",
    "docs/kubernetes.md": "kubernetes.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
NO_SUBJECTS = ("checks", "course", "jobs", "progress", "ranks")
"""
Packages that lessons may import and that are not a part of the textbook, but run the lessons.
"""

_IMPORTED = re.compile(r"^ *(?:from|import) ddp_lessons\.(\w+)", re.MULTILINE)
_WORDS = "## Words\n"
_REPR = re.compile(r"<\w+: (.*)>", re.DOTALL)
_LEXER = "ipython-px"  # px_lexer.py


def subjects(root):
    """
    Return {name of a package of the textbook: list of its modules' paths}.

    A package of the textbook has the name of a lesson, or a lesson imports it. The package's own
    `__init__.py` comes first.
    """
    names = set()
    for place in all_notebooks(root):
        if place.is_lesson:
            names.add(place.stem.partition("_")[2])
            names.update(_IMPORTED.findall(place.text.read_text(encoding="utf-8")))
    found = {}
    for name in sorted(names.difference(NO_SUBJECTS)):
        init = root / "ddp_lessons" / name / "__init__.py"
        if init.is_file():  # a module, such as errors, is no package
            modules = sorted(init.parent.glob("*.py"))
            found[name] = [init, *(path for path in modules if not path.stem.startswith("_"))]
    return found


def stage(root, folder, settings):
    """
    Write all pages into a folder, with the files that they need.

    Args:
        root: Path of the repository.
        folder: Path of a folder that does not exist yet.
        settings: The Settings.

    Returns:
        list[str]: Paths of the pages in that folder.

    Raises:
        BadInput: A link leads to nothing, or a file has no title.
    """
    pages = _Pages(Path(root), Path(folder), settings)
    for place in pages.places:
        pages.add_notebook(place)
    for source, page in PLAIN_PAGES.items():
        pages.add_text(source, page, (root / source).read_text(encoding="utf-8"))
    for name in pages.subjects:
        pages.add_subject(name)
    pages.add_api_index()
    pages.add_front()
    pages.add_files()
    return pages.written


class _Pages:
    def __init__(self, root, folder, settings):
        self._root = root
        self._folder = folder
        self._settings = settings
        self.places = all_notebooks(root)
        self.subjects = subjects(root)
        self.written: list[str] = []
        self._titles: dict[str, str] = {}
        shown = {"README.md": "index.md", **PLAIN_PAGES}
        for place in self.places:
            for path in (place.blank, place.notebook if place.is_lesson else place.blank):
                shown[self._path(path)] = self._page_of(place)
        modules = {
            self._path(path): _module_name(path, root)
            for paths in self.subjects.values()
            for path in paths
        }
        self._links = Links(root, shown, modules, settings)

    def add_notebook(self, place):
        source, page = self._path(place.text), self._page_of(place)
        path = place.notebook if place.is_lesson else place.blank
        notebook = json.loads(path.read_text(encoding="utf-8"))
        notebook["metadata"]["language_info"]["pygments_lexer"] = _LEXER
        for number, cell in enumerate(notebook["cells"]):
            if cell["cell_type"] == "markdown":
                text = self._links.rewrite("".join(cell["source"]), self._path(path), page)
                if number == 0:
                    beside = self._links.beside(source, self._path(place.blank))
                    text = self._with_beside(page, text, beside)
                cell["source"] = text
            else:
                _name_pictures(cell)
        self._write(page, json.dumps(notebook))

    def add_text(self, source, page, text):
        text = self._links.rewrite(text, source, page)
        self._write(page, self._with_beside(page, text, self._links.beside(source)))

    def add_front(self):
        text = (self._root / "README.md").read_text(encoding="utf-8")
        front, mark, rest = text.partition(_WORDS)
        if not mark:
            raise BadInput(
                f"README.md: expected a heading {_WORDS.strip()!r} (got none). The site makes a "
                "page of what stands below it: name the new heading in site_pages.py."
            )
        words, mark, after = rest.partition("\n## ")
        self.add_text("README.md", "words.md", f"# Words\n{words}\n")
        self.add_text("README.md", "index.md", f"{front}{mark.lstrip()}{after}\n{self._contents()}")

    def add_subject(self, name):
        init, *modules = self.subjects[name]
        beside = self._settings.source_address(self._path(init))
        title = f"ddp_lessons.{name}"
        lines = [title, "=" * len(title), ""]
        if beside:
            lines += [".. container:: beside", "", f"   `Its source <{beside}>`__", ""]
        lines += _automodule(title)
        for path in modules:
            lines += [path.stem, "-" * len(path.stem), "", *_automodule(f"{title}.{path.stem}")]
        self._write(f"api/{name}.rst", "\n".join(lines))

    def add_api_index(self):
        lines = ["# The library that the lessons teach", ""]
        for name, (init, *_) in self.subjects.items():
            said = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
            lines.append(f"- [{name}]({name}.rst): {said.partition(chr(10))[0]}")
        names = "\n".join(self.subjects)
        lines += ["", _toctree("", names), ""]
        self._write("api/index.md", "\n".join(lines))

    def add_files(self):
        for path in sorted(self._links.files):
            copy = self._folder / "files" / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._root / path, copy)

    def _contents(self):
        lessons = [place for place in self.places if place.is_lesson]
        exercises = [place for place in self.places if not place.is_lesson]
        numbered = [
            f"{p.stem.replace('_', ' ')}: {self._titles[self._page_of(p)]}" for p in lessons
        ]
        parts = {
            "Lessons": [
                f"{title} <lessons/{place.stem}>"
                for title, place in zip(numbered, lessons, strict=True)
            ],
            "Exercises": [f"exercises/{place.stem}" for place in exercises],
            "To look up": ["claims", "words", "kubernetes", "api/index"],
            "To teach": ["plans", "teaching", "board", "security", "hosts", "ssh", "slurm", "mpi"],
            "To change": ["contributing", "changelog"],
        }
        return "\n".join(_toctree(name, "\n".join(lines)) for name, lines in parts.items())

    def _with_beside(self, page, text, beside):
        title, _, rest = text.partition("\n")
        if not title.startswith("# "):
            raise BadInput(f"{page}: expected a title in its first line (got {title!r}). Add it.")
        self._titles[page] = title.removeprefix("# ")
        if not beside:
            return text
        return f"{title}\n\n```{{container}} beside\n{beside}\n```\n{rest}"

    def _write(self, page, text):
        path = self._folder / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        self.written.append(page)

    def _path(self, path):
        return path.relative_to(self._root).as_posix()

    def _page_of(self, place):
        return f"{'lessons' if place.is_lesson else 'exercises'}/{place.stem}.ipynb"


def _module_name(path, root):
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def _automodule(name):
    # Show only names that a module itself defines: an __init__ imports those of its modules.
    return [f".. automodule:: {name}", "   :members:", "   :ignore-module-all:", ""]


def _toctree(caption, names):
    head = f":caption: {caption}\n" if caption else ""
    return f"```{{toctree}}\n:hidden:\n{head}\n{names}\n```\n"


def _name_pictures(cell):
    # A reader who cannot see a picture gets the text that a terminal would print for it.
    for output in cell["outputs"]:
        data = output.get("data", {})
        if any(mime.startswith("image/") for mime in data):
            told = "".join(data["text/plain"])
            found = _REPR.fullmatch(told)
            cell["metadata"]["mystnb"] = {"image": {"alt": found[1] if found else told}}
