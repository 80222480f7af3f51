"""Pure. A mapping becomes a Stack; every fault is named with its path, its value and what is legal."""

import json

import pytest

from trimtab.core.stack import GatewaySettings, ModelRequest, Stack
from trimtab.errors import StackFileError
from trimtab.stackfile.decode import check_model_name, decode_stack, dump_stack, stack_schema
from trimtab.stackfile.wire import PLANNED_KEYS

ONE_MODEL = {"models": {"m": {"checkpoint": "a.gguf"}}}


def decode(document):
    return decode_stack(document, source="s.yaml", default_name="s")


def fault_of(document):
    with pytest.raises(StackFileError) as caught:
        decode(document)
    return caught.value.message


def with_model(**keys):
    return {"models": {"m": {"checkpoint": "a.gguf"} | keys}}


def with_gateway(**keys):
    return ONE_MODEL | {"gateway": keys}


def test_decode_reads_every_key():
    """What is written is what is wished, key by key."""
    stack = decode(
        {
            "name": "box",
            "ram": "4GiB",
            "engine": "llama_cpp",
            "runtime": "process",
            "models": {
                "m": {
                    "checkpoint": "a.gguf",
                    "context": 4096,
                    "concurrency": 2,
                    "engine_args": {
                        "n_threads": 2,
                        "flash_attn": True,
                        "rope_freq_scale": 0.5,
                        "cache_type_k": "q8_0",
                    },
                }
            },
            "gateway": {"host": "0.0.0.0", "port": 0, "keys": ["k1"], "limits": {"max_body_bytes": 1000}},
        }
    )

    assert stack == Stack(
        name="box",
        ram_bytes=4 * 2**30,
        models=(
            ModelRequest(
                name="m",
                checkpoint="a.gguf",
                engine="llama_cpp",
                context=4096,
                concurrency=2,
                engine_args=(
                    ("n_threads", 2),
                    ("flash_attn", True),
                    ("rope_freq_scale", 0.5),
                    ("cache_type_k", "q8_0"),
                ),
            ),
        ),
        gateway=GatewaySettings(host="0.0.0.0", port=0, keys=("k1",), max_body_bytes=1000),
        source="s.yaml",
    )


def test_decode_leaves_what_is_not_written_to_the_planner():
    """The smallest file asks for nothing but a model."""
    assert decode(ONE_MODEL) == Stack(
        name="s", models=(ModelRequest(name="m", checkpoint="a.gguf"),), source="s.yaml"
    )


def test_decode_keeps_models_in_the_order_written():
    """Models are listed and started in the order of the file."""
    names = ("zeta", "alpha", "mid")

    stack = decode({"models": {name: {"checkpoint": "a.gguf"} for name in names}})

    assert tuple(model.name for model in stack.models) == names


