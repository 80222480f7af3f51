"""I/O. ``trimtab pull`` and ``trimtab rm``: models brought to this machine, and taken from it again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from trimtab.cli.options import Wish, complete_by, json_option
from trimtab.errors import EnvironmentMissingError, StackFileError
from trimtab.units import format_bytes

if TYPE_CHECKING:
    from trimtab.cli.fetched import FetchedModel
    from trimtab.cli.folders import Folders
    from trimtab.probes.hub_http import SourceName
    from trimtab.probes.hub_store import CachedModel

__all__ = ["pull", "rm"]


@click.command(
    epilog="""\b
Examples:
  trimtab pull Qwen/Qwen3.5-35B-A3B-FP8          a checkpoint for vLLM, only the files it needs
  trimtab pull org/repo-GGUF:Q8_0                one quant for llama.cpp
  trimtab pull stack.yaml                        every model of a stack
  trimtab pull Qwen/Qwen3-0.6B --update          a newer commit, if there is one
  trimtab pull --list                            what trimtab has downloaded
"""
)
@click.argument(
    "target",
    metavar="[MODEL | STACK.yaml]",
    required=False,
    shell_complete=complete_by("complete_target"),
)
@click.option("--revision", metavar="R", help="Branch, tag or commit of a checkpoint [the hub's main].")
@click.option(
    "--source",
    type=click.Choice(("auto", "huggingface", "modelscope")),
    default="auto",
    show_default=True,
    help="Hub to fetch from; auto is Hugging Face unless VLLM_USE_MODELSCOPE is set.",
)
@click.option(
    "--update", "is_refreshed", is_flag=True, help="Ask the hub for a newer commit than the one here."
)
@click.option("--list", "is_list", is_flag=True, help="Show what trimtab has downloaded; fetch nothing.")
@json_option
def pull(
    *, target: str | None, revision: str | None, source: SourceName, is_refreshed: bool, is_list: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Download MODEL so that a later `trimtab up` starts at once; what is here already is only named.

    MODEL is a repo id (repo:file.gguf or repo:QUANT for one GGUF), a path, or a model of
    ./stack.yaml; without one it is the embedded default. An interrupted download goes on where it
    stopped. HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE and the proxy variables are obeyed.
    """
    from trimtab.cli.folders import read_folders  # noqa: PLC0415 - keeps --help quick

    folders = read_folders()
    if is_list:
        if target is not None:
            raise StackFileError(
                "--list shows everything, and a model was named", hint="leave one of them out"
            )
        _show_cached(folders, as_json=as_json)
        return
    from trimtab.cli.fetched import FetchWish, fetch_model  # noqa: PLC0415
    from trimtab.cli.progress import Progress  # noqa: PLC0415
    from trimtab.cli.wished_stack import read_wished_stack  # noqa: PLC0415

    stack = read_wished_stack(Wish(target=target))
    if revision is not None and len(stack.models) > 1:
        raise StackFileError(f"--revision is of one model, and {target} has {len(stack.models)}")
    wish = FetchWish(revision=revision, source=source, is_refreshed=is_refreshed)
    fetched = []
    for model in (item for item in stack.models if item.url is None):
        try:
            with Progress() as progress:
                fetched.append(fetch_model(model, wish, folders, progress))
        except KeyboardInterrupt:
            click.echo("stopped; the same command goes on from here", err=True)
            raise click.Abort from None
        if not as_json:
            click.echo(_fetched_line(fetched[-1]))
    if as_json:
        click.echo(json.dumps({"models": [_fetched_document(item) for item in fetched]}, indent=2))


def _fetched_line(item: FetchedModel) -> str:
    commit = f", commit {item.commit[:12]}" if item.commit else ""
    how = "downloaded" if item.is_new else "already here"
    return f"{item.checkpoint}: {how}, {format_bytes(item.size_bytes)}{commit}\n  {item.path}"


def _fetched_document(item: FetchedModel) -> dict[str, Any]:
    return {
        "name": item.name,
        "checkpoint": item.checkpoint,
        "kind": item.kind,
        "path": str(item.path),
        "commit": item.commit,
        "is_new": item.is_new,
        "size_bytes": item.size_bytes,
    }


def _show_cached(folders: Folders, *, as_json: bool) -> None:
    from trimtab.cli.render import render_table  # noqa: PLC0415
    from trimtab.probes.hub_cache import hub_cache_dir  # noqa: PLC0415
    from trimtab.probes.hub_store import list_cached  # noqa: PLC0415

    models = list_cached(folders.cache)
    if as_json:
        click.echo(json.dumps({"models": [_cached_document(model) for model in models]}, indent=2))
        return
    if not models:
        click.echo(f"nothing has been downloaded into {folders.cache}")
    else:
        header = ("model", "kind", "commit", "size", "state", "folder")
        click.echo(render_table(header, map(_cached_row, models)))
        click.echo(f"{format_bytes(sum(model.size_bytes for model in models))} in all")
    click.echo(
        f"models in {hub_cache_dir()}, which other programs share, are used there and not listed", err=True
    )


