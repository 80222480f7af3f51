"""Pure. Typed reads from a decoded config.json: every complaint names the key and its value."""

from __future__ import annotations

from collections.abc import Mapping

from trimtab.errors import MissingFactError, StackFileError

__all__ = ["ConfigReader"]

LARGEST_COUNT = 1 << 24
"""No dimension of a published model is above 16.7 million; larger is a typing error."""

MOST_LAYERS = 4096
"""Thirty times the deepest published model; above it a number is a typing error."""


class ConfigReader:
    """Reads one mapping of a config.json; ``where`` is the file, ``path`` the keys above it."""

    def __init__(self, mapping: Mapping[str, object], *, where: str, path: str = "") -> None:
        self.mapping = mapping
        self.where = where
        self.path = path

    def has(self, key: str) -> bool:
        """The key is there and not null."""
        return self.mapping.get(key) is not None

    def raw(self, key: str) -> object:
        """The value as decoded, or None."""
        return self.mapping.get(key)

    def child(self, key: str) -> ConfigReader | None:
        """The mapping under ``key``, None when absent; StackFileError when it is no mapping."""
        value = self.mapping.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.refuse(key, "a mapping")
        return ConfigReader(value, where=self.where, path=f"{self.path}{key}.")

    def layers(self, *keys: str, default: int | None = None, minimum: int = 1) -> int:
        """A number of layers: like ``count``, up to what any model could have."""
        number = self.count(*keys, default=default, minimum=minimum)
        if number > MOST_LAYERS:
            raise self.refuse(next(key for key in keys if self.has(key)), f"at most {MOST_LAYERS:,} layers")
        return number

    def count(self, *keys: str, default: int | None = None, minimum: int = 1) -> int:
        """The first of ``keys`` that is present, as an integer from ``minimum`` on."""
        for key in keys:
            value = self.mapping.get(key)
            if value is None:
                continue
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int):
                raise self.refuse(key, f"a whole number from {minimum} on")
            if not minimum <= value <= LARGEST_COUNT:
                raise self.refuse(key, f"a whole number from {minimum} to {LARGEST_COUNT:,}")
            return value
        if default is None:
            raise self.missing(keys[0])
        return default

    def number(self, key: str, *, default: float) -> float:
        """A positive number."""
        value = self.mapping.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= LARGEST_COUNT:
            raise self.refuse(key, f"a positive number up to {LARGEST_COUNT:,}")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """A true or false."""
        value = self.mapping.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return value

    def text(self, *keys: str, default: str = "") -> str:
        """A string."""
        for key in keys:
            value = self.mapping.get(key)
            if value is None:
                continue
            if not isinstance(value, str):
                raise self.refuse(key, "a text")
            return value
        return default

    def texts(self, *keys: str) -> tuple[str, ...]:
        """A list of strings; empty when absent."""
        for key in keys:
            value = self.mapping.get(key)
            if value is None:
                continue
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                raise self.refuse(key, "a list of texts")
            return tuple(value)
        return ()

    def missing(self, key: str) -> MissingFactError:
        """The error for a key that must be there."""
        return MissingFactError(
            f"{self.where}: key {self.path}{key} is absent, and the memory cannot be computed without it",
            hint="take the config.json of the original repository",
        )

    def refuse(self, key: str, wanted: str) -> StackFileError:
        """The error for a key with a value that cannot be."""
        value = repr(self.mapping.get(key))
        shown = value if len(value) <= 60 else value[:57] + "..."
        return StackFileError(f"{self.where}: {self.path}{key} is {shown}, expected {wanted}")
