"""Pure. A foreign stack judged: refused, harmful, obsolete or left open, in that version on those cards."""

from pathlib import Path

import pytest

from trimtab.stackfile.foreign import decode_foreign
from trimtab.stackfile.foreign_check import check_foreign
from trimtab.units import GIB

FOLDER = Path(__file__).parents[1] / "foreign"
# A start with nothing to be said against it, to which rows add one thing.
QUIET = "--max-model-len 4096 --max-num-seqs 8 --gpu-memory-utilization 0.9 --host 127.0.0.1"


def judge(text, **known):
    known = {"engine_version": "0.25.1"} | known
    return check_foreign(decode_foreign(text, source="given"), **known)


def serve(words, *, before="", model="org/m", **known):
    return judge(f"{before} vllm serve {model} {QUIET} {words}", **known)


def docker(options, words, tag="v0.25.1"):
    return judge(
        f"docker run {options} -p 127.0.0.1:8000:8000 vllm/vllm-openai:{tag} org/m --max-model-len 4096 "
        f"--max-num-seqs 8 --gpu-memory-utilization 0.9 {words}"
    )


def kinds(findings):
    return [(finding.code, finding.severity) for finding in findings]


def test_nothing_is_said_where_nothing_is_wrong():
    """A careful start gets no lecture."""
    assert serve("") == ()


def test_the_seed_case_on_cards_without_p2p():
    """The three variables of the real script, judged as its owner needed to hear it."""
    stack = decode_foreign((FOLDER / "seed-fp8.sh").read_text(), source="seed")

    found = check_foreign(stack, has_p2p=False)

    assert [(finding.code, finding.severity, finding.where) for finding in found] == [
        ("p2p_forced_on", "harmful", "line 19"),
        ("infiniband_off", "note", "line 20"),
        ("obsolete_env", "obsolete", "line 21"),
        ("open_endpoint", "note", "line 13"),
    ]
    assert found[0].hint == "NCCL_P2P_DISABLE=1"


def test_the_two_awq_models_do_not_get_in_each_other_s_way():
    """Own cards, own ports, own names: only what both have in common is said, once."""
    stack = decode_foreign((FOLDER / "seed-awq-pair.sh").read_text(), source="seed")

    codes = [finding.code for finding in check_foreign(stack, has_p2p=False)]

    assert codes.count("p2p_forced_on") == codes.count("obsolete_env") == 1
    assert not {"same_port", "same_container", "cards_overbooked", "cards_shared"} & set(codes)


@pytest.mark.parametrize(
    ("words", "version", "code", "severity", "hint"),
    [
        pytest.param("--enable-reasoning", "0.17.0", "removed_flag", "error", None, id="enable-reasoning"),
        pytest.param(
            "--disable-log-requests", "0.25.1", "removed_flag", "error", None, id="disable-log-requests"
        ),
        pytest.param("--device cuda", "0.25.1", "removed_flag", "error", None, id="device"),
        pytest.param("--task generate", "0.17.0", "removed_flag", "error", None, id="task"),
        pytest.param(
            "--num-scheduler-steps 8", "0.17.0", "removed_flag", "error", None, id="scheduler-steps"
        ),
        pytest.param("--use-v2-block-manager", "0.17.0", "removed_flag", "error", None, id="block-manager"),
        pytest.param("--swap-space 4", "0.25.1", "removed_flag", "error", None, id="swap-space-gone"),
        pytest.param(
            "--swap-space 4", "0.17.0", "swap_unused", "obsolete", "leave it out", id="swap-space-idle"
        ),
        pytest.param("--calculate-kv-scales", "0.33.0", "removed_flag", "error", None, id="kv-scales-gone"),
        pytest.param("--watermark 0.1", "0.17.0", "removed_flag", "error", None, id="not-there-yet"),
        pytest.param(
            "--gpu-memory-utilizaton 0.5",
            "0.25.1",
            "unknown_flag",
            "error",
            "did you mean --gpu-memory-utilization?",
            id="misspelt",
        ),
        pytest.param(
            "--kv-cache-dtype fp7", "0.17.0", "bad_choice", "error", "did you mean fp8?", id="bad-choice"
        ),
        pytest.param(
            "--reasoning-parser qwn3",
            "0.25.1",
            "unknown_parser",
            "error",
            "did you mean qwen3?",
            id="reasoning-parser",
        ),
        pytest.param(
            "--enable-auto-tool-choice --tool-call-parser hermse",
            "0.25.1",
            "unknown_parser",
            "error",
            "did you mean hermes?",
            id="tool-parser",
        ),
        pytest.param(
            "--tool-call-parser hermes",
            "0.25.1",
            "parser_unused",
            "harmful",
            "add --enable-auto-tool-choice",
            id="tool-parser-alone",
        ),
        pytest.param("--enable-auto-tool-choice", "0.25.1", "parser_missing", "error", "", id="tool-choice"),
        pytest.param(
            "--gpu-memory-utilization 0.98", "0.25.1", "share_too_high", "harmful", None, id="share-0.98"
        ),
        pytest.param(
            "--gpu-memory-utilization 1.5", "0.25.1", "share_out_of_range", "error", None, id="share-1.5"
        ),
        pytest.param("--kv-cache-memory-bytes 8G", "0.25.1", "share_unused", "note", "", id="share-unused"),
        pytest.param("--quantization awq", "0.17.0", "slow_kernel", "harmful", None, id="awq-by-name"),
        pytest.param(
            "--max-num-batched-tokens 4", "0.25.1", "batch_below_sequences", "error", "", id="batch-4"
        ),
        pytest.param(
            "--no-enable-chunked-prefill --max-num-batched-tokens 2048",
            "0.25.1",
            "batch_below_length",
            "error",
            "",
            id="batch-below-length",
        ),
        pytest.param("--port 80000", "0.25.1", "port_out_of_range", "error", "", id="port"),
        pytest.param("--trust-remote-code", "0.25.1", "remote_code", "note", None, id="remote-code"),
        pytest.param("--enforce-eager", "0.25.1", "eager", "note", None, id="eager"),
        pytest.param("--cpu-offload-gb 6", "0.25.1", "offload", "harmful", "", id="offload"),
    ],
)
def test_flags(words, version, code, severity, hint):
    """One flag added, one finding more, at its place."""
    (finding,) = serve(words, engine_version=version)

    assert (finding.code, finding.severity, finding.where) == (code, severity, "line 1")
    assert hint is None or finding.hint == hint


