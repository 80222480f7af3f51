"""Pure. What copies between cards prove: which cards reach each other, and what to do where they lie.

A driver's claim is not enough: early drivers offered peer access between RTX 4090s and copies hung
(github.com/NVIDIA/nccl-tests issue 117), changed drivers offer it and break with the next change of RAM
or BIOS (github.com/noonghunna/club-3090 issue 873), and an IOMMU corrupts it.
"""

from __future__ import annotations

from dataclasses import replace

from trimtab.core.gpu_facts import GpuProbe, PeerCopies
from trimtab.core.preflight import Finding

__all__ = ["check_peer_copies", "with_peer_copies"]

_BROKEN = frozenset({"wrong", "failed", "hung"})


def with_peer_copies(probe: GpuProbe, copies: PeerCopies) -> GpuProbe:
    """The probe with ``has_p2p`` as the copies showed it, for cards whose every pair was tried.

    A doubt about the driver's claim goes away where copies settled it.
    """
    tried: dict[int, set[str]] = {}
    for copy in copies.copies:
        for index in (copy.source, copy.target):
            tried.setdefault(index, set()).add(copy.outcome)
    needed = 2 * (len(probe.gpus) - 1)
    counts = {
        gpu.index: sum(gpu.index in (copy.source, copy.target) for copy in copies.copies)
        for gpu in probe.gpus
    }
    gpus = tuple(
        replace(gpu, has_p2p=tried[gpu.index] == {"right"})
        if counts[gpu.index] == needed or _BROKEN & tried.get(gpu.index, set())
        else gpu
        for gpu in probe.gpus
    )
    is_settled = bool(gpus) and all(counts[gpu.index] == needed for gpu in gpus)
    problems = tuple(item for item in probe.problems if item.code != "p2p-unproven" or not is_settled)
    return replace(probe, gpus=gpus, problems=problems)


def check_peer_copies(copies: PeerCopies) -> tuple[Finding, ...]:
    """One finding on the copy test; none where there was nothing to copy between."""
    if copies.error:
        text = f"whether cards reach each other was not tried: {copies.error}"
        return (Finding(code="gpu-p2p", severity="warning", text=text, fix="look at nvidia-smi and dmesg"),)
    if not copies.copies:
        return ()
    broken = [copy for copy in copies.copies if copy.outcome in _BROKEN]
    if broken:
        first = broken[0]
        what = {"wrong": "come out wrong", "hung": "hang", "failed": f"fail ({first.detail})"}[first.outcome]
        return (
            Finding(
                code="gpu-p2p",
                severity="error",
                text=f"copies from GPU {first.source} to GPU {first.target} {what}, though they are offered",
                fix="set NCCL_P2P_DISABLE=1 (slower, right), or turn the IOMMU and ACS off in the BIOS",
            ),
        )
    right = sum(copy.outcome == "right" for copy in copies.copies)
    if right == 0:
        return (Finding(code="gpu-p2p", severity="ok", text="no two cards have peer access (tried)"),)
    text = (
        f"peer access works: {right} of {len(copies.copies)} ways between cards, every copied byte compared"
    )
    return (Finding(code="gpu-p2p", severity="ok", text=text),)