def test_decode_keeps_a_nested_engine_argument_as_json_text():
    """A nested value means the same in the file as behind --set."""
    stack = decode(with_model(engine_args={"compilation_config": {"mode": 0}, "tensor_split": [1, 2]}))

    assert stack.models[0].engine_args == (("compilation_config", '{"mode": 0}'), ("tensor_split", "[1, 2]"))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        pytest.param(None, "s.yaml is empty", id="empty"),
        pytest.param([1], "s.yaml holds a list of 1, not keys and values", id="list"),
        pytest.param("text", 's.yaml holds "text", not keys and values', id="text"),
        pytest.param({}, "models: this key is missing", id="no models"),
        pytest.param({"models": {}}, "models: {} is not legal; name at least one", id="zero models"),
        pytest.param(
            {"models": {"m": None}},
            "models.m: null is not legal; write keys and values, such as {checkpoint: m.gguf}",
            id="null",
        ),
        pytest.param(
            {"models": {"m": "o/r:m.gguf"}},
            'models.m: "o/r:m.gguf" is not legal; write keys and values, such as {checkpoint: o/r:m.gguf}',
            id="checkpoint alone",
        ),
        pytest.param(
            {"models": {"m": "a: b\n"}},
            'models.m: "a: b\\n" is not legal; write keys and values, such as {checkpoint: m.gguf}',
            id="odd text alone",
        ),
        pytest.param({"models": {"m": {}}}, "models.m.checkpoint: this key is missing", id="no checkpoint"),
        pytest.param(
            with_model(contxt=1),
            "models.m.contxt: unknown key; did you mean 'context'?",
            id="near key",
        ),
        pytest.param(
            with_model(sloo=1),
            "models.m.sloo: unknown key; did you mean 'slo' (which this version does not support yet)?",
            id="near key of later",
        ),
        pytest.param(
            with_model(slo=1),
            "models.m.slo: this key is not supported by this version of trimtab yet; leave it out",
            id="key of later",
        ),
        pytest.param(
            ONE_MODEL | {"port": 1},
            "port: unknown key; 'port' stands under gateway",
            id="key elsewhere",
        ),
        pytest.param(
            ONE_MODEL | {"zzz": 1},
            "zzz: unknown key; legal keys: engine, engine_version, gateway, gpus, models, name, ram, runtime,"
            " swap",
            id="key far from all",
        ),
        pytest.param(
            ONE_MODEL | {"swap": {"idle_unload": 1}},
            "swap.idle_unload: unknown key; did you mean 'idle_unload_s'?",
            id="near key of swap",
        ),
        pytest.param(
            ONE_MODEL | {"swap": {"min_residence_s": -1}},
            "swap.min_residence_s: -1 is not legal; the smallest legal value is 0.0",
            id="negative seconds",
        ),
        pytest.param(
            with_model(keep_loaded="yes"),
            'models.m.keep_loaded: "yes" is not legal; write true or false',
            id="a switch that is text",
        ),
        pytest.param(
            with_gateway(limits={"max_body_byte": 1}),
            "gateway.limits.max_body_byte: unknown key; did you mean 'max_body_bytes'?",
            id="near key deep",
        ),
        pytest.param(
            with_model(context="4096 tokens"),
            "models.m.context: \"4096 tokens\" is not legal; '4096 tokens' is no number; write one such as"
            " 8192, 256k (256,000) or 256K (262,144)",
            id="text",
        ),
        pytest.param(
            with_model(context=True),
            "models.m.context: true is not legal; write a whole number",
            id="bool",
        ),
        pytest.param(
            with_model(concurrency=0),
            "models.m.concurrency: 0 is not legal; the smallest legal value is 1",
            id="zero",
        ),
        pytest.param(
            with_model(engine="tgi"),
            "models.m.engine: \"tgi\" is not legal; write 'vllm' or 'llama_cpp'",
            id="no such engine",
        ),
        pytest.param(
            with_model(thinking="maybe"),
            "models.m.thinking: \"maybe\" is not legal; write 'on' or 'off'",
            id="no such switch",
        ),
        pytest.param(
            with_model(gpus="0-3"),
            'models.m.gpus: "0-3" is not legal; write card numbers such as 0,1 under a model,'
            " cards such as 4xrtx4090 at the top level",
            id="card numbers",
        ),
        pytest.param(
            ONE_MODEL | {"engine_version": "new"},
            'engine_version: "new" is not legal; write a version such as 0.25.1',
            id="no such version",
        ),
        pytest.param(
            ONE_MODEL | {"runtime": "podman"},
            "runtime: \"podman\" is not legal; write 'process' or 'docker'",
            id="no such runtime",
        ),
        pytest.param(
            ONE_MODEL | {"ram": "8Gig"},
            "ram: \"8Gig\" is not legal; '8Gig' is not a size; write a number with B, KB, KiB, "
            "MB, MiB, GB, GiB, TB or TiB",
            id="no such unit",
        ),
        pytest.param(
            ONE_MODEL | {"ram": "0GiB"},
            'ram: "0GiB" is not legal; a size is at least one byte and at most 1024 TiB',
            id="no memory",
        ),
        pytest.param(
            ONE_MODEL | {"ram": -1},
            "ram: -1 is not legal; the smallest legal value is 1",
            id="negative",
        ),
        pytest.param(
            with_gateway(port=65536),
            "gateway.port: 65536 is not legal; the largest legal value is 65535",
            id="port",
        ),
        pytest.param(
            with_gateway(host="a b"),
            'gateway.host: "a b" is not legal; write an address such as 127.0.0.1, ::1 or localhost',
            id="host",
        ),
        pytest.param(
            with_model(checkpoint="a\0.gguf"),
            'models.m.checkpoint: "a\\u0000.gguf" is not legal; write text without control characters',
            id="control character",
        ),
        pytest.param(
            with_model(checkpoint=""),
            'models.m.checkpoint: "" is not legal; it is empty',
            id="empty text",
        ),
        pytest.param(
            with_model(engine_args={"a": float("nan")}),
            "models.m.engine_args.a: NaN is not legal; a number is finite",
            id="nan",
        ),
        pytest.param(
            with_model(engine_args={"a": 2**63}),
            f"models.m.engine_args.a: {2**63} is not legal; a whole number fits 64 bits",
            id="too wide",
        ),
    ],
)
def test_decode_names_the_fault(document, message):
    """One sentence: key path, value, what is legal."""
    assert fault_of(document).removeprefix("s.yaml: ") == message


