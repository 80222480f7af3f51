# qwen3.5-27b on GPU 0, 1: http://127.0.0.1:8000/v1
# NCCL_IB_DISABLE=1: all cards are in this host: no InfiniBand to look for
# NCCL_P2P_DISABLE=1: NVIDIA GeForce RTX 4090 can't reach another card's memory; NCCL goes through host memory
# VLLM_NO_USAGE_STATS=1: nothing about this machine is sent anywhere
# VLLM_TEST_FORCE_FP8_MARLIN=1: the cards differ in FP8 support; every rank must run the same kernels
docker rm -f $(docker ps -aq --filter label=trimtab.emitted=qwen3.5-27b) >/dev/null 2>&1 || true
docker run -d --name qwen3.5-27b \
  --gpus '"device=0,1"' \
  --ipc=host \
  --shm-size=16g \
  -p 8000:8000 \
  -v "${HF_HOME:-$HOME/.cache/huggingface}":/root/.cache/huggingface \
  -v "$HOME"/.cache/vllm-containers:/root/.cache/vllm \
  -e CUDA_DEVICE_ORDER=PCI_BUS_ID \
  -e NCCL_IB_DISABLE=1 \
  -e NCCL_P2P_DISABLE=1 \
  -e VLLM_NO_USAGE_STATS=1 \
  -e VLLM_TEST_FORCE_FP8_MARLIN=1 \
  -e HF_TOKEN \
  --label trimtab.emitted=qwen3.5-27b \
  vllm/vllm-openai:v0.25.1 \
  --model Qwen/Qwen3.5-27B-FP8 \
  --served-model-name qwen3.5-27b \
  --host 0.0.0.0 \
  --port 8000 \
  --tensor-parallel-size 2 \
  --max-model-len 219520 \
  --kv-cache-dtype fp8 \
  --gpu-memory-utilization 0.92 \
  --max-num-seqs 4 \
  --language-model-only \
  --attention-backend FLASHINFER
