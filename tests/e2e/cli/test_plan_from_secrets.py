"""``trimtab plan --from FILE`` as a process: whatever it prints, no secret of the file is in it."""

from __future__ import annotations

import os
import time

import pytest
from trimtab_program import Program

ON_ONE = ("--gpus", "1xrtx4090")
SECRET = "s3cr3t-w0rd"
FILES = {
    "everywhere": f"""#!/bin/bash
export HF_TOKEN={SECRET}
NAME=$HF_TOKEN
HTTPS_PROXY=http://me:{SECRET}@proxy:3128 vllm serve Qwen/Qwen3-4B --api-key {SECRET} \\
  --max-model-len "Bearer {SECRET}" --max-num-seqs $HF_TOKEN --kv-cache-dtype $NAME --host $NAME \\
  --served-model-name $NAME --chat-template /a/$NAME --odd-flag=$NAME --hf-overrides.a $NAME $NAME
""",
    "image": f"docker run --gpus all me:{SECRET}@registry.org/vllm/vllm-openai:v0.25.1 Qwen/Qwen3-4B\n",
    "address": f"vllm serve https://me:{SECRET}@host/org/m\n",
    "variable": f"TOKEN={SECRET}\nM=Qwen/$TOKEN\nvllm serve $M\n",
    "numbers": "vllm serve Qwen/Qwen3-4B --max-model-len hf_s3cr3ts3cr3t --max-num-seqs sk-s3cr3ts3cr3t\n",
}
FORMS = [(), ("--json",), ("--explain",), ("--emit", "command"), ("--emit", "docker"), ("--emit", "compose")]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: " ".join(form) or "text")
def test_no_output_holds_a_secret_of_the_file(tmp_path, name, form):
    """Text, JSON, every printed command and every error can be pasted into an issue."""
    program = Program(tmp_path, is_warm=True)
    (program.root / "run.sh").write_text(FILES[name])
    run = program.run("plan", "--from", str(program.root / "run.sh"), *ON_ONE, *form)
    assert run.returncode in {0, 2, 3}
    assert "s3cr3t" not in run.stdout + run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("model", ["a" * 300, "/" + "a" * 300, "org/" + "a" * 300, "./" + "b/" * 3000])
@pytest.mark.parametrize("is_file", [True, False], ids=["in a file", "as MODEL"])
def test_a_name_too_long_for_the_disk_is_one_sentence(tmp_path, model, is_file):
    """A pasted mistake is answered, not traced."""
    program = Program(tmp_path, is_warm=True)
    (program.root / "run.sh").write_text(f"vllm serve {model}\n")
    words = ("--from", str(program.root / "run.sh")) if is_file else (model,)
    run = program.run("plan", *words, *ON_ONE)
    assert run.returncode == 2
    assert run.stderr.startswith("error: ")
    assert len(run.stderr) < 1000


def test_a_pipe_as_config_does_not_hang_the_program(tmp_path):
    """Somebody else's folder is answered within seconds."""
    program = Program(tmp_path, is_warm=True)
    folder = program.root / "m"
    folder.mkdir()
    os.mkfifo(folder / "config.json")
    start = time.monotonic()
    run = program.run("plan", str(folder), *ON_ONE)
    assert run.returncode == 2
    assert "is not a regular file" in run.stderr
    assert time.monotonic() - start < 30
