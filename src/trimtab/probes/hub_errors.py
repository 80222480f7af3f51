"""I/O. What can go wrong between this machine and a hub, one sentence each."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from trimtab.errors import EnvironmentMissingError, StackFileError

__all__ = [
    "HubUnreachableError",
    "ModelScopeStatusError",
    "hub_endpoint",
    "hub_is_offline",
    "is_passing_error",
    "offline_error",
    "translated_errors",
]

_OTHER_WAYS: Final = (
    "give a local path, set HF_ENDPOINT to a mirror, or download from ModelScope "
    "(modelscope download --model REPO FILE) and give that path"
)
# The HTTP library of huggingface_hub 1 and 2.
_HTTP_LIBRARIES: Final = frozenset({"httpx", "httpx2", "httpcore", "httpcore2"})
_DISK_IS_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class ModelScopeStatusError(Exception):
    """ModelScope answered ``status``; never leaves ``translated_errors``."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class HubUnreachableError(EnvironmentMissingError):
    """Nothing that answers as a hub does was reached; what is cached may still do."""


def hub_endpoint() -> str:
    """The hub that downloads come from."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


def hub_is_offline() -> bool:
    """Whether HF_HUB_OFFLINE, or TRANSFORMERS_OFFLINE as the library reads it, asks for no network at all."""
    text = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return text.strip().upper() in {"1", "ON", "YES", "TRUE"}


def is_passing_error(error: BaseException) -> bool:
    """Whether trying again may help: the connection failed, or the hub had a fault of its own."""
    names = {(cls.__module__.split(".")[0], cls.__name__) for cls in type(error).__mro__}
    if any((library, "TransportError") in names for library in _HTTP_LIBRARIES):
        return True
    if isinstance(error, ModelScopeStatusError):
        return error.status >= 500
    return getattr(getattr(error, "response", None), "status_code", 0) >= 500


@contextmanager
def translated_errors(what: str, *, hub: str = "") -> Iterator[None]:
    """Inside, failures of the hub library, the network and the disk become one sentence about ``what``.

    ``hub`` is the address that is asked, Hugging Face's unless another is named.
    """
    from huggingface_hub import errors  # noqa: PLC0415

    hub = hub or hub_endpoint()
    try:
        yield
    except ModelScopeStatusError as error:
        raise _modelscope_error(what, hub, error.status) from error
    except errors.GatedRepoError as error:
        raise EnvironmentMissingError(
            f"{what} is gated: {hub} lets only accepted users have it",
            hint="accept its terms on its page, then set HF_TOKEN to a token of that account",
        ) from error
    except (
        errors.RepositoryNotFoundError,
        errors.RemoteEntryNotFoundError,
        errors.RevisionNotFoundError,
    ) as error:
        raise StackFileError(
            f"{hub} has no {what}, or it is private", hint="check the name; for a private one set HF_TOKEN"
        ) from error
    except errors.HfHubHTTPError as error:
        raise _status_error(what, hub, error.response.status_code) from error
    except errors.HFValidationError as error:
        raise StackFileError(f"{what!r} is not a repo id", hint="a repo id is org/name") from error
    except OSError as error:
        raise _disk_error(what, error) from error
    except (ValueError, TypeError, KeyError, ImportError) as error:
        # What a captive portal, a mirror of something else or a malformed proxy address lead to.
        reason = " ".join(str(error).split())[:120]
        raise HubUnreachableError(
            f"{hub} does not answer as a Hugging Face hub ({reason or type(error).__name__})",
            hint=f"check HF_ENDPOINT and the proxy variables, or {_OTHER_WAYS}",
        ) from error
    except Exception as error:
        # Whatever else is of the HTTP library means that the hub was not reached; the rest is a bug
        # and shows itself.
        if type(error).__module__.split(".")[0] not in _HTTP_LIBRARIES:
            raise
        raise HubUnreachableError(
            f"cannot get {what} from {hub}: it cannot be reached", hint=_OTHER_WAYS
        ) from error


def offline_error(what: str) -> HubUnreachableError:
    """Why nothing was fetched while HF_HUB_OFFLINE is set."""
    return HubUnreachableError(
        f"cannot get {what}: HF_HUB_OFFLINE is set and it is not in the cache",
        hint="unset HF_HUB_OFFLINE, or give a local path",
    )


def _modelscope_error(what: str, hub: str, status: int) -> EnvironmentMissingError | StackFileError:
    if status == 404:
        return StackFileError(
            f"{hub} has no {what}, or it is private",
            hint="check the name; for a private one set MODELSCOPE_API_TOKEN",
        )
    if status in {401, 403}:
        return EnvironmentMissingError(
            f"{hub} answered {status} for {what}", hint="set MODELSCOPE_API_TOKEN to a token that may read it"
        )
    return HubUnreachableError(
        f"{hub} answered {status} for {what}", hint=f"try again later, or {_OTHER_WAYS}"
    )


def _status_error(what: str, hub: str, status: int) -> EnvironmentMissingError:
    message = f"{hub} answered {status} for {what}"
    if status in {401, 403}:
        return EnvironmentMissingError(
            message, hint="check the name, and that HF_TOKEN is valid and may read this repo"
        )
    if status == 429:
        return HubUnreachableError(
            message, hint=f"it limits requests: wait a minute, set HF_TOKEN, or {_OTHER_WAYS}"
        )
    if status >= 500:
        return HubUnreachableError(message, hint=f"it has a fault: try again later, or {_OTHER_WAYS}")
    return EnvironmentMissingError(message, hint=f"check HF_ENDPOINT, or {_OTHER_WAYS}")


def _disk_error(what: str, error: OSError) -> EnvironmentMissingError:
    advice = "make it writable" if error.errno not in _DISK_IS_FULL else "free some disk"
    after = "; the download goes on where it stopped" if error.errno in _DISK_IS_FULL else ""
    return EnvironmentMissingError(
        f"cannot store {what}: {(error.strerror or str(error)).lower()}",
        hint=f"{advice}, or set XDG_CACHE_HOME to another folder{after}",
    )
