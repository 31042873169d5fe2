"""Measures `nearfield bench` beside DeepSpeed and PyTorch on the same machine, drive and data, alternating.

    step    the update phase of one step, all state and gradients on the drive:
            nearfield (flushes on) | DeepSpeed's optimizer swapper, serial and pipelined (it never flushes)
    update  one optimizer update in memory:
            nearfield | torch.optim.AdamW(fused=True) | DeepSpeedCPUAdam

Medians over all rounds are printed, one JSON object a line. `make peers` installs what is needed and runs both.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import types

import torch


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["step", "update"])
    parser.add_argument("--nearfield", default="target/release/nearfield", help="the command to measure")
    parser.add_argument("--drive", help="directory on the drive to measure; for step")
    parser.add_argument("--params", type=int, help="parameters; 200000000 for step, 50000000 for update")
    parser.add_argument("--subgroup", type=int, default=25_000_000, help="parameters of a subgroup; for step")
    parser.add_argument("--system", default="su+o", help="system of nearfield bench step")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured in turn")
    parser.add_argument("--steps", type=int, default=3, help="steps of each turn; for step")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of every side")
    parser.add_argument("--block-size", type=int, default=1 << 20, help="DeepSpeed's aio block_size")
    parser.add_argument("--queue-depth", type=int, default=32, help="DeepSpeed's aio queue_depth")
    parser.add_argument("--parallelism", type=int, default=1, help="DeepSpeed's aio intra_op_parallelism")
    return parser.parse_args()


def nearfield(args, *words):
    command = [args.nearfield, "bench", *words, "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def show(name, seconds, **more):
    line = {"name": name, "seconds": round(statistics.median(seconds), 4), "all": [round(s, 4) for s in seconds]}
    print(json.dumps(line | more), flush=True)
    return statistics.median(seconds)


class Swapper:
    """A model's optimizer state on a drive, updated as DeepSpeed's ZeRO stage 3 does with NVMe offload."""

    def __init__(self, args, pipelined):
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        from deepspeed.runtime.swap_tensor.partitioned_optimizer_swapper import PartitionedOptimizerSwapper
        from deepspeed.runtime.swap_tensor.pipelined_optimizer_swapper import PipelinedOptimizerSwapper

        self.folder = os.path.join(args.drive, f"deepspeed-{os.getpid()}-{'pipelined' if pipelined else 'serial'}")
        os.makedirs(self.folder)
        sizes = [min(args.subgroup, args.params - start) for start in range(0, args.params, args.subgroup)]
        self.params = [torch.nn.Parameter(torch.empty(0)) for _ in sizes]
        for index, param in enumerate(self.params):
            param.ds_id = str(index)
        self.optimizer = DeepSpeedCPUAdam(self.params, lr=1e-4, weight_decay=0.01, adamw_mode=True)
        aio = {
            "block_size": args.block_size,
            "queue_depth": args.queue_depth,
            "intra_op_parallelism": args.parallelism,
            "single_submit": False,
            "overlap_events": True,
            "use_gds": False,
        }
        # Four tensors of a subgroup; one subgroup on its way in, one on its way out and one at work when pipelined.
        config = types.SimpleNamespace(
            buffer_count=12 if pipelined else 4, pipeline_read=pipelined, pipeline_write=pipelined
        )
        kind = PipelinedOptimizerSwapper if pipelined else PartitionedOptimizerSwapper
        self.swapper = kind(config, aio, self.folder, self.optimizer, max(sizes), "cpu", torch.float32, None)
        self.swapper.initialize_parameters(self.params, [torch.zeros(size) for size in sizes])
        self.weights = [torch.zeros(size, dtype=torch.float16) for size in sizes]
        self.gradients = [torch.full((size,), 0.01) for size in sizes]
        self.group = self.optimizer.param_groups[0]

    def step(self):
        """Seconds of one update; the gradients are on the drive before it begins."""
        for param, gradient in zip(self.params, self.gradients):
            self.swapper.swap_out_gradients(param, [0], [gradient])
        self.swapper.flush_gradients()
        begin = time.perf_counter()
        last = len(self.params) - 1
        for index, param in enumerate(self.params):
            following = self.params[index + 1] if index < last else None
            self.swapper.swap_in_optimizer_state(param, following)
            self.group["params"] = [param]
            self.optimizer.step()
            param.grad = None
            self.weights[index].copy_(param.data)
            self.swapper.swap_out_optimizer_state(param, index < last)
        return time.perf_counter() - begin

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)


def compare_steps(args):
    args.params = args.params or 200_000_000
    sides = {"deepspeed serial": Swapper(args, False), "deepspeed pipelined": Swapper(args, True)}
    try:
        for side in sides.values():
            side.step()  # The first step makes the moments.
        seconds = {name: [] for name in ["nearfield", *sides]}
        ratios = []
        for _ in range(args.rounds):
            words = ["step", "--params", args.params, "--subgroup", args.subgroup, "--steps", args.steps]
            words += ["--drive", args.drive, "--system", args.system, "--threads", args.threads]
            *lines, summary = nearfield(args, *map(str, words))
            seconds["nearfield"] += [line["seconds"] for line in lines]
            ratios.append(round(summary["ratio"], 3))
            for name, side in sides.items():
                seconds[name] += [side.step() for _ in range(args.steps)]
        own = show("nearfield " + args.system, seconds["nearfield"], ratios_to_limit=ratios)
        for name in sides:
            theirs = statistics.median(seconds[name])
            show(name, seconds[name], times_of_nearfield=round(theirs / own, 3))
    finally:
        for side in sides.values():
            side.remove()


def compare_updates(args):
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    count = args.params or 50_000_000

    def side(make):
        param = torch.nn.Parameter(torch.full((count,), 0.5))
        param.grad = torch.randn(count) * 0.1
        return make([param])

    sides = {
        "torch fused": side(lambda p: torch.optim.AdamW(p, lr=1e-4, weight_decay=0.01, fused=True)),
        "deepspeed": side(lambda p: DeepSpeedCPUAdam(p, lr=1e-4, weight_decay=0.01, adamw_mode=True)),
    }
    for optimizer in sides.values():
        optimizer.step()
    seconds = {name: [] for name in ["nearfield", *sides]}
    ratios = []
    for _ in range(args.rounds):
        (own,) = nearfield(args, "update", "--params", str(count), "--threads", str(args.threads))
        seconds["nearfield"].append(own["seconds"])
        ratios.append(round(own["ratio"], 3))
        for name, optimizer in sides.items():
            turn = []
            for _ in range(15):
                begin = time.perf_counter()
                optimizer.step()
                turn.append(time.perf_counter() - begin)
            seconds[name].append(statistics.median(turn))
    own = show("nearfield", seconds["nearfield"], ratios_to_limit=ratios)
    for name in sides:
        show(name, seconds[name], times_of_nearfield=round(statistics.median(seconds[name]) / own, 3))


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    if args.what == "update":
        compare_updates(args)
        return
    if not args.drive:
        sys.exit("compare.py step needs --drive DIR, a directory on the drive to measure")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    import deepspeed

    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    compare_steps(args)


if __name__ == "__main__":
    main()
