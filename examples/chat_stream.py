#!/usr/bin/env python3
"""Shows an answer while it is written, with asyncio: examples/chat_stream.py MODEL [QUESTION]"""
import asyncio
import sys

from quire_engine import AsyncLLM


async def main(model: str, question: str) -> None:
    async with AsyncLLM(model, max_model_len=2048) as llm:
        async for piece in llm.stream_chat([{"role": "user", "content": question}]):
            print(piece.outputs[0].text, end="", flush=True)
    print()


asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "Tell me a story about a dog."))