@pytest.mark.parametrize(
    ("before", "words", "known", "code", "severity"),
    [
        pytest.param("VLLM_USE_V1=1", "", {}, "obsolete_env", "obsolete", id="use-v1"),
        pytest.param("VLLM_USE_V1=0", "", {}, "obsolete_env", "obsolete", id="use-v0"),
        pytest.param("VLLM_ATTENTION_BACKEND=FLASHINFER", "", {}, "obsolete_env", "obsolete", id="backend"),
        pytest.param("VLLM_MY_OWN=1", "", {}, "obsolete_env", "obsolete", id="nobody-s"),
        pytest.param(
            "VLLM_TEST_FORCE_FP8_MARLIN=1",
            "",
            {"engine_version": "0.33.0"},
            "obsolete_env",
            "obsolete",
            id="marlin",
        ),
        pytest.param(
            "NCCL_P2P_DISABLE=0", "-tp 2", {"has_p2p": False}, "p2p_forced_on", "harmful", id="p2p-on"
        ),
        pytest.param(
            "NCCL_P2P_DISABLE=0", "-tp 2", {"has_p2p": True}, "p2p_default", "note", id="p2p-default"
        ),
        pytest.param("NCCL_P2P_DISABLE=0", "-tp 2", {}, "p2p_default", "note", id="p2p-not-known"),
        pytest.param(
            "NCCL_P2P_DISABLE=1", "-tp 2", {"has_p2p": True}, "p2p_given_away", "harmful", id="p2p-off"
        ),
        pytest.param("NCCL_P2P_DISABLE=1", "", {"has_p2p": True}, "p2p_unused", "note", id="p2p-one-card"),
        pytest.param("NCCL_IB_DISABLE=1", "", {}, "infiniband_off", "note", id="infiniband"),
        pytest.param("VLLM_ALLOW_LONG_MAX_MODEL_LEN=1", "", {}, "longer_than_trained", "harmful", id="long"),
        pytest.param("VLLM_PORT=8000", "", {}, "internal_address", "note", id="internal-port"),
        pytest.param("CUDA_LAUNCH_BLOCKING=1", "", {}, "debugging_left_on", "harmful", id="blocking"),
        pytest.param("NCCL_DEBUG=INFO", "", {}, "debugging_left_on", "note", id="nccl-log"),
        pytest.param("CUDA_VISIBLE_DEVICES=1", "", {}, "device_order_open", "note", id="device-order-34"),
    ],
)
def test_variables(before, words, known, code, severity):
    """One variable added, one finding more."""
    assert kinds(serve(words, before=before, **known)) == [(code, severity)]


