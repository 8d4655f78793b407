"""Steps of one-shot search as one CUDA graph, the architectures in device memory.

`step` decides whether a step can be captured and says once why not, `iteration` is what is captured: its passes run by
`trace` and `branch` with all decisions open (their cases: `cases`), the weights moved by `update`. `effects` refuses
passes that leave something behind which a graph would not, such as the next numbers of a generator on the host
(`host_rng`), wherever the model or the loss holds it (`held`). Widths of too many combinations run `masked`,
which `mask_check` checks; `static_numbers` go to a graph and come back. `switch` makes CUDA graphs that branch.
"""
