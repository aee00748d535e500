"""A client process that streams until it is killed: ADDRESS, API_KEY and a CA file in argv.

Writes one line once the first token is here.
"""

import sys

from plait.sdk import Client


def main() -> None:
    address, api_key, ca_path = sys.argv[1:4]
    with Client(address, api_key, ca_path) as client:
        stream = client.stream("Once upon a time", max_tokens=400, ignore_eos=True)
        for number, _ in enumerate(stream):
            if number == 0:
                sys.stdout.write("streaming\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
