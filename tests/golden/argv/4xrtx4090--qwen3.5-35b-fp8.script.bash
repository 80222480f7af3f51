#!/usr/bin/env bash
# Starts qwen3.5-35b-a3b-fp8; written by trimtab plan --emit script
set -euo pipefail

IMAGE=vllm/vllm-openai:v0.17.0
WAIT_S="${WAIT_S:-3600}"  # the longest that one start may take, in seconds

# qwen3.5-35b-a3b-fp8 on GPU 0, 1, 2, 3: http://127.0.0.1:8000/v1
# HF_HUB_OFFLINE=1: the folder has everything; a start never waits for a hub that can't be reached
# NCCL_IB_DISABLE=1: all cards are in this host: no InfiniBand to look for
# NCCL_P2P_DISABLE=1: NVIDIA GeForce RTX 4090 can't reach another card's memory; NCCL goes through host memory
# VLLM_NO_USAGE_STATS=1: nothing about this machine is sent anywhere
NAME_1=qwen3.5-35b-a3b-fp8
MODEL_1=/data/models/Qwen3.5-35B-A3B-FP8
PORT_1=8000

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

docker rm -f $(docker ps -aq --filter label=trimtab.emitted=qwen3.5-35b-a3b-fp8) >/dev/null 2>&1 || true
docker run -d --name "$NAME_1" \
  --gpus '"device=0,1,2,3"' \
  --ipc=host \
  --shm-size=16g \
  -p "$PORT_1":8000 \
  -v "$MODEL_1":/model:ro \
  -v "$HOME"/.cache/vllm-containers:/root/.cache/vllm \
  -e HF_HUB_OFFLINE=1 \
  -e NCCL_IB_DISABLE=1 \
  -e NCCL_P2P_DISABLE=1 \
  -e VLLM_NO_USAGE_STATS=1 \
  --label trimtab.emitted=qwen3.5-35b-a3b-fp8 \
  "$IMAGE" \
  --model /model \
  --served-model-name qwen3.5-35b-a3b-fp8 \
  --host 0.0.0.0 \
  --port 8000 \
  --tensor-parallel-size 4 \
  --max-model-len 262144 \
  --kv-cache-dtype fp8 \
  --gpu-memory-utilization 0.9 \
  --max-num-seqs 4 \
  --max-num-batched-tokens 8192 \
  --language-model-only \
  --enable-prefix-caching \
  --default-chat-template-kwargs '{"enable_thinking": false}'
wait_until_ready "$NAME_1" http://127.0.0.1:"$PORT_1"
