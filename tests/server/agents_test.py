"""The official clients of four APIs and frameworks for agents, with tools, against a running server: agents_test.py URL
KEY. See agents.sh.

The demo model was never taught to call a tool: what is tested is that requests with tools, and conversations that have
calls, are answered, and that the answers are what the clients' own parsers expect. Where a client insists on a call or
on a form, the grammar makes the model obey, and the client must get what it asked for.
"""

import asyncio
import json
import sys
import unittest
from typing import Annotated

import agents
import anthropic
import instructor
import litellm
import ollama
import openai
import pydantic
import pydantic_ai
import smolagents
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

URL, KEY = sys.argv[1:3]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": SCHEMA}}
ASK = [{"role": "user", "content": "77+94"}]
HISTORY = ASK + [
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
]


class Answer(pydantic.BaseModel, extra="forbid"):
    number: int = pydantic.Field(ge=0, le=999)


class Place(pydantic.BaseModel, extra="forbid"):
    """Where the weather is asked for."""

    city: str = pydantic.Field(max_length=12)
    days: int = pydantic.Field(ge=1, le=9)


def get_weather(city: Annotated[str, pydantic.Field(max_length=12)]) -> str:
    """Weather of a city.

    Args:
        city: Its name.
    """
    return "sunny in " + city


def has_grammars():
    """Whether this server was built with what holds answers to a form."""
    try:
        OpenAi.client.chat.completions.create(model="demo", messages=ASK, max_tokens=1,
                                              extra_body={"guided_regex": "a"})
    except openai.BadRequestError as refused:
        return refused.code != "unsupported_parameter"
    return True


class OpenAi(unittest.TestCase):
    client = openai.OpenAI(base_url=URL + "/v1", api_key=KEY, max_retries=0, timeout=120)

    def test_chat(self):
        plain = self.client.chat.completions.create(model="demo", messages=ASK, temperature=0)
        self.assertEqual(plain.choices[0].message.content, "171")
        r = self.client.chat.completions.create(model="demo", messages=HISTORY, tools=[TOOL], max_tokens=30)
        self.assertIn(r.choices[0].finish_reason, ("stop", "length", "tool_calls"))
        with self.client.chat.completions.stream(model="demo", messages=HISTORY, tools=[TOOL], max_tokens=30,
                                                 seed=1) as stream:
            for _ in stream:
                pass
            streamed = stream.get_final_completion()
        whole = self.client.chat.completions.create(model="demo", messages=HISTORY, tools=[TOOL], max_tokens=30, seed=1)
        self.assertEqual(streamed.choices[0].message.content, whole.choices[0].message.content)

    def test_responses(self):
        r = self.client.responses.create(model="demo", input="77+94", temperature=0)
        self.assertEqual(r.output_text, "171")
        self.assertEqual(r.status, "completed")
        items = [{"role": "user", "content": "77+94"},
                 {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city": "Paris"}'},
                 {"type": "function_call_output", "call_id": "c1", "output": "sunny"}]
        tools = [{"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": False}]
        with self.client.responses.stream(model="demo", input=items, tools=tools, max_output_tokens=30) as stream:
            kinds = [event.type for event in stream]
        self.assertEqual(kinds[0], "response.created")
        self.assertIn(kinds[-1], ("response.completed", "response.incomplete"))
        with self.client.responses.stream(model="demo", input="77+94", temperature=0) as stream:
            text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
            self.assertEqual(stream.get_final_response().output_text, text)
        self.assertEqual(text, "171")
        with self.assertRaises(openai.BadRequestError) as e:
            self.client.responses.create(model="demo", input="a", previous_response_id="resp_1")
        self.assertEqual(e.exception.param, "previous_response_id")


class Anthropic(unittest.TestCase):
    client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0, timeout=120)
    tools = [{"name": "get_weather", "description": "Weather", "input_schema": SCHEMA}]

    def test_message_and_stream(self):
        options = dict(model="demo", max_tokens=50, messages=ASK, extra_body={"temperature": 0})
        r = self.client.messages.create(**options)
        self.assertEqual(r.content[-1].text, "171")
        self.assertEqual(r.stop_reason, "end_turn")
        with self.client.messages.stream(**options) as stream:
            self.assertEqual("".join(stream.text_stream), "171")
            self.assertEqual(stream.get_final_message().usage.output_tokens, r.usage.output_tokens)

    def test_tools_and_counts(self):
        history = ASK + [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "get_weather",
                                               "input": {"city": "Paris"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}]},
        ]
        r = self.client.messages.create(model="demo", max_tokens=20, messages=history, tools=self.tools)
        self.assertIn(r.stop_reason, ("end_turn", "max_tokens", "tool_use"))
        counted = self.client.messages.count_tokens(model="demo", messages=history, tools=self.tools)
        self.assertEqual(counted.input_tokens, r.usage.input_tokens + r.usage.cache_read_input_tokens)

    def test_errors(self):
        with self.assertRaises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=URL, api_key="wrong-key-here", max_retries=0).messages.create(
                model="demo", max_tokens=5, messages=ASK)
        with self.assertRaises(anthropic.NotFoundError):
            self.client.messages.create(model="claude", max_tokens=5, messages=ASK)