@pytest.mark.parametrize(
    ("before", "words", "known"),
    [
        pytest.param("NCCL_P2P_DISABLE=1", "-tp 2", {"has_p2p": False}, id="p2p-off-where-there-is-none"),
        pytest.param("VLLM_LOGGING_LEVEL=DEBUG", "", {}, id="known-variable"),
        pytest.param("VLLM_TEST_FORCE_FP8_MARLIN=1", "", {"engine_version": "0.17.0"}, id="read-in-0.17"),
        pytest.param("CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=1", "", {}, id="order-said"),
        pytest.param("VLLM_ALLOW_LONG_MAX_MODEL_LEN=0", "", {}, id="not-longer"),
        pytest.param("", "--enable-auto-tool-choice --tool-call-parser hermes", {}, id="tool-parser-there"),
        pytest.param(
            "", "--enable-auto-tool-choice --tool-call-parser mine --tool-parser-plugin p.py", {}, id="plugin"
        ),
        pytest.param("", "--kv-cache-dtype fp8 --no-enable-prefix-caching", {}, id="plain-flags"),
        pytest.param("", "--gpu-memory-utilization 0.95", {}, id="share-0.95"),
        pytest.param("", "--quantization awq_marlin", {"engine_version": "0.17.0"}, id="marlin-by-name"),
        pytest.param("", "--quantization awq", {}, id="awq-forces-nothing-since-0.24"),
    ],
)
def test_what_is_right_is_not_remarked_on(before, words, known):
    """A finding that is none would teach people to look away."""
    assert serve(words, before=before, **known) == ()


def test_use_v1_says_that_0_brings_nothing_back():
    """Who sets 0 wants the old engine."""
    (finding,) = serve("", before="VLLM_USE_V1=0")

    assert finding.text.endswith("drop it; 0 does not bring V0 back")


def test_attention_backend_is_a_flag_now():
    """The hint can be pasted."""
    (finding,) = serve("", before="VLLM_ATTENTION_BACKEND=FLASHINFER")

    assert finding.hint == "--attention-backend FLASHINFER"


@pytest.mark.parametrize(
    ("options", "words", "expected"),
    [
        pytest.param("--gpus 2", "-tp 2", [("shm_too_small", "harmful")], id="docker-s-default"),
        pytest.param("--gpus 2 --shm-size 64m", "-tp 2", [("shm_too_small", "harmful")], id="64-MB"),
        pytest.param("--gpus 2 --shm-size 16g", "-tp 2", [], id="16-GB"),
        pytest.param("--gpus 2 --ipc host", "-tp 2", [], id="host"),
        pytest.param("--gpus 1", "", [], id="one-card"),
        pytest.param("--gpus 2", "-pp 2", [("shm_too_small", "harmful")], id="pipeline"),
    ],
)
def test_shared_memory_case_41(options, words, expected):
    """Two cards in a container of 64 MB fail in NCCL, long after the start looked well."""
    assert kinds(docker(options, words)) == expected


@pytest.mark.parametrize(
    ("total_bytes", "number"),
    [
        pytest.param(24 * GIB, "256", id="small-card"),
        pytest.param(80 * GIB, "1024", id="large-card"),
        pytest.param(None, "256, or 1024", id="not-known"),
    ],
)
def test_sequences_left_open_case_7(total_bytes, number):
    """The default is named, so that nobody is surprised by 1,024 dummy requests."""
    found = judge("vllm serve org/m --max-model-len 4096 --host 127.0.0.1", gpu_total_bytes=total_bytes)

    (finding,) = [finding for finding in found if finding.code == "max_num_seqs_open"]
    assert f"({number}" in finding.text


def test_length_left_open_case_8():
    """The model card's maximum is no default to rely on."""
    found = judge("vllm serve org/m --max-num-seqs 8 --host 127.0.0.1")

    assert kinds(found) == [("max_model_len_open", "note"), ("share_open", "note")]


@pytest.mark.parametrize(
    ("model", "version", "severity"),
    [
        pytest.param("ig1/Qwen3.5-35B-A3B-NVFP4", "0.17.0", "harmful", id="hybrid"),
        pytest.param("ig1/Qwen3.5-35B-A3B-NVFP4", "0.19.1", "obsolete", id="hybrid-0.19"),
        pytest.param("ig1/Qwen3.5-35B-A3B-NVFP4", "0.25.1", "obsolete", id="hybrid-0.25"),
        pytest.param("org/llama", "0.17.0", "note", id="not-known"),
    ],
)
def test_computed_kv_scales_case_28(model, version, severity):
    """On models with linear attention they make gibberish, and later nothing."""
    found = serve("--calculate-kv-scales --reasoning-parser qwen3", model=model, engine_version=version)

    assert ("kv_scales", severity) in kinds(found)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param("", [("no_reasoning_parser", "note")], id="thoughts-in-the-answer"),
        pytest.param(
            "--reasoning-parser deepseek_r1", [("wrong_parser", "harmful")], id="answer-in-the-thoughts"
        ),
        pytest.param("--reasoning-parser qwen3", [], id="right"),
        pytest.param("--default-chat-template-kwargs '{\"enable_thinking\": false}'", [], id="thinking-off"),
        pytest.param(
            "--default-chat-template-kwargs '{\"a\": 1}'", [("no_reasoning_parser", "note")], id="other-key"
        ),
    ],
)
def test_reasoning_parser_cases_46_and_50(words, expected):
    """Where a Qwen3's thoughts end up is decided by one flag."""
    assert kinds(serve(words, model="Qwen/Qwen3-32B")) == expected


