# qwen3-32b on GPU 0: http://127.0.0.1:8000/v1
# VLLM_NO_USAGE_STATS=1: nothing about this machine is sent anywhere
docker rm -f $(docker ps -aq --filter label=trimtab.emitted=qwen3-32b-0) >/dev/null 2>&1 || true
docker run -d --name qwen3-32b-0 \
  --gpus '"device=0"' \
  --ipc=host \
  --shm-size=16g \
  -p 127.0.0.1:8000:8000 \
  -v "${HF_HOME:-$HOME/.cache/huggingface}":/root/.cache/huggingface \
  -v "$HOME"/.cache/vllm-containers:/root/.cache/vllm \
  -e VLLM_NO_USAGE_STATS=1 \
  -e HF_TOKEN \
  --label trimtab.emitted=qwen3-32b-0 \
  vllm/vllm-openai:v0.25.1 \
  --model Qwen/Qwen3-32B-AWQ \
  --served-model-name qwen3-32b \
  --host 0.0.0.0 \
  --port 8000 \
  --max-model-len 16384 \
  --kv-cache-dtype fp8 \
  --max-num-seqs 8 \
  --reasoning-parser qwen3

# qwen3-32b on GPU 1: http://127.0.0.1:8001/v1
# VLLM_NO_USAGE_STATS=1: nothing about this machine is sent anywhere
docker rm -f $(docker ps -aq --filter label=trimtab.emitted=qwen3-32b-1) >/dev/null 2>&1 || true
docker run -d --name qwen3-32b-1 \
  --gpus '"device=1"' \
  --ipc=host \
  --shm-size=16g \
  -p 127.0.0.1:8001:8000 \
  -v "${HF_HOME:-$HOME/.cache/huggingface}":/root/.cache/huggingface \
  -v "$HOME"/.cache/vllm-containers:/root/.cache/vllm \
  -e VLLM_NO_USAGE_STATS=1 \
  -e HF_TOKEN \
  --label trimtab.emitted=qwen3-32b-1 \
  vllm/vllm-openai:v0.25.1 \
  --model Qwen/Qwen3-32B-AWQ \
  --served-model-name qwen3-32b \
  --host 0.0.0.0 \
  --port 8000 \
  --max-model-len 16384 \
  --kv-cache-dtype fp8 \
  --max-num-seqs 8 \
  --reasoning-parser qwen3

# qwen3-32b on GPU 2: http://127.0.0.1:8002/v1
# VLLM_NO_USAGE_STATS=1: nothing about this machine is sent anywhere
docker rm -f $(docker ps -aq --filter label=trimtab.emitted=qwen3-32b-2) >/dev/null 2>&1 || true
docker run -d --name qwen3-32b-2 \
  --gpus '"device=2"' \
  --ipc=host \
  --shm-size=16g \
  -p 127.0.0.1:8002:8000 \
  -v "${HF_HOME:-$HOME/.cache/huggingface}":/root/.cache/huggingface \
  -v "$HOME"/.cache/vllm-containers:/root/.cache/vllm \
  -e VLLM_NO_USAGE_STATS=1 \
  -e HF_TOKEN \
  --label trimtab.emitted=qwen3-32b-2 \
  vllm/vllm-openai:v0.25.1 \
  --model Qwen/Qwen3-32B-AWQ \
  --served-model-name qwen3-32b \
  --host 0.0.0.0 \
  --port 8000 \
  --max-model-len 16384 \
  --kv-cache-dtype fp8 \
  --max-num-seqs 8 \
  --reasoning-parser qwen3
