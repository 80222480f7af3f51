"""Pure. ModelFacts → ModelParts: every Linear, expert set and parameter, with its quantisation decided.

A Linear whose shards the mask treats differently comes out as one part per shard under the same
engine name: the checkpoint may hold that, engines refuse it.
"""

from __future__ import annotations

from collections.abc import Iterator

from trimtab.core.model_facts import LayerFacts, ModelFacts, QuantScheme, TensorPart, VisionFacts
from trimtab.core.model_parts import ExpertsPart, LinearPart, LinearShard, ModelParts, ParameterPart, Split
from trimtab.planner.layer_parts import (
    ExpertsTemplate,
    LinearTemplate,
    ParameterTemplate,
    Template,
    render_layer,
)
from trimtab.planner.quant_config import scheme_of

__all__ = ["VOCAB_PADDING", "decode_parts"]

VOCAB_PADDING = 64
"""vLLM rounds the vocabulary up to this before splitting (vocab_parallel_embedding.py, 0.17-0.33)."""


def decode_parts(facts: ModelFacts) -> ModelParts:
    """All parts of a model, in the order the engine builds them."""
    collected = _Collector(facts)
    _add_vision(collected, facts.vision)
    rows = (facts.vocab_size, facts.hidden_size)
    collected.add(_vocabulary(f"{facts.prefix}.embed_tokens.weight", rows), (0,))
    for layer, indices in _grouped(facts.layers):
        for template in render_layer(facts, layer, f"{facts.prefix}.layers.{{l}}"):
            collected.add(template, indices)
    collected.add(ParameterTemplate(name=f"{facts.prefix}.norm.weight", shape=(facts.hidden_size,)), (0,))
    if not facts.has_tied_embeddings:
        collected.add_head(_head_name(facts), rows)
    _add_mtp(collected, facts)
    return ModelParts(
        linears=tuple(collected.linears),
        experts=tuple(collected.experts),
        parameters=tuple(collected.parameters),
    )


def _head_name(facts: ModelFacts) -> str:
    return "language_model.lm_head" if facts.prefix == "language_model.model" else "lm_head"


def _grouped(layers: tuple[LayerFacts, ...]) -> Iterator[tuple[LayerFacts, tuple[int, ...]]]:
    groups: dict[LayerFacts, list[int]] = {}
    for index, layer in enumerate(layers):
        groups.setdefault(layer, []).append(index)
    for layer, indices in groups.items():
        yield layer, tuple(indices)


def _vocabulary(name: str, shape: tuple[int, int]) -> ParameterTemplate:
    return ParameterTemplate(name=name, shape=shape, split_dim=0)


class _Collector:
    """Turns templates into parts: asks the mask per layer and keeps layers that agree together."""

    def __init__(self, facts: ModelFacts) -> None:
        self.facts = facts
        self.part: TensorPart = "language"
        self.position = 0
        self.linears: list[LinearPart] = []
        self.experts: list[ExpertsPart] = []
        self.parameters: list[ParameterPart] = []

    def add(self, template: Template, layers: tuple[int, ...]) -> None:
        """Add what ``template`` stands for in ``layers``."""
        self.position += 1
        if isinstance(template, ParameterTemplate):
            self._add_parameter(template, layers)
        elif isinstance(template, LinearTemplate):
            self._add_linear(template, layers)
        else:
            self._add_experts(template, layers)

    def add_head(self, name: str, rows: tuple[int, int]) -> None:
        """The output head: a vocabulary-parallel weight, quantised only where the mask says so."""
        self.position += 1
        scheme = scheme_of(self.facts.quant, name)
        if scheme is None:
            self.add(_vocabulary(f"{name}.weight", rows), (0,))
            return
        shard = LinearShard(name=name, out_features=rows[0])
        self.linears.append(
            LinearPart(
                name=name,
                in_features=rows[1],
                shards=(shard,),
                split="column",
                layers=(0,),
                scheme=scheme,
                position=self.position,
            )
        )

    def _add_parameter(self, template: ParameterTemplate, layers: tuple[int, ...]) -> None:
        is_vocabulary = template.shape[0] == self.facts.vocab_size and template.split_dim == 0
        self.parameters.append(
            ParameterPart(
                name=template.name,
                shape=template.shape,
                dtype=template.dtype or self.facts.dtype,
                layers=layers,
                split_dim=template.split_dim,
                pad_to=VOCAB_PADDING if is_vocabulary else 1,
                engine_dtype=template.engine_dtype,
                part=self.part,
                position=self.position,
            )
        )

    def _add_linear(self, template: LinearTemplate, layers: tuple[int, ...]) -> None:
        grouped: dict[tuple[QuantScheme | None, ...], list[int]] = {}
        for layer in layers:
            grouped.setdefault(self._schemes(template.shards, layer), []).append(layer)
        for schemes, indices in grouped.items():
            agree = len(set(schemes)) == 1
            runs = [(template.shards, schemes[0])]
            if not agree:
                runs = [((shard,), scheme) for shard, scheme in zip(template.shards, schemes, strict=True)]
            for shards, scheme in runs:
                self.linears.append(
                    LinearPart(
                        name=template.name,
                        in_features=template.in_features,
                        shards=shards,
                        split=template.split,
                        layers=tuple(indices),
                        scheme=scheme,
                        has_bias=template.has_bias,
                        part=self.part,
                        position=self.position,
                    )
                )

    def _schemes(self, shards: tuple[LinearShard, ...], layer: int) -> tuple[QuantScheme | None, ...]:
        quant = self.facts.quant
        if quant is None or quant.method == "mxfp4":
            return (None,) * len(shards)
        number = str(layer)
        return tuple(
            scheme_of(quant, shard.name.replace("{l}", number).replace("{b}", number)) for shard in shards
        )

    def _add_experts(self, template: ExpertsTemplate, layers: tuple[int, ...]) -> None:
        grouped: dict[QuantScheme | None, list[int]] = {}
        for layer in layers:
            name = template.names[0].replace("{l}", str(layer)).replace("{e}", "0")
            grouped.setdefault(scheme_of(self.facts.quant, name), []).append(layer)
        for scheme, indices in grouped.items():
            self.experts.append(
                ExpertsPart(
                    name=template.name,
                    names=template.names,
                    num_experts=template.moe.num_experts,
                    hidden_size=self.facts.hidden_size,
                    intermediate_size=template.moe.intermediate_size,
                    layers=tuple(indices),
                    scheme=scheme,
                    has_bias=template.moe.has_bias,
                    part=self.part,
                    position=self.position,
                )
            )


