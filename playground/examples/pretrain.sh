#!/bin/bash
# A Megatron-LM script: see "migrate".
GPUS=8
MODEL_ARGS="
    --num-layers 24 --hidden-size 1024 --num-attention-heads 16
    --seq-length 2048 --max-position-embeddings 2048
"
torchrun --nproc_per_node $GPUS pretrain_gpt.py \
    $MODEL_ARGS \
    --tensor-model-parallel-size 2 \
    --micro-batch-size 4 --global-batch-size 128 --train-iters 500000 \
    --lr 3.0e-4 --min-lr 3.0e-5 --lr-decay-style cosine --lr-warmup-fraction 0.01 \
    --weight-decay 0.1 --clip-grad 1.0 \
    --swiglu --disable-bias-linear --untie-embeddings-and-output-weights \
    --position-embedding-type rope --normalization RMSNorm \
    --bf16 --use-distributed-optimizer --recompute-activations \
    --data-path data/pile_text_document --split 949,50,1 \
    --tokenizer-type GPT2BPETokenizer --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt \
    --save checkpoints --save-interval 10000
