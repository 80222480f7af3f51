"""Short ways to wish models on cards, with the facts that ship with trimtab or a test's own."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from trimtab.core.model_facts import ModelFacts
from trimtab.core.model_parts import ModelParts
from trimtab.core.stack import ModelRequest
from trimtab.planner.gpu_spec import decode_gpu_spec
from trimtab.planner.model_parts import decode_parts
from trimtab.planner.vllm_plan import VllmOutcome, plan_vllm
from trimtab.planner.vllm_versions import find_version
from trimtab.planner.vllm_wish import VllmWish
from trimtab.probes.builtin_models import read_builtin_model

MOE_AWQ = "cyankiwi/Qwen3.5-35B-A3B-AWQ-4bit"
DENSE_AWQ = "cyankiwi/Qwen3.5-27B-AWQ-4bit"
MOE_FP8 = "Qwen/Qwen3.5-35B-A3B-FP8"
DENSE_FP8 = "Qwen/Qwen3.5-27B-FP8"


@lru_cache
def known(repo: str) -> tuple[ModelFacts, ModelParts]:
    """Facts and parts of a built-in repository."""
    model = read_builtin_model(repo)
    assert model is not None, repo
    return model.facts, decode_parts(model.facts)


def wish(repo: str, *, version: str = "0.25.1", facts: ModelFacts | None = None, **request: Any) -> VllmWish:
    """A wish by repository name; ``engine_args`` may be a dict."""
    own, parts = known(repo) if facts is None else (facts, decode_parts(facts))
    pins = tuple(dict(request.pop("engine_args", {})).items())
    name = request.pop("name", repo.rpartition("/")[2])
    return VllmWish(
        request=ModelRequest(name=name, checkpoint=repo, engine_args=pins, **request),
        checkpoint=repo,
        facts=own,
        parts=parts,
        version=find_version(version),
    )


def plan(gpus: str, *wishes: VllmWish, alternatives: tuple[str, ...] = ()) -> VllmOutcome:
    """Those wishes on those cards; ``alternatives`` are repositories to try when nothing fits."""

    def find(missed: VllmWish) -> tuple[VllmWish, ...]:
        return tuple(
            replace(missed, checkpoint=repo, facts=known(repo)[0], parts=known(repo)[1])
            for repo in alternatives
        )

    return plan_vllm(wishes, decode_gpu_spec(gpus), find)


def setting(outcome: VllmOutcome, name: str, model: int = 0) -> Any:
    """The value of one setting of a planned model, None when it is not set."""
    return next((item.value for item in outcome.models[model].settings if item.name == name), None)


def codes(outcome: VllmOutcome) -> set[str]:
    """Codes of everything that was rejected."""
    return {rejection.code for rejection in outcome.rejections}
