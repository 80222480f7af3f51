"""Pure. A plan as text to paste: commands, `docker run` lines, a Compose file or a script.

One server per replica on its own cards and port, each with the reasons for its environment above it.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from trimtab.core.container import ContainerSpec
from trimtab.core.hardware import Gpu
from trimtab.core.plan import ModelPlan, Plan, ReplicaPlan
from trimtab.core.state import PORT_PLACEHOLDER
from trimtab.engines.vllm import Vllm
from trimtab.engines.vllm_container import container_of
from trimtab.engines.vllm_emit_compose import render_compose
from trimtab.engines.vllm_emit_script import render_script
from trimtab.engines.vllm_emit_shell import (
    comment,
    group_flags,
    join_lines,
    render_docker_remove,
    render_docker_run,
    render_docker_wait,
    sharing,
    shell_path,
    with_emitted_label,
)
from trimtab.engines.vllm_env import (
    EnvChoice,
    choose_env,
    gpus_of_replica,
    is_local_checkpoint,
    replica_devices,
)
from trimtab.engines.vllm_sleep import without_sleep_settings
from trimtab.errors import StackFileError

__all__ = ["EMIT_FORMS", "EmitForm", "render_emit"]

EmitForm: TypeAlias = Literal["command", "docker", "compose", "script"]
EMIT_FORMS: Final[tuple[EmitForm, ...]] = get_args(EmitForm)
_FIRST_PORT: Final = 8000
_LAST_PORT: Final = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    """One replica with where it will be reached."""

    model: ModelPlan
    replica: ReplicaPlan
    cards: tuple[Gpu, ...]
    host: str
    port: int

    @property
    def base_url(self) -> str:
        """Where this machine reaches it."""
        host = "127.0.0.1" if self.host in {"0.0.0.0", "::"} else self.host  # noqa: S104
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def choices(self) -> tuple[EnvChoice, ...]:
        return choose_env(self.model, self.cards) if self.model.engine == "vllm" else ()


def render_emit(plan: Plan, form: EmitForm) -> str:
    """The plan as text in one of the forms; StackFileError for a model that a form can't carry.

    The first server gets the plan's port, the next ones those after it; a pinned ``port`` is kept. A
    plan that doesn't fit is written all the same and says so in its first line.
    """
    servers = _servers(plan)
    head = [] if plan.fits else [comment("this plan does not fit these cards; it is what was asked for")]
    if form == "command":
        if len(servers) > 1:
            head.append(comment(f"{len(servers)} servers: each of these needs a terminal of its own"))
        blocks = ["\n".join(_command(servers, index)) for index in range(len(servers))]
        return _text(head, "\n\n".join(blocks) + ("\n" if blocks else ""))
    specs = [_container(plan, server, form) for server in servers]
    _check_names(specs)
    notes = [_notes(server) for server in servers]
    if form == "compose":
        return _text(head, render_compose(specs, notes=notes))
    specs = [with_emitted_label(spec) for spec in specs]
    if form == "script":
        title = "Starts " + ", ".join(spec.name for spec in specs) + "; written by trimtab plan --emit script"
        text = render_script(specs, notes=notes, title=title)
        return text.replace("\nset -euo", "".join(f"\n{line}" for line in head) + "\nset -euo", 1)
    return _text(head, _docker(specs, notes))


def _text(head: Sequence[str], body: str) -> str:
    return "".join(f"{line}\n" for line in head) + body


def _check_names(specs: Sequence[ContainerSpec]) -> None:
    seen: set[str] = set()
    for spec in specs:
        if spec.name in seen:
            raise StackFileError(
                f"two containers would be called {spec.name}", hint="rename one of the models"
            )
        seen.add(spec.name)


def _docker(specs: Sequence[ContainerSpec], notes: Sequence[Sequence[str]]) -> str:
    """`docker run` lines; a server that shares a card starts when those before it on that card answer."""
    blocks, awaited = [], set[str]()
    for index, (spec, above) in enumerate(zip(specs, notes, strict=True)):
        lines: list[str] = []
        for other in sharing(specs, index):
            if other.name not in awaited:
                awaited.add(other.name)
                lines += render_docker_wait(other)
        blocks.append("\n".join([*lines, *above, render_docker_remove(spec), render_docker_run(spec)]))
    return "\n\n".join(blocks) + ("\n" if blocks else "")


def _command(servers: Sequence[_Server], index: int) -> list[str]:
    """One server's lines: it waits for those before it that share a card."""
    server = servers[index]
    own = set(server.replica.gpus)
    lines = _notes(server)
    if server.model.engine == "vllm":
        lines.insert(0, comment(f"needs vLLM {server.model.engine_version}, by whose flags this is written"))
    for other in servers[:index]:
        if own & set(other.replica.gpus):
            url = f"{other.base_url}/health"
            lines += [
                comment(f"shares a card with {other.model.name}, and starts when that answers"),
                f"until curl -fsS -o /dev/null -m 5 {shlex.quote(url)} 2>/dev/null; do sleep 2; done",
            ]
    return [*lines, _render_command(server)]