def _cached_row(model: CachedModel) -> tuple[str, ...]:
    state = "whole" if model.is_complete else "in part"
    size = format_bytes(model.size_bytes)
    return (model.repo, model.kind, model.commit[:12] or "-", size, state, str(model.path))


def _cached_document(model: CachedModel) -> dict[str, Any]:
    return {
        "repo": model.repo,
        "kind": model.kind,
        "path": str(model.path),
        "commit": model.commit,
        "size_bytes": model.size_bytes,
        "is_complete": model.is_complete,
    }


@click.command(
    epilog="""\b
Examples:
  trimtab rm Qwen/Qwen3-0.6B             every copy of it that trimtab downloaded
  trimtab rm org/repo-GGUF:Q8_0 --yes    one quant, without a question
"""
)
@click.argument("model", shell_complete=complete_by("complete_cached"))
@click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask.")
@json_option
def rm(*, model: str, is_sure: bool, as_json: bool) -> None:
    """Remove MODEL from trimtab's own cache, after asking; files of yours and shared caches stay."""
    from trimtab.cli.folders import read_folders  # noqa: PLC0415 - keeps --help quick
    from trimtab.cli.in_use import find_users  # noqa: PLC0415
    from trimtab.probes.hub_store import remove_cached  # noqa: PLC0415

    folders = read_folders()
    repo, file = _read_repo(model)
    chosen = _find(folders, repo, file)
    size = format_bytes(sum(item.size_bytes for item in chosen))
    for item in chosen:
        state = "" if item.is_complete else " (a download that is not finished)"
        click.echo(f"{item.repo}: {format_bytes(item.size_bytes)} in {item.path}{state}", err=True)
    users = find_users(folders, [repo, *(str(item.path) for item in chosen)])
    if users:
        raise EnvironmentMissingError(
            f"{model} is being served by {', '.join(users)}", hint="stop it first: trimtab down"
        )
    if not is_sure:
        _ask(f"remove {size}?", as_json=as_json)
    removed = remove_cached(folders.cache, repo, file)
    if as_json:
        click.echo(json.dumps({"removed": [_cached_document(item) for item in removed]}, indent=2))
    else:
        click.echo(f"removed {model}: {size} are free again")


def _ask(question: str, *, as_json: bool) -> None:
    """Return on yes; click.Abort on no, StackFileError where nobody can answer."""
    if as_json:
        raise StackFileError("rm asks before it removes, and --json leaves no room to", hint="add --yes")
    try:
        is_wanted = click.confirm(question)
    except click.Abort:
        click.echo(err=True)
        raise StackFileError("nothing was removed: nobody answered the question", hint="add --yes") from None
    if not is_wanted:
        click.echo("nothing was removed", err=True)
        raise click.Abort


def _read_repo(model: str) -> tuple[str, str]:
    """Repo id and file of what the user named; StackFileError for what trimtab never downloads."""
    from trimtab.cli.wished_stack import read_wished_stack  # noqa: PLC0415
    from trimtab.probes.hub import is_repo_id  # noqa: PLC0415
    from trimtab.stackfile.read import is_stack_path  # noqa: PLC0415

    if is_stack_path(model):
        raise StackFileError(f"{model} is a stack, and one model at a time is removed", hint="name the model")
    named = model if "/" in model else read_wished_stack(Wish(target=model)).models[0].checkpoint
    if "/" not in named:
        raise StackFileError(
            f"{named} is the embedded default, which belongs to the installation",
            hint="trimtab pull --list shows what can be removed",
        )
    if not is_repo_id(named):
        raise StackFileError(
            f"{named} is a path of yours: trimtab removes only what it has downloaded",
            hint="trimtab pull --list shows what that is",
        )
    repo, _, file = named.partition(":")
    return repo, file


def _find(folders: Folders, repo: str, file: str) -> tuple[CachedModel, ...]:
    """What is to be removed; a shared cache that has the model is named in the refusal."""
    from trimtab.probes.hub_cache import find_modelscope_snapshot, repo_folder  # noqa: PLC0415
    from trimtab.probes.hub_store import find_cached  # noqa: PLC0415

    try:
        return find_cached(folders.cache, repo, file)
    except StackFileError:
        shared = repo_folder(repo)
        snapshot = find_modelscope_snapshot(repo)
        place = shared if shared.is_dir() else (snapshot.folder if snapshot else None)
        if place is None:
            raise
        raise StackFileError(
            f"{repo} is in a cache that other programs share, {place}, which trimtab leaves alone",
            hint=f"if nothing else needs it: rm -r {place}",
        ) from None
