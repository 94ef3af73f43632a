#!/bin/sh
# Put the course and everything it needs into one Python environment, and print nothing when
# that is done already. `make setup` calls it; it is a script because macOS's make is from 2006.
#
#   scripts/setup.sh           set up
#   scripts/setup.sh --where   print the environment's Python, and do nothing
#
# With TORCH=2.14.1 the environment is build/torch-2.14.1, and has that torch, whatever is active.
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
home=.venv
if [ -n "${TORCH:-}" ]; then
    home=build/torch-$TORCH
elif [ -n "${VIRTUAL_ENV:-}" ]; then
    kind=venv
    home=$VIRTUAL_ENV
elif [ -n "${CONDA_PREFIX:-}" ] && [ "${CONDA_DEFAULT_ENV:-base}" != base ]; then
    kind=conda
    home=$CONDA_PREFIX
fi
python=$home/bin/python

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
stamp=$home/ddp-lessons.stamp
wanted=$(pwd; cksum requirements.lock pyproject.toml scripts/setup.sh)
if [ -x "$python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi

# Our own environment is made anew if it was left half made, moved, or belongs to another Python.
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
    echo "Setting up $home with Python $(version "$base"). This happens once, and takes minutes."
    rm -rf "$home"
    # Debian ships Python without the pip that venv copies; the pip that is there can fill it.
    if "$base" -c 'import ensurepip' 2>/dev/null; then
        "$base" -m venv "$home"
    else
        "$base" -m venv --without-pip "$home"
        "$base" -m pip --python "$python" install --quiet pip
    fi
else
    echo "Bringing up to date: $home"
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
    # TORCH takes the place of the pinned torch. So does the torch of a GPU machine's environment,
    # as long as pyproject.toml admits it.
    torch=${TORCH:-}
    if [ "$kind" = venv ]; then
        torch=$("$python" -c '
from importlib.metadata import version
torch = version("torch")
if tuple(int(part) for part in torch.split(".")[:2]) >= (2, 11):
    print(torch)
' 2>/dev/null || true)
    fi
    pins=requirements.lock
    if [ -n "$torch" ]; then
        pins=$(mktemp)
        trap 'rm -f "$pins"' EXIT
        # torch 2.11 does not admit the pinned setuptools, and pip would then install another torch.
        sed -e "s/^torch==.*/torch==$torch/" -e 's/^setuptools==.*/setuptools>=77/' \
            requirements.lock >"$pins"
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
          "others: make clean setup PYTHON=/usr/bin/python3. For a hub: make clean;",
          "PYTHON=/usr/bin/python3 workshop/install.sh")
'
fi
printf '%s\n' "$wanted" >"$stamp"
