"""Steps of one-shot search as one CUDA graph, the architectures in device memory.

`step` decides whether a step can be captured and says once why not, `iteration` is what is captured: its passes run by
`trace` and `branch` with all decisions open (their cases: `cases`), the weights moved by `update`. `host_rng`
watches random numbers that a graph would repeat. `switch` makes CUDA graphs that branch.
"""
