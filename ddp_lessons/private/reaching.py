"""
Register each private name with what is lost without it, and say so when it is gone.
"""

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from ddp_lessons.errors import PrivateNameGone

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True)
class PrivateName:
    """
    Describe a private or undocumented name of another package.

    Args:
        name: Dotted path from the package on. `()` stands behind a class whose instances have the
            name, such as `ipyparallel.Client()._engines`.
        oldest: The oldest version of the package, among those the course promises, that has it.
        lost: The promise of the course that is weaker without the name, as a clause.
        probe: Function that returns whether the name is there, where it is no Python attribute.
        later: The dotted path that newer versions have in place of `name`, if they renamed it.
    """

    name: str
    oldest: str
    lost: str
    probe: Callable[[], bool] | None = None
    later: str | None = None

    @property
    def package(self) -> str:
        """
        The package that the name belongs to, as it is imported.
        """
        return self.name.partition(".")[0]

    @property
    def is_of_instances(self) -> bool:
        """
        Whether only an instance has the name, so that it cannot be looked up on a class.
        """
        return "()" in self.name

    def is_there(self) -> bool:
        """
        Return whether the installed package has the name, or the later one. A name of instances
        counts as there.
        """
        if self.probe is not None:
            return self.probe()
        if self.is_of_instances:
            return True
        return any(_leads_somewhere(path) for path in (self.later, self.name) if path)


def _leads_somewhere(path: str) -> bool:
    parts = path.split(".")
    try:
        value: object = importlib.import_module(parts[0])
        for number, part in enumerate(parts[1:], start=1):
            if not hasattr(value, part):
                value = importlib.import_module(".".join(parts[: number + 1]))
            else:
                value = getattr(value, part)
    except ImportError:
        return False
    return True


PRIVATE_NAMES: dict[str, PrivateName] = {}
"""
Every private name that the course uses: its dotted path -> the PrivateName.
"""


def reaches(
    name: str, *, oldest: str, lost: str, later: str | None = None
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """
    Mark a function as the one way to a private name.

    Args:
        name, oldest, lost, later: The fields of the PrivateName.

    Returns:
        Callable: A decorator. The decorated function raises PrivateNameGone in place of an
        AttributeError or ImportError.
    """
    PRIVATE_NAMES[name] = PrivateName(name, oldest, lost, later=later)

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def reached(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                return function(*args, **kwargs)
            except (AttributeError, ImportError) as error:
                raise PrivateNameGone(_sentence(PRIVATE_NAMES[name])) from error

        return reached

    return decorate


def note_name(name: str, *, oldest: str, lost: str, probe: Callable[[], bool]) -> None:
    """
    Note a private name that is no attribute of Python, without which the course goes on.

    Args:
        name, oldest, lost, probe: The fields of the PrivateName.
    """
    PRIVATE_NAMES[name] = PrivateName(name, oldest, lost, probe)


def _sentence(name: PrivateName) -> str:
    import importlib.metadata  # takes 20 ms, and every rank would import it

    try:
        version = importlib.metadata.version(name.package)
    except importlib.metadata.PackageNotFoundError:
        version = "no version"
    later = f", or with the later `{name.later}`" if name.later else ""
    return (
        f"`{name.name}` is gone: expected a {name.package} with this private name, as "
        f"{name.oldest} has it{later} (got {name.package} {version}). Without it, {name.lost}. "
        f"Install the version in requirements.lock, or see CONTRIBUTING, "
        '"When a private name is gone".'
    )


def missing_names() -> list[PrivateName]:
    """
    Return the private names that the installed packages no longer have.
    """
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        importlib.import_module(f"ddp_lessons.private.{path.stem}")
    return [name for name in PRIVATE_NAMES.values() if not name.is_there()]
