"""Pure. One replica of a vLLM plan as a container: the pinned image, its cards, its mounts and arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Final

from trimtab.core.container import ContainerSpec, Mount, PublishedPort
from trimtab.core.hardware import Gpu
from trimtab.core.plan import ModelPlan, ReplicaPlan
from trimtab.core.stack import SettingValue
from trimtab.engines.vllm import render_settings, served_names
from trimtab.engines.vllm_env import choose_env, gpus_of_replica, is_local_checkpoint
from trimtab.errors import StackFileError
from trimtab.units import GIB

__all__ = ["COMPILE_CACHE", "CONTAINER_PORT", "IMAGE", "container_name", "container_of", "image_of"]

IMAGE: Final = "vllm/vllm-openai"
"""The vLLM project's own image; a tag per release."""
CONTAINER_PORT: Final = 8000
MODEL_FOLDER: Final = "/model"
# The image runs as root; huggingface_hub's default cache of that user.
HUB_CACHE: Final = "/root/.cache/huggingface"
# Where vLLM keeps what it compiled (VLLM_CACHE_ROOT of the image's user): a later start finds it, is
# quicker, and has more memory left for its KV cache. The host's folder is one of its own, because what root
# writes there a vLLM outside containers could not add to.
COMPILE_CACHE: Final = Mount(source="~/.cache/vllm-containers", target="/root/.cache/vllm")
# A ceiling, not a reservation: only pages that are written take memory. NCCL without P2P passes tensors
# through it, vLLM its messages between ranks; Docker's own 64 MiB end in "No space left on device".
SHM_BYTES: Final = 16 * GIB
_HUB_TOKEN: Final = "HF_TOKEN"  # noqa: S105  # the variable's name
# Arguments whose value may be a file or folder of the host. A folder of downloads is written to.
_PATH_ARGUMENTS: Final = (
    "tokenizer",
    "hf_config_path",
    "chat_template",
    "tool_parser_plugin",
    "reasoning_parser_plugin",
    "log_config_file",
    "ssl_keyfile",
    "ssl_certfile",
    "ssl_ca_certs",
    "allowed_local_media_path",
    "mm_encoder_fp8_scale_path",
)
_WRITTEN_ARGUMENTS: Final = ("download_dir",)
# huggingface_hub keeps a snapshot as links into ../../blobs: the repository's folder must come along.
_SNAPSHOT: Final = re.compile(r"^(?P<repository>.*/models--[^/]+)/(?P<rest>snapshots/[^/]+)/?$")
_TAG: Final = re.compile(r"^v?(\d+\.\d+)(\.\d+)?([A-Za-z0-9.]*)")


def image_of(version: str) -> str:
    """The image of a version: ``vllm/vllm-openai:v0.17.0``."""
    match = _TAG.match(version.strip())
    if match is None:
        raise StackFileError(f"engine_version is {version!r}, which isn't a vLLM version")
    return f"{IMAGE}:v{match.group(1)}{match.group(2) or '.0'}{match.group(3)}"


def container_name(plan: ModelPlan, replica: ReplicaPlan) -> str:
    """A name that Docker takes: the model's, or the replica's where there are several."""
    wished = replica.replica_id if len(plan.replicas) > 1 else plan.name
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", wished).lstrip("_.-")
    return name if len(name) > 1 else f"vllm-{name or 'model'}"


