"""A plan as it is tried: the same settings, random weights, no download; without a tokenizer by token ids."""

from __future__ import annotations

from dataclasses import replace

import pytest
from vllm_plans import SEED_AWQ, plan_of

from trimtab.errors import StackFileError
from trimtab.launcher.specs import SpecOptions, specs_of
from trimtab.planner import dummy_plan
from trimtab.planner.dummy_plan import with_dummy_weights

PLAN = plan_of("4xrtx4090", *(replace(model, runtime="process") for model in SEED_AWQ))
FIRST, SECOND = PLAN.models
OPTIONS = SpecOptions(trimtab_version="0", dies_with_supervisor=True, vllm_programs={"0.17.0": "/x/vllm"})


def tried(**options):
    return with_dummy_weights(PLAN, SECOND.name, "/cache/dummy", **({"has_tokenizer": True} | options))


def test_one_model_is_started_from_its_folder_with_random_weights():
    """On its planned cards, with every planned setting; the hub is not asked."""
    (model,) = tried().models
    (spec,) = specs_of(tried(), OPTIONS)

    assert spec.argv[:3] == ("/x/vllm", "serve", "/cache/dummy")
    assert spec.argv[spec.argv.index("--load-format") + 1] == "dummy"
    assert spec.gpus == SECOND.replicas[0].gpus
    assert dict(spec.env)["HF_HUB_OFFLINE"] == "1"
    assert {item.name for item in SECOND.settings} < {item.name for item in model.settings}
    assert spec.takes_ids is False


def test_without_a_tokenizer_it_is_asked_by_ids():
    """What only reads text is left out, for it would not start; nothing of it moves memory or speed."""
    (spec,) = specs_of(tried(has_tokenizer=False), OPTIONS)

    assert spec.takes_ids is True
    assert "--skip-tokenizer-init" in spec.argv
    assert "--default-chat-template-kwargs" not in spec.argv
    assert "--max-model-len" in spec.argv


def test_a_version_that_needs_a_tokenizer_says_so(monkeypatch):
    """One sentence, not a start that fails minutes later; every version from 0.17 to 0.33 has the switch."""
    monkeypatch.setattr(dummy_plan, "find_flag", lambda version, name: None)
    with pytest.raises(StackFileError, match="there is no tokenizer, and vLLM"):
        tried(has_tokenizer=False)


def test_the_plan_itself_is_not_changed():
    """Its fingerprint, and with it the calibration's key, stays the user's."""
    tried()

    assert PLAN.models == (FIRST, SECOND)
    assert "load_format" not in {item.name for item in SECOND.settings}
