#!/usr/bin/env bash
# Qwen3.5-35B-A3B-FP8 on four RTX 4090, text only, full context
set -euo pipefail

NAME="qwen35-35b-fp8"
IMAGE=vllm/vllm-openai:v0.17.0
MODEL_DIR=/data/models/Qwen3.5-35B-A3B-FP8
PORT=8000

# remove an old one first
docker rm -f "$NAME" >/dev/null 2>&1 || true

docker run -d \
  --name "$NAME" \
  --gpus '"device=0,1,2,3"' \
  --ipc=host \
  --shm-size=16g \
  -p ${PORT}:8000 \
  -e NCCL_P2P_DISABLE=0 \
  -e NCCL_IB_DISABLE=1 \
  -e VLLM_USE_V1=1 \
  -v "${MODEL_DIR}":/model:ro \
  ${IMAGE} \
  --model /model \
  --served-model-name qwen3.5-35b-a3b-fp8 \
  --tensor-parallel-size 4 \
  --max-model-len 262144 \
  --kv-cache-dtype fp8 \
  --gpu-memory-utilization 0.9 \
  --max-num-seqs 4 \
  --max-num-batched-tokens 8192 \
  --language-model-only \
  --enable-prefix-caching \
  --default-chat-template-kwargs '{"enable_thinking": false}' \
  --host 0.0.0.0 \
  --port 8000

echo "started $NAME"
docker logs -f "$NAME"
