# needs vLLM 0.33.0, by whose flags this is written
# qwen3.5-27b on GPU 0, 1: http://127.0.0.1:8000/v1
# NCCL_IB_DISABLE=1: all cards are in this host: no InfiniBand to look for
# NCCL_P2P_DISABLE=1: NVIDIA GeForce RTX 5090 can't reach another card's memory; NCCL goes through host memory
# VLLM_NO_USAGE_STATS=1: nothing about this machine is sent anywhere
CUDA_DEVICE_ORDER=PCI_BUS_ID \
  CUDA_VISIBLE_DEVICES=0,1 \
  NCCL_IB_DISABLE=1 \
  NCCL_P2P_DISABLE=1 \
  VLLM_NO_USAGE_STATS=1 \
  vllm serve Qwen/Qwen3.5-27B-FP8 \
  --served-model-name qwen3.5-27b \
  --host 0.0.0.0 \
  --port 8000 \
  --tensor-parallel-size 2 \
  --max-model-len 131072 \
  --kv-cache-dtype fp8 \
  --max-num-seqs 8 \
  --max-num-batched-tokens 4096 \
  --language-model-only \
  --reasoning-parser qwen3 \
  --enable-auto-tool-choice \
  --tool-call-parser qwen3_coder
