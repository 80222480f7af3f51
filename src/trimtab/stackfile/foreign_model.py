"""Pure. What a command, a script or a compose file of somebody else says, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from trimtab.core.stack import ModelRequest, SettingValue, Stack
from trimtab.stackfile.names import served_name_of

__all__ = [
    "Argument",
    "Finding",
    "FindingSeverity",
    "ForeignEnv",
    "ForeignFlag",
    "ForeignForm",
    "ForeignGpus",
    "ForeignModel",
    "ForeignStack",
    "at_line",
]

FindingSeverity: TypeAlias = Literal["error", "harmful", "obsolete", "unknown", "note"]
ForeignForm: TypeAlias = Literal["script", "compose"]


def at_line(line: int) -> str:
    """The place of a finding; empty where the line is not known (0)."""
    return f"line {line}" if line else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing a reader should know about what was read.

    ``severity``: error (the engine or the shell would refuse it), harmful (it runs, and worse than
    without), obsolete (it does nothing in this version), unknown (it was not understood or not
    read), note. ``code`` is a stable word, ``where`` a place such as ``line 12``. Neither ``text``
    nor ``hint`` ever repeats the value of a secret.
    """

    code: str
    severity: FindingSeverity
    text: str
    where: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of a command after expansion.

    ``unknowns`` names the variables and substitutions whose values the file does not say; they
    stand in ``text`` as they were written.
    """

    text: str
    line: int = 0
    unknowns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFlag:
    """One flag of the engine: ``name`` is vLLM's Python argument name, ``written`` the flag as it stands.

    ``is_unread`` is set where the value hangs on something the file does not say, ``is_secret`` where
    it is a password of some kind; ``value`` is None in both cases.
    """

    name: str
    written: str
    value: SettingValue
    line: int = 0
    is_unread: bool = False
    is_secret: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignEnv:
    """One environment variable that the engine gets.

    ``value`` is None where it comes from the host, hangs on something the file does not say, or is
    a secret; ``is_secret`` means that a secret stands in the file in clear.
    """

    name: str
    value: str | None
    line: int = 0
    is_secret: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignGpus:
    """The cards a model gets: every card, a count of them, indices, or UUIDs.

    With none of the four the file gives no card (a container without ``--gpus``) or does not say.
    """

    is_all: bool = False
    count: int | None = None
    indices: tuple[int, ...] = ()
    uuids: tuple[str, ...] = ()

    @property
    def num_known(self) -> int | None:
        """How many cards are named; None where that depends on the machine."""
        return self.count if self.count is not None else len(self.indices) or len(self.uuids) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignModel:
    """One model that the file serves.

    ``request`` has every flag pinned in ``engine_args`` in the order written, except what has a place
    of its own (the model, ``served_names``, ``host``, the port), secrets, and values that are not known.
    ``checkpoint_seen`` is the model as the engine sees it (``/model``), ``request.checkpoint`` what that
    is on the host. Clients use ``port`` at ``address`` (empty: every address of the machine; port None:
    none is reachable); ``listen_port`` is the engine's own. ``image`` is empty outside containers,
    ``shm_bytes`` and ``ipc`` are None where left at their defaults. ``line`` is where the command begins.
    """

    request: ModelRequest
    served_names: tuple[str, ...]
    checkpoint_seen: str
    flags: tuple[ForeignFlag, ...] = ()
    env: tuple[ForeignEnv, ...] = ()
    gpus: ForeignGpus = ForeignGpus()
    host: str | None = None
    port: int | None = None
    listen_port: int = 8000
    address: str = ""
    image: str = ""
    container_name: str = ""
    shm_bytes: int | None = None
    ipc: str | None = None
    line: int = 0

    @property
    def is_container(self) -> bool:
        """Whether it runs in a container."""
        return bool(self.image)

    @property
    def where(self) -> str:
        """The place of its command."""
        return at_line(self.line)

    def find_flag(self, name: str) -> ForeignFlag | None:
        """The flag that counts under this argument name, None if it is not given."""
        return next((flag for flag in reversed(self.flags) if flag.name == name), None)

    def find_env(self, name: str) -> ForeignEnv | None:
        """The environment variable that counts under this name, None if it is not given."""
        return next((entry for entry in reversed(self.env) if entry.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignStack:
    """Everything a file serves, in the order written, and what reading it brought up."""

    source: str
    form: ForeignForm
    models: tuple[ForeignModel, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def stack(self) -> Stack:
        """The wish that the file amounts to, every flag pinned."""
        requests = tuple(model.request for model in self.models)
        return Stack(name=served_name_of(self.source), models=requests, source=self.source)
