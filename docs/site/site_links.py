"""
Links between files of the repository, as links between pages of the site.
"""

import posixpath
import re
from pathlib import Path
from urllib.parse import unquote

from ddp_lessons.errors import BadInput

# Code comes first, because a text in it that looks like a link is no link.
_CODE_OR_LINK = re.compile(
    r"(?P<code>^```.*?^```|`[^`]*`)"
    r"|(?P<bang>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^()\s]+)\)",
    re.DOTALL | re.MULTILINE,
)
_ELSEWHERE = re.compile(r"[a-z]+:|#")
_RUN = "run"  # text of a link that opens a notebook in place of its page


class Links:
    """
    The links of the site, and the files that have to be on the site for them.

    Args:
        root: Path of the repository.
        pages: Dict from a file's path in the repository to the path of the page that shows it.
        modules: Dict from a module's path in the repository to its name, for modules on a page.
        settings: The Settings.
    """

    def __init__(self, root, pages, modules, settings):
        self._root = Path(root)
        self._pages = pages
        self._modules = modules
        self._settings = settings
        self.files: set[str] = set()

    def rewrite(self, text, source, page):
        """
        Return Markdown with its links changed so that they work on the site.

        Args:
            text: The Markdown.
            source: Path in the repository of the file that has the text.
            page: Path of the page that will have the text.

        Raises:
            BadInput: A link leads to nothing.
        """

        def replace(found):
            if found["code"] or (_ELSEWHERE.match(found["target"]) and not found["bang"]):
                return found[0]
            path, _, fragment = found["target"].partition("#")
            path = posixpath.normpath(posixpath.join(posixpath.dirname(source), unquote(path)))
            if path.startswith("..") or not (self._root / path).exists():
                raise BadInput(
                    f"{source}, link: expected a file of the course (got {found['target']!r}). "
                    "Mend the link."
                )
            if found["bang"]:
                return f"![{found['text']}]({self.file(path)})"
            return self._link(found["text"], path, fragment, page)

        return _CODE_OR_LINK.sub(replace, text)

    def file(self, path):
        """
        Add a file of the repository to the site, and return its path there.
        """
        self.files.add(path)
        return f"/files/{path}"

    def download(self, text, path):
        """
        Return Markdown with a link that downloads a file of the repository.
        """
        return f"{{download}}`{text} <{self.file(path)}>`"

    def beside(self, source, notebook=None):
        """
        Return Markdown with links to a page's notebook and source, or "" if there are none.

        Args:
            source: Path in the repository of the text that people edit.
            notebook: Path of the notebook that learners open, if the page shows one.
        """
        settings, parts = self._settings, []
        if notebook:
            places = (
                ("Binder", settings.binder_address(notebook)),
                ("Your class's hub", settings.hub_address(notebook)),
            )
            named = [f"[{name}]({address})" for name, address in places if address]
            named.append(self.download("The notebook as a file", notebook))
            parts.append(f"Run it: {' · '.join(named)}")
        if address := settings.source_address(source):
            parts.append(f"[Its source]({address})")
        return " · ".join(parts)

    def _link(self, text, path, fragment, page):
        if text == _RUN and path in self._pages:
            address = self._settings.binder_address(path)
            return f"[{text}]({address})" if address else self.download(text, path)
        if path in self._pages:
            target = posixpath.relpath(self._pages[path], posixpath.dirname(page) or ".")
            return f"[{text}]({target}{'#' if fragment else ''}{fragment})"
        if path in self._modules:
            return f"{{py:mod}}`{text.strip('`')} <{self._modules[path]}>`"
        if address := self._settings.source_address(path):
            return f"[{text}]({address})"
        if (self._root / path).is_dir():
            return text  # without the repository's address, no page shows a folder
        return self.download(text.strip("`"), path)
