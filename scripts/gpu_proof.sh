#!/bin/sh
# Prove the course on this machine's GPUs: `make gpu-proof` calls it.
#
#   PYTHON=python3 WHEELS=folder scripts/gpu_proof.sh ...
#
# Without WHEELS it runs in the environment that is active, or in our own .venv. With it nothing
# is installed for good: the wheels that scripts/gpu_wheels.sh packed go into a folder of build/,
# and no network is asked.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-$(scripts/setup.sh --where)}
PYTHONPATH=$(pwd)${PYTHONPATH:+:$PYTHONPATH}

if [ -n "${WHEELS:-}" ]; then
    site=$(pwd)/build/gpu-site
    wanted=$(cd "$WHEELS" && cksum ./*.whl)
    if [ "$(cat "$site/wheels.stamp" 2>/dev/null)" != "$wanted" ]; then
        rm -rf "$site"
        "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps \
            --no-compile --no-cache-dir --target "$site" "$WHEELS"/*.whl
        printf '%s\n' "$wanted" >"$site/wheels.stamp"
    fi
    PYTHONPATH=$PYTHONPATH:$site
fi
export PYTHONPATH
exec "$python" benchmarks/gpu_proof.py "$@"
