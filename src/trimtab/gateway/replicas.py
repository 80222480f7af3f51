"""Pure. Which replica of a model a request goes to: the one with the least to do, or the one of its chat."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from trimtab.core.state import ReplicaState, ServedModel, ServedReplica

__all__ = ["CHAT_ID_HEADERS", "Beginning", "ReplicaLoads", "TokenNeed", "find_beginning", "find_chat_id"]

# Open WebUI's own, sent when it is told to forward who asks; and one of ours for everybody else.
CHAT_ID_HEADERS: Final = (b"x-openwebui-chat-id", b"x-trimtab-chat-id")
# A chat keeps its replica up to this multiple of the mean load: the bound of "consistent hashing with
# bounded loads" (Mirrokni, Thorup, Zadimoghaddam 2016), whose authors' example is 1.25.
_LOAD_BOUND: Final = 1.25
# A replica that broke off is left alone so long: its supervisor needs up to ten seconds to say that it
# is gone, and one second spares nearly every request the detour without leaving a sound one idle.
_SHUN_S: Final = 1.0
# Conversations whose replica is remembered: some 2 MB.
_MAX_REMEMBERED: Final = 8192
# A body that is longer begins with an image or a book; hashing it would hold up others.
_MAX_HASHED_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """How a conversation without a name begins; ``is_later``: an answer to it has been given before."""

    key: bytes
    is_later: bool


def find_beginning(document: Mapping[str, Any], *, num_bytes: int) -> Beginning | None:
    """What all turns of a chat share: its messages up to the first of a user. None where there is none."""
    messages = document.get("messages")
    if not isinstance(messages, list) or num_bytes > _MAX_HASHED_BYTES:
        return None
    roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
    if "user" not in roles:
        return None
    text = json.dumps(messages[: roles.index("user") + 1], sort_keys=True)
    return Beginning(key=blake2b(text.encode(), digest_size=16).digest(), is_later="assistant" in roles)


def find_chat_id(fields: Mapping[bytes, bytes], document: Mapping[str, Any]) -> str | None:
    """The chat a request belongs to: a header, ``metadata.chat_id``, ``prompt_cache_key`` or ``user``."""
    for name in CHAT_ID_HEADERS:
        given = fields.get(name)
        if given:
            return given.decode("utf-8", "surrogateescape")
    metadata = document.get("metadata")
    inside = metadata.get("chat_id") if isinstance(metadata, dict) else None
    for value in (inside, document.get("prompt_cache_key"), document.get("user")):
        if isinstance(value, str) and value:
            return value
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenNeed:
    """What a request is expected to hold of a replica's cache, and what one has: tokens and slots."""

    num_tokens: float
    room_tokens: float
    num_slots: int


