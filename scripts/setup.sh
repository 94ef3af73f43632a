#!/bin/sh
# Put the course and everything it needs into one Python environment, and print nothing when
# that is done already. `make setup` calls it; it is a script because macOS's make is from 2006.
#
#   scripts/setup.sh           set up
#   scripts/setup.sh --where   print the environment's Python, and do nothing
set -eu
cd "$(dirname "$0")/.."

fits() { # Is "$1" a Python that the course runs on?
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}

version() {
    "$1" -c 'import platform; print(platform.python_version())' 2>/dev/null || echo none
}

# The environment that is active, or our own. conda's "base" is what conda itself runs on, and
# active in every terminal of many people: it is left alone.
kind=own
python=.venv/bin/python
if [ -n "${VIRTUAL_ENV:-}" ]; then
    kind=venv
    python=$VIRTUAL_ENV/bin/python
elif [ -n "${CONDA_PREFIX:-}" ] && [ "${CONDA_DEFAULT_ENV:-base}" != base ]; then
    kind=conda
    python=$CONDA_PREFIX/bin/python
fi

if [ "${1:-}" = --where ]; then
    echo "$python"
    exit 0
fi

if [ "$kind" != own ] && ! fits "$python"; then
    echo "The active environment does not fit: Python 3.11, 3.12 or 3.13 expected" \
        "(got $(version "$python"), $python). Deactivate it, and run make again." >&2
    exit 1
fi

# What the environment was last set up from. The folder is part of it, because an environment
# may serve several clones, and a clone may be moved.
stamp=$(dirname "$(dirname "$python")")/ddp-lessons.stamp
wanted=$(pwd; cksum requirements.lock pyproject.toml scripts/setup.sh)
if [ -x "$python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi

# Our own .venv is made anew if it was left half made, moved, or belongs to another Python.
if [ "$kind" = own ] && { [ "$(head -n 1 "$stamp" 2>/dev/null)" != "$(pwd)" ] || ! fits "$python"; }
then
    base=
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
        if fits "$candidate"; then
            base=$candidate
            break
        fi
    done
    if [ -z "$base" ]; then
        echo "No Python that fits: 3.11, 3.12 or 3.13 expected" \
            "(got $(version "${PYTHON:-python3}"), ${PYTHON:-python3})." \
            "Install one, for example with 'apt-get install python3 python3-pip' or" \
            "'brew install python@3.13', or name one: make setup PYTHON=/path/to/python." >&2
        exit 1
    fi
    echo "Setting up .venv with Python $(version "$base"). This happens once, and takes minutes."
    rm -rf .venv
    # Debian ships Python without the pip that venv copies; the pip that is there can fill it.
    if "$base" -c 'import ensurepip' 2>/dev/null; then
        "$base" -m venv .venv
    else
        "$base" -m venv --without-pip .venv
        "$base" -m pip --python .venv/bin/python install --quiet pip
    fi
else
    echo "Bringing up to date: $(dirname "$(dirname "$python")")"
    # uv, for one, makes environments without pip.
    "$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip >/dev/null
fi

# Errors are shown; setuptools' advice on editable installs, which newer pips repeat, is not.
export PYTHONWARNINGS=ignore
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1
if [ "$kind" = conda ]; then
    # conda has chosen the versions, from environment.yml; pip only adds what is missing.
    "$python" -m pip install --quiet -e '.[dev,frameworks,site]'
else
    pins=requirements.lock
    # A GPU machine's environment keeps the torch it has, as long as pyproject.toml admits it.
    if [ "$kind" = venv ] && "$python" -c '
import sys
from importlib.metadata import version
sys.exit(tuple(int(part) for part in version("torch").split(".")[:2]) < (2, 11))
' 2>/dev/null; then
        pins=$(mktemp)
        trap 'rm -f "$pins"' EXIT
        grep -v '^torch==' requirements.lock >"$pins"
    fi
    "$python" -m pip install --quiet -r "$pins"
    "$python" -m pip install --quiet --no-deps --no-build-isolation -e .
fi
# A Python in root's home works, for root. Whoever sets up a server for others must know.
if [ "$kind" = own ] && [ "$(id -u)" = 0 ]; then
    "$python" -c '
from ddp_lessons.course.doctor.machine import others_stop_at
if place := others_stop_at():
    print(f"Only root can run this Python: other users cannot pass {place}. To set up a server for",
          "others: make clean setup PYTHON=/usr/bin/python3")
'
fi
printf '%s\n' "$wanted" >"$stamp"
