"""What sleeping frees: one vLLM server after the other, awake, asleep at level 1, and awake again.

    python probe.py OUT.json MODEL_FOLDER:SHARE[:ARG...]        (on a GPU host with vLLM; dummy weights)

Per state: NVML's bytes of every process of the engine's own tree, what the card says, resident host memory
of the tree, and the seconds that the step took. ``vllm`` is $TRIMTAB_VLLM.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pynvml

PORT = 18123
READY_S, STEP_S = 240, 120


def call(method: str, path: str, body: dict | None = None, timeout_s: float = STEP_S) -> bytes:
    data = json.dumps(body).encode() if body is not None else (b"" if method == "POST" else None)
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}{path}",
        data=data,
        method=method,
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        return answer.read()


def look(process: subprocess.Popen) -> dict:
    root = psutil.Process(process.pid)
    tree = [root, *root.children(recursive=True)]
    pids = {each.pid for each in tree}
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    held = {p.pid: p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    memory = psutil.virtual_memory()
    return {
        "own_gpu_bytes": sum(size or 0 for pid, size in held.items() if pid in pids),
        "card_used_bytes": pynvml.nvmlDeviceGetMemoryInfo(handle).used,
        "rss_bytes": sum(each.memory_info().rss for each in tree if each.is_running()),
        "shared_bytes": sum(each.memory_info().shared for each in tree if each.is_running()),
        "host_available_bytes": memory.available,
        "processes": len(tree),
    }


def ask(model: str, length: int = 2000) -> float:
    began = time.monotonic()
    body = {
        "model": model,
        "prompt": [(7 * i) % 30000 + 5 for i in range(length)],
        "max_tokens": 4,
        "temperature": 0,
    }
    call("POST", "/v1/completions", body)
    return round(time.monotonic() - began, 3)


def step(method: str, path: str) -> float:
    began = time.monotonic()
    call(method, path)
    return round(time.monotonic() - began, 3)


def measure(spec: str, folder: Path) -> dict:
    model, share, *args = spec.split(":")
    log = folder / f"{Path(model).name}.log"
    argv = [
        os.environ["TRIMTAB_VLLM"], "serve", model, "--host", "127.0.0.1", "--port", str(PORT), "--load-format", "dummy",
        "--served-model-name", "m", "--skip-tokenizer-init", "--gpu-memory-utilization", share, "--enable-sleep-mode", *args,
    ]  # fmt: skip
    result: dict = {
        "model": Path(model).name,
        "argv": [Path(argv[0]).name, "serve", Path(model).name, *argv[3:]],
        "states": {},
    }
    env = os.environ | {"VLLM_SERVER_DEV_MODE": "1"}
    began = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, env=env
        )
    try:
        while True:
            if process.poll() is not None or time.monotonic() - began > READY_S:
                return result | {"error": log.read_text(errors="replace")[-3000:]}
            try:
                call("GET", "/health", timeout_s=2)
                break
            except OSError:
                time.sleep(0.3)
        result["start_s"] = round(time.monotonic() - began, 1)
        states = result["states"]
        result["ask_s"] = [ask("m")]
        states["awake"] = look(process)
        for turn in ("first", "second"):
            result[f"sleep_{turn}_s"] = step("POST", "/sleep?level=1")
            time.sleep(0.5)
            states[f"asleep_{turn}"] = look(process)
            states[f"asleep_{turn}"]["is_sleeping"] = json.loads(call("GET", "/is_sleeping"))
            result[f"wake_{turn}_s"] = step("POST", "/wake_up")
            result["ask_s"].append(ask("m"))
            states[f"awake_after_{turn}"] = look(process)
        result["log"] = [
            line[-300:]
            for line in log.read_text(errors="replace").splitlines()
            if any(
                word in line
                for word in ("leep", "woke", "wake", "Available KV", "GPU KV cache", "Model loading took")
            )
        ][:30]
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                break
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                continue
        time.sleep(1)
    return result


def main() -> None:
    pynvml.nvmlInit()
    out = Path(sys.argv[1])
    document = {
        "gpu": pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)),
        "date": time.strftime("%Y-%m-%d"),
        "runs": [],
    }
    for spec in sys.argv[2:]:
        try:
            document["runs"].append(measure(spec, out.parent))
        except Exception as error:  # noqa: BLE001 - the other models are still measured
            document["runs"].append({"model": spec, "error": repr(error)})
        out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
