"""Ask one question and print the whole answer. Needs a running network.

Address, key and CA come from PLAIT_ADDRESS, PLAIT_API_KEY and PLAIT_CA, or from the profile that
`plait coordinator` writes; `plait demo --keep` says where its own is.
"""

import sys

import plait

question = " ".join(sys.argv[1:]) or "Why is the sky blue?"

with plait.Client() as client:
    answer = client.chat([{"role": "user", "content": question}], max_tokens=64, temperature=0)
    print(answer.text)
    print(f"{answer.completion_tokens} tokens over {len(answer.route)} nodes")
