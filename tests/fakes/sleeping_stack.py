"""The whole program over fake vLLM engines that can sleep, on a card that is a stand-in too."""

from __future__ import annotations

import json
import sys
from pathlib import Path

FAKES = Path(__file__).parent
CHECKPOINTS = FAKES.parent / "checkpoints"
PROGRAM = """\
#!{python}
import os, runpy, sys
port = sys.argv[sys.argv.index("--port") + 1]
name = sys.argv[sys.argv.index("--served-model-name") + 1]
print("argv:", *sys.argv[1:], flush=True)
print("dev mode:", os.environ.get("VLLM_SERVER_DEV_MODE", "0"), flush=True)
load_s = os.environ.get("FAKE_LOAD_S", "1")
knobs = ["--port", port, "--load-s", load_s, "--sleep-fault", {folder!r} + "/fault"]
if "--enable-sleep-mode" in sys.argv:
    knobs += ["--card-file", {folder!r} + "/card-" + name]
sys.argv = ["fake_engine", *knobs]
runpy.run_path({fake!r}, run_name="__main__")
"""
INTERPRETER = """\
#!/bin/sh
[ "$1" = -c ] && {{ echo 0.25.1 gpu flashinfer 13.0.48; exit; }}
exec {python} "$@"
"""
STACK = """\
gateway: {{port: 0}}
swap: {{sleep: {sleep}, min_residence_s: 1}}
models:
  a: {{checkpoint: {folder}/llama, context: 16384, concurrency: 4, engine_args: {args}}}
  b: {{checkpoint: {folder}/llama, context: 16384, concurrency: 4, engine_args: {args}}}
"""
# Its weights fit into the RAM of any machine that runs tests.
SMALL = {
    "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 32_000,
}  # fmt: skip
ARGS = "{gpu_memory_utilization: 0.6, load_format: dummy, skip_tokenizer_init: true}"


def make_sleeping_stack(folder: Path, *, sleep: str = "auto") -> dict[str, str]:
    """A stack.yaml, a checkpoint and a vllm in ``folder``; gives the environment that they need."""
    python, program = folder / "python", folder / "vllm"
    python.write_text(INTERPRETER.format(python=sys.executable))
    fake = str(FAKES / "fake_engine.py")
    program.write_text(PROGRAM.format(python=python, fake=fake, folder=str(folder)))
    for path in (python, program):
        path.chmod(0o755)
    configs = json.loads((CHECKPOINTS / "other_configs.json").read_text(encoding="utf-8"))
    (folder / "llama").mkdir()
    (folder / "llama" / "config.json").write_text(json.dumps(configs["Llama-3.1-8B"] | SMALL))
    (folder / "stack.yaml").write_text(STACK.format(folder=folder, sleep=sleep, args=ARGS))
    return {
        "TRIMTAB_VLLM": str(program),
        "FAKE_CARD": str(folder),
        "PYTHONPATH": f"{FAKES / 'card'}",
    }
