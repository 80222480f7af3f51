"""I/O. A systemd user unit that runs one stack: written, shown how to enable, and removed again."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from trimtab import __version__
from trimtab.cli.folders import Folders
from trimtab.cli.options import Wish
from trimtab.errors import EnvironmentMissingError, StackFileError
from trimtab.probes.path_kind import expanded, path_exists

__all__ = ["install_service", "render_unit", "render_wish", "service_options", "uninstall_service"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

_MARK: Final = "# Written by trimtab"
# What a start depends on; a user manager has little of a shell's environment.
_KEPT: Final = (
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "XDG_STATE_HOME",
    "XDG_CACHE_HOME",
    "TRIMTAB_VLLM",
    "DOCKER_HOST",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
    "VLLM_USE_MODELSCOPE",
    "MODELSCOPE_CACHE",
    "MODELSCOPE_ENDPOINT",
    "MODELSCOPE_DOMAIN",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
)
# Never written into a unit, which everybody on the machine may read.
_SECRETS: Final = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MODELSCOPE_API_TOKEN")
# Requests may take 30 s to finish and engines 10 s to end (cli/serve.py); a slow disk gets the rest.
_STOP_S: Final = 90
# A stack or plan that is wrong stays wrong: exit codes 2 and 3 (errors.py).
_UNIT: Final = """\
{mark} {version}; `trimtab up {hint} --install-service` writes it anew, `--uninstall-service` removes it.
[Unit]
Description=trimtab: {stack}
StartLimitIntervalSec=900
StartLimitBurst=20

[Service]
Type=exec
WorkingDirectory={folder}
ExecStart={command}
{environment}EnvironmentFile=-{secrets}
# Twenty tries are five minutes: a network or a driver may come later than the login.
Restart=on-failure
RestartSec=15
RestartPreventExitStatus=2 3
# trimtab alone is told to stop: it lets requests finish, then ends its engines by their guards.
KillMode=mixed
TimeoutStopSec={stop_s}
# An engine that ran out of memory is started again by trimtab; the others serve on.
OOMPolicy=continue

[Install]
WantedBy=default.target
"""


def service_options(command: _Command) -> _Command:
    """``--install-service`` and ``--uninstall-service``, as the one value ``service``."""
    install = click.option(
        "--install-service",
        "service",
        flag_value="install",
        help="Write a systemd user unit that runs this; start nothing.",
    )
    uninstall = click.option(
        "--uninstall-service", "service", flag_value="uninstall", help="Remove the unit of this stack."
    )
    return install(uninstall(command))


def render_wish(wish: Wish) -> tuple[str, ...]:
    """The words after ``trimtab up`` that mean the wish; paths that exist are absolute."""
    words: list[str] = []
    if wish.target is not None:
        words.append(_absolute(wish.target))
    if wish.plan_file is not None:
        if wish.plan_file == "-":
            raise StackFileError("a service cannot read a plan from standard input", hint="save it to a file")
        words += ["--plan", _absolute(wish.plan_file)]
    flags = {
        "--context": wish.context,
        "--concurrency": wish.concurrency,
        "--replicas": wish.replicas,
        "--engine": wish.engine,
        "--engine-version": wish.engine_version,
        "--gpus": wish.gpus,
        "--ram": wish.ram,
        "--host": wish.host,
        "--port": wish.port,
    }
    for flag, value in flags.items():
        if value is not None:
            words += [flag, str(value)]
    for name, pin in wish.pins:
        words += ["--set", f"{name}={json.dumps(pin)}"]
    return tuple(words)


def _absolute(text: str) -> str:
    return str(expanded(text).absolute()) if path_exists(text) else text


def install_service(arguments: Sequence[str], folders: Folders, *, stack: str, as_json: bool = False) -> None:
    """Write the unit that runs ``trimtab up`` with ``arguments`` (``render_wish``) and say how to enable it.

    EnvironmentMissingError when a unit of that name is somebody else's or the folder cannot be written.
    """
    path = _unit_path(stack)
    existing = _read_unit(path)
    if existing is not None and not existing.startswith(_MARK):
        raise EnvironmentMissingError(
            f"{path} is there and was not written by trimtab",
            hint="move it away, or give the stack another name",
        )
    environ = os.environ | {
        "XDG_STATE_HOME": str(folders.state.parent),
        "XDG_CACHE_HOME": str(folders.cache.parent),
    }
    text = render_unit(arguments, stack=stack, folder=Path.cwd(), environ=environ, secrets=_secrets_path())
    _write(path, text)
    commands = ["systemctl --user daemon-reload", f"systemctl --user enable --now {path.name}"]
    if as_json:
        document = {"unit": str(path), "commands": commands, "linger": "loginctl enable-linger"}
        click.echo(json.dumps(document, indent=2))
    else:
        click.echo(_installed_text(path, commands))
    for note in _notes():
        click.echo(note, err=True)


def _installed_text(path: Path, commands: Iterable[str]) -> str:
    listed = "\n".join(f"  {command}" for command in commands)
    return f"""wrote {path}

