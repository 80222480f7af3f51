"""Pure. The name of a model that was named on the command line only."""

import pytest

from trimtab.stackfile.decode import check_model_name
from trimtab.stackfile.names import served_name_of


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("./models/Tiny.Q4_K_M.gguf", "Tiny.Q4_K_M"),
        ("my model (1).gguf", "my-model-1"),
        ("org/Repo-GGUF", "Repo-GGUF"),
        ("org/repo-GGUF:sub/file.Q8_0.gguf", "file.Q8_0"),
        ("/models/folder/", "folder"),
        ("模型.gguf", "model"),
        ("---.gguf", "model"),
        ("x" * 300 + ".gguf", "x" * 100),
    ],
)
def test_a_target_gives_a_short_served_name(target, name):
    """Clients ask for a name that can be typed."""
    assert served_name_of(target) == name
    check_model_name(name, where="MODEL")
