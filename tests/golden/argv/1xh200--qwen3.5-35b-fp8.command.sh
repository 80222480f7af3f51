# needs vLLM 0.25.1, by whose flags this is written
# qwen3.5-35b on GPU 0: http://127.0.0.1:8000/v1
# VLLM_NO_USAGE_STATS=1: nothing about this machine is sent anywhere
CUDA_DEVICE_ORDER=PCI_BUS_ID \
  CUDA_VISIBLE_DEVICES=0 \
  VLLM_NO_USAGE_STATS=1 \
  vllm serve Qwen/Qwen3.5-35B-A3B-FP8 \
  --served-model-name qwen3.5-35b \
  --host 127.0.0.1 \
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
