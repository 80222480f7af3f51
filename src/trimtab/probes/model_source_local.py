"""I/O. Models on this machine's disk: a folder, or a lone config.json, as a ModelSource."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trimtab.core.model_source import FactsOrigin, GgufSource, ModelSource
from trimtab.core.plan import PlanWarning
from trimtab.errors import StackFileError
from trimtab.planner.model_parts import decode_parts
from trimtab.probes.checkpoint import check_complete, survey_config, survey_folder
from trimtab.probes.model_source_cache import fingerprint_folder, recall_survey, remember_survey
from trimtab.probes.model_source_kind import find_kind
from trimtab.probes.model_source_survey import CheckpointSurvey, mask_origin_of, survey_facts

__all__ = ["make_source", "read_file_source", "read_folder_source", "recall_folder_survey"]

_NO_WEIGHTS: Final = PlanWarning(
    code="no_weights",
    text="only a config.json was found: sizes are computed from it, and nothing can be started",
    source="config.json",
)


def read_folder_source(folder: Path, *, cache_dir: Path) -> ModelSource | GgufSource:
    """A checkpoint folder; StackFileError when it is none, or files of it are missing or cut off."""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError as error:
        raise StackFileError(f"{folder} cannot be read: {(error.strerror or str(error)).lower()}") from error
    if find_kind(names) == "gguf":
        return GgufSource(checkpoint=str(folder))
    survey = recall_folder_survey(folder, cache_dir)
    check_complete(str(folder), survey.missing_files, survey.damaged_files)
    path = str(folder.resolve())
    is_config_only = find_kind(names) == "config only"
    return make_source(
        survey,
        checkpoint=path,
        origin="folder",
        where=str(folder / "config.json"),
        local_path=None if is_config_only else path,
        warnings=(_NO_WEIGHTS,) if is_config_only else pickled_warning(names, str(folder)),
    )


def read_file_source(path: Path) -> ModelSource:
    """A lone config.json; StackFileError names what else it is."""
    if path.suffix in {".safetensors", ".bin", ".pt", ".pth", ".onnx"}:
        raise StackFileError(
            f"{path} is a weights file, and its model is described beside it",
            hint=f"name its folder: {path.parent}",
        )
    survey = survey_config(path)
    return make_source(
        survey,
        checkpoint=str(path.resolve()),
        origin="config file",
        where=str(path),
        warnings=(_NO_WEIGHTS,),
    )


def recall_folder_survey(folder: Path, cache_dir: Path) -> CheckpointSurvey:
    """``survey_folder``, remembered while the folder's files stay as they are.

    Reading the headers of a checkpoint of 64,000 tensors takes about a second.
    """
    try:
        state = fingerprint_folder(folder)
    except OSError:
        return survey_folder(folder)
    key = f"folder {folder.resolve()}"
    remembered = recall_survey(cache_dir, key)
    if remembered is not None and remembered.state == state:
        return remembered.survey
    survey = survey_folder(folder)
    if survey.is_measured:
        remember_survey(cache_dir, key, state, survey)
    return survey


def make_source(
    survey: CheckpointSurvey,
    *,
    checkpoint: str,
    origin: FactsOrigin,
    where: str,
    local_path: str | None = None,
    warnings: Sequence[PlanWarning] = (),
) -> ModelSource:
    """The survey as facts and parts; ``where`` names its config in messages."""
    facts = survey_facts(survey, where)
    return ModelSource(
        checkpoint=checkpoint,
        facts=facts,
        parts=decode_parts(facts),
        origin=origin,
        mask_origin=mask_origin_of(survey, facts),
        tensors=survey.tensors,
        weights_bytes=survey.weights_bytes,
        download_bytes=0 if local_path is not None else survey.download_bytes,
        has_generation_config=survey.has_generation_config,
        chat_template=survey.chat_template,
        local_path=local_path,
        warnings=tuple(warnings),
    )


def pickled_warning(names: Sequence[str], where: str) -> tuple[PlanWarning, ...]:
    """A word about weights that are Python pickles; empty for others."""
    if find_kind(names) != "pickled":
        return ()
    text = (
        f"{where} holds pickled weights (.bin): loading them runs code from the file, and their sizes are "
        "computed from the config"
    )
    return (PlanWarning(code="pickled_weights", text=text, source="file names"),)
