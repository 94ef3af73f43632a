"""
The built site, for the tests that read its files and those that open it in a browser.
"""

import importlib.util
import os
import subprocess
import sys
from functools import cache

import pytest
from paths import ROOT

HTML = ROOT / "build" / "site" / "html"
_NEEDED = ("sphinx", "myst_nb", "furo")


@cache
def built_site():
    """
    Build the site as `make site` does, unless it is built already, and return its folder.

    Where the packages of the extra `site` are missing, skip the test on a developer's machine and
    fail it in CI.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        told = f"needs {', '.join(missing)}: pip install -e '.[site]'"
        pytest.fail(told) if os.environ.get("CI") else pytest.skip(told)
    command = [sys.executable, str(ROOT / "docs" / "site" / "build_site.py")]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("DDP_LESSONS_SITE_")}
    done = subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return HTML
