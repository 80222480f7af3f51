"""Pure. The stack file for any content."""

import json
import tempfile
from pathlib import Path

import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trimtab.core.stack import GatewaySettings, ModelRequest, Stack
from trimtab.errors import StackFileError
from trimtab.stackfile.decode import decode_stack, dump_stack
from trimtab.stackfile.read import read_stack
from trimtab.stackfile.wire import PLANNED_KEYS

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=20)
COUNTS = st.integers(1, 2**40)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,20}", fullmatch=True).filter(
    lambda name: name != "trimtab"
)
VALUES = (
    st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | TEXT
    | st.floats(allow_nan=False, allow_infinity=False)
)  # fmt: skip
MODELS = st.builds(
    ModelRequest,
    name=NAMES,
    checkpoint=TEXT,
    engine=st.sampled_from(["llama_cpp", None]),
    context=st.none() | COUNTS,
    concurrency=st.none() | COUNTS,
    engine_args=st.dictionaries(TEXT, VALUES, max_size=3).map(lambda pins: tuple(pins.items())),
)
STACKS = st.builds(
    Stack,
    name=TEXT,
    models=st.lists(MODELS, min_size=1, max_size=3, unique_by=lambda model: model.name).map(tuple),
    gateway=st.builds(
        GatewaySettings,
        host=st.sampled_from(["127.0.0.1", "::1", "localhost", "fe80::1%eth0"]),
        port=st.integers(0, 65535),
        keys=st.lists(st.from_regex(r"[!-~]{1,20}", fullmatch=True), max_size=2).map(tuple),
        max_body_bytes=COUNTS,
        max_waiting=st.none() | st.integers(0, 2**40),
        max_wait_s=st.floats(0.001, 1e5),
        keep_alive_s=st.floats(0, 1e5),
    ),
    ram_bytes=st.none() | st.integers(1, 2**50),
    source=st.just("s.yaml"),
)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["models", "gateway", "m", "checkpoint", "port", "keys", "limits", "engine_args", "ram"]
            )
            | st.text(max_size=3)
            | st.integers(),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
# Where a key may stand → (the keys that are legal there, the path in front of it).
LEVELS = {
    "stack": ({"models", "name", "ram", "engine", "runtime", "gateway"}, ""),
    "model": ({"checkpoint", "engine", "runtime", "context", "concurrency", "engine_args"}, "models.m."),
    "gateway": ({"host", "port", "keys", "limits"}, "gateway."),
    "limits": ({"max_body_bytes"}, "gateway.limits."),
}


def with_key(level, key):
    document = {"models": {"m": {"checkpoint": "a.gguf"}}, "gateway": {"limits": {}}}
    place = {
        "stack": document,
        "model": document["models"]["m"],
        "gateway": document["gateway"],
        "limits": document["gateway"]["limits"],
    }[level]
    place[key] = 1
    return document


@given(STACKS)
def test_a_dumped_stack_decodes_to_itself(stack):
    """Nothing is lost between a stack and its file."""
    document = json.loads(json.dumps(dump_stack(stack)))

    assert decode_stack(document, source="s.yaml", default_name="other") == stack


class _QuotingDumper(yaml.SafeDumper):
    """Quotes all text: PyYAML writes YAML 1.1, where 0E0 is text; stack files are YAML 1.2: a number."""


_QuotingDumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)


@given(STACKS)
@settings(max_examples=30)
def test_a_stack_survives_yaml(stack):
    """The loader reads what a YAML writer writes."""
    # Paths are read as paths from the root.
    assume(not any(model.checkpoint.endswith(".gguf") for model in stack.models))
    assume(not any(model.checkpoint.startswith(("./", "../", "~")) for model in stack.models))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.yaml"
        path.write_text(
            yaml.dump(dump_stack(stack), Dumper=_QuotingDumper, allow_unicode=True, sort_keys=False),
            encoding="utf-8",
        )

        read = read_stack(path)

    assert (read.name, read.models, read.gateway, read.ram_bytes) == (
        stack.name, stack.models, stack.gateway, stack.ram_bytes,
    )  # fmt: skip


@given(st.sampled_from(sorted(LEVELS)), st.from_regex(r"[a-z_]{1,20}", fullmatch=True))
def test_a_misspelt_key_always_reports_its_path(level, key):
    """Whatever was typed, the message says where."""
    legal, path = LEVELS[level]
    assume(key not in legal and key not in PLANNED_KEYS[level])

    try:
        decode_stack(with_key(level, key), source="s.yaml", default_name="s")
    except StackFileError as error:
        assert error.message.startswith(f"s.yaml: {path}{key}: unknown key; ")
    else:
        raise AssertionError(f"{path}{key} was accepted")


@given(DOCUMENTS)
@settings(max_examples=300)
def test_any_document_is_a_stack_or_one_clear_error(document):
    """No content of a file shows a traceback, and every message can be printed."""
    try:
        decode_stack(document, source="s.yaml", default_name="s")
    except StackFileError as error:
        error.message.encode()
        assert error.message.startswith("s.yaml")


@given(st.binary(max_size=60) | st.text("{}[]:,-#&*!|>'\"%@`\n\t ab1~<=?.", max_size=40).map(str.encode))
@settings(max_examples=300)
def test_any_bytes_are_a_stack_or_one_clear_error(data):
    """A wrong path is answered with a sentence, whatever the file holds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.yaml"
        path.write_bytes(data)
        try:
            read_stack(path)
        except StackFileError as error:
            error.message.encode()
            assert error.message.startswith(str(path))
