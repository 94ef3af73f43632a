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
        name: Dotted path from the package on. If only instances of a class have the name, the path
            is written `package.Class()._name`.
        oldest_promised: The oldest version that the course promises, which has the name.
        lost: The promise of the course that is weaker without the name, as a clause.
        probe: Function that returns whether the name is there, where it is no Python attribute.
        renamed_to: The dotted path that newer versions have in place of `name`, if they renamed it.
    """

    name: str
    oldest_promised: str
    lost: str
    probe: Callable[[], bool] | None = None
    renamed_to: str | None = None

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
        Return whether the installed package has the name, or the newer one. A name of instances
        counts as there.
        """
        if self.probe is not None:
            return self.probe()
        if self.is_of_instances:
            return True
        return any(_leads_somewhere(path) for path in (self.renamed_to, self.name) if path)


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


def uses_private_name(
    name: str, *, oldest_promised: str, lost: str, renamed_to: str | None = None
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """
    Mark a function as the one way to a private name.

    Args:
        name, oldest_promised, lost, renamed_to: The fields of the PrivateName.

    Returns:
        Callable: A decorator. The decorated function raises PrivateNameGone in place of an
        AttributeError or ImportError.
    """
    PRIVATE_NAMES[name] = PrivateName(name, oldest_promised, lost, renamed_to=renamed_to)

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def reached(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                return function(*args, **kwargs)
            except (AttributeError, ImportError) as error:
                raise PrivateNameGone(_gone_message(PRIVATE_NAMES[name])) from error

        return reached

    return decorate


def register_probed_name(
    name: str, *, oldest_promised: str, lost: str, probe: Callable[[], bool]
) -> None:
    """
    Register a private name that only a probe can find. The course also runs without it.

    Args:
        name, oldest_promised, lost, probe: The fields of the PrivateName.
    """
    PRIVATE_NAMES[name] = PrivateName(name, oldest_promised, lost, probe)


def _gone_message(name: PrivateName) -> str:
    import importlib.metadata  # takes 20 ms, and every rank would import it

    try:
        version = importlib.metadata.version(name.package)
    except importlib.metadata.PackageNotFoundError:
        version = "no version"
    newer = f" and without `{name.renamed_to}`" if name.renamed_to else ""
    return (
        f"`{name.name}` is gone: expected a private name that {name.oldest_promised} has "
        f"(got {name.package} {version} without it{newer}). Therefore {name.lost}. Install the "
        f'version in requirements.lock, or see CONTRIBUTING, "When a private name is gone".'
    )


def missing_names() -> list[PrivateName]:
    """
    Return the private names that the installed packages no longer have.
    """
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        importlib.import_module(f"ddp_lessons.private.{path.stem}")
    return [name for name in PRIVATE_NAMES.values() if not name.is_there()]
