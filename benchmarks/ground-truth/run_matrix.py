"""Run the matrix on a GPU host that has vLLM: several starts share a card, each counting only itself.

    python run_matrix.py OUT_FOLDER [--seconds 560] [--at-once 6] [--pairs] [--only ID,ID] [--record FILE]

Rows that FILE (the committed raw record) holds are skipped. Results are written after every start, so
an interrupted run keeps what it has. Starts in flight at the deadline are ended and not recorded.
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from configurations import PAIRS, ROWS
from model_folders import make_model_folder

HERE = Path(__file__).resolve().parent
WORK = Path(os.environ.get("MATRIX_WORK", "/tmp/ground-truth"))
LINES = re.compile(
    r"Model loading took|Available KV cache memory|GPU KV cache size|Maximum concurrency|Graph capturing finished"
    r"|CUDA graph pool memory|Profiling CUDA graph memory|Estimated .*CUDA graph memory|Memory profiling takes"
    r"|Setting attention block size|Padding mamba page size|Encoder cache will be|Initial free memory"
    r"|[Uu]sing .*(backend|kernel|Kernel|MoE)|padding layers|torch.compile takes|init engine|Error|error:|not supported"
)
CONTEXT_GIB = 1.6
"""Beside the budget: context, captured graphs, a request's workspaces."""


class Start:
    def __init__(self, row: dict, is_isolated: bool) -> None:
        self.row = row
        self.folder = WORK / "runs" / row["id"]
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.began = time.time()
        cache = WORK / "cache" / row.get("after", row["id"])
        env = os.environ | {
            "PROBE_FOLDER": str(self.folder),
            "PROBE_OWN_MEMORY": "1" if is_isolated else "0",
            "PROBE_SPEED": "1" if row.get("speed") else "0",
            "VLLM_CACHE_ROOT": str(cache / "vllm"),
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "TRITON_CACHE_DIR": str(WORK / "cache" / "triton"),
            "VLLM_LOGGING_LEVEL": "DEBUG",
            "PYTHONPATH": os.environ.get("PYTHONPATH", "") + f":{HERE}:{WORK / 'stub'}",
        }
        if row["args"].get("tensor_parallel_size", 1) > 1:
            env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
        model = make_model_folder(row, WORK / "models")
        self.log = (self.folder / "log.txt").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "start_once.py"), str(model), json.dumps(row["args"])],
            env=env,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def gib(self) -> float:
        return self.row["args"]["gpu_memory_utilization"] * 139.8 + CONTEXT_GIB

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def read(self) -> dict:
        self.log.close()
        text = (self.folder / "log.txt").read_text(errors="replace")
        lines = [
            re.sub(r"\x1b\[[0-9;]*m", "", line)[:400] for line in text.splitlines() if LINES.search(line)
        ]
        found = {
            "id": self.row["id"],
            "row": self.row,
            "rc": self.process.returncode,
            "seconds": round(time.time() - self.began, 1),
            "log": lines[:60],
        }
        notes = self.folder / "notes.json"
        if notes.exists():
            found |= json.loads(notes.read_text())
        found["ranks"] = [json.loads(path.read_text()) for path in sorted(self.folder.glob("rank-*.json"))]
        if not found.get("done"):
            found["log_tail"] = text[-3000:]
        return found


