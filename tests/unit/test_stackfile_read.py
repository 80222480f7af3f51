"""I/O. A stack file from disk: whatever is wrong with it is one sentence with its place."""

import dataclasses
from pathlib import Path

import pytest
import yaml

from trimtab.errors import StackFileError
from trimtab.stackfile.read import is_stack_path, read_stack
from trimtab.stackfile.wire import GatewayEntry, LimitsEntry, ModelEntry, StackEntry, SwapEntry

ROOT = Path(__file__).parents[2]
ONE_MODEL = "models:\n  m:\n    checkpoint: a.gguf\n"


def read(tmp_path, content):
    path = tmp_path / "stack.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_stack(path)


def fault_of(tmp_path, content):
    with pytest.raises(StackFileError) as caught:
        read(tmp_path, content)
    return caught.value.message.removeprefix(str(tmp_path / "stack.yaml"))


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "examples").glob("*.yaml")))
def test_examples_load(name):
    """The files that newcomers copy work."""
    assert read_stack(ROOT / "examples" / name).models


def keys_of(entry):
    return {one.name for one in dataclasses.fields(entry)}


def test_an_example_shows_every_key():
    """Whoever looks for a key finds it in one file, at its level, with a word on what it does."""
    text = (ROOT / "examples" / "every-key.yaml").read_text()
    document = yaml.safe_load(text)

    assert set(document) == keys_of(StackEntry)
    assert set().union(*document["models"].values()) == keys_of(ModelEntry)
    assert set(document["swap"]) == keys_of(SwapEntry)
    assert set(document["gateway"]) == keys_of(GatewayEntry)
    assert set(document["gateway"]["limits"]) == keys_of(LimitsEntry)
    told = {line.partition(":")[0].strip() for line in text.splitlines() if " # " in line}
    levels = (StackEntry, ModelEntry, SwapEntry, GatewayEntry, LimitsEntry)
    assert set().union(*map(keys_of, levels)) - {"models", "gateway", "limits"} <= told


def test_the_example_with_every_key_says_what_it_seems_to():
    """No value is lost on the way: the example decodes to what is written there."""
    stack = read_stack(ROOT / "examples" / "every-key.yaml")
    chat, small, elsewhere = stack.models

    assert (stack.name, stack.gpus, stack.ram_bytes) == ("every-key", "2x rtx4090", 64 * 2**30)
    assert (chat.context, chat.concurrency, chat.replicas, chat.thinking) == (32768, 16, 2, "off")
    assert (chat.gpus, chat.keep_loaded, chat.priority) == ("0,1", True, 1)
    assert chat.engine_args == (("enable_prefix_caching", True),)
    assert (small.engine, small.engine_version) == ("llama_cpp", "2026.10.11549")
    assert (elsewhere.upstream_model, elsewhere.api_key_env) == ("big-model", "EXAMPLE_API_KEY")
    assert stack.gateway.max_waiting == 2000
    assert stack.gateway.reasoning_fields_by_key == (("change-me", "inline"),)


def test_readme_shows_the_example_for_four_cards():
    """What is printed in the README is the file that the tests load."""
    example = (ROOT / "examples" / "four-4090.yaml").read_text().partition("\n")[2]

    assert example in (ROOT / "README.md").read_text()


def test_readme_example_is_the_minimal_one():
    """The stack file in the README is one that the tests load."""
    checkpoint = read_stack(ROOT / "examples" / "minimal.yaml").models[0].checkpoint

    assert f"    checkpoint: {checkpoint}" in (ROOT / "README.md").read_text()


def test_relative_checkpoints_are_taken_from_the_file_s_folder(tmp_path, monkeypatch):
    """A stack file works from any folder."""
    monkeypatch.setenv("HOME", "/home/of-somebody")
    stack = read(
        tmp_path,
        "models:\n  a: {checkpoint: sub/m.gguf}\n  b: {checkpoint: /abs/m.gguf}\n"
        "  c: {checkpoint: '~/m.gguf'}\n  d: {checkpoint: org/repo}\n  e: {checkpoint: 'org/repo:m.gguf'}\n",
    )

    assert [model.checkpoint for model in stack.models] == [
        str(tmp_path / "sub/m.gguf"),
        "/abs/m.gguf",
        "/home/of-somebody/m.gguf",
        "org/repo",
        "org/repo:m.gguf",
    ]


@pytest.mark.parametrize("checkpoint", ["~nobody-of-that-name/m", "~nobody-of-that-name", "~0"])
def test_the_home_of_nobody_is_refused_in_a_sentence(tmp_path, checkpoint):
    """A misspelt user is named, with the key it stands under."""
    with pytest.raises(
        StackFileError, match=r"models\.a\.checkpoint: '~[^/]+' is the home of nobody"
    ) as caught:
        read(tmp_path, f"models:\n  a: {{checkpoint: '{checkpoint}'}}\n")

    assert "~/" in caught.value.hint


def test_name_defaults_to_the_file_s_name(tmp_path):
    """What is started is labelled, whatever the file is called."""
    path = tmp_path / "my box.yaml"
    path.write_text(ONE_MODEL)

    assert read_stack(path).name == "my-box"