class ReplicaLoads:
    """What each replica has in flight, and the choice among those that are ready.

    Without a chat: the least in flight, ties in turn, beginning at ``seed``; where requests need of a cache
    that is known (``TokenNeed``), the one whose slots or cache, whichever is fuller, are the emptiest, and
    never one without room while another has it. With one: always the same
    replica while it is ready and not loaded above its share; a later turn of a chat without a name goes by
    the same bound to the replica of the turn before. A replica that failed is passed over for
    a second where another is ready.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self._seed = seed
        self._turn = seed
        self._in_flight: dict[str, int] = {}
        self._tokens: dict[str, float] = {}
        self._shunned_until_s: dict[str, float] = {}
        self._remembered: OrderedDict[bytes, str] = OrderedDict()

    def in_flight_of(self, replica_id: str) -> int:
        """Requests that the replica works on."""
        return self._in_flight.get(replica_id, 0)

    def choose(
        self,
        model: ServedModel,
        *,
        chat_id: str | None,
        now_s: float,
        dropped: frozenset[str] = frozenset(),
        beginning: Beginning | None = None,
        need: TokenNeed | None = None,
    ) -> ServedReplica | None:
        """A replica that is ready and not in ``dropped``; None where there is none."""
        ready = [
            replica
            for replica in model.replicas
            if replica.state is ReplicaState.READY
            and replica.base_url is not None
            and replica.replica_id not in dropped
        ]
        sound = [one for one in ready if self._shunned_until_s.get(one.replica_id, -math.inf) <= now_s]
        candidates = self._roomy(sound or ready, need)
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        if chat_id is not None:
            return self._of_chat(candidates, chat_id)
        return self._of_turn_before(candidates, beginning) or self._least(candidates, need)

    def _roomy(self, candidates: list[ServedReplica], need: TokenNeed | None) -> list[ServedReplica]:
        if need is None:
            return candidates
        most = need.room_tokens - need.num_tokens
        return [one for one in candidates if self._tokens.get(one.replica_id, 0.0) <= most] or candidates

    def remember(self, beginning: Beginning, replica_id: str) -> None:
        """The replica has answered a turn of that conversation."""
        self._remembered[beginning.key] = replica_id
        self._remembered.move_to_end(beginning.key)
        if len(self._remembered) > _MAX_REMEMBERED:
            self._remembered.popitem(last=False)

    def _of_turn_before(
        self, candidates: list[ServedReplica], beginning: Beginning | None
    ) -> ServedReplica | None:
        if beginning is None or not beginning.is_later:
            return None
        known = self._remembered.get(beginning.key)
        return next((one for one in self._within_share(candidates) if one.replica_id == known), None)

    def _least(self, candidates: list[ServedReplica], need: TokenNeed | None) -> ServedReplica:
        first = self._turn % len(candidates)
        self._turn += 1
        in_turn = candidates[first:] + candidates[:first]
        if need is None:
            return min(in_turn, key=lambda replica: self.in_flight_of(replica.replica_id))
        slots, room = need.num_slots, need.room_tokens
        return min(
            in_turn,
            key=lambda replica: max(
                self.in_flight_of(replica.replica_id) / slots,
                self._tokens.get(replica.replica_id, 0.0) / room,
            ),
        )

    def _of_chat(self, candidates: list[ServedReplica], chat_id: str) -> ServedReplica:
        """The first in the chat's own order of replicas that has room within the bound.

        The order depends on the chat and each replica alone: when one goes or comes, only its chats move.
        """
        fitting = self._within_share(candidates)
        return max(fitting, key=lambda replica: _weight(chat_id, replica.replica_id, self._seed))

    def _within_share(self, candidates: list[ServedReplica]) -> list[ServedReplica]:
        total = sum(self.in_flight_of(replica.replica_id) for replica in candidates) + 1
        bound = math.ceil(_LOAD_BOUND * total / len(candidates))
        return [one for one in candidates if self.in_flight_of(one.replica_id) < bound]

    def begin(self, replica_id: str, *, num_tokens: float = 0.0) -> None:
        """The replica has a request more."""
        self._in_flight[replica_id] = self.in_flight_of(replica_id) + 1
        if num_tokens:
            self._tokens[replica_id] = self._tokens.get(replica_id, 0.0) + num_tokens

    def end(self, replica_id: str, *, num_tokens: float = 0.0) -> None:
        """The replica has a request less."""
        left = self.in_flight_of(replica_id) - 1
        if left > 0:
            self._in_flight[replica_id] = left
            if num_tokens:
                self._tokens[replica_id] -= num_tokens
        else:
            self._in_flight.pop(replica_id, None)
            self._tokens.pop(replica_id, None)

    def shun(self, replica_id: str, *, now_s: float) -> None:
        """The replica broke off: leave it alone for a moment."""
        self._shunned_until_s = {one: until for one, until in self._shunned_until_s.items() if until > now_s}
        self._shunned_until_s[replica_id] = now_s + _SHUN_S


def _weight(chat_id: str, replica_id: str, seed: int) -> bytes:
    text = f"{seed}\0{replica_id}\0{chat_id}".encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=8).digest()
