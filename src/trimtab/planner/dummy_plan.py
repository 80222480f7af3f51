"""Pure. A planned model as it is started with dummy weights: its settings, another folder, no download."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trimtab.core.plan import ModelPlan, Plan, Setting
from trimtab.engines.vllm_flags import find_flag
from trimtab.errors import StackFileError
from trimtab.planner.stack_plan import with_checkpoint

__all__ = ["with_dummy_weights"]

# What needs a tokenizer, and changes neither memory nor speed.
_OF_TEXT: Final = frozenset(
    {
        "reasoning_parser",
        "tool_call_parser",
        "enable_auto_tool_choice",
        "chat_template",
        "default_chat_template_kwargs",
    }
)


def with_dummy_weights(plan: Plan, name: str, folder: str, *, has_tokenizer: bool) -> Plan:
    """The plan of ``name`` alone, one replica, from ``folder`` with random weights.

    StackFileError where there is no tokenizer and that version cannot do without one.
    """
    model = next(item for item in plan.models if item.name == name)
    changed = replace(
        model, settings=_settings_of(model, has_tokenizer=has_tokenizer), replicas=model.replicas[:1]
    )
    return with_checkpoint(replace(plan, models=(changed,), externals=()), name, folder)


def _settings_of(model: ModelPlan, *, has_tokenizer: bool) -> tuple[Setting, ...]:
    kept = [item for item in model.settings if item.name != "load_format"]
    kept.append(
        Setting(name="load_format", value="dummy", origin="chosen", reason="nothing is downloaded for a try")
    )
    if has_tokenizer:
        return tuple(kept)
    if find_flag(model.engine_version, "skip_tokenizer_init") is None:
        raise StackFileError(
            f"models.{model.name}: there is no tokenizer, and vLLM {model.engine_version} does not start"
            " without one",
            hint="name a folder that holds tokenizer.json beside config.json",
        )
    kept = [item for item in kept if item.name not in {*_OF_TEXT, "skip_tokenizer_init"}]
    reason = "there is no tokenizer; prompts are token ids"
    return (*kept, Setting(name="skip_tokenizer_init", value=True, origin="chosen", reason=reason))