def test_a_byte_order_mark_does_not_matter(tmp_path):
    """Files written on Windows load."""
    assert read(tmp_path, b"\xef\xbb\xbf" + ONE_MODEL.replace("\n", "\r\n").encode()).models[0].name == "m"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", True),
        ("off", False),
        ("yes", True),
        ("~", None),
        ("0x1f", 31),
        ("1_000", 1000),
        ("1e3", 1000.0),
        ("-.5", -0.5),
        ("010", "010"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("0.25.1", "0.25.1"),
        ("q8_0", "q8_0"),
        ("'1'", "1"),
    ],
)
def test_values_are_read_as_people_mean_them(tmp_path, text, value):
    """No clock times, octal numbers or dates where none were meant; on and off are switches."""
    stack = read(tmp_path, f"{ONE_MODEL}    engine_args: {{a: {text}}}\n")

    (pair,) = stack.models[0].engine_args
    assert pair == ("a", value)
    assert type(pair[1]) is type(value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("", " is empty", id="empty"),
        pytest.param("# later\n", " is empty", id="comments only"),
        pytest.param(ONE_MODEL.encode("utf-16"), " is not UTF-8 text: byte 0 is 0xff", id="utf-16"),
        pytest.param(
            ONE_MODEL + "  m:\n    checkpoint: b\n",
            " is not YAML: 'm' is there twice, on lines 2 and 4 (line 4, column 3)",
            id="two models of one name",
        ),
        pytest.param(
            ONE_MODEL + "\tram: 1\n",
            " is not YAML: found character '\\t' that cannot start any token (line 4, column 1)",
            id="tab",
        ),
        pytest.param(
            ONE_MODEL + "---\nmodels: {}\n",
            " is not YAML: a second document begins (line 4, column 1)",
            id="two documents",
        ),
        pytest.param(
            "a: &a [x]\nb: *a\n",
            " is not YAML: aliases (*a) are not used in stack files (line 2, column 4)",
            id="alias",
        ),
        pytest.param(
            "? [1]\n: 2\n",
            " is not YAML: a key must be plain text (line 1, column 3)",
            id="key that is a list",
        ),
        pytest.param(
            "a: !!python/object/apply:os.getpid []\n",
            " is not YAML: the tag !!python/object/apply:os.getpid is not used in stack files "
            "(line 1, column 4)",
            id="python object",
        ),
        pytest.param(
            "a: !!int x\n", " is not YAML: 'x' is not a legal int (line 1, column 4)", id="no number"
        ),
        pytest.param(
            "a: !!map x\n", " is not YAML: a !!map is keys and values (line 1, column 4)", id="no mapping"
        ),
        pytest.param("a: !!seq x\n", " is not YAML: a !!seq is a list (line 1, column 4)", id="no list"),
        pytest.param("a: b\0\n", " is not YAML: character 4 is 0x00, which YAML does not allow", id="nul"),
        pytest.param("[" * 50_000, " is nested too deeply to be a stack file", id="deep"),
        pytest.param(
            "#" * 1_100_000, " is larger than 1,048,576 bytes, too large for a stack file", id="large"
        ),
    ],
)
def test_a_file_that_is_no_stack_gets_one_sentence(tmp_path, content, message):
    """Where, what, and in which line."""
    assert fault_of(tmp_path, content) == message


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(f"{ONE_MODEL}x: [{'1,' * 30_000}]\n", id="many values"),
        pytest.param(f"a: {'9' * 5000}\n", id="number of 5,000 digits"),
    ],
)
def test_a_file_that_would_cost_much_is_refused(tmp_path, content):
    """A mistaken path does not keep the machine busy."""
    assert " is not YAML: " in fault_of(tmp_path, content)


def test_missing_file_names_its_neighbours(tmp_path):
    """A typo in the path is seen at once."""
    (tmp_path / "box.yaml").write_text(ONE_MODEL)

    with pytest.raises(StackFileError, match=r"bax\.yaml does not exist") as caught:
        read_stack(tmp_path / "bax.yaml")
    assert caught.value.hint == f"in {tmp_path} there are: box.yaml"


def test_folder_is_no_stack_file(tmp_path):
    """A folder named like a file is told apart."""
    with pytest.raises(StackFileError, match="is a folder, not a file"):
        read_stack(tmp_path)


def test_unreadable_file_gives_the_system_s_reason(tmp_path):
    """A path that cannot be followed is told apart from a missing file."""
    (tmp_path / "file").write_text(ONE_MODEL)

    with pytest.raises(StackFileError, match="cannot be read: not a directory"):
        read_stack(tmp_path / "file" / "stack.yaml")


@pytest.mark.parametrize(
    ("text", "is_stack"), [("a.yaml", True), ("a.yml", True), ("a.gguf", False), ("org/m", False)]
)
def test_an_ending_tells_a_stack_file(text, is_stack):
    """MODEL and STACK share one argument."""
    assert is_stack_path(text) is is_stack