@pytest.mark.parametrize("name", ["trimtab", "a b", "-a", "a/b", "a:thinking", "", "x" * 101, "ä"])
def test_decode_refuses_a_name_that_cannot_be_served(name):
    """A served name goes into URLs, file names and log lines."""
    assert "a served name is letters, digits" in fault_of({"models": {name: {"checkpoint": "a.gguf"}}})
    with pytest.raises(StackFileError, match="cannot be a model's name"):
        check_model_name(name, where="MODEL")


def test_decode_reports_all_faults_at_once():
    """A file is corrected in one go, not fault by fault."""
    message = fault_of(with_model(contxt=1, context="x") | {"ram": "8Gig", "gatway": {}})

    first, *lines = message.split("\n  ")
    assert first == "s.yaml has 4 faults:"
    assert {line.split(":")[0] for line in lines} == {"models.m.contxt", "models.m.context", "ram", "gatway"}


def test_decode_bounds_how_many_faults_it_lists():
    """A file of another kind does not flood the terminal."""
    message = fault_of(ONE_MODEL | {f"key{number}": 1 for number in range(500)})

    assert message.startswith("s.yaml has 500 faults:")
    assert message.endswith("and 480 more")
    assert message.count("\n") == 21


def test_decode_never_repeats_a_gateway_key():
    """A secret that was mistyped does not end in a log."""
    assert "hunter 2" not in fault_of(with_gateway(keys=["hunter 2"]))


@pytest.mark.parametrize("level", PLANNED_KEYS)
def test_keys_of_later_versions_are_refused_by_name(level):
    """A file never promises what is not done."""
    for key in PLANNED_KEYS[level]:
        document = {"stack": ONE_MODEL | {key: 1}, "model": with_model(**{key: 1})}.get(
            level, with_gateway(**{key: 1})
        )

        assert f"{key}: this key is not supported by this version of trimtab yet" in fault_of(document)


def test_schema_is_json_and_knows_every_key():
    """An editor that has the schema completes and explains every key."""
    schema = json.loads(json.dumps(stack_schema()))

    assert schema["title"] == "trimtab stack file"
    assert set(schema["properties"]) == {
        *("name", "gpus", "ram", "engine", "engine_version", "runtime", "models", "swap", "gateway")
    }
    assert all("description" in entry or "$ref" in entry for entry in schema["properties"].values())
    assert schema["additionalProperties"] is False


def test_dump_leaves_defaults_out():
    """A dumped stack reads like one that was written by hand."""
    stack = Stack(name="s", models=(ModelRequest(name="m", checkpoint="a.gguf", context=1),))

    assert dump_stack(stack) == {
        "name": "s",
        "models": {"m": {"checkpoint": "a.gguf", "runtime": "process", "context": 1}},
    }


@pytest.mark.parametrize(
    ("written", "read"),
    [(False, "off"), (True, "on"), ("off", "off"), ("on", "on")],
    ids=["yaml off", "yaml on", "text off", "text on"],
)
def test_a_switch_may_be_written_bare(written, read):
    """YAML turns a bare off into false; the user meant the same."""
    assert decode(with_model(thinking=written)).models[0].thinking == read


@pytest.mark.parametrize("written", [[0, 1], "0,1", "0, 1"], ids=["list", "text", "text with space"])
def test_card_numbers_may_be_a_list_or_text(written):
    """gpus: [0, 1] and gpus: 0,1 are the same wish."""
    assert decode(with_model(gpus=written)).models[0].gpus.replace(" ", "") == "0,1"


def test_engine_version_of_the_stack_is_each_models_default():
    """One line at the top pins the engine for all."""
    document = with_model() | {"engine_version": "0.25.1"}

    assert decode(document).models[0].engine_version == "0.25.1"


