# needs vLLM 0.25.1, by whose flags this is written
# qwen3.5-27b on GPU 0, 1: http://127.0.0.1:8000/v1
# NCCL_IB_DISABLE=1: all cards are in this host: no InfiniBand to look for
# NCCL_P2P_DISABLE=1: NVIDIA GeForce RTX 4090 can't reach another card's memory; NCCL goes through host memory
# VLLM_NO_USAGE_STATS=1: nothing about this machine is sent anywhere
# VLLM_TEST_FORCE_FP8_MARLIN=1: the cards differ in FP8 support; every rank must run the same kernels
CUDA_DEVICE_ORDER=PCI_BUS_ID \
  CUDA_VISIBLE_DEVICES=0,1 \
  NCCL_IB_DISABLE=1 \
  NCCL_P2P_DISABLE=1 \
  VLLM_NO_USAGE_STATS=1 \
  VLLM_TEST_FORCE_FP8_MARLIN=1 \
  vllm serve Qwen/Qwen3.5-27B-FP8 \
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
