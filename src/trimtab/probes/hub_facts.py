"""I/O. Reads a checkpoint's facts from a hub without its weights: the config and the shards' headers.

Each header is a range request; a server that ignores ranges costs no more than the header either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any, Final

from trimtab.errors import EnvironmentMissingError, StackFileError
from trimtab.planner.model_config import decode_model_config
from trimtab.probes.checkpoint import (
    MAX_JSON_BYTES,
    QUANT_FILE,
    decode_json,
    find_chat_template,
    promised_shards,
    with_quant_file,
)
from trimtab.probes.hub_download import DownloadReport, HubFile
from trimtab.probes.hub_errors import is_passing_error, translated_errors
from trimtab.probes.hub_files import choose_engine_files
from trimtab.probes.hub_http import read_span, read_whole
from trimtab.probes.hub_listing import RemoteRepo, endpoint_of
from trimtab.probes.model_source_kind import check_config_kind
from trimtab.probes.model_source_survey import CheckpointSurvey, with_tensors
from trimtab.probes.safetensors_header import HeaderTensor, decode_safetensors_header

__all__ = ["read_remote_survey"]

_READ_TIMEOUT_S: Final = 10.0
# Most headers of sharded checkpoints are smaller (Qwen3.5-397B-A17B-FP8: 2,000 tensors a shard, 260 KB).
_FIRST_SPAN_BYTES: Final = 512 * 1024
# 64,000 tensors in one file take 9 MB; beyond this something else is meant.
_MAX_HEADER_BYTES: Final = 48 << 20
_ATTEMPTS: Final = 3
_PARALLEL: Final = 8


def read_remote_survey(remote: RemoteRepo, report: DownloadReport) -> tuple[CheckpointSurvey, str]:
    """What the hub has of the checkpoint, and why its headers were not read (empty: they were).

    Errors of the config are raised; the headers are a bonus, without which sizes come from the config.
    """
    files = {file.name: file for file in remote.files}
    where = f"{remote.repo}: config.json"
    report(f"reading the config of {remote.repo}", 0, None)
    config = with_quant_file(
        _read_json(remote, files["config.json"]),
        _read_json(remote, files[QUANT_FILE]) if QUANT_FILE in files else None,
        where=f"{remote.repo}: {QUANT_FILE}",
    )
    check_config_kind(config, where)
    decode_model_config(config, where=where)
    chosen = choose_engine_files(files)
    sizes = [files[name].size_bytes for name in chosen]
    survey = CheckpointSurvey(
        config=config,
        has_weights=any(name.endswith((".safetensors", ".bin")) for name in chosen),
        has_generation_config="generation_config.json" in files,
        chat_template=_read_chat_template(remote, files),
        download_bytes=None if None in sizes else sum(filter(None, sizes)),
    )
    try:
        tensors = _read_headers(remote, files, report)
    except (StackFileError, EnvironmentMissingError) as error:
        return survey, error.message
    return (with_tensors(survey, tensors, where), "") if tensors else (survey, "")


@contextmanager
def _asking(remote: RemoteRepo, name: str) -> Iterator[None]:
    with translated_errors(f"{remote.repo}: {name}", hub=endpoint_of(remote.host)):
        yield


def _read_file(remote: RemoteRepo, file: HubFile) -> bytes:
    with _asking(remote, file.name):
        return _again(lambda: read_whole(file.url, file.host, MAX_JSON_BYTES, _READ_TIMEOUT_S))


def _read_json(remote: RemoteRepo, file: HubFile) -> Any:
    return decode_json(_read_file(remote, file), where=f"{remote.repo}: {file.name}")


def _again(read: Callable[[], bytes]) -> bytes:
    """``read``, tried anew where the connection failed."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return read()
        except Exception as error:
            if not is_passing_error(error):
                raise
    return read()


def _read_chat_template(remote: RemoteRepo, files: dict[str, HubFile]) -> str | None:
    """The template's text; None where it could not be read, which no plan fails for."""
    try:
        if "chat_template.jinja" in files:
            return _read_file(remote, files["chat_template.jinja"]).decode("utf-8", errors="replace")
        if "tokenizer_config.json" in files:
            return find_chat_template(None, _read_json(remote, files["tokenizer_config.json"]))
    except (StackFileError, EnvironmentMissingError):
        return None
    return ""


def _read_headers(
    remote: RemoteRepo, files: dict[str, HubFile], report: DownloadReport
) -> list[HeaderTensor]:
    """All tensors of the shards; StackFileError when one is missing or damaged."""
    chosen = [name for name in choose_engine_files(files) if name.endswith(".safetensors")]
    missing = [name for name in promised_shards(chosen) if name not in files]
    if missing:
        raise StackFileError(f"{remote.repo} lacks {missing[0]}", hint="choose another revision")
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="headers") as pool:
        waiting = [pool.submit(_read_header, remote, files[name]) for name in chosen]
        try:
            for count, done in enumerate(as_completed(waiting), start=1):
                done.result()
                report(f"reading the headers of {remote.repo}", count, len(chosen))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [tensor for done in waiting for tensor in done.result()]


def _read_header(remote: RemoteRepo, file: HubFile) -> tuple[HeaderTensor, ...]:
    with _asking(remote, file.name):
        spans = _Spans(file)
        header = decode_safetensors_header(spans.read, where=f"{remote.repo}: {file.name}")
    if file.size_bytes is not None and header.file_bytes > file.size_bytes:
        raise StackFileError(
            f"{remote.repo}: {file.name} has {file.size_bytes:,} bytes, "
            f"and its header promises {header.file_bytes:,}"
        )
    return header.tensors


class _Spans:
    """The beginning of a remote file, as far as it was needed."""

    def __init__(self, file: HubFile) -> None:
        self._file = file
        self._data = b""

    def read(self, offset: int, length: int) -> bytes:
        """As a file would; a header that cannot be one is not fetched."""
        end = offset + length
        most = min(self._file.size_bytes or end, _MAX_HEADER_BYTES)
        if end > max(most, _FIRST_SPAN_BYTES):
            raise StackFileError(f"{self._file.name} claims a header of {length:,} bytes")
        if end > len(self._data):
            have = len(self._data)
            wanted = max(end, _FIRST_SPAN_BYTES) - have
            file = self._file
            self._data += _again(lambda: read_span(file.url, file.host, have, wanted, _READ_TIMEOUT_S))
        return self._data[offset:end]
