"""Pure. Launch commands as people have them: what is read, and what is named as mistaken or unread."""

import pytest

from trimtab.stackfile.foreign import decode_foreign

FULL_LINE = """\
CUDA_VISIBLE_DEVICES=0,1 nohup vllm serve Qwen/Qwen3-32B-AWQ -tp 2 --max_model_len 32768 \\
    --gpu-memory-utilization=0.9 --no-enable-prefix-caching --served-model-name qwen q32 \\
    --port 8001 > vllm.log 2>&1 &
"""


def read(text):
    return decode_foreign(text, source="given")


def only(text):
    (model,) = read(text).models
    return model


def pins(text):
    return dict(only(text).request.engine_args)


def places(text):
    return [(finding.code, finding.where) for finding in read(text).findings]


def test_a_bare_line_with_everything_around_it():
    """Variables before, nohup, an ampersand and a log file do not hide the command."""
    model = only(FULL_LINE)

    assert model.request.checkpoint == model.checkpoint_seen == "Qwen/Qwen3-32B-AWQ"
    assert model.request.engine_args == (
        ("tensor_parallel_size", 2),
        ("max_model_len", 32768),
        ("gpu_memory_utilization", 0.9),
        ("enable_prefix_caching", False),
    )
    assert model.served_names == ("qwen", "q32")
    assert (model.request.name, model.port, model.request.runtime) == ("qwen", 8001, "process")
    assert (model.request.gpus, model.request.engine_version) == ("0,1", None)
    assert read(FULL_LINE).findings == ()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("vllm serve org/m --seed 7", id="plain"),
        pytest.param("vllm serve --seed 7 org/m", id="model-last"),
        pytest.param("vllm serve --model org/m --seed 7", id="model-flag"),
        pytest.param("vllm serve --model=org/m --seed=7", id="equals-signs"),
        pytest.param("python -m vllm.entrypoints.openai.api_server --model org/m --seed 7", id="module"),
        pytest.param(
            "/opt/venv/bin/python3.11 -m vllm.entrypoints.openai.api_server --model org/m --seed 7",
            id="module-by-path",
        ),
        pytest.param("sudo -E -u llm /opt/venv/bin/vllm serve org/m --seed 7", id="sudo-and-path"),
        pytest.param("exec env A=b vllm serve org/m --seed 7", id="exec-env"),
        pytest.param("timeout 3600 nice -n 5 numactl -N 0 vllm serve org/m --seed 7", id="carriers"),
        pytest.param("uv run --with vllm vllm serve org/m --seed 7", id="uv"),
        pytest.param("$ vllm serve org/m --seed 7", id="prompt"),
        pytest.param("```bash\nvllm serve org/m --seed 7\n```\n", id="markdown-fence"),
        pytest.param("cd /opt && source venv/bin/activate && vllm serve org/m --seed 7", id="and-chain"),
        pytest.param("tmux new -d -s llm 'vllm serve org/m --seed 7'", id="tmux"),
        pytest.param('bash -lc "vllm serve org/m --seed 7"', id="bash-c"),
        pytest.param("CMD='vllm serve org/m'\n$CMD --seed 7", id="command-in-variable"),
        pytest.param('CMD=(vllm serve org/m)\nCMD+=(--seed 7)\n"${CMD[@]}"', id="command-in-array"),
        pytest.param("ARGS='--seed 7'\neval \"vllm serve org/m $ARGS\"", id="eval"),
        pytest.param('M=m\nvllm serve "org/${M}" --seed ${SEED:-7}', id="defaults"),
        pytest.param("vllm\tserve\torg/m\t--seed\t7", id="tabs"),
        pytest.param('if [ -z "$X" ]; then\n  vllm serve org/m --seed 7\nfi', id="inside-if"),
        pytest.param('run() {\n  vllm serve "$1" --seed "$2"\n}\nrun org/m 7\n', id="function"),
        pytest.param("main() { vllm serve org/m --seed 7; }\n", id="function-not-called"),
        pytest.param("(cd /opt; vllm serve org/m --seed 7) | tee log", id="subshell-and-pipe"),
        pytest.param("vllm serve org/m \\\r\n  --seed 7\r\n", id="windows-line-ends"),
        pytest.param("vllm serve org/m \\\n  --seed 7 # reproducible\n", id="trailing-comment"),
        pytest.param("cat <<'EOF' > note\nit's a note\nEOF\nvllm serve org/m --seed 7", id="after-heredoc"),
        pytest.param("\ufeffvllm serve org/m --seed 7", id="byte-order-mark"),
        pytest.param("docker run --gpus all vllm/vllm-openai:v0.25.1 org/m --seed 7", id="docker"),
        pytest.param(
            "docker run --gpus all vllm/vllm-openai:v0.25.1 --model org/m --seed 7", id="docker-model-flag"
        ),
        pytest.param(
            "docker run --gpus all --entrypoint vllm vllm/vllm-openai serve org/m --seed 7", id="entrypoint"
        ),
        pytest.param(
            "docker run --gpus all --entrypoint bash vllm/vllm-openai -c 'vllm serve org/m --seed 7'",
            id="entrypoint-bash",
        ),
        pytest.param(
            "docker --context big container run --gpus=all nvcr.io/nvidia/vllm:25.09-py3 "
            "vllm serve org/m --seed 7",
            id="other-image",
        ),
        pytest.param("nerdctl run --gpus all vllm/vllm-openai org/m --seed 7", id="nerdctl"),
        pytest.param("podman run --device nvidia.com/gpu=all vllm/vllm-openai org/m --seed 7", id="podman"),
    ],
)
def test_one_start_in_many_guises(text):
    """However the same start is written, it is the same model with the same settings."""
    model = only(text)

    assert model.request.checkpoint == "org/m"
    assert model.request.engine_args == (("seed", 7),)
    assert model.request.name == "m"


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        pytest.param("-tp 2", "tensor_parallel_size", 2, id="tp"),
        pytest.param("-pp=2", "pipeline_parallel_size", 2, id="pp-equals"),
        pytest.param("-dp 2", "data_parallel_size", 2, id="dp"),
        pytest.param("-q awq", "quantization", "awq", id="q"),
        pytest.param("-ep", "enable_expert_parallel", True, id="ep"),
        pytest.param("-O3", "optimization_level", "3", id="optimisation-joined"),
        pytest.param("-O 2", "optimization_level", "2", id="optimisation-apart"),
        pytest.param("-O=1", "optimization_level", "1", id="optimisation-equals"),
        pytest.param("--kv_cache_dtype fp8", "kv_cache_dtype", "fp8", id="underscores"),
        pytest.param("--kv-cache-memory=8G", "kv_cache_memory_bytes", "8G", id="abbreviated"),
        pytest.param("--max-model-len -1", "max_model_len", -1, id="negative-number"),
        pytest.param("--max-model-len 32k", "max_model_len", "32k", id="human-number"),
        pytest.param("--no-enable-chunked-prefill", "enable_chunked_prefill", False, id="negated"),
        pytest.param("--cudagraph-capture-sizes 1 2 4", "cudagraph_capture_sizes", "[1, 2, 4]", id="list"),
        pytest.param(
            "--limit-mm-per-prompt '{\"image\": 0}'", "limit_mm_per_prompt", '{"image": 0}', id="json"
        ),
        pytest.param(
            "--limit-mm-per-prompt.image 0 --limit-mm-per-prompt.video=1",
            "limit_mm_per_prompt",
            '{"image": 0, "video": 1}',
            id="dotted",
        ),
        pytest.param(
            "--compilation-config.pass_config.fuse_norm_quant true",
            "compilation_config",
            '{"pass_config": {"fuse_norm_quant": true}}',
            id="dotted-deep",
        ),
        pytest.param(
            "--compilation-config.cudagraph_capture_sizes+ 1,2",
            "compilation_config",
            '{"cudagraph_capture_sizes": ["1", "2"]}',
            id="dotted-list",
        ),
        pytest.param("-cc.mode 3", "compilation_config", '{"mode": 3}', id="short-dotted"),
        pytest.param(
            '--speculative-config "{\\"method\\": \\"mtp\\"}"',
            "speculative_config",
            '{"method": "mtp"}',
            id="escaped-json",
        ),
        pytest.param("--revision 1e5", "revision", "1e5", id="text-that-looks-like-a-number"),
        pytest.param("--num-scheduler-steps 8", "num_scheduler_steps", 8, id="flag-of-old"),
        pytest.param("--use-v2-block-manager", "use_v2_block_manager", True, id="switch-of-old"),
        pytest.param("--my-own-flag x", "my_own_flag", "x", id="nobody-s-flag"),
        pytest.param("--my-own-switch", "my_own_switch", True, id="nobody-s-switch"),
    ],
)
def test_flags_under_their_python_names(words, name, value):
    """Short forms, underscores, negations and dotted JSON are what vLLM's own parser makes of them."""
    assert pins(f"vllm serve org/m {words} --seed 7") == {name: value, "seed": 7}


