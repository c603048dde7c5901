"""Megatron-LM flags that have no counterpart, by reason.

Every option of Megatron-LM's parser (2026) is either read (`flags.py`, or `megatron=` in the registry) or in this
table; a test compares both with the parser's own list.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache

IMPLEMENTATION = "it is a Megatron-LM implementation detail"
#: Implementation details of older versions, or of Megatron-DeepSpeed.
OLD_FLAGS = ("use-legacy-models", "no-async-tensor-model-parallel-allreduce", "data-impl", "DDP-impl")
CHECKPOINTS = "it is specific to Megatron-LM's checkpoint format and storage"
LOGGING = "it is specific to Megatron-LM's logging"
FAULT_TOLERANCE = "it is specific to Megatron-LM's fault tolerance, which deepy does not use"
OTHER_PROGRAMS = "it is not used for pretraining a GPT"
#: Reasons of so many flags that one warning names them all.
REASONS_IN_COMMON = (IMPLEMENTATION, CHECKPOINTS, LOGGING, FAULT_TOLERANCE, OTHER_PROGRAMS)
STAGES = "in deepy, each rank has one pipeline stage, and pipe_partition_method balances the stages"
TOKENIZER_FILES = "the tokenizer's files determine this"
PADDING = "deepy always pads the vocabulary (see make_vocab_size_divisible_by)"
NO_ENCODER = "a GPT has no encoder"
LAUNCHER = "the launcher sets it for every process"
SECRETS = "a secret belongs in the environment, as WANDB_API_KEY does"
#: Reasons of flags that affect neither the model nor its training.
HARMLESS = (*REASONS_IN_COMMON, STAGES, TOKENIZER_FILES, PADDING, NO_ENCODER, LAUNCHER, SECRETS)

#: Reason, a clause after "because" -> patterns of flags, where `*` is any text. The first match counts.
REASONS = {
    OTHER_PROGRAMS: """
        rl-* no-rl-* grpo-* langrl-env-config perform-rl-step refit-method inference-* no-inference-* mlp-chunks-for-*
        decode-only-cuda-graphs flash-decode max-tokens-to-oom enable-chunked-prefill num-speculative-tokens
        nccl-all-reduce-for-prefill use-legacy-static-engine symmetric-ar-type mamba-inference-*
        logits-* output-bert-embeddings bert-* biencoder-* retriever-* embedding-path
        evidence-data-path classes-fraction data-per-class-fraction dino-* img-h img-w iter-per-epoch mask-factor
        mask-type num-channels num-classes patch-dim swin-* vision-* no-data-sharding head-lr-mult
        chat-template decoder-num-layers decoder-seq-length mask-prob short-seq-prob ict-* titles-data-path
        query-in-block-prob use-one-sent-docs block-data-path indexer-*
        vocab-extra-ids verify-integrity trust-remote-code run-workload-inspector-server sample-rate""",
    FAULT_TOLERANCE: """
        inprocess-* ft-* calc-ft-timeouts enable-ft-package rerun-* error-injection-* fault-injector-* exit-signal*
        exit-duration-in-mins exit-on-missing-checkpoint result-rejected-tracker-filename
        distributed-timeout-* empty-unused-memory-level manual-gc* disable-manual-gc-eval no-manual-gc-eval
        flight-recorder-* disable-flight-recorder-* no-flight-recorder-* fake-process-group
        gpu-sniff-test-interval""",
    LOGGING: """
        log-* no-log-* disable-log-* logging-level tensorboard-* timing-* no-barrier-with-level-1-timing
        one-logger-* no-one-logger app-tag-* otel-* nvtx-ranges profile-ranks use-pytorch-profiler pytorch-profiler-*
        record-shapes straggler-* disable-straggler-on-startup wandb-save-dir config-logger-dir
        save-activations-interval save-dgrads-interval save-params-interval save-wgrads-interval
        save-tokens-per-expert-interval moe-per-layer-logging moe-routing-trace-* dump-param-to-param-group-map
        check-for-large-grads check-for-spiky-loss check-weight-hash-* no-check-for-nan-in-loss-and-grad
        validation-set-names""",
    CHECKPOINTS: """
        ckpt-* no-ckpt-* disable-ckpt-* async-* dist-ckpt-* use-dist-ckpt auto-detect-ckpt-format non-persistent-*
        persistent-save-interval save-retain-interval override-ckpt-iteration pretrained-checkpoint
        load-main-params-from-ckpt
        *use-tokenizer-model-from-checkpoint-args *save-tokenizer-assets *strict-fsdp-dtensor-load
        use-persistent-ckpt-worker replication* enable-msc disable-msc object-storage-cache-path
        dist*-optim-fully-reshardable*""",
    IMPLEMENTATION: """
        overlap-* no-overlap-* tp-comm-* no-tp-comm-* disable-tp-comm-* ddp-* fsdp-* megatron-fsdp-*
        torch-fsdp2-* use-torch-fsdp2 outer-dp-sharding-strategy enable-full-sharding-in-hsdp
        init-model-with-meta-device no-align-* disable-align-* *symmetric-registration use-nccl-ub nccl-communicator*
        use-sharp sharp-enabled-group high-priority-* num-distributed-optimizer-instances create-all-gather-group
        disable-gloo-process-groups use-ring-exchange-p2p pipeline-model-parallel-comm-backend
        microbatch-group-size-per-virtual-pipeline-stage defer-embedding-wgrad-compute wgrad-deferral-limit
        delay-wgrad-compute *cuda-graph* use-tp-pp-dp-mapping suggested-communication-unit-size
        no-gradient-* grad-reduce-in-bf16 transformer-impl use-mcore-models attention-backend
        flash-attention-version kitchen-* use-kitchen-attention te-rng-tracker te-precision-config-file
        use-transformer-engine-op-fuser use-te-activation-func disable-jit-fuser *cross-entropy-*fusion*
        cross-entropy-fusion-impl no-persist-layer-norm fused-residual-rmsnorm use-fused-* mla-down-proj-fusion
        use-grouped-gemm-* moe-grouped-gemm moe-use-grouped-tensor moe-single-grouped-* moe-*fusion* moe-permute-*
        moe-token-dispatcher-type moe-enable-deepep moe-deepep-* moe-flex-* moe-hybridep-* moe-ncclep-* moe-paged-*
        moe-combine-bwd-dtype moe-dispatch-fwd-dtype moe-shared-expert-overlap moe-*glu-interleave-size
        moe-layer-recompute ep-overlap-* recompute-modules mhc-recompute-layer-num
        cpu-offloading-* *activation-offload* fine-grained-* offload-modules min-offloaded-tensor-size
        delta-offload-bytes-across-pp-ranks optimizer-offload-fraction no-pin-cpu-* use-precision-aware-optimizer
        main-*-dtype exp-avg*-dtype reuse-grad-buf-* batch-invariant-* *clone-scatter-output-*
        no-use-layer-wise-param-layout data-parallel-random-init no-initialization use-same-sampling-seed-*
        dataloader-type dataloader-defer-* dataloader-fast-* data-cache-path no-mmap-bin-files mid-level-dataset-surplus
        num-dataset-builder-threads no-create-attention-mask-in-dataloader use-gigatoken enable-experimental
        disable-bf16-reduced-precision-matmul gtp-* *-num-weight-shards hierarchical-context-parallel-sizes
        cp-comm-type hybrid-context-parallel max-seqlen-per-dp-cp-rank train-sync-interval gdp-cutedsl-kernel
        disable-mamba-mem-eff-path muon-fp32-matmul-prec
        muon-tp-mode muon-use-syrk decrease-batch-size-if-needed eval-micro-batch-size""",
    "deepy does not support this variant of rotary embeddings": """
        rotary-interleaved rope-type no-rope-freq mrope-section mscale* yarn-correction-* no-yarn-*""",
    "deepy does not support this kind of attention": """
        multi-latent-attention cache-mla-latents kv-lora-rank q-lora-rank qk-head-dim qk-pos-emb-head-dim v-head-dim
        experimental-attention-variant linear-* dsa-* no-dsa-* disable-dsa-* attention-output-gate
        softmax-type qk-clip* qk-l2-norm gdp-num-*""",
    "deepy does not support this kind of feed-forward layer": """
        quick-geglu squared-relu glu-linear-offset activation-func-clamp-value""",
    "deepy's mixture of experts does not have this setting": "moe-* expert-tensor-parallel-size",
    "deepy supports only layers with attention and a feed-forward network": """
        hybrid-* is-hybrid-model mamba-* mtp-* enable-mhc-connections mhc-*""",
    LAUNCHER: "local-rank",
    "deepy does not support fp8 or fp4": """
        fp8-* fp4-* no-fp8-wgrad disable-fp8-wgrad first-last-layers-bf16 num-layers-at-*-in-bf16
        keep-fp8-transpose-cache""",
    "in deepy, the residual stream and the logits have the model's precision": """
        fp32-residual-connection output-logit-dtype""",
    "in Megatron-LM, the checkpoint then determines the model or its layout": """
        use-checkpoint-args use-mp-args-from-checkpoint-args""",
    "deepy cannot make a mixture of experts from the checkpoint of a dense model": """
        moe-use-upcycling moe-upcycling-granularity""",
    "another kind of model, or of training, is trained with it": "spec sft sft-* heterogeneous-*",
    "deepy can freeze a model only to train adapters or a soft prompt": "freeze-all-layers",
    "init_method and output_layer_init_method determine the initial weights": "embedding-init-method-std",
    "this muP setting has no equivalent in deepy": "mup-*",
    STAGES: """
        num-layers-per-virtual-pipeline-stage num-virtual-stages-per-pipeline-rank pipeline-model-parallel-layout
        decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers account-for-*""",
    "deepy cannot change the batch size during a run": """
        rampup-batch-size step-batch-size-schedule phase-transition-iterations""",
    "deepy's learning rate is constant, or its decay is linear, cosine or exponential": "lr-wsd-*",
    "in deepy, the warm-up starts at, or near, a learning rate of 0": "lr-warmup-init",
    "in deepy, all layers have the same learning rate": "decoupled-*",
    "in deepy, weight decay is constant during a run": "start-weight-decay end-weight-decay weight-decay-incr-style",
    "in deepy, weight decay never applies to biases or norms": "no-weight-decay-cond-type apply-wd-to-qk-layernorm",
    "deepy's Muon does not have this setting": "muon-*",
    "deepy cannot train on generated data": "mock-data",
    "deepy does not support fill-in-the-middle training": "fim-*",
    "deepy has no equivalent setting": """
        full-validation multiple-validation-sets dataloader-inter-document-masking start-eval-at-iter skip-train
        iterations-to-skip test-mode yaml-cfg eval-global-batch-size data-args-path per-split-data-args-path
        per-dataset-sequences-path""",
    TOKENIZER_FILES: """
        tokenizer-* disable-tokenizer-* no-tokenizer-* tiktoken-* null-tokenizer-* allow-ambiguous-pad-tokens""",
    PADDING: "disable-pad-vocab-size no-pad-vocab-size",
}

PAI = "it is a flag of Pai-Megatron-Patch without an equivalent"
#: The same for flags that only forks of Megatron-LM have: Megatron-DeepSpeed, BigScience's, BigCode's and others.
FORK_REASONS = {
    OTHER_PROGRAMS: """
        retro-* export-* img-dim inference ds-inference eval-only eval-fp32 adaptive-seq-len task-list results-path
        epochs analyzer csv-* plot-* skip-csv skip-plot tb-dir tb-event-key
        aml-data-download-path
        hf-ckpt-* to-hf-ckpt load-mode""",
    CHECKPOINTS: "universal-checkpoint load-tag",
    LAUNCHER: "rank world-size",
    SECRETS: "*api-key *access-key hf-token *auth-token",
    "deepy starts the count of iterations again only with finetune: true, which loads the weights alone": """
        reset-iteration""",
    "deepy restores the learning rate's schedule with the rest of a checkpoint": "no-load-lr-state",
    "deepy distils no teacher's knowledge into a model": "kd kd-* mos load-teacher *-teacher",
    "another kind of model, or of training, is trained with it": """
        noise-density mean-noise-span-length loss-on-targets-only finetune-hf-dataset""",
    FAULT_TOLERANCE: "kill-switch-file kill-switch-path distributed-timeout abort-on-unmet-fused-kernel-constraints",
    LOGGING: "profile-steps codecarbon-dir structured-logs structured-logs-dir transformer-timers",
    IMPLEMENTATION: """
        no-contiguous-buffers-in-local-ddp use-contiguous-buffers-in-ddp no-scatter-gather-tensors-in-pipeline
        standalone-embedding-stage pipeline-model-parallel-split-rank memory-centric-tiled-linear tile-factor
        split-transformers scattered-embeddings remote-device use-pin-memory disable-mem-efficient-ln ds-fused-adam
        use-dataset-only enable-zbh1-pipeline enable-zbh1-exact-semantics ds-sequence-parallel-fpdt*
        force-ds-sequence-parallel embedding-weights-in-fp32 sync-tp-duplicated-parameters disable-te-fused-rope
        valid-num-workers num-experts-switch disable-moe-top2-2nd-expert-sampling
        create-moe-param-group use-tutel""",
    "deepy does not support curriculum learning or sequence lengths that change during a run": """
        data-efficiency-curriculum-learning random-ltd""",
    "deepy has no equivalent setting": """
        train-idx-path train-desc-path train-doc-idx-path train-sample-idx-path train-shuffle-idx-path
        train-data-exact-num-epochs return-data-index use-sns repeated-dataloader skip-train-iteration-range
        reweight-loss-based-on-position-frequency""",
    "deepy reads data only from data_path, or from train_data_paths, valid_data_paths and test_data_paths": """
        *-weighted-split-paths *-weighted-split-paths-path""",
    "deepy's models do not normalise the embeddings": "embed-layernorm",
    "deepy has no z-loss for the logits": "z-loss-strength z-loss-weight",
    NO_ENCODER: "encoder-tensor-model-parallel-size encoder-pipeline-model-parallel-size",
    PAI: """
        patch-tokenizer-type extra-vocab-size dataset train-mode max-padding-length transformer-type
        optimizer-offload-policy""",
}


def reason(name: str) -> str:
    """Return why a flag (without `--`) has no counterpart; empty if it is not a flag of Megatron-LM."""
    if name in OLD_FLAGS:
        return IMPLEMENTATION
    return next((why for why, patterns in _patterns() if any(fnmatchcase(name, p) for p in patterns)), "")


def is_listed(name: str) -> bool:
    """Return whether a flag is in the table by its own name, and not only by a pattern."""
    return name in OLD_FLAGS or any(name in patterns for _, patterns in _patterns())


@cache
def _patterns() -> list[tuple[str, list[str]]]:
    return [(why, names.split()) for why, names in [*REASONS.items(), *FORK_REASONS.items()]]