def check_isolation() -> dict:
    """Do the driver's figures for one process follow the card's, when that process is alone?"""
    code = """
import json, os, sys
sys.path.insert(0, os.environ["HERE"])
import torch, pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
def own():
    return next((p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle) if p.pid == os.getpid()), 0)
def card():
    free, total = torch.cuda.mem_get_info(); return total - free
torch.zeros(1, device="cuda"); torch.cuda.synchronize()
rows = [(own(), card())]
held = []
for size in (3 << 20, 100 << 20, 1 << 30):
    held.append(torch.empty(size, dtype=torch.uint8, device="cuda")); rows.append((own(), card()))
a = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16); (a @ a).sum().item(); torch.cuda.synchronize()
rows.append((own(), card()))
print(json.dumps(rows))
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"HERE": str(HERE)}
    )
    try:
        rows = json.loads(run.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {"agrees": False, "error": run.stderr[-500:]}
    gaps = [card - own for own, card in rows]
    return {"own_and_card_bytes": rows, "agrees": max(gaps) - min(gaps) <= 4 << 20 and rows[0][0] > 0}


def describe_host() -> dict:
    import pynvml
    import torch

    pynvml.nvmlInit()
    free, total = torch.cuda.mem_get_info()
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "total_bytes": total,
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
    }


def give_speed(start: Start, others: list[Start]) -> None:
    """Hold every other start still while one takes its speed."""
    if not (start.folder / "speed-ready").exists() or (start.folder / "speed-go").exists():
        return
    for other in others:
        other.send(signal.SIGSTOP)
    time.sleep(0.3)
    (start.folder / "speed-go").touch()
    deadline = time.time() + 30
    while (
        start.process.poll() is None and not (start.folder / "speed-done").exists() and time.time() < deadline
    ):
        time.sleep(0.1)
    for other in others:
        other.send(signal.SIGCONT)


class Matrix:
    def __init__(self, options: argparse.Namespace, is_isolated: bool, host: dict) -> None:
        self.options, self.is_isolated, self.host = options, is_isolated, host
        held = set()
        if options.record and Path(options.record).exists():
            held = {one["id"] for one in json.loads(Path(options.record).read_text())["runs"]}
        rows = PAIRS if options.pairs else ROWS
        only = options.only.split(",") if options.only else None
        self.waiting = [row for row in rows if row["id"] not in held and (only is None or row["id"] in only)]
        self.running: list[Start] = []
        self.done: list[dict] = []
        self.out = Path(options.out)

    def step(self) -> None:
        for start in [one for one in self.running if one.process.poll() is not None]:
            self.running.remove(start)
            start.send(signal.SIGKILL)
            found = start.read() | {"at_once": len(self.running) + 1, "is_isolated": self.is_isolated}
            self.done.append(found)
            self.write()
            ok = "ok" if found.get("done") else "FAILED"
            print(f"{found['id']}: {ok} rc {found['rc']} {found['seconds']} s", flush=True)
        for start in self.running:
            give_speed(start, [other for other in self.running if other is not start])
        self.fill()

    def fill(self) -> None:
        room = 134 - sum(start.gib for start in self.running)
        for row in list(self.waiting):
            if len(self.running) >= (self.options.at_once if self.is_isolated else 1):
                return
            gib = row["args"]["gpu_memory_utilization"] * 139.8 + CONTEXT_GIB
            busy = {start.row["id"] for start in self.running} | {one["id"] for one in self.waiting}
            if gib > room or row.get("after") in busy:
                continue
            self.waiting.remove(row)
            self.running.append(Start(row, self.is_isolated))
            room -= gib
            time.sleep(self.options.stagger)

    def write(self) -> None:
        document = {"host": self.host, "runs": self.done}
        (self.out / "runs.json").write_text(json.dumps(document, indent=1))

    def stop(self) -> None:
        for start in self.running:
            start.send(signal.SIGKILL)
            start.process.wait()
            found = start.read()
            (self.out / f"cut-{start.row['id']}.json").write_text(json.dumps(found)) if len(
                list(self.out.iterdir())
            ) < 6 else None
            print(f"{start.row['id']}: cut off; {[line[-120:] for line in found['log'][-2:]]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--seconds", type=float, default=560)
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--stagger", type=float, default=1.0)
    parser.add_argument("--pairs", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--record")
    options = parser.parse_args()
    began = time.time()
    (WORK / "stub").mkdir(parents=True, exist_ok=True)
    host = describe_host_apart()
    host["isolation"] = check_isolation()
    print(json.dumps(host["isolation"]), flush=True)
    matrix = Matrix(options, bool(host["isolation"]["agrees"]), host)
    while (matrix.running or matrix.waiting) and time.time() - began < options.seconds:
        matrix.step()
        time.sleep(0.2)
    matrix.stop()
    matrix.write()
    print(f"{len(matrix.done)} done, {len(matrix.waiting)} waiting, {time.time() - began:.0f} s")


def describe_host_apart() -> dict:
    """In a process of its own: this one must hold no context on the card."""
    code = "import json, run_matrix; print(json.dumps(run_matrix.describe_host()))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=HERE, check=True)
    return json.loads(run.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    main()
