"""Pure. What is no launch command is refused in one sentence; secrets go no further; nothing is run."""

import time

import pytest

from trimtab.errors import StackFileError
from trimtab.stackfile.foreign import MAX_FOREIGN_CHARS, decode_foreign
from trimtab.stackfile.foreign_check import check_foreign


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


SECRET = "s3cr3t-w0rd"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"vllm serve https://user:{SECRET}@host/org/m", id="address"),
        pytest.param(f"TOKEN={SECRET}\nM=Qwen/$TOKEN\nvllm serve $M", id="variable"),
        pytest.param(f"API_KEY='{SECRET}'\nX=$API_KEY\nY=org/$X\nvllm serve $Y", id="through others"),
        pytest.param(f"vllm serve org/${{TOKEN:-{SECRET}}}", id="default"),
        pytest.param(f'export DB_PASSWORD="{SECRET}"\nvllm serve --model org/$DB_PASSWORD', id="flag"),
        pytest.param("vllm serve org/hf_abcdefghijklmnop", id="by its look"),
    ],
)
def test_a_model_named_by_a_secret_is_refused_without_it(text):
    """The sentence says that there is one, and does not repeat it."""
    with pytest.raises(StackFileError, match="the model's name has a secret in it") as caught:
        read(text)
    assert SECRET not in caught.value.message + caught.value.hint
    assert "hf_abc" not in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        f"docker run --gpus all user:{SECRET}@registry.org/vllm:v1 org/m",
        f"docker run --gpus all https://user:{SECRET}@registry.org/vllm/vllm-openai:v0.25.1 org/m",
        f"vllm serve org/m --max-model-len 'Bearer {SECRET}'",
        f"TOKEN={SECRET}\nvllm serve org/m --max-model-len $TOKEN",
        f"TOKEN={SECRET}\nvllm serve org/m --served-model-name $TOKEN --host $TOKEN --port $TOKEN",
        f"TOKEN={SECRET}\nvllm serve org/m --chat-template /a/$TOKEN --odd-flag=$TOKEN $TOKEN",
        f"TOKEN={SECRET}\nvllm serve org/m --hf-overrides.a.b $TOKEN",
        f"TOKEN={SECRET}\nvllm serve org/m --rope-scaling '{{\"a\": \"'$TOKEN'\"}}'",
        f"TOKEN={SECRET}\ndocker run --name $TOKEN -e A=$TOKEN --gpus all vllm/vllm-openai org/m",
        f"TOKEN={SECRET}\ndocker run -v /$TOKEN:/x --gpus $TOKEN vllm/vllm-openai org/m",
        f"vllm serve org/m --download-dir https://user:{SECRET}@host/x",
        f"HTTPS_PROXY=http://user:{SECRET}@proxy:3128 vllm serve org/m",
        f"vllm serve org/m --api-key {SECRET} --chat-template {SECRET}",
        f"services: {{a: {{image: vllm, command: [org/m, --api-key, {SECRET}, --host, {SECRET}]}}}}",
        f"services:\n a:\n  image: vllm\n  command:\n  - org/m\n  - --api-key\n  - {SECRET}\n  - {SECRET}\n",
    ],
)
def test_a_secret_is_nowhere_in_what_is_read(text):
    """Not in the settings, not in a finding, not in a refusal."""
    try:
        stack = read(text)
    except StackFileError as error:
        assert SECRET not in error.message + error.hint
        return
    assert SECRET not in repr((stack, check_foreign(stack)))


def test_what_is_no_secret_stays():
    """Names beside a token that comes from outside, and ordinary words, are not blotted out."""
    line = "docker run --gpus all -e HF_TOKEN vllm/vllm-openai:v0.25.1 org/m --tokenizer org/tokens"
    (model,) = read(line).models
    assert (model.image, model.request.checkpoint) == ("vllm/vllm-openai:v0.25.1", "org/m")
    assert dict(model.request.engine_args)["tokenizer"] == "org/tokens"


@pytest.mark.parametrize(
    "text",
    [
        "if true; then\n" * 5000 + "vllm serve org/m\n" + "fi\n" * 5000,
        "if true; then vllm serve org/m --max-model-len 8 ; fi\n" * 4800,
        "while true; do vllm serve org/m --enforce-eager --a.b 1; done\n" * 2000,
        "while true; do docker run --gpus all -v /a:/b -e A=b vllm/vllm-openai org/m; done\n" * 2000,
    ],
    ids=["nested ifs", "ifs", "loops", "containers in loops"],
)
def test_a_script_of_thousands_of_starts_is_refused_while_it_is_read(text):
    """The limits act before the work is done."""
    start = time.process_time()
    try:
        read(text)
    except StackFileError as error:
        assert "more than" in error.message
    assert time.process_time() - start < 5