start it now and at every login:
{listed}
keep it running while nobody is logged in:
  loginctl enable-linger
its log:
  journalctl --user -u {path.stem} -f"""


def _notes() -> Iterable[str]:
    for name in _SECRETS:
        if os.environ.get(name):
            yield (
                f"note: {name} is set here and not written into the unit; put {name}=… into"
                f" {_secrets_path()} (chmod 600) if the service needs it"
            )
    if any(_has_password(name, os.environ.get(name, "")) for name in _KEPT):
        yield f"note: a proxy with a password is not written into the unit; put it into {_secrets_path()}"
    if shutil.which("systemctl") is None:
        yield "note: systemd is not on this machine, so that nothing will start the unit"


def render_unit(
    arguments: Sequence[str], *, stack: str, folder: Path, environ: Mapping[str, str], secrets: Path
) -> str:
    """The unit's text; StackFileError for a path or argument that a unit cannot hold."""
    words = [sys.executable, "-P", "-m", "trimtab", "up", *arguments]
    kept = {
        name: environ[name]
        for name in _KEPT
        if environ.get(name) and environ[name].isprintable() and not _has_password(name, environ[name])
    }
    lines = (f"Environment={_quoted(f'{name}={value}', dollars=False)}\n" for name, value in kept.items())
    for word in (*words, str(folder), stack):
        _check_word(word)
    return _UNIT.format(
        mark=_MARK,
        version=__version__,
        hint=(arguments[0] if arguments else "").replace("%", "%%"),
        stack=stack.replace("%", "%%"),
        folder=str(folder).replace("%", "%%"),
        command=" ".join(_quoted(word, dollars=True) for word in words),
        environment="".join(lines),
        secrets=str(secrets).replace("%", "%%"),
        stop_s=_STOP_S,
    )


def _has_password(name: str, value: str) -> bool:
    return name.lower().endswith("_proxy") and "@" in value


def _check_word(word: str) -> None:
    if not word.isprintable():
        raise StackFileError(f"{word!r} holds a character that a systemd unit cannot", hint="rename it")


def _quoted(word: str, *, dollars: bool) -> str:
    """As systemd reads a word back (systemd.syntax, systemd.service: % and, in commands, $ are special)."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped.replace("$", "$$") if dollars else escaped}"'


def uninstall_service(wish: Wish, *, as_json: bool = False) -> None:
    """Remove the unit of a stack, named by its file or its own name.

    StackFileError when there is none, EnvironmentMissingError when trimtab did not write it.
    """
    path = _unit_path(_stack_name(wish))
    existing = _read_unit(path)
    if existing is None:
        ours = sorted(entry.name for entry in path.parent.glob("trimtab-*.service"))
        raise StackFileError(f"{path} is not there", hint=f"there are: {', '.join(ours) or 'none'}")
    if not existing.startswith(_MARK):
        raise EnvironmentMissingError(f"{path} was not written by trimtab, so it stays", hint=f"rm {path}")
    try:
        path.unlink()
        (path.parent / "default.target.wants" / path.name).unlink(missing_ok=True)
    except OSError as error:
        raise _refused(path, error) from error
    commands = [f"systemctl --user stop {path.name}", "systemctl --user daemon-reload"]
    if as_json:
        click.echo(json.dumps({"removed": str(path), "commands": commands}, indent=2))
    else:
        listed = "\n".join(f"  {command}" for command in commands)
        click.echo(f"removed {path}\n\nstop it, if it runs:\n{listed}")


def _stack_name(wish: Wish) -> str:
    """The stack that is meant; its file need not exist any more where its name is given."""
    from trimtab.cli.wished_stack import read_wished_stack  # noqa: PLC0415

    if wish.target is not None and "/" not in wish.target and _unit_path(wish.target).is_file():
        return wish.target
    return read_wished_stack(wish).name


def _unit_path(stack: str) -> Path:
    name = re.sub(r"[^A-Za-z0-9_.\-]+", "-", stack)[:200] or "stack"
    return _config_folder() / "systemd" / "user" / f"trimtab-{name}.service"


def _config_folder() -> Path:
    value = os.environ.get("XDG_CONFIG_HOME", "")
    if value.startswith("/"):
        return Path(value)
    try:
        return Path.home() / ".config"
    except RuntimeError as error:
        raise EnvironmentMissingError(
            "no home folder is known and XDG_CONFIG_HOME is not set", hint="set XDG_CONFIG_HOME"
        ) from error


def _secrets_path() -> Path:
    return _config_folder() / "trimtab" / "service.env"


def _read_unit(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refused(path, error) from error


def _write(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise _refused(path, error) from error


def _refused(path: Path, error: OSError) -> EnvironmentMissingError:
    return EnvironmentMissingError(
        f"{path} cannot be written: {(error.strerror or str(error)).lower()}",
        hint="give this user write access there, or set XDG_CONFIG_HOME",
    )
