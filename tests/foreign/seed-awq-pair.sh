#!/bin/bash
# both AWQ models at once, two cards each
IMAGE="vllm/vllm-openai:v0.17.0"
MODELS=/data/models
COMMON_ARGS=(
  --model /model
  --tensor-parallel-size 2        # two cards each
  --max-model-len 262144
  --kv-cache-dtype fp8
  --gpu-memory-utilization 0.9
  --max-num-seqs 16
  --max-num-batched-tokens 8192
  --language-model-only
  --enable-prefix-caching
  --default-chat-template-kwargs '{"enable_thinking": false}'
  --host 0.0.0.0
)
COMMON_ENV=(-e NCCL_P2P_DISABLE=0 -e NCCL_IB_DISABLE=1 -e VLLM_USE_V1=1)

start_model() {
  local name=$1 devices=$2 port=$3 folder=$4
  docker stop "$name" 2>/dev/null
  docker rm -f "$name" 2>/dev/null
  docker run -d --name "$name" \
    --gpus "\"device=${devices}\"" \
    --ipc=host --shm-size=16g \
    -p "${port}:${port}" \
    "${COMMON_ENV[@]}" \
    -v "${MODELS}/${folder}:/model:ro" \
    "$IMAGE" "${COMMON_ARGS[@]}" \
    --served-model-name "$name" --port "$port"
}

start_model qwen3.5-35b-a3b-awq 0,1 8000 Qwen3.5-35B-A3B-AWQ-4bit
start_model qwen3.5-27b-awq     2,3 8001 Qwen3.5-27B-AWQ-4bit

for name in qwen3.5-35b-a3b-awq qwen3.5-27b-awq; do
  docker ps --filter "name=$name"
done
