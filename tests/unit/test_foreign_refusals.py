"""Pure. What is no launch command is refused in one sentence; secrets go no further; nothing is run."""

import pytest

from trimtab.errors import StackFileError
from trimtab.stackfile.foreign import MAX_FOREIGN_CHARS, decode_foreign


def read(text):
    return decode_foreign(text, source="given")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param("", "is empty", id="empty"),
        pytest.param("\n\n", "is empty", id="blank"),
        pytest.param("#!/bin/bash\nnvidia-smi\n", "starts no vLLM", id="no-vllm"),
        pytest.param("echo vllm serve org/m", "starts no vLLM", id="only-said"),
        pytest.param("docker run -d redis", "is not vLLM's", id="another-container"),
        pytest.param("docker pull vllm/vllm-openai:v0.25.1", "starts no vLLM", id="only-pulled"),
        pytest.param("vllm serve", "names no model", id="no-model"),
        pytest.param("vllm serve --config c.yaml", "names no model", id="model-in-config"),
        pytest.param("vllm serve 'org/m", "never closed", id="quote-open"),
        pytest.param('vllm serve "org/m', "never closed", id="double-quote-open"),
        pytest.param("A=(vllm serve", "never closed", id="array-open"),
        pytest.param("vllm serve ${A", "never closed", id="brace-open"),
        pytest.param("docker run --gpus all `\n  vllm/vllm-openai --model m", "PowerShell", id="powershell"),
        pytest.param(
            "docker run ^\r\n  --gpus all ^\r\n vllm/vllm-openai", "command prompt", id="windows-prompt"
        ),
        pytest.param("apiVersion: v1\nkind: Pod\n", "Kubernetes", id="kubernetes"),
        pytest.param("[Service]\nExecStart=/usr/bin/vllm serve m\n", "systemd", id="systemd"),
        pytest.param('FROM vllm/vllm-openai\nCMD ["vllm"]\n', "Dockerfile", id="dockerfile"),
        pytest.param("from vllm import LLM\nllm = LLM('m')\n", "Python", id="python"),
        pytest.param("models:\n  m:\n    checkpoint: x.gguf\n", "stack file", id="stack-file"),
        pytest.param("vllm serve m\0", "is not text", id="nul"),
        pytest.param("x" * (MAX_FOREIGN_CHARS + 1), "characters", id="too-long"),
        pytest.param("A=x\n" + "A=$A$A\n" * 30 + "vllm serve $A", "expand to more", id="doubling"),
        pytest.param("f() { f; f; f; f; f; f; f; f; f; f; }\n" * 1 + "f\n" * 6000, "commands", id="too-many"),
        pytest.param("vllm serve m" + " --x" * 1500, "arguments", id="too-many-arguments"),
        pytest.param("\n".join(f"vllm serve org/m{n} &" for n in range(70)), "models", id="too-many-models"),
        pytest.param("A=(" * 5000, "", id="nested-arrays"),
    ],
)
def test_what_is_no_launch_is_refused_in_one_sentence(text, sentence):
    """A wrong file is told apart from a faulty one, and the sentence says what is read."""
    with pytest.raises(StackFileError) as caught:
        read(text)

    assert caught.value.message.startswith("given")
    assert sentence in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_a_refusal_never_shows_a_secret():
    """Not even where the start itself is refused."""
    with pytest.raises(StackFileError) as caught:
        read("HF_TOKEN=hf_abcdefghijklmnop vllm serve --hf-token hf_abcdefghijklmnop")

    assert "hf_abc" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("HF_TOKEN=hf_abcdefghijklmnop vllm serve org/m", id="in-front"),
        pytest.param("export HF_TOKEN=hf_abcdefghijklmnop\nvllm serve org/m", id="exported"),
        pytest.param("vllm serve org/m --hf-token hf_abcdefghijklmnop", id="flag"),
        pytest.param("vllm serve org/m --hf-token=hf_abcdefghijklmnop", id="flag-equals"),
        pytest.param("vllm serve org/m --api-key hf_abcdefghijklmnop", id="api-key"),
        pytest.param(
            "docker run --gpus all -e HF_TOKEN=hf_abcdefghijklmnop vllm/vllm-openai org/m", id="docker"
        ),
        pytest.param(
            "T=hf_abcdefghijklmnop\ndocker run --gpus all -e HF_TOKEN=$T vllm/vllm-openai org/m",
            id="docker-variable",
        ),
        pytest.param(
            "services: {a: {image: vllm/vllm-openai, command: [org/m], "
            "environment: [HF_TOKEN=hf_abcdefghijklmnop]}}",
            id="compose",
        ),
        pytest.param("vllm serve org/m --my-thing hf_abcdefghijklmnop", id="by-its-look"),
    ],
)
def test_secrets_in_clear_are_named_and_dropped(text):
    """The token is nowhere in what comes back; that it stands in the file is said."""
    stack = read(text)

    assert "secret_in_clear" in [finding.code for finding in stack.findings]
    assert "hf_abc" not in repr(stack)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("docker run --gpus all -e HF_TOKEN vllm/vllm-openai:v0.25.1 org/m", id="by-name"),
        pytest.param(
            "docker run --gpus all -e HF_TOKEN=$HF_TOKEN vllm/vllm-openai:v0.25.1 org/m", id="from-outside"
        ),
        pytest.param(
            "docker run --gpus all -e HF_TOKEN=$(cat ~/.token) vllm/vllm-openai:v0.25.1 org/m", id="from-file"
        ),
    ],
)
def test_secrets_from_outside_are_as_they_should_be(text):
    """Passing a token on from the host is no fault."""
    stack = read(text)

    assert "secret_in_clear" not in [finding.code for finding in stack.findings]
    assert stack.models[0].find_env("HF_TOKEN").value is None


def test_nothing_is_run(tmp_path):
    """Substitutions, redirections and sourced files leave no trace."""
    trace = tmp_path / "trace"
    text = f"touch {trace}\nA=$(touch {trace})\nB=`touch {trace}`\n: > {trace}\nvllm serve org/m > {trace}\n"

    read(text + f"eval 'touch {trace}'\nbash -c 'touch {trace}'\n")

    assert not trace.exists()
