# needs vLLM 0.25.1, by whose flags this is written
# qwen3-30b-a3b on GPU 0, 1, 2, 3: http://127.0.0.1:8000/v1
# HF_HUB_OFFLINE=1: the folder has everything; a start never waits for a hub that can't be reached
# VLLM_NO_USAGE_STATS=1: nothing about this machine is sent anywhere
CUDA_DEVICE_ORDER=PCI_BUS_ID \
  CUDA_VISIBLE_DEVICES=0,1,2,3 \
  HF_HUB_OFFLINE=1 \
  VLLM_NO_USAGE_STATS=1 \
  vllm serve /srv/models/Qwen3-30B-A3B \
  --served-model-name qwen3-30b-a3b \
  --host 0.0.0.0 \
  --port 8000 \
  --tensor-parallel-size 4 \
  --max-model-len 32768 \
  --max-num-seqs 4 \
  --no-enable-prefix-caching \
  --enforce-eager
