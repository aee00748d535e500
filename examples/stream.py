"""Stream an answer with asyncio, and name the nodes that wrote it."""

import asyncio
import sys

import plait


async def main(prompt: str) -> None:
    async with plait.AsyncClient() as client:
        messages = [{"role": "user", "content": prompt}]
        async with client.stream(messages, max_tokens=64, seed=1) as stream:
            async for delta in stream:
                print(delta, end="", flush=True)
            print()
            for hop in (await stream.result()).route:
                print(f"layers {hop.span}: {hop.display_name or hop.node_id}")


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or "Tell me about rivers."))
