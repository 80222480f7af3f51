# llama-3.1-70b on GPU 0, 1: http://127.0.0.1:8000/v1
# VLLM_NO_USAGE_STATS=1: nothing about this machine is sent anywhere
docker rm -f $(docker ps -aq --filter label=trimtab.emitted=llama-3.1-70b) >/dev/null 2>&1 || true
docker run -d --name llama-3.1-70b \
  --gpus '"device=0,1"' \
  --ipc=host \
  --shm-size=16g \
  -p 8000:8000 \
  -v "${HF_HOME:-$HOME/.cache/huggingface}":/root/.cache/huggingface \
  -v "$HOME"/.cache/vllm-containers:/root/.cache/vllm \
  -e VLLM_NO_USAGE_STATS=1 \
  -e HF_TOKEN \
  --label trimtab.emitted=llama-3.1-70b \
  vllm/vllm-openai:v0.27.1 \
  --model RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8 \
  --served-model-name llama-3.1-70b \
  --host 0.0.0.0 \
  --port 8000 \
  --tensor-parallel-size 2 \
  --max-model-len 16384 \
  --kv-cache-memory-bytes 4294967296 \
  --enable-auto-tool-choice \
  --tool-call-parser llama3_json
