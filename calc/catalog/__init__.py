"""Facts as data, each with its source: GPUs, models, configuration defaults, links, published measurements."""
