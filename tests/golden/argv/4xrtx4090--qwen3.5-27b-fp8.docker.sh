# qwen3.5-27b-fp8 on GPU 0, 1, 2, 3: http://127.0.0.1:8000/v1
# HF_HUB_OFFLINE=1: the folder has everything; a start never waits for a hub that can't be reached
# NCCL_IB_DISABLE=1: all cards are in this host: no InfiniBand to look for
# NCCL_P2P_DISABLE=1: NVIDIA GeForce RTX 4090 can't reach another card's memory; NCCL goes through host memory
# VLLM_NO_USAGE_STATS=1: nothing about this machine is sent anywhere
docker rm -f $(docker ps -aq --filter label=trimtab.emitted=qwen3.5-27b-fp8) >/dev/null 2>&1 || true
docker run -d --name qwen3.5-27b-fp8 \
  --gpus '"device=0,1,2,3"' \
  --ipc=host \
  --shm-size=16g \
  -p 8000:8000 \
  -v /data/models/Qwen3.5-27B-FP8:/model:ro \
  -v "$HOME"/.cache/vllm-containers:/root/.cache/vllm \
  -e HF_HUB_OFFLINE=1 \
  -e NCCL_IB_DISABLE=1 \
  -e NCCL_P2P_DISABLE=1 \
  -e VLLM_NO_USAGE_STATS=1 \
  --label trimtab.emitted=qwen3.5-27b-fp8 \
  vllm/vllm-openai:v0.17.0 \
  --model /model \
  --served-model-name qwen3.5-27b-fp8 \
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
