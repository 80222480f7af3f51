"""Pure. Which files of a repository an engine needs to serve a safetensors checkpoint.

vLLM reads the shards that the index names, or all safetensors files beside config.json; duplicates in
other formats (pickles, Mistral's consolidated files, GGUF, ONNX) are left where they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trimtab.probes.model_source_kind import find_kind, is_weights_file

__all__ = ["choose_engine_files"]

_TEXT: Final = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".py")
# Read by no engine: training records, the pickles' index, and texts for people.
_UNUSED: Final = (
    "trainer_state.json",
    "training_args.json",
    "requirements.txt",
    "pytorch_model.bin.index.json",
)
_FOR_PEOPLE: Final = ("license", "notice", "readme", "use_policy", "copying")
_WHOLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"


def choose_engine_files(names: Iterable[str]) -> tuple[str, ...]:
    """The files to fetch, in order of their names, weights last.

    Code (.py) comes along for those who allow it; nothing here runs it.
    """
    files = sorted(set(names))
    pickled = find_kind(files) == "pickled"
    texts = [name for name in files if _is_text(name) or (pickled and name == "pytorch_model.bin.index.json")]
    if pickled:
        weights = [name for name in files if name.startswith("pytorch_model") and name.endswith(".bin")]
    else:
        weights = [name for name in files if is_weights_file(name)]
        if _INDEX in files and len(weights) > 1:
            weights = [name for name in weights if name != _WHOLE]
    return (*texts, *weights)


def _is_text(name: str) -> bool:
    folder, _, base = name.rpartition("/")
    if folder not in ("", "additional_chat_templates") or base.startswith("."):
        return False
    plain = base.lower()
    return plain.endswith(_TEXT) and plain not in _UNUSED and not plain.startswith(_FOR_PEOPLE)