class Ollama(unittest.TestCase):
    client = ollama.Client(host=URL, headers={"Authorization": "Bearer " + KEY})

    def test_chat_and_stream(self):
        r = self.client.chat(model="demo", messages=ASK, options={"temperature": 0})
        self.assertEqual(r.message.content, "171")
        parts = self.client.chat(model="demo", messages=ASK, options={"temperature": 0}, stream=True)
        self.assertEqual("".join(p.message.content for p in parts), "171")
        r = self.client.chat(model="demo", messages=ASK, tools=[TOOL], options={"num_predict": 20})
        self.assertTrue(r.done)

    def test_generate_and_models(self):
        self.assertEqual(self.client.generate(model="demo", prompt="77+94", options={"temperature": 0}).response, "171")
        self.assertEqual(self.client.list().models[0].model, "demo")
        self.assertIn("tools", self.client.show("demo").capabilities)
        self.assertEqual(self.client.ps().models[0].model, "demo")
        self.assertEqual(len(self.client.embed(model="demo", input=["a", "b"]).embeddings), 2)
        with self.assertRaises(ollama.ResponseError):
            self.client.chat(model="other", messages=ASK)


class LiteLlm(unittest.TestCase):
    def test_three_apis(self):
        for model, base in (("openai/demo", URL + "/v1"), ("anthropic/demo", URL), ("ollama_chat/demo", URL)):
            with self.subTest(model):
                options = dict(model=model, api_base=base, api_key=KEY, temperature=0, max_tokens=50)
                self.assertEqual(litellm.completion(messages=ASK, **options).choices[0].message.content, "171")
                chunks = litellm.completion(messages=ASK, stream=True, **options)
                self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks), "171")
                r = litellm.completion(messages=HISTORY, tools=[TOOL], **options)
                self.assertIsNotNone(r.choices[0].finish_reason)


class LangChain(unittest.TestCase):
    def test_bind_tools(self):
        @tool
        def get_weather(city: str) -> str:
            """Weather of a city."""
            return city

        chat = ChatOpenAI(model="demo", base_url=URL + "/v1", api_key=KEY, temperature=0, max_tokens=30)
        bound = chat.bind_tools([get_weather])
        call = {"name": "get_weather", "args": {"city": "Paris"}, "id": "call_1"}
        history = [HumanMessage("77+94"), AIMessage("", tool_calls=[call]), ToolMessage("sunny", tool_call_id="call_1")]
        whole = bound.invoke(history)
        self.assertEqual("".join(c.content for c in bound.stream(history)), whole.content)


