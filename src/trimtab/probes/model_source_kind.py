"""Pure. Tells from its file names what a checkpoint is, and refuses what no engine here can load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias

from trimtab.errors import StackFileError

__all__ = ["CheckpointKind", "check_config_kind", "check_kind", "find_kind", "is_weights_file"]

CheckpointKind: TypeAlias = Literal[
    "safetensors", "pickled", "config only", "gguf", "adapter", "mistral", "onnx", "diffusers", "nothing"
]

_ADAPTER_WEIGHTS: Final = ("adapter_model.safetensors", "adapter_model.bin")
_PICKLED: Final = (".bin", ".pt", ".pth")
# Pickles that hold no weights of the model: the Trainer's arguments, optimizer and scheduler.
_NO_WEIGHTS: Final = ("training_args.bin", "optimizer.bin", "scheduler.pt", "rng_state.pth", "optimizer.pt")


def is_weights_file(name: str) -> bool:
    """Whether ``name`` is a safetensors file of the model itself, in Hugging Face's format.

    ``consolidated*`` are Mistral's own copies of the same weights, files in folders are parts of
    something else (ONNX, pipelines, original formats).
    """
    return (
        name.endswith(".safetensors")
        and "/" not in name
        and not name.startswith("consolidated")
        and name not in _ADAPTER_WEIGHTS
    )


def find_kind(names: Iterable[str]) -> CheckpointKind:
    """What the files are, by their names inside the folder or repository."""
    files = {name for name in names if not name.startswith(".")}
    has_config = "config.json" in files
    signs: tuple[tuple[CheckpointKind, bool], ...] = (
        ("safetensors", has_config and any(is_weights_file(name) for name in files)),
        ("diffusers", "model_index.json" in files),
        ("adapter", "adapter_config.json" in files),
        ("gguf", any(name.lower().endswith(".gguf") for name in files)),
        ("mistral", not has_config and "params.json" in files),
        ("nothing", not has_config),
        ("pickled", any(_is_pickled_weights(name) for name in files)),
        ("onnx", any(name.endswith(".onnx") for name in files)),
    )
    return next((kind for kind, is_it in signs if is_it), "config only")


def _is_pickled_weights(name: str) -> bool:
    return name.endswith(_PICKLED) and "/" not in name and name not in _NO_WEIGHTS


def check_kind(kind: CheckpointKind, where: str, *, adapter_base: str = "") -> None:
    """StackFileError for what neither vLLM nor llama.cpp loads as a model; ``where`` names it."""
    if kind == "adapter":
        base = f" for {adapter_base}" if adapter_base else ""
        model = adapter_base or "the model it was made for"
        raise StackFileError(
            f"{where} is a LoRA adapter{base}, not a model",
            hint=f"plan {model}, with engine_args enable_lora: true and lora_modules: NAME={where}",
        )
    if kind == "mistral":
        raise StackFileError(
            f"{where} is in Mistral's own format (params.json, no config.json), which isn't planned here",
            hint="name a repository of the same model in Hugging Face's format, with a config.json",
        )
    if kind == "onnx":
        raise StackFileError(
            f"{where} holds an ONNX export, which no engine here loads",
            hint="name the repository that it was exported from",
        )
    if kind == "diffusers":
        raise StackFileError(
            f"{where} is an image or video pipeline (model_index.json), not a language model",
            hint="name a language model",
        )
    if kind == "gguf":
        raise StackFileError(
            f"{where} holds GGUF files, which llama.cpp runs",
            hint="leave the engine to trimtab, or set llama.cpp",
        )
    if kind == "nothing":
        raise StackFileError(
            f"{where} holds no config.json", hint="point at the folder of a Hugging Face checkpoint"
        )


def check_config_kind(config: object, where: str) -> None:
    """StackFileError for a config.json of a format that no engine here loads; ``where`` names it.

    MLX (Apple) writes its quantisation without a method (github.com/ml-explore/mlx-lm, utils.py).
    """
    block = config.get("quantization") if isinstance(config, Mapping) else None
    if isinstance(block, Mapping) and {"group_size", "bits"} <= block.keys() and "quant_method" not in block:
        raise StackFileError(
            f"{where}: is an MLX model (for Apple's chips), which no engine here loads",
            hint="name the repository that it was converted from, or a GGUF of it",
        )
