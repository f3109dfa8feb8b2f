"""A small transformer that trains and decodes with PyTorch's products and with `codegen.torch`'s.

`python -m examples.transformer` compares the two: losses, and tokens per second. `model.py` has
the model, `corpus.py` the text, `training.py` and `decoding.py` the two measured loops.
"""
