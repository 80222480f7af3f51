"""I/O. Images at a Docker daemon: whether one is there, and fetching it with progress."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from urllib3.exceptions import HTTPError

from trimtab.errors import EnvironmentMissingError
from trimtab.runtimes.docker_errors import is_missing, shorten

__all__ = ["PullProgress", "has_image", "missing_image", "pull_image", "sum_progress"]

_CHECK_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class PullProgress:
    """How far a pull is, over all layers known so far; podman reports no bytes, then both are 0."""

    image: str
    done_bytes: int
    total_bytes: int
    status: str


def has_image(api: Any, image: str) -> bool:
    """Whether the daemon holds the image; raises the SDK's error when it cannot say."""
    try:
        api.inspect_image(image)
    except OSError as error:
        if is_missing(error):
            return False
        raise
    return True


def missing_image(image: str) -> EnvironmentMissingError:
    """The failure of a start without its image, when fetching was not allowed."""
    return EnvironmentMissingError(
        f"image {image} is not on this machine", hint=f"fetch it once: docker pull {image}"
    )


def pull_image(
    api: Any, image: str, *, on_progress: Callable[[PullProgress], None], check: Callable[[], None]
) -> None:
    """Fetch an image; ``check`` is called a few times a second and may raise, which ends the pull.

    A registry that hangs is so no reason to hang with it. Raises EnvironmentMissingError with the
    registry's own words when it refuses.
    """
    repository, tag = _split_reference(image)
    layers: dict[str, tuple[int, int]] = {}
    try:
        for event in _read_events(api, repository, tag, check):
            if "error" in event:
                raise _refused_pull(image, str(event["error"]))
            on_progress(sum_progress(image, layers, event))
    except OSError as error:
        raise _refused_pull(image, str(getattr(error, "explanation", None) or error)) from error


def _read_events(
    api: Any, repository: str, tag: str | None, check: Callable[[], None]
) -> Iterator[dict[str, Any]]:
    """The pull's events, read by a thread of its own, since the SDK's reading cannot be interrupted.

    When ``check`` raises the thread is left to itself; its connection ends with this process at the
    latest, and with it the daemon's pull.
    """
    events: queue.SimpleQueue[dict[str, Any] | OSError | None] = queue.SimpleQueue()

    def read() -> None:
        try:
            for event in api.pull(repository, tag=tag, stream=True, decode=True):
                events.put(event)
            events.put(None)
        except OSError as error:
            events.put(error)
        except (HTTPError, ValueError) as error:  # cut off in the middle; the SDK passes these on raw
            events.put(ConnectionError(str(error)))

    threading.Thread(target=read, name="trimtab-image-pull", daemon=True).start()
    while True:
        check()
        try:
            event = events.get(timeout=_CHECK_S)
        except queue.Empty:
            continue
        if event is None:
            return
        if isinstance(event, OSError):
            raise event
        yield event


def sum_progress(image: str, layers: dict[str, tuple[int, int]], event: dict[str, Any]) -> PullProgress:
    """Enter one event of the stream into ``layers`` and give the sum of them all."""
    detail = event.get("progressDetail") or {}
    layer = str(event.get("id") or "")
    status = str(event.get("status") or "")
    if layer and detail.get("total") and status == "Downloading":
        layers[layer] = (int(detail.get("current") or 0), int(detail["total"]))
    elif layer in layers and status in ("Download complete", "Pull complete", "Already exists"):
        layers[layer] = (layers[layer][1], layers[layer][1])
    return PullProgress(
        image=image,
        done_bytes=sum(done for done, _ in layers.values()),
        total_bytes=sum(total for _, total in layers.values()),
        status=status,
    )


def _split_reference(image: str) -> tuple[str, str | None]:
    """Repository and tag; a digest stays with the repository, and no tag means latest."""
    if "@" in image:
        return image, None
    head, colon, tail = image.rpartition(":")
    if colon and "/" not in tail:  # a colon before a slash belongs to a port
        return head, tail
    return image, "latest"


_HINTS: Iterable[tuple[tuple[str, ...], str]] = (
    (
        ("no such host", "dial tcp", "timeout", "connection refused", "i/o"),
        "the registry cannot be reached: check the network and its proxy, or load the image: docker load",
    ),
    (("unauthorized", "denied", "authentication"), "log in first: docker login"),
    (("not found", "manifest unknown", "no such"), "check the image's name and tag"),
    (("no space left",), "free some disk space: docker system df shows what takes it"),
    (("toomanyrequests", "rate limit"), "log in (docker login), or try again later"),
)


def _refused_pull(image: str, reason: str) -> EnvironmentMissingError:
    lowered = reason.lower()
    hint = next(
        (hint for words, hint in _HINTS if any(word in lowered for word in words)),
        "check the network and the registry, or load the image by hand: docker load",
    )
    return EnvironmentMissingError(f"cannot fetch image {image}: {shorten(reason)}", hint=hint)
