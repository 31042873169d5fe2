#!/usr/bin/env bash
# Predicted beside measured on this machine. Calibrates it, then runs `bench step` and `train` for four systems, with one
# and with four drives; all of that several times over, because shared machines change their speed within minutes.
# Prints medians. Usage: scripts/predictions.sh DIR [ROUNDS] [PARAMETERS]; DIR is on the disk that is to be measured.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${1:?give a directory on the disk that is to be measured}
rounds=${2:-3}
params=${3:-100000000}
nearfield=${NEARFIELD:-target/release/nearfield}
mkdir -p "$dir"
lines="$dir/predictions.jsonl"
: >"$lines"
drives() { for k in $(seq 0 $(($1 - 1))); do mkdir -p "$dir/drive$k"; printf -- '--drive\n%s\n' "$dir/drive$k"; done; }

for round in $(seq "$rounds"); do
    for count in 1 4; do
        mapfile -t list < <(drives "$count")
        fabric="$dir/fabric-$count-$round.toml"
        "$nearfield" calibrate "${list[@]}" --out "$fabric" 2>/dev/null
        for system in base base-pipe su su+o; do
            "$nearfield" bench step --params "$params" --subgroup $((params / 8)) --steps 3 --system "$system" \
                --fabric "$fabric" --json "${list[@]}" | tail -1 | python3 -c '
import json, sys
line = json.load(sys.stdin)
print(json.dumps({"what": "bench step", "drives": line["drives"], "system": line["system"],
                  "measured": {"update": line["seconds"]}, "predicted": {"update": line["predicted_seconds"]}}))' >>"$lines"
            out="$dir/out"
            "$nearfield" train --config examples/train.toml --steps 20 --system "$system" "${list[@]}" --out "$out" \
                --fabric "$fabric" --overwrite --progress none --sample 0 >/dev/null
            python3 - "$out/report.json" "$count" "$system" >>"$lines" <<'P'
import json, sys
report, drives, system = json.load(open(sys.argv[1])), *sys.argv[2:]
each = lambda seconds: {name: value / 20 for name, value in seconds.items()}
print(json.dumps({"what": "train", "drives": int(drives), "system": system,
                  "measured": each(report["phase_seconds"]), "predicted": each(report["predicted_phase_seconds"])}))
P
        done
    done
done
python3 - "$lines" <<'P'
import json, statistics, sys
groups = {}
for line in map(json.loads, open(sys.argv[1])):
    groups.setdefault((line["what"], line["drives"], line["system"]), []).append(line)
for (what, drives, system), lines in sorted(groups.items()):
    middle = lambda kind: {name: statistics.median(line[kind][name] for line in lines) for name in lines[0][kind]}
    measured, predicted = middle("measured"), middle("predicted")
    m, p = (statistics.median(sum(line[kind].values()) for line in lines) for kind in ("measured", "predicted"))
    phases = "  ".join(f"{name} {predicted[name]:.4f}/{measured[name]:.4f}" for name in measured)
    print(f"{what:10}  {drives} drives  {system:10} predicted {p:7.4f} s  measured {m:7.4f} s  {p / m - 1:+6.1%}  ({phases})")
P
