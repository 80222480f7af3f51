# needs vLLM 0.27.1, by whose flags this is written
# llama-3.1-70b on GPU 0, 1: http://127.0.0.1:8000/v1
# VLLM_NO_USAGE_STATS=1: nothing about this machine is sent anywhere
CUDA_DEVICE_ORDER=PCI_BUS_ID \
  CUDA_VISIBLE_DEVICES=0,1 \
  VLLM_NO_USAGE_STATS=1 \
  vllm serve RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8 \
  --served-model-name llama-3.1-70b \
  --host 0.0.0.0 \
  --port 8000 \
  --tensor-parallel-size 2 \
  --max-model-len 16384 \
  --kv-cache-memory-bytes 4294967296 \
  --enable-auto-tool-choice \
  --tool-call-parser llama3_json
