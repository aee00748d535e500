"""The device and everything that touches it: tensors, layers, the KV cache, one thread.

Owns torch. Never sees a neighbour, a text or a socket; meets the rest through `node.ports`.
Top down: host (thread, admission) > batcher, runner, loader, measure > stage, kv_cache, sampler >
layers, rope, linear > device, tensor_bytes, philox.
"""