@pytest.mark.parametrize(
    ("text", "code", "where"),
    [
        pytest.param(
            "vllm serve org/m \\ \n  --seed 7", "space_after_backslash", "line 1", id="trailing-blank"
        ),
        pytest.param("vllm serve org/m\n  --seed 7", "continuation_lost", "line 2", id="backslash-forgotten"),
        pytest.param(
            "vllm serve org/m \\\n# --foo \\\n  --seed 7", "continuation_lost", "line 3", id="comment-inside"
        ),
        pytest.param(
            "vllm serve org/m \\\n\n  --seed 7", "continuation_lost", "line 3", id="empty-line-inside"
        ),
        pytest.param("vllm serve org/m \u2013seed 7", "typed_dash", "line 1", id="en-dash"),
        pytest.param("vllm serve org/m \u2014\u2014seed 7", "typed_dash", "line 1", id="em-dashes"),
        pytest.param("vllm serve \u201corg/m\u201d --seed 7", "typed_quote", "line 1", id="double-quotes"),
        pytest.param("vllm serve \u2018org/m\u2019 --seed 7", "typed_quote", "line 1", id="single-quotes"),
        pytest.param("vllm serve org/m\u00a0--seed 7", "odd_blank", "line 1", id="no-break-space"),
        pytest.param("vllm serve org/m --seed 7 --seed 7", "repeated_flag", "line 1", id="repeated"),
        pytest.param("vllm serve org/m --seed 7 stray", "stray_argument", "line 1", id="stray"),
        pytest.param("vllm serve org/m --seed 7 ''", "empty_argument", "line 1", id="empty"),
        pytest.param("vllm serve org/m --seed 7 --max-model-len", "value_missing", "line 1", id="no-value"),
        pytest.param(
            "vllm serve org/m --seed 7 --tensor-parallel-size $TP",
            "value_unknown",
            "line 1",
            id="unknown-variable",
        ),
        pytest.param(
            "vllm serve org/m --seed 7 --tensor-parallel-size $(nvidia-smi -L | wc -l)",
            "value_unknown",
            "line 1",
            id="substitution",
        ),
        pytest.param(
            "vllm serve org/m --seed 7 $EXTRA_ARGS", "arguments_unknown", "line 1", id="unknown-arguments"
        ),
        pytest.param("vllm serve org/m --seed 7 --config c.yaml", "config_file", "line 1", id="config-file"),
        pytest.param("source .env\nvllm serve org/m --seed 7", "sourced_file", "line 1", id="sourced"),
        pytest.param(
            "docker compose up -d\nvllm serve org/m --seed 7", "compose_up", "line 1", id="compose-up"
        ),
        pytest.param(
            "ssh box vllm serve x\nvllm serve org/m --seed 7", "command_not_understood", "line 1", id="ssh"
        ),
        pytest.param(
            "cat > x <<E\nvllm serve z\nE\nvllm serve org/m --seed 7", "heredoc", "line 2", id="heredoc"
        ),
        pytest.param(
            "for m in org/m; do\n vllm serve org/m --seed 7\ndone", "loop_not_followed", "line 1", id="loop"
        ),
        pytest.param(
            "if true; then\n vllm serve org/m --seed 7\nfi",
            "condition_not_followed",
            "line 1",
            id="condition",
        ),
        pytest.param(
            "case $1 in\n start)\n vllm serve org/m --seed 7 ;;\nesac",
            "condition_not_followed",
            "line 1",
            id="case",
        ),
    ],
)
def test_slips_and_gaps_are_named_with_their_line(text, code, where):
    """What bash takes otherwise, and what the file leaves open, is said; the rest is read all the same."""
    assert (code, where) in places(text)
    assert pins(text).get("seed") == 7


