"""I/O. The automatic part of ``doctor``: what would stop a start is said right before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from trimtab.cli.folders import Folders
from trimtab.cli.machine import read_own_pids, read_vllm
from trimtab.cli.machine_docker import read_docker
from trimtab.core.plan import Plan
from trimtab.errors import EnvironmentMissingError
from trimtab.planner.preflight_start import StartFacts, check_start
from trimtab.probes.gpus import probe_gpus

__all__ = ["check_before_start"]


def check_before_start(plan: Plan, folders: Folders, note: Callable[[str], None]) -> None:
    """Say through ``note`` what is worth a word about the machine that the plan is to start on.

    EnvironmentMissingError for the first thing that would stop it; then nothing has been started. Looks
    only where vLLM is planned for cards or for Docker, some tenths of a second there.
    """
    models = [model for model in plan.models if model.engine == "vllm"]
    uses_cards = any(replica.gpus for model in models for replica in model.replicas)
    in_docker = any(model.runtime == "docker" for model in models)
    if not uses_cards and not in_docker:
        return
    versions = {model.engine_version for model in models if model.runtime == "process"}
    facts = StartFacts(
        gpus=probe_gpus(),
        docker=read_docker() if in_docker else None,
        programs={version: read_vllm(folders, version) for version in versions},
        own_pids=asyncio.run(read_own_pids(folders.state)),
    )
    findings = check_start(plan, facts)
    for finding in findings:
        if finding.severity == "warning":
            note(f"note: {finding.text} (fix: {finding.fix})")
    error = next((finding for finding in findings if finding.severity == "error"), None)
    if error is not None:
        raise EnvironmentMissingError(error.text, hint=error.fix)
