# 3 servers: each of these needs a terminal of its own
# needs vLLM 0.25.1, by whose flags this is written
# qwen3-32b on GPU 0: http://127.0.0.1:8000/v1
# VLLM_NO_USAGE_STATS=1: nothing about this machine is sent anywhere
CUDA_DEVICE_ORDER=PCI_BUS_ID \
  CUDA_VISIBLE_DEVICES=0 \
  VLLM_NO_USAGE_STATS=1 \
  vllm serve Qwen/Qwen3-32B-AWQ \
  --served-model-name qwen3-32b \
  --host 127.0.0.1 \
  --port 8000 \
  --max-model-len 16384 \
  --kv-cache-dtype fp8 \
  --max-num-seqs 8 \
  --reasoning-parser qwen3

# needs vLLM 0.25.1, by whose flags this is written
# qwen3-32b on GPU 1: http://127.0.0.1:8001/v1
# VLLM_NO_USAGE_STATS=1: nothing about this machine is sent anywhere
CUDA_DEVICE_ORDER=PCI_BUS_ID \
  CUDA_VISIBLE_DEVICES=1 \
  VLLM_NO_USAGE_STATS=1 \
  vllm serve Qwen/Qwen3-32B-AWQ \
  --served-model-name qwen3-32b \
  --host 127.0.0.1 \
  --port 8001 \
  --max-model-len 16384 \
  --kv-cache-dtype fp8 \
  --max-num-seqs 8 \
  --reasoning-parser qwen3

# needs vLLM 0.25.1, by whose flags this is written
# qwen3-32b on GPU 2: http://127.0.0.1:8002/v1
# VLLM_NO_USAGE_STATS=1: nothing about this machine is sent anywhere
CUDA_DEVICE_ORDER=PCI_BUS_ID \
  CUDA_VISIBLE_DEVICES=2 \
  VLLM_NO_USAGE_STATS=1 \
  vllm serve Qwen/Qwen3-32B-AWQ \
  --served-model-name qwen3-32b \
  --host 127.0.0.1 \
  --port 8002 \
  --max-model-len 16384 \
  --kv-cache-dtype fp8 \
  --max-num-seqs 8 \
  --reasoning-parser qwen3
