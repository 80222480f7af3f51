"""Runs text through a real bash with stand-ins for docker, vllm and curl that write down what they get."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_RECORD = """#!/bin/sh
{
  printf '%s\\0' "$0" "$@"
  printf '%s\\0' "HF_HUB_OFFLINE=$HF_HUB_OFFLINE" "CUDA=$CUDA_VISIBLE_DEVICES" ""
} >> "$RECORD"
"""
_DOCKER = (
    _RECORD
    + """case "$1" in inspect) echo "${RUNNING:-true}";; rm) exit 1;; esac
"""
)
_CURL = """#!/bin/sh
exit "${CURL_EXIT:-0}"
"""


@dataclass(frozen=True)
class Call:
    """One call of a stand-in: the program's name and its arguments, as the shell passed them."""

    program: str
    args: tuple[str, ...]
    cards: str
    offline: str


def run_in_bash(
    text: str, folder: Path, **environment: str
) -> tuple[subprocess.CompletedProcess[str], list[Call]]:
    """The finished bash and every call in order. ``folder`` becomes the current one; HOME has a blank."""
    programs = folder / "bin"
    if not programs.exists():
        programs.mkdir(parents=True)
        for name, body in (("docker", _DOCKER), ("vllm", _RECORD), ("curl", _CURL)):
            (programs / name).write_text(body)
            (programs / name).chmod(0o755)
    record = folder / "record"
    record.write_bytes(b"")
    env = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "HOME": "/home/a b",
        "RECORD": str(record),
        "LC_ALL": "C.UTF-8",
    }
    done = subprocess.run(
        ["bash"], input=text, cwd=folder, env=env | environment, capture_output=True, text=True, check=False,
        timeout=30,
    )  # fmt: skip
    return done, _calls(record.read_bytes().decode())


def _calls(record: str) -> list[Call]:
    calls: list[Call] = []
    words: list[str] = []
    for word in record.split("\0")[:-1]:
        if word == "" and len(words) >= 3 and words[-1].startswith("CUDA="):
            calls.append(
                Call(
                    program=words[0].rpartition("/")[2],
                    args=tuple(words[1:-2]),
                    cards=words[-1].removeprefix("CUDA="),
                    offline=words[-2].removeprefix("HF_HUB_OFFLINE="),
                )
            )
            words = []
        else:
            words.append(word)
    return calls
