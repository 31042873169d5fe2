#!/usr/bin/env bash
# Installs what only tests need and what is missing: a browser that looks at the page of a run.
set -euo pipefail

for name in chromium chromium-browser google-chrome chrome; do
    command -v "$name" >/dev/null && exit 0
done
if ! command -v apt-get >/dev/null; then
    echo "The tests need Chromium, please install it" >&2
    exit 1
fi
sudo=""
[ "$(id -u)" -eq 0 ] || sudo=sudo
$sudo apt-get update -q
$sudo apt-get install -y -q --no-install-recommends chromium
