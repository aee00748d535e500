"""A client process that streams until it is killed: ADDRESS, API_KEY, a CA file and a
number of tokens in argv.

Writes one line once the first token is here. Nothing is guessed: all would be here soon.
"""

import sys

from plait.sdk import Client


def main() -> None:
    address, api_key, ca_path, num_tokens = sys.argv[1:5]
    with Client(address, api_key, ca_path) as client:
        stream = client.stream(
            "Once upon a time", max_tokens=int(num_tokens), ignore_eos=True, draft_tokens=0
        )
        for number, _ in enumerate(stream):
            if number == 0:
                sys.stdout.write("streaming\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
