"""
The addresses to which the site links: the course's repository, Binder, and the hub of a class.
"""

import os
import re
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

from ddp_lessons.errors import BadInput

FILE = Path(__file__).with_name("settings.toml")
_PREFIX = "DDP_LESSONS_SITE_"
_ADDRESS = re.compile(r"https?://[^\s/]+(/\S*)?")


@dataclass(frozen=True)
class Settings:
    """
    The addresses to which the pages link. A setting that is "" makes no link.

    Args:
        repository: Address of the repository.
        branch: Branch of the repository from which the site is made.
        binder: Address of a BinderHub.
        hub: Address of a JupyterHub.
        hub_path: Path that the hub opens: {notebook} is a notebook's path in the repository,
            {folder} is the repository's name.
    """

    repository: str = ""
    branch: str = "main"
    binder: str = "https://mybinder.org"
    hub: str = ""
    hub_path: str = "lab/tree/my-course/{notebook}"

    def source_address(self, path):
        """
        Return the address of a file of the repository, or "".
        """
        return self.repository and f"{self.repository}/blob/{self.branch}/{quote(path)}"

    def binder_address(self, notebook):
        """
        Return the address that opens a notebook in Binder, or "".

        Args:
            notebook: Its path in the repository.
        """
        if not self.repository or not self.binder:
            return ""
        address = urlsplit(self.repository)
        if address.netloc == "github.com":
            provider = f"gh{address.path}"
        else:
            provider = f"git/{quote(self.repository, safe='')}"
        query = urlencode({"urlpath": f"lab/tree/{notebook}"}, quote_via=_quote)
        return f"{self.binder}/v2/{provider}/{quote(self.branch, safe='')}?{query}"

    def hub_address(self, notebook):
        """
        Return the address at which nbgitpuller brings the course to a hub and opens a notebook.

        It is "" where there is no hub or no repository.

        Args:
            notebook: Its path in the repository.
        """
        if not self.repository or not self.hub:
            return ""
        folder = self.repository.rpartition("/")[2]
        path = self.hub_path.format(folder=folder, notebook=notebook)
        query = {"repo": self.repository, "branch": self.branch, "urlpath": path}
        return f"{self.hub}/hub/user-redirect/git-pull?{urlencode(query, quote_via=_quote)}"


def read_settings(file=FILE, environment=os.environ):
    """
    Read the settings of a file, and replace those that are set in the environment.

    Args:
        file: Path of a TOML file.
        environment: Dict of environment variables. An empty variable counts as not set.

    Raises:
        BadInput: A setting is unknown, no text, or no address.
    """
    values = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    known = [field.name for field in fields(Settings)]
    for name in known:
        if from_outside := environment.get(_PREFIX + name.upper()):
            values[name] = from_outside
    for name, value in values.items():
        if name not in known or not isinstance(value, str):
            raise BadInput(
                f"Setting {name!r} of the site: expected a text under one of {', '.join(known)} "
                f"(got {value!r}). Mend it in {Path(file).name}."
            )
        if name in ("repository", "binder", "hub") and value:
            values[name] = _address(name, value)
    return Settings(**values)


def _address(name, value):
    if not _ADDRESS.fullmatch(value):
        raise BadInput(
            f"Setting {name!r} of the site: expected an address such as https://example.org "
            f"(got {value!r}). Mend it in {FILE.name}, or in {_PREFIX}{name.upper()}."
        )
    return value.rstrip("/").removesuffix(".git")


def _quote(text, safe, *how):
    # urlencode does not quote slashes, but a query inside a query must not have slashes.
    return quote(text, "", *how)