def test_the_wish_it_amounts_to():
    """Every model with its flags, as a stack file would say it."""
    stack = read(FULL_LINE).stack

    assert [model.name for model in stack.models] == ["qwen"]
    assert (stack.name, stack.source) == ("given", "given")


def test_windows_line_ends_are_named():
    """A script that bash would trip over at every line end is still read."""
    assert "carriage_returns" in [code for code, _ in places("vllm serve org/m \\\r\n --seed 7\r\n")]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        pytest.param('{"enable_thinking": false}', "bad_json", id="quotes-lost"),
        pytest.param("\"{'enable_thinking': false}\"", "bad_json", id="single-quotes-inside"),
        pytest.param("'{\u201cenable_thinking\u201d: false}'", "typed_quote", id="typographic"),
    ],
)
def test_broken_json_is_named(words, code):
    """JSON that the shell or an editor spoiled does not pass silently."""
    assert code in [found for found, _ in places(f"vllm serve org/m --default-chat-template-kwargs {words}")]


def test_typographic_quotes_in_json_are_read_as_meant():
    """The setting is judged as its writer meant it."""
    text = "vllm serve org/m --default-chat-template-kwargs '{\u201cenable_thinking\u201d: false}'"

    assert pins(text) == {"default_chat_template_kwargs": '{"enable_thinking": false}'}


def test_a_switch_with_a_value_is_named_and_obeyed():
    """--enable-prefix-caching=true is refused by vLLM, and means what it says."""
    text = "vllm serve org/m --enable-prefix-caching=false --enforce-eager true"

    assert pins(text) == {"enable_prefix_caching": False, "enforce_eager": True}
    assert [code for code, _ in places(text)] == ["switch_with_value"] * 2


def test_the_last_of_a_repeated_flag_counts():
    """As vLLM has it, with the place of the one that loses."""
    text = "vllm serve org/m --seed 1 \\\n --max-num-seqs 4 \\\n --seed 2"

    assert only(text).request.engine_args == (("max_num_seqs", 4), ("seed", 2))
    assert places(text) == [("repeated_flag", "line 1")]


def test_dotted_flags_replace_the_json():
    """As vLLM's parser appends them, they come last."""
    text = 'vllm serve org/m --compilation-config.mode 0 --compilation-config \'{"cudagraph_mode": "NONE"}\''

    assert pins(text) == {"compilation_config": '{"mode": 0}'}
