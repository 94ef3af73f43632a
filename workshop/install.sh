#!/usr/bin/env bash
# Put all that a hub needs onto this server: Debian or Ubuntu, as root. Run again, it does only what is missing.
#
#   workshop/install.sh               Python 3 of the system, the course, JupyterHub, its proxy
#   workshop/install.sh --nbgrader    nbgrader in addition
#
# At its end it says what is still missing and how to mend it, or what to do next.
set -euo pipefail
cd "$(dirname "$0")/.."

extras=workshop modules="jupyterhub, jupyterhub_idle_culler, nbgitpuller"
if [[ $* == --nbgrader ]]; then
    extras+=,nbgrader modules+=", nbgrader"
elif (($#)); then
    echo "Wrong option: --nbgrader, or none, expected (got $*). Run: $0" >&2
    exit 2
fi

missing=()
command -v python3 >/dev/null || missing+=(python3)
python3 -c 'import ensurepip' 2>/dev/null || python3 -m pip --version >/dev/null 2>&1 ||
    missing+=(python3-venv)
command -v make >/dev/null || missing+=(make)
command -v git >/dev/null || missing+=(git)
command -v npm >/dev/null || missing+=(nodejs npm)
if ((${#missing[@]})); then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update --quiet=2
    apt-get install --quiet=2 --yes --no-install-recommends "${missing[@]}" >/dev/null
fi
if ! command -v configurable-http-proxy >/dev/null; then
    release=5 # which asks for Node.js 20; Debian 12 and Ubuntu 24.04 have 18
    node --eval 'process.exit(Number(process.versions.node.split(".")[0] < 20))' || release=4
    npm install --global --silent "configurable-http-proxy@$release" >/dev/null
fi

# `ddp-lessons check` runs what learners have handed in as this user.
getent passwd ddp-answers >/dev/null ||
    useradd --system --user-group --no-create-home --shell /usr/sbin/nologin ddp-answers

# The environment that is active, or .venv.
make --silent setup
python=$(scripts/setup.sh --where)
if ! "$python" -c "import $modules" 2>/dev/null; then
    export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1
    kept=$(mktemp) # no package that is there already changes its version
    trap 'rm -f "$kept"' EXIT
    "$python" -m pip freeze --exclude-editable >"$kept"
    "$python" -m pip install --quiet --no-build-isolation --constraint "$kept" --editable ".[$extras]"
fi
"$python" workshop/check.py
