"""Pure. Any text at all, and any settings written as a command line."""

import json
import shlex

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trimtab.engines.vllm_flags import find_flag, flag_names
from trimtab.errors import StackFileError
from trimtab.stackfile.foreign import decode_foreign
from trimtab.stackfile.foreign_check import check_foreign
from trimtab.stackfile.foreign_model import ForeignStack

VERSION = "0.25.1"
# Flags that say where to listen or hold secrets have places of their own.
PLACED = {"model", "model_tag", "served_model_name", "host", "port", "api_key", "hf_token", "config"}
# What launch commands are made of, one piece a word, and the blanks and strays between them.
VOCABULARY = """
    vllm serve docker run --gpus all -e A=b $A ${A} ${A:- } $( ) ` ' " \\ ( | & ; <<EOF EOF # if fi for
    do done { f() eval bash -c vllm/vllm-openai:v0.25.1 --model
    --tensor-parallel-size 2 -tp --x.y = A=( services:
    image: *a &a <<: {} [ ] ${A[@]} $1 -O3 -- -
"""
STRAYS = ["- ", "\n", " ", "\t", "\r\n", "\x00", "\u2013", "\u201c", "\u2019", "\u00a0", "\udcff"]
WORDS = st.sampled_from(VOCABULARY.split() + STRAYS)
BEGINNINGS = st.sampled_from(
    [
        "",
        "vllm serve m ",
        "docker run --gpus all vllm/vllm-openai m ",
        "services: {m: {image: vllm, command: m}}\n",
    ]
)
PIECES = st.lists(WORDS | st.text(max_size=4), max_size=60).map("".join)
TEXTS = st.tuples(BEGINNINGS, PIECES | st.lists(WORDS, max_size=40).map(" ".join)).map("".join)
NAMES = st.sampled_from([name for name in flag_names(VERSION) if name not in PLACED])
JSON = st.dictionaries(
    st.text(max_size=4), st.none() | st.booleans() | st.integers() | st.text(max_size=6), max_size=3
).map(json.dumps)
# Kind of a flag → values it can have; everything that a shell would want quoted is in the texts.
VALUES = {
    "integer": st.integers(-5, 2**62),
    "size": st.integers(-5, 2**62),
    "number": st.integers(0, 99).map(lambda percent: percent / 100),
    "json": JSON,
    "json_or_text": JSON,
    "text": st.from_regex(r"[A-Za-z][A-Za-z0-9 _./:\"'$`\\#&|;<>(){}*?~!-]{0,12}", fullmatch=True),
    "list": st.lists(st.from_regex(r"[a-z]{1,8}", fullmatch=True), min_size=1, max_size=3).map(json.dumps),
    "switch": st.booleans(),
    "switch_on": st.just(value=True),
}


@st.composite
def pinned(draw):
    """A flag of the version with a value that its kind can have, and the words that say so."""
    name = draw(NAMES)
    flag = find_flag(VERSION, name)
    option = draw(st.sampled_from(flag.options))
    value = draw(st.sampled_from(flag.choices) if flag.choices else VALUES[flag.kind])
    value = str(value) if flag.kind == "text" else value
    if flag.kind == "list" and flag.choices:
        value = json.dumps([value])
    if isinstance(value, bool):
        return name, value, [option if value else flag.negative_option]
    if flag.kind == "list":
        return name, value, [option, *json.loads(value)]
    is_joined = draw(st.booleans())
    return name, value, [f"{option}={value}"] if is_joined else [option, str(value)]


SETTINGS = st.lists(pinned(), max_size=8, unique_by=lambda pin: pin[0])


@given(TEXTS)
@example("vllm serve $(reboot)")
@example("A=(" * 3000)
@example("f() {" * 3000)
@example("$(" * 3000)
@example("${A:-" * 3000)
@example("services: {a: &a [*a]}")
@example("<<A " * 500 + "\n" * 500)
@example("vllm serve m " + "--a.b.c 1 " * 400)
@example("vllm serve m -tp 2305843009213693952")
@example("vllm serve m --a.b 1 --a.b.c 2 --a 3")
@settings(max_examples=400, deadline=None)
def test_any_text_is_a_stack_or_a_sentence(text):
    """Nothing crashes, whatever is pasted; what comes back can be judged."""
    try:
        stack = decode_foreign(text, source="given")
    except StackFileError as error:
        assert error.message.startswith("given")
        assert "\n" not in error.message
        return
    assert isinstance(stack, ForeignStack)
    assert stack.models
    for finding in (*stack.findings, *check_foreign(stack, has_p2p=False)):
        assert finding.text
        assert finding.text.isprintable()
        assert finding.hint.isprintable()


@given(TEXTS)
@settings(max_examples=150, deadline=None)
def test_reading_twice_is_the_same(text):
    """The same file, the same answer."""

    def answer():
        try:
            return decode_foreign(text, source="given")
        except StackFileError as error:
            return (error.message, error.hint)

    assert answer() == answer()


@given(SETTINGS)
@settings(max_examples=200, deadline=None)
def test_settings_written_as_a_line_are_read_back(wanted):
    """Whatever is pinned arrives under its name with its value, in its order."""
    words = ["vllm", "serve", "org/m", *(word for _, _, words in wanted for word in words)]

    (model,) = decode_foreign(shlex.join(words), source="given").models

    assert model.request.engine_args == tuple((name, value) for name, value, _ in wanted)
    assert model.request.checkpoint == "org/m"


@given(SETTINGS, st.sampled_from([" \\\n  ", "\t", "  "]))
@settings(max_examples=100, deadline=None)
def test_the_same_settings_through_docker_and_an_array(wanted, gap):
    """A container's arguments, a script's array and a plain line say the same."""
    words = [shlex.quote(word) for _, _, words in wanted for word in words]
    run = "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.25.1 --model org/m"
    plain = decode_foreign(gap.join([run, *words]), source="given").models[0].request
    through = f'ARGS=(\n{" ".join(words)}\n)\n{run} "${{ARGS[@]}}"\n'

    assert decode_foreign(through, source="given").models[0].request == plain
    assert plain.engine_args == tuple((name, value) for name, value, _ in wanted)


@given(SETTINGS)
@settings(max_examples=100, deadline=None)
def test_the_same_settings_through_compose(wanted):
    """A list in a compose file is the same list of words."""
    words = ["--model", "org/m", *(word for _, _, words in wanted for word in words)]
    command = [word.replace("$", "$$") for word in words]
    document = {"services": {"m": {"image": "vllm/vllm-openai:v0.25.1", "gpus": "all", "command": command}}}

    (model,) = decode_foreign(yaml.safe_dump(document), source="given").models

    assert model.request.engine_args == tuple((name, value) for name, value, _ in wanted)


@given(st.from_regex(r"hf_[A-Za-z0-9]{20,30}", fullmatch=True), st.sampled_from(["'", '"', ""]), SETTINGS)
@settings(max_examples=60, deadline=None)
def test_a_token_is_nowhere_in_what_comes_back(token, quote, wanted):
    """Wherever it stood, it is dropped."""
    words = " ".join(shlex.quote(word) for _, _, words in wanted for word in words)
    text = (
        f"export HF_TOKEN={quote}{token}{quote}\n"
        f"X={token} docker run --gpus all -e HF_TOKEN -e T={quote}{token}{quote} "
        f"--frobnicate={token} vllm/vllm-openai org/m --hf-token {token} --odd {token} {words}\n"
        f"vllm serve org/n {token} --hf-token={token}\n"
    )
    stack = decode_foreign(text, source="given")

    assert token not in repr((stack, check_foreign(stack)))
