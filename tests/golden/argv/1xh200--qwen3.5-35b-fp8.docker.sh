# qwen3.5-35b on GPU 0: http://127.0.0.1:8000/v1
# VLLM_NO_USAGE_STATS=1: nothing about this machine is sent anywhere
docker rm -f $(docker ps -aq --filter label=trimtab.emitted=qwen3.5-35b) >/dev/null 2>&1 || true
docker run -d --name qwen3.5-35b \
  --gpus '"device=0"' \
  --ipc=host \
  --shm-size=16g \
  -p 127.0.0.1:8000:8000 \
  -v "${HF_HOME:-$HOME/.cache/huggingface}":/root/.cache/huggingface \
  -v "$HOME"/.cache/vllm-containers:/root/.cache/vllm \
  -e VLLM_NO_USAGE_STATS=1 \
  -e HF_TOKEN \
  --label trimtab.emitted=qwen3.5-35b \
  vllm/vllm-openai:v0.25.1 \
  --model Qwen/Qwen3.5-35B-A3B-FP8 \
  --served-model-name qwen3.5-35b \
  --host 0.0.0.0 \
  --port 8000 \
  --max-model-len 262144 \
  --gpu-memory-utilization 0.92 \
  --max-num-seqs 128 \
  --max-num-batched-tokens 8192 \
  --enable-prefix-caching \
  --speculative-config '{"method": "mtp", "num_speculative_tokens": 2}' \
  --reasoning-parser qwen3 \
  --enable-auto-tool-choice \
  --tool-call-parser qwen3_coder
