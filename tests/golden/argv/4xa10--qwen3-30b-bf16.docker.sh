# qwen3-30b-a3b on GPU 0, 1, 2, 3: http://127.0.0.1:8000/v1
# HF_HUB_OFFLINE=1: the folder has everything; a start never waits for a hub that can't be reached
# VLLM_NO_USAGE_STATS=1: nothing about this machine is sent anywhere
docker rm -f $(docker ps -aq --filter label=trimtab.emitted=qwen3-30b-a3b) >/dev/null 2>&1 || true
docker run -d --name qwen3-30b-a3b \
  --gpus '"device=0,1,2,3"' \
  --ipc=host \
  --shm-size=16g \
  -p 8000:8000 \
  -v /srv/models/Qwen3-30B-A3B:/model:ro \
  -v "$HOME"/.cache/vllm-containers:/root/.cache/vllm \
  -e HF_HUB_OFFLINE=1 \
  -e VLLM_NO_USAGE_STATS=1 \
  --label trimtab.emitted=qwen3-30b-a3b \
  vllm/vllm-openai:v0.25.1 \
  --model /model \
  --served-model-name qwen3-30b-a3b \
  --host 0.0.0.0 \
  --port 8000 \
  --tensor-parallel-size 4 \
  --max-model-len 32768 \
  --max-num-seqs 4 \
  --no-enable-prefix-caching \
  --enforce-eager