def _servers(plan: Plan) -> list[_Server]:
    gpus = plan.hardware.gpus if plan.hardware is not None else ()
    pinned = {model.name: _pinned_port(model) for model in plan.models}
    taken: set[int] = set()
    servers: list[_Server] = []
    next_port = plan.gateway.port or _FIRST_PORT
    # As others run it: only trimtab puts engines to sleep, and their ports may be open to all.
    for model in map(without_sleep_settings, plan.models):
        for replica in model.replicas:
            wished = pinned[model.name]
            while next_port in taken or next_port in pinned.values():
                next_port += 1
            port = wished if wished is not None and wished not in taken else next_port
            if port > _LAST_PORT:
                raise StackFileError(
                    f"no port is left for {replica.replica_id}", hint="start with a lower --port"
                )
            taken.add(port)
            servers.append(
                _Server(
                    model=model, replica=replica, cards=gpus_of_replica(replica, gpus),
                    host=_host(plan, model), port=port,
                )
            )  # fmt: skip
    return servers


def _pinned(model: ModelPlan, name: str) -> object:
    return next((item.value for item in model.settings if item.name == name), None)


def _pinned_port(model: ModelPlan) -> int | None:
    value = _pinned(model, "port")
    return (
        value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _LAST_PORT else None
    )


def _host(plan: Plan, model: ModelPlan) -> str:
    host = _pinned(model, "host")
    found = host if isinstance(host, str) and host else plan.gateway.host
    return "127.0.0.1" if found == "localhost" else found


def _notes(server: _Server) -> list[str]:
    """What it is and where, and why each variable is set."""
    cards = ", ".join(str(index) for index in server.replica.gpus)
    place = f" on GPU {cards}" if cards else ""
    return [
        comment(f"{server.model.name}{place}: {server.base_url}/v1"),
        *(comment(f"{choice.name}={choice.value}: {choice.reason}") for choice in server.choices),
    ]


def _container(plan: Plan, server: _Server, form: EmitForm) -> ContainerSpec:
    if server.model.engine != "vllm":
        raise StackFileError(
            f"--emit {form}: {server.model.name} runs on {server.model.engine}, which has no image here",
            hint="--emit command prints the commands of every engine",
        )
    gpus = plan.hardware.gpus if plan.hardware is not None else ()
    return container_of(server.model, server.replica, gpus=gpus, host_port=server.port, host_ip=server.host)


def _render_command(server: _Server) -> str:
    """Variables and command of one server, for a terminal of its own."""
    model = server.model
    if model.engine == "vllm":
        argv = Vllm().render_argv(model)
        env = dict(sorted([*replica_devices(server.replica), *((c.name, c.value) for c in server.choices)]))
        words = _listen_at(argv, server)
    else:
        env = dict(model.env)
        words = tuple(word.replace(PORT_PLACEHOLDER, str(server.port)) for word in model.argv)
    assignments = [f"{name}={shlex.quote(value)}" for name, value in env.items()]
    lines = group_flags(words)
    if model.engine == "vllm" and is_local_checkpoint(model.checkpoint):
        lines[0] = f"vllm serve {shell_path(model.checkpoint)}"
    return join_lines([*assignments, *lines])


def _listen_at(argv: Sequence[str], server: _Server) -> tuple[str, ...]:
    words = list(argv)
    words[words.index("--host") + 1] = server.host
    words[words.index(PORT_PLACEHOLDER)] = str(server.port)
    return tuple(words)