def test_an_endpoint_of_somebody_else_is_a_model_too():
    """A url, its model's name there and its family; the gateway's forms beside it."""
    stack = decode(
        {
            "models": {"m": {"url": "http://h:8000/v1", "upstream_model": "q", "family": "qwen3.5"}},
            "gateway": {
                "reasoning_fields": "inline",
                "reasoning_fields_by_key": {"k1": "none"},
                "repairs": ["extra-body"],
                "keys": ["k1"],
            },
        }
    )

    (model,) = stack.models
    assert (model.checkpoint, model.url, model.upstream_model) == ("", "http://h:8000/v1", "q")
    assert model.family == "qwen3.5"
    assert stack.gateway.reasoning_fields == "inline"
    assert stack.gateway.reasoning_fields_by_key == (("k1", "none"),)
    assert stack.gateway.repairs == ("extra-body",)
    assert decode(dump_stack(stack)).models == stack.models
    assert decode(dump_stack(stack)).gateway == stack.gateway


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({}, "models.m.checkpoint: this key is missing"),
        ({"checkpoint": "x.gguf", "url": "http://h/v1"}, "checkpoint would start an engine"),
        ({"url": "http://h/v1", "engine_args": {"a": 1}}, "engine_args would start an engine"),
        ({"checkpoint": "x.gguf", "upstream_model": "q"}, "upstream_model means a model at a url"),
        ({"url": "ftp://h/v1"}, "write an http or https address"),
        ({"url": "http://h:8000"}, "ends in /v1"),
        (
            {"url": "http://h/v1", "family": "llama"},
            "'qwen3.5', 'qwen3.5-small', 'glm-4.5' or 'deepseek-v3.1'",
        ),
    ],
    ids=["neither", "both", "engine-at-url", "name-without-url", "scheme", "path", "family"],
)
def test_a_model_has_one_origin(entry, words):
    """A checkpoint that is started, or a url that is fronted; one sentence says what clashes."""
    assert words in fault_of({"models": {"m": entry}})


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ([0, 0], "card 0 is named twice"),
        ("1, 1", "card 1 is named twice"),
        ([9, -1], "write numbers of cards from 0 on, each once, such as 0,1 or [0, 1]"),
        ([], "write numbers of cards from 0 on"),
        ([True], "write numbers of cards from 0 on"),
        (["0"], "write numbers of cards from 0 on"),
    ],
    ids=["list twice", "text twice", "negative", "empty", "bool", "texts"],
)
def test_card_lists_that_cannot_be_say_what_a_list_is(written: object, said: str) -> None:
    """A list is legal; the sentence says what is wrong with this one."""
    with pytest.raises(StackFileError, match=r"models\.m\.gpus") as caught:
        decode(with_model(gpus=written))
    assert said in caught.value.message


def test_limits_of_waiting_and_the_keep_alive_are_read():
    """The bounds of the queue stand in the stack file, whole seconds or not."""
    gateway = {"limits": {"max_waiting": 0, "max_wait_s": 30}, "keep_alive_s": 0.5}
    stack = decode({"models": {"m": {"checkpoint": "x.gguf"}}, "gateway": gateway})
    assert (stack.gateway.max_waiting, stack.gateway.max_wait_s, stack.gateway.keep_alive_s) == (0, 30, 0.5)
    assert decode(dump_stack(stack)).gateway == stack.gateway


@pytest.mark.parametrize(
    ("gateway", "path"),
    [
        ({"limits": {"max_waiting": -1}}, "gateway.limits.max_waiting"),
        ({"limits": {"max_wait_s": 0}}, "gateway.limits.max_wait_s"),
        ({"limits": {"max_wait_s": float("nan")}}, "gateway.limits.max_wait_s"),
        ({"limits": {"max_wait_s": True}}, "gateway.limits.max_wait_s"),
        ({"keep_alive_s": -1}, "gateway.keep_alive_s"),
        ({"keep_alive_s": "15"}, "gateway.keep_alive_s"),
    ],
)
def test_waits_that_cannot_be_name_their_key(gateway, path):
    """A bound without meaning is refused where it stands."""
    with pytest.raises(StackFileError, match=path):
        decode({"models": {"m": {"checkpoint": "x.gguf"}}, "gateway": gateway})


def test_a_key_for_an_endpoint_is_named_not_written():
    """The stack holds the variable's name; what is no name, a key itself for one, is refused."""
    entry = {"url": "http://h/v1", "api_key_env": "THEIR_KEY"}
    stack = decode({"models": {"m": entry}})
    assert stack.models[0].api_key_env == "THEIR_KEY"
    assert decode(dump_stack(stack)) == stack
    with pytest.raises(StackFileError, match=r"models\.m\.api_key_env") as refusal:
        decode({"models": {"m": entry | {"api_key_env": "sk-proj-abc"}}})
    assert "sk-proj-abc" not in str(refusal.value)
    with pytest.raises(StackFileError, match=r"models\.m\.api_key_env means a model at a url"):
        decode({"models": {"m": {"checkpoint": "x.gguf", "api_key_env": "THEIR_KEY"}}})
