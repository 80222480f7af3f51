"""However a stream is cut, thought and answer come out the same, and nothing waits for long."""

import json
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.gateway.assemble import decode_events
from trimtab.gateway.reasoning_answer import reshape_body
from trimtab.gateway.reasoning_form import AnswerShape
from trimtab.gateway.reasoning_split import CLOSER, MAX_HELD_CHARS, OPENER, ReasoningSplitter
from trimtab.gateway.reasoning_stream import ReasoningStream

TAGGED = st.lists(
    st.sampled_from(
        [OPENER, CLOSER, "<tool_call>", "</tool_call>", "<", ">", "</", "<thi", "nk>", "\n", "\n\n", " ",
         "`", "```", '"', "a", "Let me see", "ä€😀", "a < b", "<b>"]
    ),
    max_size=14,
).map("".join)  # fmt: skip
MODES = st.fixed_dictionaries({"is_thinking": st.booleans(), "starts_inside": st.booleans()})
REASONS = st.sampled_from([None, "stop", "length", "tool_calls"])


def joined(pieces):
    texts = {"reasoning": "", "content": ""}
    for piece in pieces:
        assert piece.text
        texts[piece.kind] += piece.text
    return texts


def split(chunks, mode, reason="length"):
    splitter = ReasoningSplitter(**mode)
    pieces = [piece for chunk in chunks for piece in splitter.feed_content(chunk)]
    return joined(pieces + splitter.finish(reason))


def cut(text, data):
    at = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[start:end] for start, end in zip([0, *at], [*at, len(text)], strict=True)]


@settings(max_examples=500)
@given(TAGGED, MODES, REASONS, st.data())
def test_any_cut_gives_the_same_two_texts(text, mode, reason, data):
    """What a client sees does not depend on how the network cut the stream."""
    assert split(cut(text, data), mode, reason) == split([text], mode, reason)


@given(TAGGED, MODES)
def test_one_character_at_a_time_gives_the_same(text, mode):
    """The finest cut of all."""
    assert split(list(text), mode) == split([text], mode)


@given(TAGGED, MODES)
def test_nothing_but_tags_and_their_line_ends_is_lost(text, mode):
    """No word of thought or answer disappears or appears twice."""
    both = split([text], mode)

    # Taking a tag out may bring another one together: only what stands in no tag is compared.
    letters = re.sub(r"[</think>]|\s", "", text)
    assert sorted(re.sub(r"[</think>]|\s", "", both["reasoning"] + both["content"])) == sorted(letters)


@given(st.text(alphabet=st.characters(exclude_characters="<")), MODES, st.data())
def test_text_without_tags_passes_at_once(text, mode, data):
    """An ordinary answer is neither delayed nor altered."""
    splitter = ReasoningSplitter(**mode)
    for chunk in cut(text, data):
        assert "".join(piece.text for piece in splitter.feed_content(chunk)) == chunk


@given(TAGGED, MODES, st.data())
def test_at_most_an_unfinished_tag_is_held(text, mode, data):
    """What waits is shorter than a tag, and is the beginning of one."""
    splitter = ReasoningSplitter(**mode)
    for chunk in cut(text, data):
        splitter.feed_content(chunk)
        held = splitter._held
        assert len(held) <= MAX_HELD_CHARS
        assert not held or any(tag.startswith(held) for tag in (OPENER, CLOSER, "<tool_call>"))


@settings(max_examples=500)
@given(TAGGED, TAGGED, st.data())
def test_fields_of_the_engine_are_cut_like_text(thought, answer, data):
    """An engine that splits by itself gives the same two texts in any chunking."""

    def run(thoughts, answers):
        splitter = ReasoningSplitter(is_thinking=True, starts_inside=True)
        pieces = [piece for chunk in thoughts for piece in splitter.feed_reasoning(chunk)]
        pieces += [piece for chunk in answers for piece in splitter.feed_content(chunk)]
        return joined(pieces + splitter.finish("length"))

    assert run(cut(thought, data), cut(answer, data)) == run([thought], [answer])


@given(st.text(alphabet="ab <>\n`"), st.data())
def test_without_thinking_the_engines_thought_is_the_answer(text, data):
    """With thinking off, an engine that fills the wrong field loses nothing of the answer."""
    splitter = ReasoningSplitter(is_thinking=False)
    pieces = [piece for chunk in cut(text, data) for piece in splitter.feed_reasoning(chunk)]

    assert joined(pieces + splitter.finish("stop")) == {"reasoning": "", "content": text}


def event(delta, separators, *, index=0, finish=None):
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    text = json.dumps({"id": "c", "choices": [choice]}, ensure_ascii=False, separators=separators)
    return f"data: {text}\n\n".encode()


DELTAS = st.lists(
    st.tuples(
        st.sampled_from(["content", "reasoning", "reasoning_content", "role"]),
        st.sampled_from([OPENER, CLOSER, "<", "</thi", "nk>", "\n", "\t", '"', "`", "```", "\\", "", " ",
                         "wörd", "答", "a word", "\x7f", "\x01", '"delta":', "<tool_call>"]),
    ),
    max_size=10,
)  # fmt: skip


@settings(max_examples=300)
@given(
    DELTAS,
    st.sampled_from(["both", "reasoning_content", "reasoning", "inline", "none"]),
    st.sampled_from([(",", ":"), (", ", ": ")]),
    st.builds(dict, is_thinking=st.booleans(), starts_inside=st.booleans(), is_plain=st.booleans()),
    st.sampled_from(["stop", "length", "tool_calls"]),
)
def test_what_is_read_without_json_is_what_json_says(deltas, form, separators, mode, finish):
    """The short way through an event gives what the long way gives."""
    shape = AnswerShape(form=form, **mode)
    events = [event({name: text}, separators) for name, text in deltas]
    events += [event({}, separators, finish=finish)]
    short, long = ReasoningStream(shape), ReasoningStream(shape)

    for one in events:
        assert decode_events(short.feed(one)) == decode_events(long._feed_document(one))
    assert short.end() == long.end()


@settings(max_examples=300)
@given(
    TAGGED,
    TAGGED,
    st.sampled_from(["both", "reasoning_content", "inline", "none"]),
    st.builds(dict, is_thinking=st.booleans(), starts_inside=st.booleans(), is_plain=st.booleans()),
    st.sampled_from(["stop", "length"]),
    st.data(),
)
def test_streamed_and_whole_answers_say_the_same(thought, answer, form, mode, finish, data):
    """Whether a client streams or not, it reads the same thought and the same answer."""
    shape = AnswerShape(form=form, **mode)
    stream = ReasoningStream(shape)
    deltas = [{"reasoning": text} for text in cut(thought, data)]
    deltas += [{"content": text} for text in cut(answer, data)]
    last = deltas.pop() if data.draw(st.booleans()) else {}
    out = b"".join(stream.feed(event(delta, (",", ":"))) for delta in deltas)
    out += stream.feed(event(last, (",", ":"), finish=finish))
    message = {"role": "assistant", "content": answer, "reasoning": thought}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    body, _ = reshape_body(json.dumps({"choices": [choice]}).encode(), shape)

    whole = json.loads(body)["choices"][0]["message"]
    for field in ("content", "reasoning", "reasoning_content"):
        pieces = [one["choices"][0]["delta"].get(field) for one in decode_events(out)]
        assert "".join(piece for piece in pieces if piece) == (whole.get(field) or ""), field
