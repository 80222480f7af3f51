"""What Tab offers: verbs, models of the stack at hand, files that can be started, models that are there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from trimtab_program import Program

# The folder with the trimtab program of this environment.
BIN = Path(sys.executable).parent
STACK = "models:\n  chat: {checkpoint: smollm2-135m}\n  code: {checkpoint: smollm2-135m}\n"


@pytest.fixture
def program(tmp_path):
    made = Program(tmp_path)
    (tmp_path / "stack.yaml").write_text(STACK)
    (tmp_path / "chatty.gguf").touch()
    (tmp_path / "chapters").mkdir()
    (tmp_path / "chapters" / "one.gguf").touch()
    (tmp_path / "chapters" / "notes.txt").touch()
    (tmp_path / ".chat.gguf").touch()
    logs = made.state / "logs"
    logs.mkdir(parents=True)
    for name in ("chat.log", "chat.log.1", "trimtab.log"):
        (logs / name).touch()
    cached = tmp_path / "cache" / "trimtab" / "hub" / "org" / "small-GGUF" / "0123"
    cached.mkdir(parents=True)
    (cached / "small.gguf").write_bytes(b"x")
    return made


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("pla", ["plan"]),
        ("up ch", ["chat", "chapters/", "chatty.gguf"]),
        ("plan co", ["code"]),
        ("plan sm", ["smollm2-135m"]),
        ("up chapters/", ["chapters/one.gguf"]),
        ("up ./stac", ["./stack.yaml"]),
        ("up .ch", [".chat.gguf"]),
        ("pull org", []),
        ("rm o", ["org/small-GGUF"]),
        ("logs ", ["chat", "trimtab"]),
        ("up nowhere/", []),
        ("plan --con", ["--context", "--concurrency"]),
    ],
)
def test_tab_offers_what_fits(program, words, offered):
    """The script that users source, in a real bash, offers what could be meant and nothing else."""
    rest = words.split(" ")
    script = f"""
    eval "$SCRIPT"
    COMP_WORDS=(trimtab {" ".join(f"'{word}'" for word in rest)})
    COMP_CWORD={len(rest)}
    _trimtab_completion trimtab
    printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    source = program.run("completion", "bash").stdout
    environment = program.environment() | {"SCRIPT": source, "PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script],
        env=environment, cwd=program.root, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert "-o filenames" in source
    assert done.stdout.split() == offered, done.stderr


def test_a_broken_stack_breaks_no_shell(program):
    """Tab in a folder whose stack.yaml is wrong offers files, without an error in the prompt."""
    (program.root / "stack.yaml").write_text("models: [")
    environment = program.environment() | {
        "_TRIMTAB_COMPLETE": "bash_complete", "COMP_WORDS": "trimtab up cha", "COMP_CWORD": "2",
    }  # fmt: skip
    done = subprocess.run(
        [BIN / "trimtab"], env=environment, cwd=program.root, capture_output=True, text=True, check=False
    )

    assert done.stderr == ""
    assert done.stdout.split() == ["plain,chapters/", "plain,chatty.gguf"]
