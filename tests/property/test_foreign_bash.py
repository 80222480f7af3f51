"""I/O. Bash itself is asked what a command line means: the reader that runs nothing has to agree."""

import shutil
import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trimtab.stackfile.foreign_shell import read_script

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="bash is not installed")

# What both get to know beforehand. UNSET is not among them, and only used with a default.
ASSIGNMENTS = """\
A='two  words'
B=
C=" edge "
D=plain
L=(one "two three" '' "$A")
L+=(last)
export E="$D-$A"
F=${UNSET:-fallback}$D
F+=' more'
"""
# Bash runs the line with a function in the program's place, which only prints; wildcards and braces are
# files and lists to bash, and are left alone by the reader.
PRELUDE = "set -f +B\nvllm() { printf '%s\\0' \"$@\"; }\n"
TEXT = st.text(st.sampled_from("ab09 .,:/=+-_@%\u00e4\u4e2d*?[]{}#~;&|<>()\"'!\t"), max_size=6)
PLAIN = st.text(st.sampled_from("ab09.,:/=+-_@%\u00e4"), min_size=1, max_size=4)
NAMED = """
    ${A} ${B} ${C} ${D} ${D:-x} ${B-x} ${UNSET:+x} ${A:+set} ${E} ${F} ${L[0]} ${L[1]}
    ${UNSET:-$A} ${UNSET:-${D}}
"""
PARAMETERS = st.sampled_from([*NAMED.split(), "${B:-x y}", "${UNSET:-d e}", "${B:-'q u'}", '${B:-"q u"}'])
# A bare name would run into what follows.
BARE = st.sampled_from(["$A", "$B", "$C", '"$A"', "$F.$A", '$C"$C"$C', "-$C-", "$E=$D"])
LISTS = st.sampled_from(['"${L[@]}"', "${L[@]}", '"${L[*]}"', 'x"${L[@]}"y'])


def double_quoted(pieces):
    return '"' + "".join(pieces) + '"'


def escaped(text):
    """Each character behind a backslash; a letter follows, as blanks behind the last one are a slip."""
    return "".join(f"\\{char}" for char in text) + "x"


INSIDE = st.text(st.sampled_from("ab09 .,:/=+-_@%\u00e4*?{}#~;&|<>()'\t"), max_size=6)
ESCAPES = st.sampled_from(['\\"', "\\\\", "\\$", "\\a", "\\`", "\\'"])
PIECES = st.one_of(
    PLAIN,
    TEXT.map(lambda text: "'" + text.replace("'", "") + "'"),
    st.lists(INSIDE | ESCAPES | PARAMETERS, max_size=4).map(double_quoted),
    PARAMETERS,
    TEXT.map(escaped),
    st.sampled_from(["$'a\\nb'", "$'it\\'s'", '""', "''", "a#b", "\\\n", "a\\\nb"]),
)
WORDS = st.lists(PIECES, min_size=1, max_size=4).map("".join) | LISTS | BARE
GAPS = st.sampled_from([" ", "  ", "\t", " \\\n  ", "\\\n "])
ENDS = st.sampled_from(
    ["", " > /dev/stdout", " 2>&1", " # done", " ; true", " && true", " || true", " | cat", "\n"]
)


def bash_arguments(script):
    done = subprocess.run(
        [BASH, "--norc", "--noprofile", "-c", PRELUDE + script],
        capture_output=True, env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}, timeout=20, check=True,
    )  # fmt: skip
    return done.stdout.decode().split("\0")[:-1]


def our_arguments(script):
    (launch,) = read_script(script).launches
    return ["serve", *(argument.text for argument in launch.arguments)]


@given(st.lists(st.tuples(GAPS, WORDS), max_size=6), ENDS)
@example([(" ", '"a\\\nb"')], "")
@example([(" ", "'a\nb'")], "")
@example([(" ", '$C"$C"$C')], "")
@example([(" ", "${B:-'q u'}")], "")
@settings(max_examples=150, deadline=None)
def test_arguments_are_what_bash_makes_of_them(words, end):
    """Quotes, escapes, blanks in variables, arrays and continued lines: the engine would get the same."""
    script = f"{ASSIGNMENTS}vllm serve{''.join(gap + word for gap, word in words)}{end}\n"

    assert our_arguments(script) == bash_arguments(script)


@given(st.lists(WORDS, max_size=3), st.lists(WORDS, max_size=3))
@settings(max_examples=60, deadline=None)
def test_functions_and_positional_arguments_are_what_bash_makes_of_them(first, second):
    """A script that starts its models through a function passes on what bash would."""
    script = (
        f'{ASSIGNMENTS}start() {{\n  local one=$1 two="${{2:-none}}"\n'
        f'  vllm serve "$one" $two "$@" "${{3:-x}}" "$*" $* "${{9-y}}"\n}}\n'
        f"start {' '.join(first)} {' '.join(second)}\n"
    )

    assert our_arguments(script) == bash_arguments(script)
