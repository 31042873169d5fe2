#!/usr/bin/env bash
# Installs PyTorch and DeepSpeed in .venv-peers and measures them beside nearfield, on the drive of the directory given.
# Arguments after the directory go to both measurements, for example --rounds 5.
set -euo pipefail
cd "$(dirname "$0")/../.."

drive=${1:?usage: scripts/peers/run.sh DIR [flags of compare.py]}
shift
python=.venv-peers/bin/python
if ! [ -e .venv-peers/.ready ]; then
    sudo=""
    [ "$(id -u)" -eq 0 ] || sudo=sudo
    [ -e /usr/include/libaio.h ] || $sudo apt-get install -y -q --no-install-recommends libaio-dev
    "${PYTHON:-python3}" -m venv .venv-peers
    $python -m pip install --quiet torch==2.13.0 numpy ninja setuptools wheel psutil packaging py-cpuinfo
    # DeepSpeed compiles its CPU optimizer and its I/O on first use.
    DS_BUILD_OPS=0 $python -m pip install --quiet --no-build-isolation deepspeed==0.19.8
    touch .venv-peers/.ready
fi
mkdir -p "$drive"
export PATH="$PWD/.venv-peers/bin:$PATH"
$python scripts/peers/compare.py update "$@"
$python scripts/peers/compare.py step --drive "$drive" "$@"
