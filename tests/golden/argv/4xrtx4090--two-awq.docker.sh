# qwen3.5-35b-a3b-awq on GPU 0, 1: http://127.0.0.1:8000/v1
# NCCL_IB_DISABLE=1: all cards are in this host: no InfiniBand to look for
# NCCL_P2P_DISABLE=1: NVIDIA GeForce RTX 4090 can't reach another card's memory; NCCL goes through host memory
# VLLM_NO_USAGE_STATS=1: nothing about this machine is sent anywhere
docker rm -f $(docker ps -aq --filter label=trimtab.emitted=qwen3.5-35b-a3b-awq) >/dev/null 2>&1 || true
docker run -d --name qwen3.5-35b-a3b-awq \
  --gpus '"device=0,1"' \
  --ipc=host \
  --shm-size=16g \
  -p 8000:8000 \
  -v "${HF_HOME:-$HOME/.cache/huggingface}":/root/.cache/huggingface \
  -v "$HOME"/.cache/vllm-containers:/root/.cache/vllm \
  -e NCCL_IB_DISABLE=1 \
  -e NCCL_P2P_DISABLE=1 \
  -e VLLM_NO_USAGE_STATS=1 \
  -e HF_TOKEN \
  --label trimtab.emitted=qwen3.5-35b-a3b-awq \
  vllm/vllm-openai:v0.17.0 \
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

# qwen3.5-27b-awq on GPU 2, 3: http://127.0.0.1:8001/v1
# NCCL_IB_DISABLE=1: all cards are in this host: no InfiniBand to look for
# NCCL_P2P_DISABLE=1: NVIDIA GeForce RTX 4090 can't reach another card's memory; NCCL goes through host memory
# VLLM_NO_USAGE_STATS=1: nothing about this machine is sent anywhere
docker rm -f $(docker ps -aq --filter label=trimtab.emitted=qwen3.5-27b-awq) >/dev/null 2>&1 || true
docker run -d --name qwen3.5-27b-awq \
  --gpus '"device=2,3"' \
  --ipc=host \
  --shm-size=16g \
  -p 8001:8000 \
  -v "${HF_HOME:-$HOME/.cache/huggingface}":/root/.cache/huggingface \
  -v "$HOME"/.cache/vllm-containers:/root/.cache/vllm \
  -e NCCL_IB_DISABLE=1 \
  -e NCCL_P2P_DISABLE=1 \
  -e VLLM_NO_USAGE_STATS=1 \
  -e HF_TOKEN \
  --label trimtab.emitted=qwen3.5-27b-awq \
  vllm/vllm-openai:v0.17.0 \
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
