"""
Register each private name with what is lost without it, and say so when it is gone.
"""

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from ddp_lessons.errors import PrivateNameGone

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True)
class PrivateName:
    """
    Describe a private or undocumented name of another package.

    Args:
        name: Dotted path from the package on. If only instances of a class have the name, the path
            is written `package.Class()._name`: a class that assigns or annotates it has the name.
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

    def is_there(self) -> bool:
        """
        Return whether the installed package has the name, or the newer one.
        """
        if self.probe is not None:
            return self.probe()
        return any(_leads_somewhere(path) for path in (self.renamed_to, self.name) if path)


def _leads_somewhere(path: str) -> bool:
    owner, _, name_of_instances = path.partition("().")
    parts = owner.split(".")
    try:
        value: Any = importlib.import_module(parts[0])
        for number, part in enumerate(parts[1:], start=1):
            if not hasattr(value, part):
                value = importlib.import_module(".".join(parts[: number + 1]))
            else:
                value = getattr(value, part)
    except ImportError:
        return False
    return not name_of_instances or any(
        has_for_instances(vars(kind), name_of_instances) for kind in value.__mro__
    )


def has_for_instances(members: Mapping[str, Any], name: str) -> bool:
    """
    Return whether a class gives its instances an attribute: by a default, a trait, an annotation,
    or an assignment in one of its methods.

    Args:
        members: The class's own dictionary.
        name: The attribute's name.
    """
    is_declared = name in members or name in members.get("__annotations__", {})
    return is_declared or any(assigns(member, name) for member in members.values())


def assigns(function: object, name: str) -> bool:
    """
    Return whether a function assigns to an attribute of that name. Other objects do not.
    """
    import dis  # only the doctor and tests need it

    code = getattr(function, "__code__", None)
    return code is not None and any(
        step.opname == "STORE_ATTR" and step.argval == name for step in dis.get_instructions(code)
    )


PRIVATE_NAMES: dict[str, PrivateName] = {}
"""
Every private name that the course uses: its dotted path -> the PrivateName.
"""


def uses_private_name(
    *names: str, oldest_promised: str, lost: str, renamed_to: str | None = None
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """
    Mark a function as the one way to a private name, or to several that it uses together.

    Args:
        names: The `name` of each PrivateName.
        oldest_promised, lost: The fields that they share.
        renamed_to: The field of the first one.

    Returns:
        Callable: A decorator. The decorated function raises PrivateNameGone in place of an
        AttributeError or ImportError.
    """
    used = [PrivateName(name, oldest_promised, lost) for name in names]
    used[0] = replace(used[0], renamed_to=renamed_to)
    for private in used:
        PRIVATE_NAMES.setdefault(private.name, private)

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def reached(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                return function(*args, **kwargs)
            except (AttributeError, ImportError) as error:
                gone = next((private for private in used if not private.is_there()), used[0])
                raise PrivateNameGone(_gone_message(gone)) from error

        return reached

    return decorate


def register_private_name(
    name: str, *, oldest_promised: str, lost: str, probe: Callable[[], bool] | None = None
) -> None:
    """
    Register a private name that no function here uses. The course also runs without it.

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
