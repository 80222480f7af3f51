"""A vLLM worker that notes, in bytes, what its own start-up accounting found.

Given to vLLM as ``worker_cls="probed_worker.ProbedWorker"``. It changes no accounting. Three additions:

* every figure of ``determine_available_memory`` is written with the bytes that the log rounds away;
* PyTorch's allocation history is kept during the profile run, and what was alive at the peak is
  summed up by the line that allocated it;
* with PROBE_OWN_MEMORY=1, "free memory" is the card's total less what NVML says *this process* holds,
  so that several starts can share one card without counting each other. ``run_matrix.py`` checks on
  the spot that both ways agree for a process that is alone, and otherwise starts one at a time.
"""

import collections
import gc
import json
import os
import time
from pathlib import Path

import pynvml
import torch
from vllm.v1.worker.gpu_worker import Worker

_DEVICE_WIDE = torch.accelerator.get_memory_info
_HISTORY = 3_000_000


def read_own_bytes(index: int = 0) -> int:
    """What the driver holds for this process."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
        if process.pid == os.getpid():
            return process.usedGpuMemory
    return 0


def _own_memory_info(device: object = None) -> tuple[int, int]:
    index = torch.accelerator.current_device_index()
    _, total = _DEVICE_WIDE()
    return total - read_own_bytes(index), total


pynvml.nvmlInit()
if os.environ.get("PROBE_OWN_MEMORY") == "1":
    torch.accelerator.get_memory_info = _own_memory_info


def summarize_peak(trace: list[dict], most: int = 16) -> dict:
    """What was alive at the highest moment of an allocation history, grouped by allocating lines."""
    live, held, peak, at = {}, 0, 0, 0
    for index, event in enumerate(trace):
        if event["action"] == "alloc":
            live[event["addr"]] = event["size"]
            held += event["size"]
        elif event["action"] == "free_completed" and event["addr"] in live:
            held -= live.pop(event["addr"])
        if held > peak:
            peak, at = held, index
    live = {}
    for event in trace[: at + 1]:
        if event["action"] == "alloc":
            live[event["addr"]] = event
        elif event["action"] == "free_completed":
            live.pop(event["addr"], None)
    total, count = collections.Counter(), collections.Counter()
    for event in live.values():
        lines = [frame for frame in event.get("frames", []) if frame["filename"].endswith(".py")]
        where = " < ".join(
            f"{'/'.join(frame['filename'].split('/')[-3:])}:{frame['line']}:{frame['name']}"
            for frame in lines[:4]
        )
        total[event["size"], where] += event["size"]
        count[event["size"], where] += 1
    return {
        "events": len(trace),
        "peak_bytes": peak,
        "alive": [
            {"bytes": nbytes, "count": count[key], "each_bytes": key[0], "where": key[1]}
            for key, nbytes in total.most_common(most)
        ],
    }


class ProbedWorker(Worker):
    """Stock accounting, written down."""

    def determine_available_memory(self) -> int:
        runner = self.model_runner
        record = {"runner": type(runner).__module__, "rank": self.rank, "stages": []}
        own = read_own_bytes(self.local_rank)
        record["context_bytes"] = own - torch.cuda.memory_reserved()
        self._watch_profile_run(runner, record)
        available = super().determine_available_memory()
        free, total = _DEVICE_WIDE()
        record |= {
            "total_bytes": total,
            "snapshot_non_torch_bytes": int(self.init_snapshot.non_torch_memory),
            "weights_bytes": int(runner.model_memory_usage),
            "available_kv_bytes": int(available),
            "own_bytes_after": read_own_bytes(self.local_rank),
            "device_used_bytes_after": total - free,
        }
        if self.cache_config.kv_cache_memory_bytes is None:
            record |= {
                "requested_bytes": int(self.requested_memory),
                "torch_peak_increase_bytes": int(self.peak_activation_memory),
                "non_torch_increase_bytes": int(self.non_torch_memory),
                "cudagraph_estimate_bytes": int(self.cudagraph_memory_estimate),
            }
        self._record = record
        self._write()
        return available

    def _watch_profile_run(self, runner: object, record: dict) -> None:
        original = runner.profile_run

        def profile_run(*args: object, **kwargs: object) -> object:
            gc.collect()
            torch.cuda.empty_cache()
            before, started = torch.cuda.memory_allocated(), time.time()
            for name in ("_dummy_run", "_dummy_sampler_run"):
                if hasattr(runner, name):
                    self._watch_stage(runner, name, before, record)
            is_traced = os.environ.get("PROBE_TRACE", "1") == "1"
            if is_traced:
                torch.cuda.memory._record_memory_history(
                    max_entries=_HISTORY, context="alloc", stacks="python"
                )
            found = original(*args, **kwargs)
            torch.cuda.synchronize()
            record["profile_seconds"] = round(time.time() - started, 1)
            record["kept_bytes"] = torch.cuda.memory_allocated() - before
            if is_traced:
                trace = torch.cuda.memory._snapshot()["device_traces"][self.local_rank]
                torch.cuda.memory._record_memory_history(enabled=None)
                record["peak"] = summarize_peak(trace)
            runner.__dict__.pop("_dummy_run", None)
            runner.__dict__.pop("_dummy_sampler_run", None)
            return found

        runner.profile_run = profile_run

    def _watch_stage(self, runner: object, name: str, before: int, record: dict) -> None:
        """The peak so far when a stage begins and ends tells which stage raised it."""
        original = getattr(runner, name)

        def stage(*args: object, **kwargs: object) -> object:
            entered = torch.cuda.max_memory_allocated() - before
            found = original(*args, **kwargs)
            left = torch.cuda.max_memory_allocated() - before
            record["stages"].append({"stage": name, "peak_before": entered, "peak_after": left})
            return found

        setattr(runner, name, stage)

    def compile_or_warm_up_model(self) -> object:
        own = read_own_bytes(self.local_rank)
        found = super().compile_or_warm_up_model()
        self._record |= {
            "own_bytes_before_capture": own,
            "own_bytes_ready": read_own_bytes(self.local_rank),
            "reserved_bytes_ready": torch.cuda.memory_reserved(),
            "allocated_bytes_ready": torch.cuda.memory_allocated(),
        }
        self._write()
        return found

    def _write(self) -> None:
        path = Path(os.environ["PROBE_FOLDER"]) / f"rank-{self.rank}.json"
        path.write_text(json.dumps(self._record))
