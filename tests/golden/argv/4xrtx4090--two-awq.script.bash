#!/usr/bin/env bash
# Starts qwen3.5-35b-a3b-awq, qwen3.5-27b-awq; written by trimtab plan --emit script
set -euo pipefail

IMAGE=vllm/vllm-openai:v0.17.0
HF_CACHE="${HF_HOME:-$HOME/.cache/huggingface}"
WAIT_S="${WAIT_S:-3600}"  # the longest that one start may take, in seconds

# qwen3.5-35b-a3b-awq on GPU 0, 1: http://127.0.0.1:8000/v1
# NCCL_IB_DISABLE=1: all cards are in this host: no InfiniBand to look for
# NCCL_P2P_DISABLE=1: NVIDIA GeForce RTX 4090 can't reach another card's memory; NCCL goes through host memory
# VLLM_NO_USAGE_STATS=1: nothing about this machine is sent anywhere
NAME_1=qwen3.5-35b-a3b-awq
PORT_1=8000

# qwen3.5-27b-awq on GPU 2, 3: http://127.0.0.1:8001/v1
# NCCL_IB_DISABLE=1: all cards are in this host: no InfiniBand to look for
# NCCL_P2P_DISABLE=1: NVIDIA GeForce RTX 4090 can't reach another card's memory; NCCL goes through host memory
# VLLM_NO_USAGE_STATS=1: nothing about this machine is sent anywhere
NAME_2=qwen3.5-27b-awq
PORT_2=8001

# Returns when the server answers; ends the script when its container has ended or WAIT_S is over.
wait_until_ready() {
  local name="$1" url="$2" end=$((SECONDS + WAIT_S))
  until curl -fsS -o /dev/null -m 5 "$url/health" 2>/dev/null; do
    if [[ "$(docker inspect -f '{{.State.Running}}' "$name" 2>/dev/null)" != true ]]; then
      echo "$name ended while starting; its last lines:" >&2
      docker logs --tail 40 "$name" >&2 || true
      exit 1
    fi
    if ((SECONDS >= end)); then
      echo "$name does not answer after $WAIT_S s; see: docker logs $name" >&2
      exit 1
    fi
    sleep 2
  done
  echo "$name answers at $url/v1"
}

docker rm -f $(docker ps -aq --filter label=trimtab.emitted=qwen3.5-35b-a3b-awq) >/dev/null 2>&1 || true
docker run -d --name "$NAME_1" \
  --gpus '"device=0,1"' \
  --ipc=host \
  --shm-size=16g \
  -p "$PORT_1":8000 \
  -v "$HF_CACHE":/root/.cache/huggingface \
  -v "$HOME"/.cache/vllm-containers:/root/.cache/vllm \
  -e NCCL_IB_DISABLE=1 \
  -e NCCL_P2P_DISABLE=1 \
  -e VLLM_NO_USAGE_STATS=1 \
  -e HF_TOKEN \
  --label trimtab.emitted=qwen3.5-35b-a3b-awq \
  "$IMAGE" \
  --model cyankiwi/Qwen3.5-35B-A3B-AWQ-4bit \
  --served-model-name qwen3.5-35b-a3b-awq \
  --host 0.0.0.0 \
  --port 8000 \
  --tensor-parallel-size 2 \
  --max-model-len 262144 \
  --kv-cache-dtype fp8 \
  --gpu-memory-utilization 0.9 \
  --max-num-seqs 16 \
  --max-num-batched-tokens 8192 \
  --language-model-only \
  --enable-prefix-caching \
  --default-chat-template-kwargs '{"enable_thinking": false}'
wait_until_ready "$NAME_1" http://127.0.0.1:"$PORT_1"

docker rm -f $(docker ps -aq --filter label=trimtab.emitted=qwen3.5-27b-awq) >/dev/null 2>&1 || true
docker run -d --name "$NAME_2" \
  --gpus '"device=2,3"' \
  --ipc=host \
  --shm-size=16g \
  -p "$PORT_2":8000 \
  -v "$HF_CACHE":/root/.cache/huggingface \
  -v "$HOME"/.cache/vllm-containers:/root/.cache/vllm \
  -e NCCL_IB_DISABLE=1 \
  -e NCCL_P2P_DISABLE=1 \
  -e VLLM_NO_USAGE_STATS=1 \
  -e HF_TOKEN \
  --label trimtab.emitted=qwen3.5-27b-awq \
  "$IMAGE" \
  --model cyankiwi/Qwen3.5-27B-AWQ-4bit \
  --served-model-name qwen3.5-27b-awq \
  --host 0.0.0.0 \
  --port 8000 \
  --tensor-parallel-size 2 \
  --max-model-len 262144 \
  --kv-cache-dtype fp8 \
  --gpu-memory-utilization 0.9 \
  --max-num-seqs 16 \
  --max-num-batched-tokens 8192 \
  --language-model-only \
  --enable-prefix-caching \
  --default-chat-template-kwargs '{"enable_thinking": false}'
wait_until_ready "$NAME_2" http://127.0.0.1:"$PORT_2"
