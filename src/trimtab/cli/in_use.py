"""I/O. Which running engines use a model, told from their command lines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import psutil

from trimtab.cli.folders import Folders
from trimtab.runtimes.local_process import LocalProcessRuntime

__all__ = ["find_users"]


def find_users(folders: Folders, wanted: Sequence[str]) -> tuple[str, ...]:
    """Names of the models whose engines were started with one of ``wanted`` (paths, repo ids) in a word.

    Engines of this state folder are looked at, those in containers are not.
    """
    if not folders.state.is_dir():
        return ()
    replicas = asyncio.run(LocalProcessRuntime(folders.state, python="").list_replicas())
    return tuple(sorted({item.model for item in replicas if item.is_running and _names(item.pid, wanted)}))


def _names(pid: int, wanted: Sequence[str]) -> bool:
    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
    return any(text in word for word in words for text in wanted)
