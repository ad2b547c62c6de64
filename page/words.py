"""The page's words for the contract's choices: a short label, and what the choice means.

The order is the order in the form. Which of them the calculation knows is checked when the page is built.
"""

CHOICES: dict[str, dict[str, tuple[str, str]]] = {
    "precision": {
        "amp-bf16": ("bf16 autocast", "matrix products in bf16 over fp32 weights: no loss scaling needed"),
        "amp-fp16": ("fp16 autocast", "matrix products in fp16 over fp32 weights, with loss scaling"),
        "bf16": ("bf16 throughout", "weights, gradients and optimizer state in bf16"),
        "bf16-master": ("bf16 with fp32 master weights", "bf16 weights and an fp32 copy that the optimizer updates"),
        "fp16": ("fp16 throughout", "weights, gradients and optimizer state in fp16; unstable without care"),
        "fp8": ("fp8 matrix products", "fp8 matrix products over higher-precision weights"),
        "tf32": ("TF32", "fp32 storage, matrix products with 10-bit mantissas on tensor cores"),
        "fp32": (
            "fp32",
            "single precision everywhere; its time is told with TF32 products allowed, as it was measured",
        ),
    },
    "optimizer": {
        "adamw": ("AdamW", "two fp32 states per parameter"),
        "adamw-fused": ("AdamW, fused", "one kernel for the whole step: no temporaries"),
        "adamw-8bit": ("AdamW, 8-bit", "two 8-bit states per parameter, in blocks"),
        "adam": ("Adam", "two fp32 states per parameter"),
        "adafactor": ("Adafactor", "row and column statistics instead of a full second moment"),
        "sgd": ("SGD", "no state"),
        "sgd-momentum": ("SGD with momentum", "one state per parameter"),
        "adagrad": ("Adagrad", "one state per parameter"),
        "rmsprop": ("RMSprop", "one state per parameter"),
        "lion": ("Lion", "one state per parameter"),
        "lamb": ("LAMB", "two states per parameter, a rate per layer"),
        "lars": ("LARS", "one state per parameter, a rate per layer"),
        "muon": ("Muon", "one state per matrix, orthogonalized updates"),
        "shampoo": ("Shampoo", "a preconditioner per side of each matrix"),
        "soap": ("SOAP", "Adam in Shampoo's eigenbasis"),
        "galore-adamw": ("GaLore AdamW", "states in a low-rank projection of the gradient"),
    },
    "checkpointing": {
        "none": ("None", "keep every activation for backward"),
        "selective": (
            "Selective",
            "recompute part of each block: the core of eager attention, else all but every second matrix product",
        ),
        "full": ("Every block", "keep one tensor a block, run the block's forward again in backward"),
    },
    "attention": {
        "sdpa": ("SDPA", "PyTorch's fused kernels: the score matrix is never stored"),
        "flash-attention-2": ("FlashAttention-2", "the flash-attn package: the score matrix is never stored"),
        "eager": ("Eager", "plain matrix products: stores scores of sequence length squared"),
    },
    "loss": {
        "standard": ("Standard", "all logits in memory at once"),
        "fused": ("Fused, in chunks", "chunked cross-entropy that never holds all logits"),
    },
    "method": {
        "full": ("Full training", "every parameter is trained"),
        "lora": ("LoRA", "low-rank adapters beside frozen weights"),
        "qlora": ("QLoRA", "low-rank adapters beside frozen 4-bit weights"),
    },
    "lora_targets": {
        "all-linear": ("All linear layers", "an adapter beside every linear layer"),
        "attention": ("Attention layers", "adapters in attention alone"),
    },
    "zero_grad": {
        "free": ("Freed each step", "gradients set to None, PyTorch's default"),
        "keep": ("Kept", "gradients stay allocated between steps"),
    },
    "objective": {
        "time": ("The fastest", "least time for the whole run"),
        "cost": ("The cheapest", "least money for the whole run"),
        "headroom": ("The one with the most room", "least memory on each GPU"),
    },
    "task": {
        "causal-lm": ("Causal language modelling", ""),
        "masked-lm": ("Masked language modelling", ""),
        "sequence-classification": ("Sequence classification", ""),
        "seq2seq-lm": ("Sequence to sequence", ""),
        "speech-seq2seq": ("Speech to text", ""),
        "speech-ctc": ("Speech recognition by CTC", ""),
        "image-classification": ("Image classification", ""),
        "image-text-contrastive": ("Images with their texts", "contrastive, as CLIP"),
        "segmentation": ("Segmentation", ""),
        "diffusion": ("Diffusion", ""),
    },
    "parallelism.strategy": {
        "ddp": ("DDP", "every card holds everything; gradients are averaged"),
        "zero1": ("ZeRO-1", "optimizer state sharded"),
        "zero2": ("ZeRO-2", "optimizer state and gradients sharded"),
        "zero3": ("ZeRO-3", "weights sharded as well"),
        "fsdp": ("FSDP", "PyTorch's fully sharded data parallel"),
    },
    "parallelism.cpu_offload": {
        "none": ("None", "everything stays on the card"),
        "optimizer": ("Optimizer state", "optimizer state in the host's memory"),
        "all": ("Optimizer and weights", "weights as well"),
    },
}

