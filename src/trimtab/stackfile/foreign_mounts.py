"""Pure. Mounts of a foreign container that nothing in its start reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from trimtab.stackfile.foreign_container import Container
from trimtab.stackfile.foreign_model import Finding, ForeignEnv, ForeignFlag, at_line
from trimtab.stackfile.foreign_secrets import shown

__all__ = ["find_unused_mounts"]

# What programs in the image read by themselves: caches of the hub, vLLM, Triton and others in the home
# folder, time zones and certificates, shared memory, devices, sockets.
_READ_UNTOLD: Final = (
    *("/root", "/home", "/etc", "/usr", "/opt", "/dev", "/run", "/var", "/tmp", "/sys", "/proc"),  # noqa: S108
    *("/workspace", "/vllm-workspace", "/lib", "/.cache"),
)


def find_unused_mounts(
    container: Container, model: str, flags: Sequence[ForeignFlag], env: Sequence[ForeignEnv]
) -> Iterator[Finding]:
    """A note for each mounted path that neither the model nor a flag or variable names.

    Nothing is said of paths that programs read untold, nor where a value is not known.
    """
    values = [flag.value for flag in flags] + [entry.value for entry in env]
    if any(flag.is_unread for flag in flags) or "$" in f"{model} {values}":
        return
    texts = [model, *(str(value) for value in values if value is not None)]
    texts += [argument.text for argument in (*(container.entrypoint or ()), *container.command)]
    for mount in container.mounts:
        target = mount.target.rstrip("/")
        is_untold = any(f"{target}/".startswith(f"{path}/") for path in _READ_UNTOLD)
        if not target or is_untold or any(_speaks_of(text, target) for text in texts):
            continue
        yield Finding(
            code="mount_unused",
            severity="note",
            text=f"{shown(mount.source or mount.volume)} is mounted at {shown(target)}, and neither the model"
            " nor a flag or variable names a path there",
            where=at_line(container.line),
            hint=f"leave it out, or serve what lies there: --model {shown(target)}/…",
        )


def _speaks_of(text: str, target: str) -> bool:
    """Whether the text names the mounted path, something in it, or a folder that holds it."""
    if target in text:
        return True
    return text.startswith("/") and f"{target}/".startswith(text.rstrip("/") + "/")
