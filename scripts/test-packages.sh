#!/usr/bin/env bash
# Installs what only tests need and what is missing: a browser that looks at the page of a run, file systems, and XRT, behind
# which cards are emulated.
set -euo pipefail

missing=()
browser=""
for name in chromium chromium-browser google-chrome chrome; do
    command -v "$name" >/dev/null && browser=$name
done
[ -n "$browser" ] || missing+=(chromium)
PATH=$PATH:/usr/sbin:/sbin command -v mkfs.xfs >/dev/null || missing+=(xfsprogs)
PATH=$PATH:/usr/sbin:/sbin command -v mkfs.ext4 >/dev/null || missing+=(e2fsprogs)
[ -e /usr/lib/x86_64-linux-gnu/libxrt_swemu.so.2.13.0 ] || missing+=(libxrt1)
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
    echo "The tests need these packages, please install them: ${missing[*]}" >&2
    exit 1
fi
sudo=""
[ "$(id -u)" -eq 0 ] || sudo=sudo
$sudo apt-get update -q
$sudo apt-get install -y -q --no-install-recommends "${missing[@]}"
