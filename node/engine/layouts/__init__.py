"""How weights lie in memory and which kernel multiplies with them; see decision 91.

A *format* (`plait.types.WeightFormat`) says what the numbers are: which values the weights have and
how exact the activations are. It belongs to the model in a network, so that replicas agree. A
*layout* says how one device holds them: any layout of a format gives the same results but for the
order of sums.
"""
