#!/usr/bin/env bash
# Installs the Debian packages that building needs and that are missing. Does nothing when all are there.
set -euo pipefail

missing=()
command -v c++ >/dev/null || missing+=(g++)
command -v make >/dev/null || missing+=(make)
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
ldconfig -p | grep -q 'libgomp\.so\.1' || missing+=(libgomp1)
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
    echo "Nearfield needs these packages, please install them: ${missing[*]}" >&2
    exit 1
fi
sudo=""
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "Install as root: apt-get install ${missing[*]}" >&2; exit 1; }
    sudo=sudo
fi
$sudo apt-get update -q
$sudo apt-get install -y -q --no-install-recommends "${missing[@]}"
