"""The real vLLM of scripts/vllm_cpu.py for tests: its environment, tiny checkpoints, and a spec to start."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_plans import vllm_plan

from trimtab.core.plan import ModelPlan
from trimtab.core.stack import SettingValue
from trimtab.core.state import ReplicaSpec
from trimtab.engines.vllm import Vllm
from trimtab.launcher.reconcile import config_hash_of

SCRIPTS = Path(__file__).parents[2] / "scripts"
VERSION = "0.32.0"
# What the tiny checkpoints say: SENTENCES of scripts/vllm_cpu_models.py.
THOUGHT = "I will use this method."
ANSWER = "The value is set to one"
# Every engine binds itself to the first core, where one that spins starves the next one's start; unbound, its
# threads spin on all cores unless there is one only. Without a size the cache takes half of the machine.
ENVIRONMENT: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
SETTINGS: Mapping[str, SettingValue] = {
    "dtype": "bfloat16",
    "enforce_eager": True,
    "max_model_len": 2048,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 512,
    "enable_prefix_caching": True,
    "language_model_only": True,
    "reasoning_parser": "qwen3",
    "default_chat_template_kwargs": '{"enable_thinking": false}',
}


@dataclass(frozen=True)
class VllmCpu:
    """An installed environment; ``models`` is the folder of the checkpoints made so far."""

    folder: Path
    models: Path

    @property
    def program(self) -> Path:
        """The vllm command."""
        return self.folder / "bin" / "vllm"

    def checkpoint(self, family: str) -> Path:
        """A tiny checkpoint of the family, made at its first use."""
        path = self.models / family
        if not path.exists():
            script = SCRIPTS / "vllm_cpu_models.py"
            subprocess.run(
                [str(self.folder / "bin" / "python"), str(script), str(path), "--family", family],
                check=True,
                capture_output=True,
                timeout=120,
            )
        return path

    def plan(self, family: str, **changes: SettingValue) -> ModelPlan:
        """A plan for that checkpoint, without cards."""
        values = {**SETTINGS, **changes}
        return vllm_plan("tiny", str(self.checkpoint(family)), values, gpus=((),), version=VERSION)

    def spec(self, family: str, **changes: SettingValue) -> ReplicaSpec:
        """What a runtime is asked to start for it: the adapter's own command, with this vllm."""
        plan = self.plan(family, **changes)
        argv = (str(self.program), *Vllm().render_argv(plan)[1:])
        env = tuple(sorted((*Vllm().render_env(plan), *ENVIRONMENT.items())))
        return ReplicaSpec(
            replica_id=plan.replicas[0].replica_id,
            stack="tests",
            model=plan.name,
            engine="vllm",
            argv=argv,
            env=env,
            config_hash=config_hash_of(argv, env, plan.engine_version),
            trimtab_version="0",
            max_model_len=plan.max_model_len,
        )


def install() -> tuple[Path | None, str]:
    """The environment's folder, or None and why this machine cannot have it."""
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "vllm_cpu.py"), "install"],
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    if done.returncode == 3:
        return None, done.stderr.strip().splitlines()[-1]
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip()), ""
