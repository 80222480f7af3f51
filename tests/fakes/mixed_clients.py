"""Clients that ask several models in an order of their own, each after the answer to the one before."""

from __future__ import annotations

import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Asked:
    """One request: its model, status and seconds, and what an error said."""

    model: str
    status: int
    seconds: float
    text: str = ""


@dataclass
class MixedClients:
    """``orders`` has one list of models per client."""

    endpoint: str
    orders: list[list[str]]
    max_tokens: int = 4
    asked: list[Asked] = field(default_factory=list)

    def run(self) -> None:
        """Until every client has all of its answers."""
        threads = [threading.Thread(target=self._go_through, args=(order,)) for order in self.orders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _go_through(self, order: list[str]) -> None:
        for model in order:
            self.asked.append(ask_once(self.endpoint, model, max_tokens=self.max_tokens))


def ask_once(
    endpoint: str, model: str, *, max_tokens: int = 4, is_stream: bool = False, timeout_s: float = 900
) -> Asked:
    """One short chat."""
    body = {
        "model": model,
        "max_tokens": max_tokens,
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": is_stream,
    }
    request = urllib.request.Request(
        f"{endpoint}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    began_s = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            answer.read()
            return Asked(model, answer.status, time.monotonic() - began_s)
    except urllib.error.HTTPError as error:
        return Asked(model, error.code, time.monotonic() - began_s, error.read().decode())


def mixed_orders(models: Sequence[str], *, num_clients: int, num_requests: int, seed: int) -> list[list[str]]:
    """Orders by chance, equally long."""
    rng = random.Random(seed)
    return [[rng.choice(models) for _ in range(num_requests // num_clients)] for _ in range(num_clients)]


def fewest_loads(orders: list[list[str]], *, first: str) -> int:
    """Loads of the best order for two models of which one fits: each client's turns cannot be fewer."""
    return max(
        sum(one != other for one, other in zip([first, *order], order, strict=False)) for order in orders
    )


def count_loads(endpoint: str) -> int:
    """Loads on demand since the start, as the gateway counts them."""
    with urllib.request.urlopen(endpoint.removesuffix("/v1") + "/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(int(float(line.split()[1])) for line in lines if line.startswith("trimtab_model_loads_total{"))
