"""Pure. The scripts of one real box (four RTX 4090, vLLM 0.17.0) are read as their owner meant them."""

from pathlib import Path

import pytest

from trimtab.stackfile.foreign import decode_foreign
from trimtab.stackfile.foreign_model import ForeignGpus
from trimtab.units import GIB

FOLDER = Path(__file__).parents[1] / "foreign"


def read(name):
    return decode_foreign((FOLDER / name).read_text(), source=name)


def test_one_container_at_a_time():
    """Every setting of the first deployment is there, in the order written."""
    stack = read("seed-fp8.sh")

    (model,) = stack.models
    assert stack.findings == ()
    assert model.request.name == "qwen3.5-35b-a3b-fp8"
    assert model.request.checkpoint == "/data/models/Qwen3.5-35B-A3B-FP8"
    assert model.checkpoint_seen == "/model"
    assert (model.request.engine, model.request.engine_version) == ("vllm", "0.17.0")
    assert (model.request.runtime, model.request.gpus) == ("docker", "0,1,2,3")
    assert model.request.engine_args == (
        ("tensor_parallel_size", 4),
        ("max_model_len", 262144),
        ("kv_cache_dtype", "fp8"),
        ("gpu_memory_utilization", 0.9),
        ("max_num_seqs", 4),
        ("max_num_batched_tokens", 8192),
        ("language_model_only", True),
        ("enable_prefix_caching", True),
        ("default_chat_template_kwargs", '{"enable_thinking": false}'),
    )
    assert [(entry.name, entry.value) for entry in model.env] == [
        ("NCCL_P2P_DISABLE", "0"),
        ("NCCL_IB_DISABLE", "1"),
        ("VLLM_USE_V1", "1"),
    ]
    assert (model.host, model.port, model.ipc, model.shm_bytes) == ("0.0.0.0", 8000, "host", 16 * GIB)
    assert model.container_name == "qwen35-35b-fp8"
    assert model.where == "line 13"


@pytest.mark.parametrize(
    ("place", "name", "folder", "indices", "port"),
    [
        pytest.param(0, "qwen3.5-35b-a3b-awq", "Qwen3.5-35B-A3B-AWQ-4bit", (0, 1), 8000, id="35b"),
        pytest.param(1, "qwen3.5-27b-awq", "Qwen3.5-27B-AWQ-4bit", (2, 3), 8001, id="27b"),
    ],
)
def test_two_containers_through_a_function(place, name, folder, indices, port):
    """A script that starts two models with one function is two models, each with its own cards and port."""
    stack = read("seed-awq-pair.sh")

    model = stack.models[place]
    assert len(stack.models) == 2
    assert stack.findings == ()
    assert (model.request.name, model.container_name) == (name, name)
    assert model.request.checkpoint == f"/data/models/{folder}"
    assert model.gpus == ForeignGpus(indices=indices)
    assert (model.port, model.listen_port) == (port, port)
    assert dict(model.request.engine_args)["tensor_parallel_size"] == 2
    assert dict(model.request.engine_args)["max_num_seqs"] == 16
