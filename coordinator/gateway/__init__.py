"""The gateway: text in, text out; what the core's requests look like from a client's side.

Owns tokenizers, chat templates, generations and their history, the relay between core and nodes'
token streams, the OpenAI door and the SDK's door. Imports coordinator.core and coordinator.ports;
never coordinator.shell or coordinator.dashboard, never torch.
"""
