#!/bin/sh
# Write requirements.lock from a fresh environment: `make lock`.
# TORCH names the version that CI runs; everything else is the newest that pyproject.toml admits.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
torch=${TORCH:-$(sed -n 's/^torch==//p' requirements.lock)}

rm -rf .lock-venv
trap 'rm -rf .lock-venv' EXIT
"$python" -m venv .lock-venv
.lock-venv/bin/python -m pip install --quiet "torch==$torch"
# soupsieve 3 asks for Python 3.11.5, which is newer than the one in Debian 12; Sphinx 9.1 for 3.12.
.lock-venv/bin/python -m pip install --quiet --upgrade 'soupsieve<3' 'sphinx<9.1' \
    'setuptools>=77' -e '.[dev,frameworks,site]' "torch==$torch"

# tests/unit/test_environment.py tells which packages other systems and Pythons need besides.
{
    echo "# Everything that CI runs, at the versions it runs; for Python 3.11 to 3.13."
    echo "# Written by 'make lock' from a fresh environment: do not edit."
    echo "# torch's CUDA packages are not here: its wheel names them itself, where it has any."
    {
        .lock-venv/bin/python -m pip freeze --all --exclude pip --exclude wheel \
            --exclude ddp-lessons |
            grep -viE '^(nvidia-|cuda-|triton)' |
            sed 's/+[A-Za-z0-9.]*$//' |
            tr '[:upper:]_' '[:lower:]-'
        echo 'appnope==0.1.4 ; sys_platform == "darwin"'
    } | LC_ALL=C sort
} >requirements.lock.new
mv requirements.lock.new requirements.lock
