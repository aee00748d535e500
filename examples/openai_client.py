"""The same network through the `openai` package: `pip install openai`.

PLAIT_API_KEY is a key from `plait token key create`, PLAIT_HTTP the coordinator's HTTP address.
"""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("PLAIT_HTTP", "http://127.0.0.1:7480") + "/v1",
    api_key=os.environ["PLAIT_API_KEY"],
)
model = client.models.list().data[0].id
question = {"role": "user", "content": "Why is the sky blue?"}
for chunk in client.chat.completions.create(
    model=model, messages=[question], max_tokens=64, stream=True
):
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
