"""What a wish asks for in vain is said in the plan."""

from __future__ import annotations

import pytest
from trimtab_program import Program

STACK = "models: {{tiny: {{checkpoint: smollm2-135m, context: 512, thinking: {thinking}{family}}}}}"


@pytest.mark.parametrize(
    ("thinking", "family", "is_said"),
    [
        pytest.param("off", "", True, id="plain"),
        pytest.param("off", ", family: qwen3", False, id="switchable"),
    ],
)
def test_thinking_of_a_plain_model_is_a_warning(tmp_path, thinking, family, is_said):
    """The key is not swallowed."""
    (tmp_path / "s.yaml").write_text(STACK.format(thinking=thinking, family=family))

    done = Program(tmp_path, is_warm=True).run("plan", "s.yaml")

    assert done.returncode == 0, done.stderr
    assert ("thinking: off changes nothing for tiny" in done.stdout) == is_said


def test_a_workload_without_a_speed_is_a_warning(tmp_path):
    """Whoever asks how fast a GGUF file is reads that it must be measured."""
    done = Program(tmp_path, is_warm=True).run("plan", "smollm2-135m", "--workload", "isl=8K")

    assert "--workload changes nothing for llama.cpp" in done.stdout
