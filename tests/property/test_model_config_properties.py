"""Model configs that are wrong in any one place: an answer or one clear sentence, never a traceback."""

from __future__ import annotations

import copy
import json
from typing import Any

from checkpoint_facts import AWQ_G128, INT4_ALL_BUT_LINEAR_ATTN, config_names, read_config
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.errors import TrimtabError
from trimtab.planner.model_config import decode_model_config
from trimtab.planner.model_parts import decode_parts
from trimtab.planner.tensor_inventory import render_inventory, sum_bytes
from trimtab.planner.vllm_weights import WeightSettings, estimate_weights

NAMES = [name for name in config_names() if "397B" not in name and "122B" not in name]
BLOCKS: list[dict[str, Any]] = [
    dict(AWQ_G128),
    copy.deepcopy(INT4_ALL_BUT_LINEAR_ATTN),
    {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 128,
        "dynamic": {"-:.*attn.*": {}, "+:.*mlp.*": {"bits": 8}},
    },
    {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["gate"]},
    {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head"]},
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**18) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)


def places(value: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every key of a config, nested ones included."""
    if not isinstance(value, dict):
        return []
    found: list[tuple[str, ...]] = []
    for key, inner in value.items():
        found += [(*path, key), *places(inner, (*path, key))]
    return found


@settings(max_examples=400, deadline=None)
@given(name=st.sampled_from(NAMES), value=json_values, data=st.data())
def test_one_wrong_value_gives_a_plan_or_one_sentence(name: str, value: Any, data: st.DataObject) -> None:
    """Any value in any place: it is harmless, or refused with the file's name in the message."""
    config = read_config(name)
    if data.draw(st.booleans()):
        config["quantization_config"] = copy.deepcopy(data.draw(st.sampled_from(BLOCKS)))
    found = places(config)
    quant = [place for place in found if place[0] == "quantization_config"]
    path = data.draw(st.sampled_from(quant if quant and data.draw(st.booleans()) else found))
    holder = config
    for key in path[:-1]:
        holder = holder[key]
    if value is None:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    try:
        facts = decode_model_config(config, where="m/config.json")
        parts = decode_parts(facts)
        assert sum_bytes(render_inventory(parts, dtype=facts.dtype)) > 0
        wanted = WeightSettings(tensor_parallel_size=2, is_language_model_only=True)
        assert estimate_weights(facts, parts, wanted)[0].weights_bytes > 0
    except TrimtabError as error:
        assert "\n" not in error.message
        assert error.message[0] == error.message[0].lower()
        assert error.message.startswith(("m/config.json", "quantization_config"))


@settings(max_examples=60, deadline=None)
@given(value=json_values)
def test_any_json_is_answered_with_one_sentence(value: Any) -> None:
    """A config.json that isn't one at all is refused the same way."""
    try:
        decode_model_config(json.loads(json.dumps(value)), where="m/config.json")
    except TrimtabError as error:
        assert error.message.startswith("m/config.json")
    else:
        raise AssertionError("a random JSON value was taken for a model")