PHASES = (("forward", "forward"), ("backward", "backward"), ("step", "optimizer step"))

FIELDS = {
    "precision": "Precision",
    "optimizer": "Optimizer",
    "checkpointing": "Activation checkpointing",
    "attention": "Attention",
    "loss": "Loss",
    "model": "Model",
    "model.parameters": "Parameters",
    "calibration": "Own readings",
    "config": "config.json",
    "gpu": "GPU",
    "task": "Task",
    "method": "Method",
    "lora_targets": "LoRA on",
    "zero_grad": "Gradients between steps",
    "parallelism": "Parallelism",
    "sequence_length": "Sequence length",
    "target_length": "Target length",
    "image_size": "Image size",
    "audio_frames": "Audio frames",
    "micro_batch": "Micro-batch",
    "global_batch": "Global batch",
    "gpus": "GPUs",
    "nodes": "Nodes",
    "lora_rank": "LoRA rank",
    "gpu.memory_gib": "Card memory",
    "gpu.overhead_gib": "Not usable",
    "epochs": "Epochs",
    "tokens": "Tokens",
    "dataset": "Data set",
    "dataset_samples": "Samples in the data set",
    "price_per_gpu_hour": "Price",
    "deadline_hours": "Deadline",
    "budget_dollars": "Budget",
    "objective": "Wanted of the plan",
    "allow": "What the planner may choose",
    "known_batch": "Batch that works",
    "known_learning_rate": "Learning rate that works",
    "gradient_norms": "Gradient norms",
    "gradient_norms.small_batch": "Smaller batch of the gradient norms",
    "gradient_norms.small_batch_norm": "Gradient norm at the smaller batch",
    "gradient_norms.large_batch": "Larger batch of the gradient norms",
    "gradient_norms.large_batch_norm": "Gradient norm at the larger batch",
    "interconnect": "Interconnect",
    "interconnect.node": "Link within a node",
    "interconnect.network": "Network between nodes",
    "parallelism.strategy": "Sharding",
    "parallelism.tensor": "Tensor parallel",
    "parallelism.pipeline": "Pipeline parallel",
    "parallelism.context": "Context parallel",
    "parallelism.expert": "Expert parallel",
    "parallelism.sequence_parallel": "Sequence parallel",
    "parallelism.cpu_offload": "Offload to the host",
}


def label(key: str, value: object) -> str:
    """The short label of a choice, or the value itself where the page has no words for it."""
    known = CHOICES.get(key, {}).get(str(value))
    return known[0] if known else str(value)


def field_name(key: str) -> str:
    """A field's name as the form says it."""
    return FIELDS.get(key, (key.partition(".")[2] or key).replace("_", " "))