@pytest.mark.parametrize(
    ("model", "is_remarked"),
    [
        pytest.param("Qwen/Qwen3.5-27B", True, id="qwen3.5"),
        pytest.param("Qwen/Qwen3-Coder-30B-A3B-Instruct", False, id="coder"),
        pytest.param("Qwen/Qwen3-Embedding-8B", False, id="embedding"),
        pytest.param("Qwen/Qwen2.5-7B-Instruct", False, id="qwen2.5"),
        pytest.param("meta-llama/Llama-3.3-70B", False, id="llama"),
    ],
)
def test_only_thinking_models_need_a_reasoning_parser(model, is_remarked):
    """Models that do not think are left alone."""
    assert (("no_reasoning_parser", "note") in kinds(serve("", model=model))) is is_remarked


TWO = "vllm serve org/a --port {} {} &\nvllm serve org/b --port {} {} &\n"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param("", "", "cards_overbooked", id="defaults"),
        pytest.param(
            "--gpu-memory-utilization 0.6", "--gpu-memory-utilization 0.5", "cards_overbooked", id="1.1"
        ),
        pytest.param(
            "--gpu-memory-utilization 0.5", "--gpu-memory-utilization 0.5", "cards_shared", id="1.0"
        ),
        pytest.param(
            "--kv-cache-memory-bytes 1G", "--gpu-memory-utilization 0.5", "cards_shared", id="bytes"
        ),
        pytest.param(
            "-tp 2 --gpu-memory-utilization 0.6",
            "--gpu-memory-utilization 0.6",
            "cards_overbooked",
            id="one-of-two",
        ),
    ],
)
def test_two_models_on_one_card_case_32(first, second, expected):
    """The second would fail at its start, or must wait for the first."""
    codes = [finding.code for finding in judge(TWO.format(8000, first, 8001, second))]

    assert [code for code in codes if code.startswith("cards_")] == [expected]


def test_two_models_on_their_own_cards():
    """Each has its own: nothing to be said."""
    text = (
        "CUDA_VISIBLE_DEVICES=0 vllm serve org/a --port 8000 &\n"
        "CUDA_VISIBLE_DEVICES=1 vllm serve org/b --port 8001 &\n"
    )

    assert not [finding for finding in judge(text) if finding.code.startswith("cards_")]


def test_three_models_on_one_card_are_one_finding():
    """The sum of all three counts."""
    text = "".join(
        f"vllm serve org/{name} --port 800{place} --gpu-memory-utilization 0.4 &\n"
        for place, name in enumerate("abc")
    )

    (finding,) = [finding for finding in judge(text) if finding.code.startswith("cards_")]
    assert "a and b and c share card 0 and want 1.20" in finding.text


def test_the_same_port_twice():
    """The second would find it taken."""
    assert ("same_port", "error") in kinds(judge(TWO.format(8000, "", 8000, "")))


def test_the_same_container_name_twice():
    """Docker refuses the second, or a careful script has removed the first."""
    text = "docker run --name x --gpus all -p 800{0}:8000 vllm/vllm-openai:v0.25.1 org/m{0}\n"

    assert ("same_container", "error") in kinds(judge(text.format(0) + text.format(1)))


@pytest.mark.parametrize(
    ("options", "words", "expected"),
    [
        pytest.param("--gpus 2 --ipc host", "-tp 4", [("too_few_cards", "error")], id="too-few"),
        pytest.param("--gpus 2 --ipc host", "", [("idle_cards", "note")], id="idle"),
        pytest.param("--gpus 2 --ipc host", "-tp $TP", [], id="not-known"),
        pytest.param("--gpus all --ipc host", "-tp 4", [], id="all"),
    ],
)
def test_cards_given_and_used(options, words, expected):
    """Two numbers in one file that should agree."""
    assert kinds(docker(options, words)) == expected


