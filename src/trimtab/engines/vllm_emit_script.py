"""Pure. Containers as a bash script: what may be edited at the top, starts in order, each waited for."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from trimtab.core.container import ContainerSpec
from trimtab.engines.vllm_emit_shell import (
    ShellNames,
    comment,
    render_docker_remove,
    render_docker_run,
    shell_source,
)

__all__ = ["render_script"]

# A first start fetches tens of GB and compiles; a later one takes minutes.
_WAIT_S: Final = 3600
_CACHE: Final = "HF_CACHE"
# Addresses that are asked at 127.0.0.1.
_EVERY_ADDRESS: Final = ("0.0.0.0", "::", "")  # noqa: S104

_WAIT_FUNCTION: Final = r"""
# Returns when the server answers; ends the script when its container has ended or WAIT_S is over.
wait_until_ready() {
  local name="$1" url="$2" end=$((SECONDS + WAIT_S))
  until curl -fsS -o /dev/null -m 5 "$url/health" 2>/dev/null; do
    if [[ "$(docker inspect -f '{{.State.Running}}' "$name" 2>/dev/null)" != true ]]; then
      echo "$name ended while starting; its last lines:" >&2
      docker logs --tail 40 "$name" >&2 || true
      exit 1
    fi
    if ((SECONDS >= end)); then
      echo "$name does not answer after $WAIT_S s; see: docker logs $name" >&2
      exit 1
    fi
    sleep 2
  done
  echo "$name answers at $url/v1"
}
"""


def render_script(specs: Sequence[ContainerSpec], *, notes: Sequence[Sequence[str]], title: str) -> str:
    """A script that (re)starts the containers one after the other, each when the one before answers."""
    images = list(dict.fromkeys(spec.image for spec in specs))
    parts = [
        "#!/usr/bin/env bash",
        comment(title),
        "set -euo pipefail",
        "",
        *(f"{_image_name(images, image)}={shlex.quote(image)}" for image in images),
        *[f"{_CACHE}={shell_source(spec.mounts[0])}" for spec in specs if _is_cache(spec)][:1],
        f'WAIT_S="${{WAIT_S:-{_WAIT_S}}}"  # the longest that one start may take, in seconds',
    ]
    for number, (spec, above) in enumerate(zip(specs, notes, strict=True), start=1):
        parts += ["", *above, *_variables(spec, number)]
    parts += [_WAIT_FUNCTION.rstrip()]
    for number, spec in enumerate(specs, start=1):
        names = ShellNames(
            name=f'"$NAME_{number}"',
            image=f'"${_image_name(images, spec.image)}"',
            host_port=f'"$PORT_{number}"',
            sources=_sources(spec, number),
        )
        parts += ["", render_docker_remove(spec), render_docker_run(spec, names), _wait(spec, number)]
    return "\n".join(parts) + "\n"


def _image_name(images: Sequence[str], image: str) -> str:
    return "IMAGE" if len(images) == 1 else f"IMAGE_{images.index(image) + 1}"


def _variables(spec: ContainerSpec, number: int) -> list[str]:
    lines = [f"NAME_{number}={shlex.quote(spec.name)}"]
    if spec.mounts and not _is_cache(spec):
        lines.append(f"MODEL_{number}={shell_source(spec.mounts[0])}")
    return [*lines, *(f"PORT_{number}={port.host_port}" for port in spec.ports[:1])]


def _is_cache(spec: ContainerSpec) -> bool:
    """The first mount is the hub's cache, which all containers share, not the model's own folder."""
    return bool(spec.mounts) and bool(spec.mounts[0].host_variable)


def _sources(spec: ContainerSpec, number: int) -> tuple[str, ...]:
    """The hosts' ends of the mounts; the first, the model's or the cache's, is a variable."""
    first = f'"${_CACHE}"' if _is_cache(spec) else f'"$MODEL_{number}"'
    rest = tuple(shell_source(mount) for mount in spec.mounts[1:])
    return (first, *rest) if spec.mounts else ()


def _wait(spec: ContainerSpec, number: int) -> str:
    address = spec.ports[0].host_ip
    host = "127.0.0.1" if address in _EVERY_ADDRESS else f"[{address}]" if ":" in address else address
    return f'wait_until_ready "$NAME_{number}" {shlex.quote(f"http://{host}:")}"$PORT_{number}"'
