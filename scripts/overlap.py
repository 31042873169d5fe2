#!/usr/bin/env python3
"""Measures what --overlap-update hides of the update: runs without and with it in turns, and compares medians.

The drives are emulated at the speeds given, so that the update waits for drives and not for the processor. Both kinds of
run must end with the same state digest.
"""
import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

WARM_UP = 3
FIELDS = ["forward_seconds", "backward_seconds", "update_seconds", "hidden_update_seconds", "seconds"]


def run(arguments, drives, out, overlap):
    command = [
        arguments.nearfield, "train", "--steps", str(arguments.steps + WARM_UP), "--sample", "0", "--progress", "none",
        "--clip", str(arguments.clip), "--subgroup-size", str(arguments.subgroup_size), "--system", arguments.system,
        "--device", "emulated", "--limit-read", arguments.read, "--limit-write", arguments.write,
        "--overlap-update", "true" if overlap else "false", "--overwrite", "--out", str(out),
    ]
    for drive in drives:
        command += ["--drive", str(drive)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()][WARM_UP:]
    report = json.loads((out / "report.json").read_text())
    return {field: [line.get(field, 0.0) for line in lines] for field in FIELDS}, report


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=pathlib.Path, help="where the drives are made and removed")
    parser.add_argument("--nearfield", default="target/release/nearfield")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--drives", type=int, default=2)
    parser.add_argument("--system", default="su+o")
    parser.add_argument("--subgroup-size", type=int, default=200_000)
    parser.add_argument("--clip", type=float, default=0.0)
    parser.add_argument("--read", default="300MB", help="bytes a second read from a drive")
    parser.add_argument("--write", default="200MB", help="bytes a second written to a drive")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    root = pathlib.Path(tempfile.mkdtemp(prefix="overlap-", dir=arguments.directory))
    try:
        drives = [root / f"drive{number}" for number in range(arguments.drives)]
        for drive in drives:
            drive.mkdir()
        times = {False: {field: [] for field in FIELDS}, True: {field: [] for field in FIELDS}}
        digests, ahead = set(), None
        for _ in range(arguments.rounds):
            for overlap in (False, True):
                found, report = run(arguments, drives, root / "out", overlap)
                for field in FIELDS:
                    times[overlap][field] += found[field]
                digests.add(report["state_digest"])
                ahead = report["updates_ahead"] or ahead
    finally:
        shutil.rmtree(root)
    print(f"{'median of a step, ms':<24}{'without':>10}{'with':>10}")
    medians = {}
    for field in FIELDS:
        medians[field] = [1e3 * statistics.median(times[overlap][field]) for overlap in (False, True)]
        print(f"{field.removesuffix('_seconds').replace('_', ' '):<24}{medians[field][0]:>10.1f}{medians[field][1]:>10.1f}")
    gone = 1 - medians["update_seconds"][1] / medians["update_seconds"][0]
    step = 1 - medians["seconds"][1] / medians["seconds"][0]
    print(f"of the update {gone:.0%} are gone, of the step {step:.0%}")
    print(f"written ahead in the last run: {ahead['counted']} counted, {ahead['in_vain']} in vain")
    if len(digests) != 1:
        sys.exit(f"the digests differ: {sorted(digests)}")
    print(f"one state digest for all runs: {digests.pop()}")


if __name__ == "__main__":
    main()
