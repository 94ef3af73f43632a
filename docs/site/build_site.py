"""
The build of the site into build/site, which is skipped if nothing has changed: `make site`.

Sphinx reads the pages that `site_pages` writes. A warning is a failure, and old pages are deleted.
"""

import fcntl
import hashlib
import importlib.util
import shutil
import sys
import time
from importlib import metadata
from pathlib import Path

from site_pages import stage
from site_settings import read_settings

from ddp_lessons.errors import BadInput

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = ROOT / "build" / "site"
NEEDED = ("sphinx", "myst_nb", "furo")
"""
Packages that the extra `site` installs.
"""

_INPUTS = (
    "*.md",
    "docs/**/*",
    "notebooks/*.ipynb",
    "notebooks/*.md",
    "notebooks/executed/*.ipynb",
    "exercises/*.md",
    "exercises/*.ipynb",
    "ddp_lessons/**/*.py",
)


def missing():
    """
    Return the packages that the site needs and that are not installed.
    """
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def fingerprint(root, settings):
    """
    Return a digest of the files, settings and package versions from which the site is made.
    """
    seen = hashlib.sha256(repr(settings).encode())
    for name in (*NEEDED, "torch"):
        seen.update(f"{name} {metadata.version(name.replace('_', '-'))}".encode())
    for path in sorted({path for pattern in _INPUTS for path in root.glob(pattern)}):
        if path.is_file() and "__pycache__" not in path.parts:
            seen.update(f"{path.relative_to(root)} {path.stat().st_size}\n".encode())
            seen.update(path.read_bytes())
    return seen.hexdigest()


def build(root=ROOT, out=OUT):
    """
    Build the site, unless it exists and was made from the same files and settings.

    Args:
        root: Path of the repository.
        out: Folder of the result: `html` in it is the site, `pages` has the pages for Sphinx.

    Returns:
        int: 0, or Sphinx's status if it warned or failed.

    Raises:
        BadInput: A package is missing, a setting is wrong, or a link leads to nothing.
    """
    if lacking := missing():
        raise BadInput(
            f"No site without {', '.join(lacking)}: expected the extra 'site' in this environment "
            "(got none of it, or a part). Run make setup, or pip install -e '.[site]'."
        )
    from sphinx.cmd.build import build_main

    settings = read_settings()
    out.parent.mkdir(parents=True, exist_ok=True)
    with open(out.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two builds at once would write into each other's pages
        wanted, stamp = fingerprint(root, settings), out / "stamp"
        if stamp.is_file() and stamp.read_text() == wanted:
            return 0
        shutil.rmtree(out, ignore_errors=True)
        begin = time.monotonic()
        pages = stage(root, out / "pages", settings)
        strict = ["--fail-on-warning", "--keep-going", "--fresh-env", "--quiet"]
        folders = [str(out / name) for name in ("pages", "html")]
        where = [f"--conf-dir={HERE}", f"--doctree-dir={out / 'doctrees'}"]
        status = build_main([*strict, "--builder=html", *where, *folders])
        if status == 0:
            stamp.write_text(wanted)
            print(f"{len(pages)} pages in {time.monotonic() - begin:.0f} s")
        return status


def main():
    """
    Build the site, and print where it is.
    """
    try:
        status = build()
    except BadInput as error:
        print(error, file=sys.stderr)
        return 1
    if status == 0:
        print(f"The site: {OUT / 'html' / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
