"""Pure. The last look at what was read of a launch file: no secret of it goes further.

A secret is known by its look (foreign_secrets) or by the name it was given somewhere in the file
(``TOKEN=…``, ``--api-key …``, ``${API_KEY:-…}``), wherever variables have carried its value since.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from trimtab.core.stack import SettingValue
from trimtab.errors import StackFileError
from trimtab.stackfile.foreign_model import (
    Finding,
    ForeignEnv,
    ForeignFlag,
    ForeignModel,
    ForeignStack,
    at_line,
)
from trimtab.stackfile.foreign_secrets import is_secret_name, is_secret_value, mask_secrets, shown

__all__ = ["Scrubber", "find_secrets"]

# A name and what it is set to: A=b, "A": "b", A: b, --a b, ${A:-b}.
_NAMED: Final = re.compile(
    r"(?<![\w\-])(?:--(?P<flag>[a-z][\w\-]{2,60})(?![\w\-])"
    r"(?:=|[\"']?[ \t]{0,40}(?:,|\n[ \t]{0,40}-)?[ \t]{0,40})"
    r"|(?P<name>[A-Za-z_][\w\-]{2,60})[\"']?(?:[ \t]{0,40}:[-=]?[ \t]{0,40}|\+?=|-))"
    r"(?:\"(?P<double>[^\"\n]{1,400})\"|'(?P<single>[^'\n]{1,400})'|(?P<plain>[^\s\"';&|)}$,]{1,400}))"
)
# Shorter ones, and words such as EMPTY or none, would be found in everything.
_FEWEST_CHARS: Final = 6
_NO_SECRETS: Final = frozenset(
    {"--host", "--port", "--model", "string", "secret", "api-key", "token", "password"}
)


def find_secrets(text: str) -> frozenset[str]:
    """Values that the file gives to variables, flags and keys whose names mark secrets."""
    found = set()
    for match in _NAMED.finditer(text):
        value = match["double"] or match["single"] or match["plain"] or ""
        is_long = len(value) >= _FEWEST_CHARS and not value.startswith(("$", "-"))
        if is_long and _is_secret(match) and value.lower() not in _NO_SECRETS:
            found.add(value)
    return frozenset(found)


def _is_secret(match: re.Match[str]) -> bool:
    """The name marks a secret; docker's --passwd is a switch, and what follows it the image."""
    return match["flag"] != "passwd" and is_secret_name(match["flag"] or match["name"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrubber:
    """Blots secrets out; ``secrets`` are the ones that are known by their names."""

    secrets: frozenset[str] = frozenset()

    def mask(self, text: str) -> str:
        """The text without any secret."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, "…")
        return mask_secrets(text)

    def holds_secret(self, text: str) -> bool:
        """Whether there is one in the text."""
        return is_secret_value(text) or any(secret in text for secret in self.secrets)

    def scrub(self, stack: ForeignStack) -> ForeignStack:
        """The stack without secrets; StackFileError where a model cannot be named without one."""
        models, found = [], []
        for model in stack.models:
            scrubbed, leaked = self._scrub_model(model)
            models.append(scrubbed)
            found.extend(leaked)
        findings = tuple(
            replace(item, text=self.mask(item.text), hint=self.mask(item.hint)) for item in stack.findings
        )
        known = {(item.code, item.where) for item in findings}
        new = tuple(item for item in found if (item.code, item.where) not in known)
        return replace(stack, models=tuple(models), findings=(*findings, *new))

    def _scrub_model(self, model: ForeignModel) -> tuple[ForeignModel, list[Finding]]:
        request = model.request
        if self.holds_secret(model.checkpoint_seen) or self.holds_secret(request.checkpoint):
            place = f" ({model.where})" if model.where else ""
            raise StackFileError(
                f"the model's name has a secret in it, a password or a token{place}",
                hint="give the secret in the environment, such as HF_TOKEN, and the model by its plain name",
            )
        flags = tuple(self._scrub_flag(flag) for flag in model.flags)
        env = tuple(self._scrub_env(entry) for entry in model.env)
        leaks: Iterable[ForeignFlag | ForeignEnv] = (
            *(new for old, new in zip(model.flags, flags, strict=True) if new is not old),
            *(new for old, new in zip(model.env, env, strict=True) if new is not old),
        )
        args = tuple((name, value) for name, value in request.engine_args if not self._is_leak(value))
        scrubbed = replace(
            model,
            request=replace(request, name=self._name(request.name), engine_args=args),
            served_names=tuple(self.mask(name) for name in model.served_names),
            flags=flags,
            env=env,
            host=None if model.host is None else self.mask(model.host),
            address=self.mask(model.address),
            image=self.mask(model.image),
            container_name=self.mask(model.container_name),
            ipc=None if model.ipc is None else self.mask(model.ipc),
        )
        return scrubbed, [_finding_of(item) for item in leaks]

    def _name(self, name: str) -> str:
        return "model" if self.holds_secret(name) else name

    def _is_leak(self, value: SettingValue) -> bool:
        return isinstance(value, str) and self.holds_secret(value)

    def _scrub_flag(self, flag: ForeignFlag) -> ForeignFlag:
        if self._is_leak(flag.value):
            return replace(flag, written=self.mask(flag.written), value=None, is_secret=True)
        return replace(flag, written=self.mask(flag.written)) if self.holds_secret(flag.written) else flag

    def _scrub_env(self, entry: ForeignEnv) -> ForeignEnv:
        return replace(entry, value=None, is_secret=True) if self._is_leak(entry.value) else entry


def _finding_of(item: ForeignFlag | ForeignEnv) -> Finding:
    name = item.written if isinstance(item, ForeignFlag) else item.name
    return Finding(
        code="secret_in_clear",
        severity="harmful",
        text=f"the value of {shown(name)} stands in the file in clear",
        where=at_line(item.line),
        hint="keep it out of the file: in the environment, or in a file that only its user may read",
    )
