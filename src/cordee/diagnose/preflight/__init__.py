"""Before the first step: whether a batch fits the model, and shares of a batch add up to the whole.

If loss and gradients of the parts of a batch do not add up, the loss mixes samples (contrastive, pairwise), is not a
mean, or the model keeps state of its batch; trained on several workers it would silently learn something else.
"""
