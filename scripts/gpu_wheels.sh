#!/bin/sh
# Pack what `make gpu-proof` needs beside torch as wheels, for a machine without a network.
#
#   scripts/gpu_wheels.sh FOLDER [HAS...]
#
# HAS: packages that the machine has already, such as numpy scipy; they stay out. The versions are
# those of requirements.lock, for CPython 3.12 on manylinux x86-64; another one by
#
#   PYTHON_VERSION=3.13 ARCH=aarch64 scripts/gpu_wheels.sh ...
#
# Tests that wheels carry are left out and the rest is packed tighter, as the whole is held to
# 60 MiB: more is refused. pip installs them as it does any wheel.
set -eu
cd "$(dirname "$0")/.."
folder=${1:?"usage: scripts/gpu_wheels.sh FOLDER [HAS...]"}
shift
python=${PYTHON:-$(scripts/setup.sh --where)}
version=${PYTHON_VERSION:-3.12}
arch=${ARCH:-x86_64}
most_mib=60

# What kernels, ipyparallel, nbval, pytest, notebooks and checks import, and no more: ipykernel
# does without its debugger, IPython without jedi, TensorBoard without its fast loader, and nobody
# here opens JupyterLab.
needed="
    ipykernel comm ipython ipython-pygments-lexers pygments matplotlib-inline traitlets pexpect
    ptyprocess prompt-toolkit wcwidth psutil stack-data executing asttokens pure-eval
    jupyter-client jupyter-core platformdirs python-dateutil tzdata pyzmq tornado nest-asyncio2
    packaging ipyparallel decorator tqdm
    matplotlib contourpy numpy cycler kiwisolver pillow pyparsing
    nbclient nbformat fastjsonschema jsonschema attrs jsonschema-specifications referencing
    rpds-py nbval pytest iniconfig pluggy pytest-timeout pytest-xdist execnet coverage
    rich markdown-it-py mdurl scikit-learn scipy joblib cloudpickle narwhals threadpoolctl
    jupytext mdit-py-plugins pyyaml py-spy
    torchmetrics lightning-utilities tensorboard absl-py grpcio markdown protobuf werkzeug markupsafe"
# Their wheels without compiled code are a fifth as large.
plain="fonttools"

has=" $* "
pins_of() {
    for name; do
        case "$has" in *" $name "*) continue ;; esac
        sed -n "s/^\($name==[^ ;]*\).*/\1/p" requirements.lock
    done
}
# shellcheck disable=SC2086 # words are meant to be split
pins=$(pins_of $needed) plain=$(pins_of $plain)

mkdir -p "$folder"
rm -f "$folder"/*.whl
platforms=
for glibc in 2_39 2_35 2_34 2_31 2_28 2_27 2_26 2_24 2_17 2_12 2_5; do
    platforms="$platforms --platform manylinux_${glibc}_$arch"
done
download() {
    # shellcheck disable=SC2086 # words are meant to be split
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps \
        --only-binary=:all: --dest "$folder" "$@"
}
# shellcheck disable=SC2086
download --python-version "$version" --implementation cp $platforms \
    --platform "manylinux2014_$arch" --platform "manylinux1_$arch" $pins
# shellcheck disable=SC2086
[ -z "$plain" ] || download --platform any --abi none --implementation py $plain
# Our own: with it ipyparallel finds our launchers. The code that runs is the checkout's.
"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
    --wheel-dir "$folder" .

"$python" - "$folder" "$most_mib" <<'EOF'
import sys
import zipfile
from pathlib import Path

folder, most_mib = Path(sys.argv[1]), int(sys.argv[2])
# Tests, examples, headers, and the parts of scikit-learn and Pillow that nobody imports who loads
# digits and draws a plot.
UNUSED = ("/tests/", "/test/", "/sample_data/", "/pdfcorefonts/", "/include/", "/f2py/src/")
UNUSED += tuple(
    f"sklearn/{part}/"
    for part in "cluster decomposition ensemble linear_model manifold metrics neighbors svm tree "
    "_loss".split()
) + ("libavif", "PIL/_avif")
LARGE_BYTES = 1 << 20
total_bytes = 0
for path in sorted(folder.glob("*.whl")):
    if path.stat().st_size > LARGE_BYTES:
        packed = path.with_suffix(".packed")
        # preset 6 of xz: half of what deflate makes of compiled code
        with zipfile.ZipFile(path) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_LZMA) as new:
            for item in old.infolist():
                if not any(part in item.filename for part in UNUSED):
                    new.writestr(item.filename, old.read(item))
        packed.replace(path)
    size_bytes = path.stat().st_size
    total_bytes += size_bytes
    print(f"{size_bytes / 2**20:6.2f} MiB  {path.name}")
print(f"{total_bytes / 2**20:6.2f} MiB  in all")
if total_bytes > most_mib << 20:
    sys.exit(
        f"Too large: wheels of at most {most_mib} MiB (got {total_bytes / 2**20:.1f}). "
        "Name what the machine has already: scripts/gpu_wheels.sh FOLDER numpy scipy ..."
    )
EOF
