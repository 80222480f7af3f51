"""Pure. What a Docker daemon refuses, as the failure a user sees: one sentence and what would work.

The SDK's errors are OSErrors (through requests) that carry ``status_code`` and ``explanation``; both are
read by name, so that this module needs no SDK. Wordings are Docker's and podman's own, matched in lower case.
"""

from __future__ import annotations

from trimtab.errors import EngineStartError, EnvironmentMissingError, TrimtabError

__all__ = ["explain_refusal", "is_missing", "is_port_taken", "is_same_name", "shorten", "unreachable"]

_GPU_HINT = "install NVIDIA's container toolkit, then: nvidia-ctk runtime configure --runtime=docker"
_CDI_HINT = "describe the cards once: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
# Part of the daemon's words → what would work. The machine lacks something; the first match decides.
_MACHINE: tuple[tuple[str, str], ...] = (
    ("could not select device driver", _GPU_HINT),
    ("nvidia-container-cli", "check that nvidia-smi works on the host, then see `trimtab doctor`"),
    ("unresolvable cdi devices", _CDI_HINT),
    ("no space left on device", "free some disk space: docker system df shows what takes it"),
    ("port is already allocated", "stop what listens there, or let trimtab pick a port"),
    ("address already in use", "stop what listens there, or let trimtab pick a port"),
    ("bind source path does not exist", "create the folder, or correct the mount"),
    ("permission denied", "give this user access to it, or run the daemon with the rights it needs"),
)
# The image itself is wrong for what it is asked to run.
_IMAGE: tuple[str, ...] = ("executable file not found", "no such file or directory", "exec format error")


def is_missing(error: OSError) -> bool:
    """Whether the daemon says that there is no such container or image."""
    return getattr(error, "status_code", None) == 404


def is_same_name(error: OSError) -> bool:
    """Whether a container of that name exists already: Docker says 409, podman says so in a 500."""
    text = _text_of(error)
    return getattr(error, "status_code", None) == 409 or ("name" in text and "already in use" in text)


def is_port_taken(error: OSError) -> bool:
    """Whether somebody took the port between the moment it was picked and the start."""
    text = _text_of(error)
    return "port is already allocated" in text or "address already in use" in text


def unreachable(address: str, error: BaseException) -> EnvironmentMissingError:
    """No daemon answers at ``address``."""
    text = str(error).lower()
    if "permission denied" in text:
        reason, hint = "permission denied", "add this user to the group docker and log in again, or use sudo"
    elif "no such file" in text or "file not found" in text:
        reason = "there is no such socket"
        hint = (
            "start Docker (systemctl start docker) or podman's API (systemctl start podman.socket), "
            "or set DOCKER_HOST"
        )
    elif "refused" in text:
        reason, hint = "the connection is refused", "start the daemon again: systemctl restart docker"
    elif "timed out" in text or "timeout" in text:
        reason, hint = "it does not answer in time", "see its log: journalctl -u docker"
    else:
        reason, hint = shorten(str(error)), "set DOCKER_HOST to the daemon's address, or unset it"
    return EnvironmentMissingError(f"no Docker daemon at {address}: {reason}", hint=hint)


def explain_refusal(error: OSError, *, replica_id: str, image: str) -> TrimtabError:
    """The failure behind a refused create or start."""
    text = _text_of(error)
    reason = shorten(str(getattr(error, "explanation", None) or error))
    for words, hint in _MACHINE:
        if words in text:
            return EnvironmentMissingError(f"replica {replica_id}: the daemon refuses: {reason}", hint=hint)
    if any(words in text for words in _IMAGE):
        return EngineStartError(
            f"replica {replica_id}: image {image} cannot run its program: {reason}",
            hint="check the image's name and entry point: docker run --rm IMAGE --help",
        )
    return EngineStartError(
        f"replica {replica_id}: the daemon refuses to start image {image}: {reason}",
        hint="the daemon's log tells more: journalctl -u docker",
    )


def shorten(text: str, *, max_chars: int = 300) -> str:
    """One line of at most ``max_chars``; daemons nest whole error chains into one answer."""
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= max_chars else f"{line[: max_chars - 1]}…"


def _text_of(error: OSError) -> str:
    return f"{getattr(error, 'explanation', '') or ''} {error}".lower()