def _add_mtp(collected: _Collector, facts: ModelFacts) -> None:
    """Qwen's and DeepSeek's next-token heads; a layer numbered after the last in DeepSeek."""
    if facts.mtp is None:
        return
    collected.part = "mtp"
    hidden = facts.hidden_size
    indices = tuple(range(facts.mtp.num_layers))
    module, outer, fc, norms = "mtp.layers.{l}", "mtp", "fc", ("pre_fc_norm_embedding", "pre_fc_norm_hidden")
    if facts.family == "deepseek":
        indices = tuple(range(facts.num_layers, facts.num_layers + facts.mtp.num_layers))
        module = outer = f"{facts.prefix}.layers.{{l}}"
        fc, norms = "eh_proj", ("enorm", "hnorm")
    scope = indices if facts.family == "deepseek" else (0,)
    joined = LinearShard(name=f"{outer}.{fc}", out_features=hidden)
    if facts.family == "deepseek":
        collected.add(ParameterTemplate(name=f"{outer}.{fc}.weight", shape=(hidden, 2 * hidden)), scope)
        collected.add(_vocabulary(f"{outer}.embed_tokens.weight", (facts.vocab_size, hidden)), scope)
        collected.add(_vocabulary(f"{outer}.shared_head.head.weight", (facts.vocab_size, hidden)), scope)
    else:
        collected.add(
            LinearTemplate(name=f"{outer}.{fc}", in_features=2 * hidden, shards=(joined,), split="column"),
            scope,
        )
    for norm in norms:
        collected.add(ParameterTemplate(name=f"{outer}.{norm}.weight", shape=(hidden,)), scope)
    for template in render_layer(facts, facts.mtp.layer, module):
        collected.add(template, indices)
    final = "shared_head.norm" if facts.family == "deepseek" else "norm"
    collected.add(ParameterTemplate(name=f"{outer}.{final}.weight", shape=(hidden,)), scope)
    collected.part = "language"


def _add_vision(collected: _Collector, vision: VisionFacts | None) -> None:
    """Qwen's vision transformer, exactly; of other towers the blocks and the patch embedding."""
    if vision is None:
        return
    collected.part = "vision"
    root = "model.visual"
    width, blocks = vision.hidden_size, tuple(range(vision.depth))
    patch = (width, vision.in_channels, vision.temporal_patch_size, vision.patch_size, vision.patch_size)
    collected.add(ParameterTemplate(name=f"{root}.patch_embed.proj.weight", shape=patch), (0,))
    collected.add(ParameterTemplate(name=f"{root}.patch_embed.proj.bias", shape=(width,)), (0,))
    if vision.num_position_embeddings:
        positions = (vision.num_position_embeddings, width)
        collected.add(ParameterTemplate(name=f"{root}.pos_embed.weight", shape=positions), (0,))
    _add_norms(collected, f"{root}.blocks.{{b}}.norm1", width, blocks)
    _add_norms(collected, f"{root}.blocks.{{b}}.norm2", width, blocks)
    block = f"{root}.blocks.{{b}}"
    inner = vision.intermediate_size
    _add_biased(collected, f"{block}.attn.qkv", width, 3 * width, "column", blocks)
    _add_biased(collected, f"{block}.attn.proj", width, width, "row", blocks)
    _add_biased(collected, f"{block}.mlp.linear_fc1", width, inner, "column", blocks)
    _add_biased(collected, f"{block}.mlp.linear_fc2", inner, width, "row", blocks)
    merged = width * vision.spatial_merge_size**2
    mergers = [("merger", width)]
    mergers += [(f"deepstack_merger_list.{index}", merged) for index in range(vision.num_deepstack)]
    for name, normed in mergers if vision.is_exact else []:
        module = f"{root}.{name}"
        _add_norms(collected, f"{module}.norm", normed, (0,))
        _add_biased(collected, f"{module}.linear_fc1", merged, merged, "column", (0,))
        _add_biased(collected, f"{module}.linear_fc2", merged, vision.out_hidden_size, "row", (0,))
    collected.part = "language"


def _add_norms(collected: _Collector, module: str, size: int, layers: tuple[int, ...]) -> None:
    for kind in ("weight", "bias"):
        collected.add(ParameterTemplate(name=f"{module}.{kind}", shape=(size,)), layers)


def _add_biased(
    collected: _Collector, name: str, inputs: int, outputs: int, split: Split, layers: tuple[int, ...]
) -> None:
    shard = LinearShard(name=name, out_features=outputs)
    collected.add(
        LinearTemplate(name=name, in_features=inputs, shards=(shard,), split=split, has_bias=True), layers
    )