class Forced(unittest.TestCase):
    """Clients that insist on a call: the model was never taught one, and makes it all the same."""

    def setUp(self):
        if not has_grammars():
            self.skipTest("built without XGrammar")

    tool = {"type": "function", "function": {"name": "get_place", "parameters": Place.model_json_schema()}}

    def test_openai_chat(self):
        options = dict(model="demo", messages=ASK, tools=[self.tool], tool_choice="required", parallel_tool_calls=False,
                       max_tokens=200, seed=1)
        whole = OpenAi.client.chat.completions.create(**options).choices[0]
        self.assertEqual(whole.finish_reason, "tool_calls")
        with OpenAi.client.chat.completions.stream(**options) as stream:
            kinds = [event.type for event in stream]
            streamed = stream.get_final_completion().choices[0]
        self.assertIn("tool_calls.function.arguments.delta", kinds)
        calls = [choice.message.tool_calls for choice in (whole, streamed)]
        self.assertEqual(*[[(c.function.name, c.function.arguments) for c in of] for of in calls])
        Place.model_validate_json(calls[0][0].function.arguments)

    def test_openai_pydantic_tool(self):
        tools = [openai.pydantic_function_tool(Place)]
        r = OpenAi.client.chat.completions.parse(model="demo", messages=ASK, tools=tools, tool_choice="required",
                                                 max_tokens=400)
        self.assertIsInstance(r.choices[0].message.tool_calls[0].function.parsed_arguments, Place)

    def test_openai_responses(self):
        tool = {"type": "function", "name": "get_place", "parameters": Place.model_json_schema(), "strict": False}
        options = dict(model="demo", input="77+94", tools=[tool], max_output_tokens=200)
        for choice in ("required", {"type": "function", "name": "get_place"}):
            with OpenAi.client.responses.stream(tool_choice=choice, **options) as stream:
                kinds = [event.type for event in stream]
                calls = [i for i in stream.get_final_response().output if i.type == "function_call"]
            self.assertIn("response.function_call_arguments.done", kinds)
            Place.model_validate_json(calls[0].arguments)

    def test_anthropic(self):
        tools = [{"name": "get_place", "description": "Weather", "input_schema": Place.model_json_schema()}]
        for choice in ({"type": "any"}, {"type": "tool", "name": "get_place"}):
            options = dict(model="demo", max_tokens=200, messages=ASK, tools=tools,
                           tool_choice={**choice, "disable_parallel_tool_use": True})
            with Anthropic.client.messages.stream(**options) as stream:
                partial = [e.partial_json for e in stream if e.type == "input_json"]
                message = stream.get_final_message()
            self.assertEqual(message.stop_reason, "tool_use")
            self.assertEqual(json.loads("".join(partial)), message.content[-1].input)
            Place.model_validate(message.content[-1].input)
            whole = Anthropic.client.messages.create(**options)
            Place.model_validate(whole.content[-1].input)
            # The history that a client makes of it.
            history = ASK + [{"role": "assistant", "content": message.content},
                             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": message.content[-1].id,
                                                           "content": "sunny"}]}]
            counted = Anthropic.client.messages.count_tokens(model="demo", messages=history, tools=tools)
            after = Anthropic.client.messages.create(model="demo", max_tokens=5, messages=history, tools=tools)
            self.assertEqual(counted.input_tokens, after.usage.input_tokens + after.usage.cache_read_input_tokens)

    def test_litellm(self):
        for model, base in (("openai/demo", URL + "/v1"), ("anthropic/demo", URL)):
            with self.subTest(model):
                r = litellm.completion(model=model, api_base=base, api_key=KEY, messages=ASK, tools=[self.tool],
                                       tool_choice="required", max_tokens=200)
                Place.model_validate_json(r.choices[0].message.tool_calls[0].function.arguments)

    def test_langchain(self):
        chat = ChatOpenAI(model="demo", base_url=URL + "/v1", api_key=KEY, max_tokens=400)
        for choice in ("any", "Place"):
            call = chat.bind_tools([Place], tool_choice=choice).invoke("77+94").tool_calls[0]
            self.assertEqual(call["name"], "Place")
            Place.model_validate(call["args"])


class StructuredOutput(unittest.TestCase):
    """Clients that insist on a form. A server that cannot hold a model to one says so, by the name of the field."""

    def insist(self, ask):
        try:
            answer = ask()
        except openai.BadRequestError as refused:
            self.assertEqual(refused.code, "unsupported_parameter")
            self.assertIn(refused.param.split(".")[0], ("tool_choice", "response_format", "tools", "text"))
            self.skipTest(f"this server refuses {refused.param}")
        self.assertIsInstance(answer, Answer)

    def test_openai_parse(self):
        self.insist(lambda: OpenAi.client.chat.completions.parse(
            model="demo", messages=ASK, response_format=Answer).choices[0].message.parsed)

    def test_openai_responses_parse(self):
        self.insist(lambda: OpenAi.client.responses.parse(
            model="demo", input="77+94", text_format=Answer).output_parsed)

    def test_anthropic(self):
        if not has_grammars():
            self.skipTest("built without XGrammar")
        r = Anthropic.client.messages.create(
            model="demo", max_tokens=100, messages=ASK,
            output_config={"format": {"type": "json_schema", "schema": Answer.model_json_schema()}})
        self.assertIsInstance(Answer.model_validate_json(r.content[-1].text), Answer)

    def test_ollama(self):
        if not has_grammars():
            self.skipTest("built without XGrammar")
        r = Ollama.client.chat(model="demo", messages=ASK, format=Answer.model_json_schema())
        self.assertIsInstance(Answer.model_validate_json(r.message.content), Answer)

    def test_litellm(self):
        self.insist(lambda: Answer.model_validate_json(litellm.completion(
            model="openai/demo", api_base=URL + "/v1", api_key=KEY, messages=ASK,
            response_format=Answer).choices[0].message.content))

    def test_langchain(self):
        chat = ChatOpenAI(model="demo", base_url=URL + "/v1", api_key=KEY)
        for method in ("json_schema", "function_calling"):
            with self.subTest(method):
                self.insist(lambda: chat.with_structured_output(Answer, method=method).invoke("77+94"))

    def test_instructor(self):
        for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
            with self.subTest(mode):
                client = instructor.from_openai(OpenAi.client, mode=mode)
                self.insist(lambda: self.instructed(client))

    @staticmethod
    def instructed(client):
        try:
            return client.chat.completions.create(model="demo", messages=ASK, response_model=Answer, max_retries=0)
        except Exception as failed:
            cause = failed  # what the server said lies deep within
            while cause is not None and not isinstance(cause, openai.BadRequestError):
                cause = cause.__cause__ or cause.__context__
            raise cause or failed

    def test_pydantic_ai(self):
        if not has_grammars():
            self.skipTest("built without XGrammar")
        for output in (Answer, pydantic_ai.NativeOutput(Answer)):
            with self.subTest(type(output).__name__):
                agent = pydantic_ai.Agent(PydanticAi.model, output_type=output, model_settings={"max_tokens": 200})
                self.assertIsInstance(agent.run_sync("77+94").output, Answer)

    def test_openai_agents(self):
        if not has_grammars():
            self.skipTest("built without XGrammar")
        agents.set_tracing_disabled(True)
        for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
            with self.subTest(kind.__name__):
                client = openai.AsyncOpenAI(base_url=URL + "/v1", api_key=KEY, max_retries=0, timeout=120)
                agent = agents.Agent(name="demo", model=kind("demo", openai_client=client), output_type=Answer)
                self.assertIsInstance(asyncio.run(agents.Runner.run(agent, "77+94")).final_output, Answer)