def container_of(
    plan: ModelPlan,
    replica: ReplicaPlan,
    *,
    gpus: Sequence[Gpu] = (),
    host_port: int = 0,
    host_ip: str = "127.0.0.1",
) -> ContainerSpec:
    """The container of one replica; ``gpus`` are the machine's cards, ``host_port`` 0 takes a free one.

    The model is given as ``--model``, which both entry points that images have (`vllm serve` and the
    API server's module) take in every version that was read. StackFileError for arguments that the
    version lacks and for paths that can't be mounted.
    """
    cards = gpus_of_replica(replica, gpus)
    model, mounts = _model_mount(plan.checkpoint)
    is_local = is_local_checkpoint(plan.checkpoint)
    return ContainerSpec(
        name=container_name(plan, replica),
        image=image_of(plan.engine_version),
        args=(
            *("--model", model),
            *("--served-model-name", *served_names(plan)),
            *("--host", "0.0.0.0"),  # noqa: S104  # inside the container; what is published is host_ip
            *("--port", str(CONTAINER_PORT)),
            *render_settings(plan),
        ),
        env=_env_of(plan, cards),
        passed_env=() if is_local else (_HUB_TOKEN,),
        gpu_ids=tuple(str(index) for index in replica.gpus),
        mounts=(mounts, *_argument_mounts(plan), COMPILE_CACHE),
        ports=(PublishedPort(container_port=CONTAINER_PORT, host_port=host_port, host_ip=host_ip),),
        shm_bytes=SHM_BYTES,
        ipc="host",
    )


def _env_of(plan: ModelPlan, cards: Sequence[Gpu]) -> tuple[tuple[str, str], ...]:
    env = {choice.name: choice.value for choice in choose_env(plan, cards)}
    if len({card.name for card in cards}) > 1:
        # CUDA would count the fastest first; ranks and --gpus then mean different cards.
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return tuple(sorted(env.items()))


def _model_mount(checkpoint: str) -> tuple[str, Mount]:
    """What to serve inside, and what must be mounted for it."""
    if not is_local_checkpoint(checkpoint):
        return checkpoint, Mount(source="~/.cache/huggingface", target=HUB_CACHE, host_variable="HF_HOME")
    snapshot = _SNAPSHOT.match(checkpoint)
    if snapshot is not None:
        inside = f"{MODEL_FOLDER}/{snapshot['rest']}"
        return inside, Mount(source=snapshot["repository"], target=MODEL_FOLDER, is_read_only=True)
    return MODEL_FOLDER, Mount(source=checkpoint, target=MODEL_FOLDER, is_read_only=True)


def _argument_mounts(plan: ModelPlan) -> tuple[Mount, ...]:
    """Files and folders that arguments name, at the same place inside."""
    mounts: dict[str, Mount] = {}
    for name, path in _argument_paths(plan):
        if not PurePosixPath(path).is_absolute():
            raise StackFileError(
                f"models.{plan.name}.engine_args.{name}: {path!r} can't be mounted into a container",
                hint="write the path from the root: /…",
            )
        is_read_only = name not in _WRITTEN_ARGUMENTS
        mounts[path] = Mount(source=path, target=path, is_read_only=is_read_only)
    return tuple(mounts.values())


def _argument_paths(plan: ModelPlan) -> Iterable[tuple[str, str]]:
    for item in plan.settings:
        if item.origin == "default" or not isinstance(item.value, str):
            continue
        if item.name in (*_PATH_ARGUMENTS, *_WRITTEN_ARGUMENTS):
            yield from ((item.name, path) for path in (item.value,) if _is_path(path))
        elif item.name == "speculative_config":
            yield from ((item.name, path) for path in _nested_models(item.value) if _is_path(path))
        elif item.name == "lora_modules":
            yield from ((item.name, path) for path in _adapter_paths(item.value) if _is_path(path))


def _is_path(text: str) -> bool:
    """A template may stand in an argument as text; it has line breaks or braces, a path has not."""
    return is_local_checkpoint(text) and "\n" not in text and "{" not in text


def _nested_models(text: SettingValue) -> Iterable[str]:
    try:
        found = json.loads(str(text))
    except ValueError:
        return
    model = found.get("model") if isinstance(found, dict) else None
    if isinstance(model, str):
        yield model


def _adapter_paths(text: str) -> Iterable[str]:
    """Paths of ``name=path``, one or a JSON list of them, or of JSON objects."""
    try:
        found = json.loads(text)
    except ValueError:
        found = text
    for item in found if isinstance(found, list) else [found]:
        if isinstance(item, str) and "=" in item:
            yield item.partition("=")[2]
        elif isinstance(item, dict) and isinstance(item.get("path"), str):
            yield item["path"]
