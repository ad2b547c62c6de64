"""One training step replayed on tensors that have a size and a life but no values.

torch frees a tensor the moment its last reference goes, and so does CPython. The replay uses that: an
architecture's forward is written as torch's own module is, its tensors are Python objects, and every allocation
and release goes to an event log. What autograd keeps for backward is what a node's ``backward`` closure names.

    tape.py      the event log, autograd's graph and its engine, autocast, activation checkpointing
    ops.py       torch's operations: what each allocates, keeps for backward and computes
    layers.py    modules with parameters, and the builder that applies dtype, LoRA and repetition of blocks
    unrolled.py  the log as the allocator meets it: repeated blocks as often as they stand in the model
    profile.py   the log as a function of the micro-batch: peak of each phase, what is alive at the peak
"""