class PydanticAi(unittest.TestCase):
    model = OpenAIChatModel("demo", provider=OpenAIProvider(base_url=URL + "/v1", api_key=KEY))
    settings = {"temperature": 0, "max_tokens": 50}

    def test_run_and_stream(self):
        agent = pydantic_ai.Agent(self.model, model_settings=self.settings)

        async def streamed():
            async with agent.run_stream("77+94") as run:
                return [text async for text in run.stream_text()][-1]

        first = agent.run_sync("77+94")
        self.assertEqual(first.output, "171")
        self.assertEqual(asyncio.run(streamed()), "171")
        again = agent.run_sync("77+94", message_history=first.all_messages())
        self.assertGreater(again.usage.input_tokens, first.usage.input_tokens)

    def test_tools(self):
        strict = (None, False) if has_grammars() else (False,)  # by default this client asks for strict ones
        for tool in [pydantic_ai.Tool(get_weather, strict=s) for s in strict]:
            agent = pydantic_ai.Agent(self.model, model_settings=self.settings, tools=[tool])
            self.assertIsInstance(agent.run_sync("77+94").output, str)


class OpenAiAgents(unittest.TestCase):
    def test_both_apis(self):
        agents.set_tracing_disabled(True)
        strict = (True, False) if has_grammars() else (False,)
        offers = [[]] + [[agents.function_tool(get_weather, strict_mode=s)] for s in strict]
        for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
            for tools in offers:
                with self.subTest(kind=kind.__name__, tools=len(tools)):
                    client = openai.AsyncOpenAI(base_url=URL + "/v1", api_key=KEY, max_retries=0, timeout=120)
                    agent = agents.Agent(name="demo", model=kind("demo", openai_client=client), tools=tools,
                                         model_settings=agents.ModelSettings(temperature=0, max_tokens=50))
                    asyncio.run(self.run_twice(agent))

    async def run_twice(self, agent):
        whole = await agents.Runner.run(agent, "77+94")
        self.assertTrue(agent.tools or whole.final_output == "171", whole.final_output)
        streamed = agents.Runner.run_streamed(agent, "77+94")
        kinds = [event.type async for event in streamed.stream_events()]
        self.assertIn("raw_response_event", kinds)
        self.assertEqual(streamed.final_output, whole.final_output)
        more = await agents.Runner.run(agent, whole.to_input_list() + [{"role": "user", "content": "77+94"}])
        self.assertIsInstance(more.final_output, str)


class Smolagents(unittest.TestCase):
    def test_models_and_tools(self):
        model = smolagents.OpenAIModel("demo", api_base=URL + "/v1", api_key=KEY, temperature=0, max_tokens=50)
        ask = [smolagents.ChatMessage(role="user", content=[{"type": "text", "text": "77+94"}])]
        self.assertEqual(model.generate(ask).content, "171")
        self.assertEqual("".join(d.content or "" for d in model.generate_stream(ask)), "171")
        tools = [smolagents.tool(get_weather)]
        self.assertIsNotNone(model.generate(ask, tools_to_call_from=tools, tool_choice="auto", stop_sequences=["###"]))

    def test_an_agent(self):
        """It insists on a call in every step, and goes on until one is to `final_answer`."""
        if not has_grammars():
            self.skipTest("built without XGrammar")
        model = smolagents.OpenAIModel("demo", api_base=URL + "/v1", api_key=KEY, max_tokens=300, seed=1)
        agent = smolagents.ToolCallingAgent([smolagents.tool(get_weather)], model, max_steps=2, verbosity_level=0)
        run = agent.run("77+94", return_full_result=True)
        self.assertIn(run.state, ("success", "max_steps_error"))
        for step in agent.memory.steps[1:]:
            self.assertNotIsInstance(getattr(step, "error", None), smolagents.AgentGenerationError)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