@pytest.mark.parametrize(
    ("text", "is_open"),
    [
        pytest.param("vllm serve org/m", True, id="default-host"),
        pytest.param("vllm serve org/m --host 0.0.0.0", True, id="everywhere"),
        pytest.param("vllm serve org/m --host 127.0.0.1", False, id="loopback"),
        pytest.param("vllm serve org/m --api-key sk-0123456789", False, id="key"),
        pytest.param("VLLM_API_KEY=$KEY vllm serve org/m", False, id="key-from-outside"),
        pytest.param("docker run --gpus all -p 8000:8000 vllm/vllm-openai org/m", True, id="published"),
        pytest.param(
            "docker run --gpus all -p 127.0.0.1:8000:8000 vllm/vllm-openai org/m", False, id="published-here"
        ),
        pytest.param(
            "docker run --gpus all vllm/vllm-openai org/m --host 0.0.0.0", False, id="not-published"
        ),
    ],
)
def test_an_open_endpoint_is_noted(text, is_open):
    """Whoever reaches the machine may use the model: that should be meant."""
    assert ("open_endpoint" in [finding.code for finding in judge(text)]) is is_open


def test_a_version_that_is_not_said_is_assumed_and_named():
    """Nobody is judged by a version without being told."""
    found = check_foreign(decode_foreign(f"vllm serve org/m {QUIET}", source="given"))

    assert kinds(found) == [("version_assumed", "unknown")]


def test_the_version_of_the_image_counts():
    """A version given for the machine does not override what the image says."""
    text = "docker run --gpus all vllm/vllm-openai:v0.17.0 org/m --swap-space 4"

    assert "swap_unused" in [finding.code for finding in judge(text, engine_version="0.33.0")]


def test_a_version_before_all_that_are_known():
    """Of its flags nothing is said: neither that they are gone nor what to write instead."""
    found = docker(
        "--gpus 1 -e VLLM_USE_V1=1", "--enable-reasoning --swap-space 4 --task generate", tag="v0.8.5"
    )

    assert kinds(found) == [("version_too_old", "unknown")]


def test_what_would_be_refused_names_the_flag_as_written_and_one_way_out():
    """A reader finds it in the file, and the fix does not contradict itself."""
    found = serve("--enable-reasoning --enable-prefix-cache --guided-decoding-backend xgrammar")

    assert [finding.code for finding in found] == ["removed_flag", "unknown_flag", "removed_flag"]
    for finding, written in zip(
        found, ("--enable-reasoning", "--enable-prefix-cache", "--guided-decoding-backend"), strict=True
    ):
        assert written in finding.text
        assert finding.hint
        assert "did you mean" not in finding.text
    assert "did you mean" not in found[0].hint


def test_a_newer_version_than_all_that_are_known_is_not_spoken_for():
    """What 0.33 lacks, 0.99 may have again."""
    (finding,) = serve("--swap-space 4", engine_version="0.99.0")

    assert "0.33.0, the newest that is known here, has no --swap-space any more" in finding.text


def test_findings_never_show_secrets():
    """Neither a flag's nor a variable's."""
    token = "hf_abcdefghijklmnop"
    text = f"A=1 vllm serve org/m --api-key sk-abcdefghijkl --hf-overides {token} --x={token}"
    stack = decode_foreign(text, source="given")

    shown = repr((stack.findings, check_foreign(stack)))

    assert "sk-abc" not in shown
    assert "hf_abc" not in shown


@pytest.mark.parametrize(
    ("mounts", "words", "is_unused"),
    [
        pytest.param("-v /data/models:/models", "org/m", True, id="repo-id-served"),
        pytest.param("-v /data/models:/models", "/models/m", False, id="model-in-it"),
        pytest.param("-v /data/m:/models/m", "/models", False, id="part-of-the-model"),
        pytest.param("-v /t:/templates", "org/m --chat-template /templates/x.jinja", False, id="template"),
        pytest.param("-v ~/.cache/huggingface:/root/.cache/huggingface", "org/m", False, id="cache"),
        pytest.param("-v /hub:/hub -e HF_HOME=/hub", "org/m", False, id="variable"),
        pytest.param("-v /data:/data", 'org/m --chat-template "$T"', False, id="value-unknown"),
    ],
)
def test_a_mount_that_nothing_reads_is_named(mounts, words, is_unused):
    """Whoever mounts a folder and serves a repository downloads what is there already."""
    text = f"docker run --gpus all {mounts} vllm/vllm-openai:v0.25.1 --model {words}"
    stack = decode_foreign(text, source="given")

    assert ("mount_unused" in [finding.code for finding in stack.findings]) is is_unused
