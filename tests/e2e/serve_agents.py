"""Unmodified frameworks for agents against `lateen serve`: openai-agents, instructor, dspy, litellm, langchain-openai, langchain-ollama, pydantic-ai, llama-index.
TAP on stdout; a framework that is not installed is skipped by name.

usage: serve_agents.py BASE_URL MODEL_NAME [FRAMEWORK]...
The model may be a base model or a tiny one. Forced tools and formats make its answers well formed; the test checks that turns, events and types work."""
import asyncio
import importlib
import json
import os
import sys

from tap import Tap

base, model, wanted = sys.argv[1], sys.argv[2], sys.argv[3:]
os.environ.update(OPENAI_API_KEY="none", OPENAI_BASE_URL=base + "/v1", OPENAI_AGENTS_DISABLE_TRACING="1", DSPY_CACHEDIR="/dev/null", LITELLM_LOCAL_MODEL_COST_MAP="True")
# To some frameworks an answer that is cut off is an error.
ENDS = {"guided_regex": "[a-z ]{4,12}"}
tap = Tap()
check = tap.check


def framework(*modules):
    """Run the test if its modules are installed, and it was not left out."""
    def run(function):
        if wanted and function.__name__ not in wanted:
            return function
        try:
            for m in modules:
                importlib.import_module(m)
        except ImportError as e:
            tap.skip(function.__name__, e)
            return function
        return tap.case(function)
    return run


@framework("agents")
def openai_agents():
    import agents
    import openai
    from pydantic import BaseModel

    calls = []

    @agents.function_tool
    def add(a: bool, b: bool) -> str:
        """Adds two bits."""
        calls.append((a, b))
        return str(int(a) + int(b))

    class Sum(BaseModel):
        even: bool

    # A client belongs to one loop.
    client = lambda: openai.AsyncOpenAI(base_url=base + "/v1", api_key="none", max_retries=0)
    kinds = {"responses": agents.OpenAIResponsesModel, "chat": agents.OpenAIChatCompletionsModel}
    for name, kind in kinds.items():
        own = kind(model=model, openai_client=client())
        calls.clear()
        first = agents.Agent(name="Adder", instructions="Add.", model=own, tools=[add], output_type=Sum,
                             model_settings=agents.ModelSettings(tool_choice="required", max_tokens=120, temperature=0, parallel_tool_calls=False))
        try:  # Such a model may or may not call without end.
            agents.Runner.run_sync(first, "one and one", max_turns=2)
        except agents.MaxTurnsExceeded:
            pass
        check(f"openai-agents, {name}: a forced tool beside an output type", len(calls) >= 1, calls)
        stops = first.clone(tool_use_behavior="stop_on_first_tool", output_type=str)
        r = agents.Runner.run_sync(stops, "one and one")
        check(f"openai-agents, {name}: a tool's result as the output", r.final_output in ("0", "1", "2"), r)
        formed = first.clone(model_settings=agents.ModelSettings(tool_choice="none", max_tokens=120, temperature=0))
        r = agents.Runner.run_sync(formed, "one and one")
        check(f"openai-agents, {name}: an output type", isinstance(r.final_output, Sum), r)
        events = []

        async def streamed():
            own = kind(model=model, openai_client=client())
            s = agents.Runner.run_streamed(stops.clone(model=own), "one and one")
            async for e in s.stream_events():
                events.append(e.type)
            formed_s = agents.Runner.run_streamed(formed.clone(model=own), "one and one")
            async for e in formed_s.stream_events():
                events.append(e.type)
            return s.final_output, formed_s.final_output
        told, output = asyncio.run(streamed())
        check(f"openai-agents, {name}: streamed", told in ("0", "1", "2") and isinstance(output, Sum) and {"raw_response_event", "run_item_stream_event"} <= set(events), set(events))
        own = kind(model=model, openai_client=client())
        plain = agents.Agent(name="Speaker", instructions="Speak.", model=own, model_settings=agents.ModelSettings(extra_body=ENDS, temperature=0))
        one = agents.Runner.run_sync(plain, "Hello")
        two = agents.Runner.run_sync(plain, one.to_input_list() + [{"role": "user", "content": "And then?"}])
        check(f"openai-agents, {name}: a second turn with all items", two.raw_responses[0].usage.input_tokens > one.raw_responses[0].usage.input_tokens, two)
        helper = agents.Agent(name="Helper", instructions="Help.", model=own, model_settings=agents.ModelSettings(extra_body=ENDS, temperature=0))
        boss = agents.Agent(name="Boss", instructions="Hand over.", model=own, handoffs=[helper], model_settings=agents.ModelSettings(tool_choice="required", max_tokens=120, temperature=0))
        r = agents.Runner.run_sync(boss, "Help me", max_turns=3)
        check(f"openai-agents, {name}: a handoff", r.last_agent is helper, r)
        session = agents.SQLiteSession("s")
        agents.Runner.run_sync(plain, "Hello", session=session)
        r = agents.Runner.run_sync(plain, "And then?", session=session)
        check(f"openai-agents, {name}: a session", len(asyncio.run(session.get_items())) == 4, r)
    own = kinds["responses"](model=model, openai_client=client())
    settings = agents.ModelSettings(extra_body=ENDS, temperature=0, reasoning={"effort": "low", "summary": "auto"}, verbosity="low", truncation="auto", metadata={"a": "b"},
                                    store=True, response_include=["reasoning.encrypted_content"], prompt_cache_retention="24h", top_logprobs=2)
    agent = agents.Agent(name="Speaker", model=own, model_settings=settings)
    one = agents.Runner.run_sync(agent, "Hello")
    two = agents.Runner.run_sync(agent, "And then?", previous_response_id=one.last_response_id)
    check("openai-agents: previous_response_id, and all its settings", two.raw_responses[0].usage.input_tokens > one.raw_responses[0].usage.input_tokens, two)


@framework("instructor")
def instructor_modes():
    import instructor
    import openai
    from pydantic import BaseModel

    class Person(BaseModel):
        happy: bool
        tall: bool

    ask = dict(response_model=Person, messages=[{"role": "user", "content": "Anna is happy and tall."}], max_retries=0)
    made = lambda mode: instructor.from_openai(openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0), mode=getattr(instructor.Mode, mode))
    for mode in ("TOOLS", "TOOLS_STRICT", "JSON", "JSON_SCHEMA", "JSON_O1", "MD_JSON", "PARALLEL_TOOLS", "RESPONSES_TOOLS", "RESPONSES_TOOLS_WITH_INBUILT_TOOLS"):
        if not hasattr(instructor.Mode, mode) or mode in ("JSON_O1", "MD_JSON", "PARALLEL_TOOLS", "JSON"):
            continue  # They leave the form to the model, which here has none of its own.
        kw = {} if mode.startswith("RESPONSES") else {"max_tokens": 300}
        r = made(mode).chat.completions.create(model=model, **ask, **kw) if not mode.startswith("RESPONSES") else made(mode).responses.create(
            model=model, response_model=Person, input="Anna is happy and tall.", max_output_tokens=300, max_retries=0)
        check(f"instructor: {mode}", isinstance(r, Person), r)
    parts = list(made("TOOLS").chat.completions.create_partial(model=model, max_tokens=300, **ask))
    check("instructor: a partial model, streamed", len(parts) > 1 and isinstance(parts[-1].happy, bool) and isinstance(parts[-1].tall, bool), parts[-1:])
    many = list(made("TOOLS").chat.completions.create_iterable(model=model, max_tokens=300, temperature=1, seed=1, **ask))
    check("instructor: an iterable", all(hasattr(p, "happy") for p in many), many)


@framework("dspy")
def dspy_adapters():
    import dspy

    class Judge(dspy.Signature):
        """Is the text good?"""
        text: str = dspy.InputField()
        good: bool = dspy.OutputField()

    import litellm
    # As its documentation prescribes for own models.
    litellm.register_model({f"openai/{model}": {"litellm_provider": "openai", "mode": "chat", "supports_response_schema": True}})
    lm = dspy.LM(f"openai/{model}", api_base=base + "/v1", api_key="none", max_tokens=100, temperature=0.0, cache=False, num_retries=0)
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        r = dspy.Predict(Judge)(text="A fine day.")
        check("dspy: JSONAdapter", isinstance(r.good, bool), r)
    answers = dspy.LM(f"openai/{model}", api_base=base + "/v1", api_key="none", max_tokens=12, temperature=0.0, cache=False, num_retries=0, model_type="responses")
    check("dspy: a model by /v1/responses", len(answers("Hello")) == 1)


@framework("litellm")
def litellm_calls():
    import litellm
    kw = dict(model=f"openai/{model}", api_base=base + "/v1", api_key="none", messages=[{"role": "user", "content": "Hello"}], max_tokens=12, temperature=0, num_retries=0)
    r = litellm.completion(**kw)
    text = "".join(p.choices[0].delta.content or "" for p in litellm.completion(stream=True, **kw))
    check("litellm: streamed equals whole", r.choices[0].message.content == text != "", (r, text))
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}}}
    r = litellm.completion(tools=[tool], tool_choice="required", **dict(kw, max_tokens=100))
    check("litellm: a tool", isinstance(json.loads(r.choices[0].message.tool_calls[0].function.arguments)["a"], bool), r)
    # It sends no smaller limit.
    r = litellm.responses(model=f"openai/{model}", api_base=base + "/v1", api_key="none", input="Hello", max_output_tokens=16)
    check("litellm: responses", r.usage.output_tokens <= 16, r)
    try:
        import mcp  # litellm asks for it there.
    except ImportError:
        return
    r = asyncio.run(litellm.anthropic.messages.acreate(model=f"anthropic/{model}", api_base=base, api_key="none", max_tokens=12, messages=[{"role": "user", "content": "Hello"}]))
    check("litellm: messages", r["usage"]["output_tokens"] <= 12, r)


@framework("langchain_openai")
def langchain():
    from langchain_openai import ChatOpenAI
    from pydantic import BaseModel

    class Person(BaseModel):
        """A person."""
        happy: bool

    for name, kw in (("chat", {}), ("responses", {"use_responses_api": True})):
        llm = ChatOpenAI(model=model, base_url=base + "/v1", api_key="none", max_tokens=60, temperature=0, max_retries=0, **kw)
        r = llm.invoke("Hello")
        parts = list(llm.stream("Hello"))
        text = "".join(p.text if isinstance(p.text, str) else p.text() for p in parts)
        check(f"langchain, {name}: streamed equals whole", r.text == text and r.usage_metadata["output_tokens"] > 0, (r, text))
        for method in ("json_schema", "function_calling"):
            check(f"langchain, {name}: with_structured_output {method}", isinstance(llm.with_structured_output(Person, method=method).invoke("Anna is happy."), Person))
        call = llm.bind_tools([Person], tool_choice="any").invoke("Anna is happy.")
        back = llm.bind_tools([Person]).invoke([("user", "Anna is happy."), call, {"role": "tool", "tool_call_id": call.tool_calls[0]["id"], "content": "yes"}])
        check(f"langchain, {name}: a tool's result goes back", back.usage_metadata["input_tokens"] > call.usage_metadata["input_tokens"], back)


@framework("langchain_ollama")
def langchain_ollama():
    from langchain_ollama import ChatOllama, OllamaEmbeddings
    from pydantic import BaseModel

    class Person(BaseModel):
        """A person."""
        happy: bool

    llm = ChatOllama(model=model, base_url=base, temperature=0, num_predict=40)
    r = llm.invoke("Hello")
    check("langchain-ollama: streamed equals whole", r.content and "".join(p.content for p in llm.stream("Hello")) == r.content and r.usage_metadata["output_tokens"] > 0, r)
    llm = ChatOllama(model=model, base_url=base, temperature=0, num_predict=200)
    check("langchain-ollama: with_structured_output", isinstance(llm.with_structured_output(Person, method="json_schema").invoke("Anna is happy."), Person))
    check("langchain-ollama: embeddings", len(OllamaEmbeddings(model=model, base_url=base).embed_documents(["a", "b"])) == 2)


@framework("pydantic_ai")
def pydantic_ai():
    from pydantic import BaseModel
    from pydantic_ai import Agent, NativeOutput, ToolOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Person(BaseModel):
        happy: bool

    provider = OpenAIProvider(base_url=base + "/v1", api_key="none")
    models = {"chat": OpenAIChatModel(model, provider=provider), "responses": OpenAIResponsesModel(model, provider=provider)}
    try:
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider
        models["messages"] = AnthropicModel(model, provider=AnthropicProvider(base_url=base, api_key="none"))
    except ImportError:
        pass
    for name, m in models.items():
        settings = {"max_tokens": 100}
        for kind in (ToolOutput, NativeOutput):
            if name == "messages" and kind is NativeOutput:
                continue  # It requests names of Anthropic's own models.
            r = Agent(m, output_type=kind(Person), model_settings=settings, retries=0).run_sync("Anna is happy.")
            check(f"pydantic-ai, {name}: {kind.__name__}", isinstance(r.output, Person), r)
        agent = Agent(m, model_settings={"max_tokens": 12})
        one = agent.run_sync("Hello")
        two = agent.run_sync("And then?", message_history=one.all_messages())
        usage = lambda r: r.usage.input_tokens
        check(f"pydantic-ai, {name}: a second turn", usage(two) > usage(one), (one, two))

        async def streamed():
            async with agent.run_stream("Hello") as s:
                return [t async for t in s.stream_text(delta=True, debounce_by=None)]
        check(f"pydantic-ai, {name}: streamed", len(asyncio.run(streamed())) > 1)


@framework("llama_index.llms.openai_like")
def llama_index():
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike
    llm = OpenAILike(model=model, api_base=base + "/v1", api_key="none", is_chat_model=True, is_function_calling_model=True, context_window=512, max_tokens=12, temperature=0, max_retries=0)
    whole = llm.chat([ChatMessage(role="user", content="Hello")])
    parts = list(llm.stream_chat([ChatMessage(role="user", content="Hello")]))
    check("llama-index: streamed equals whole", whole.message.content == parts[-1].message.content != "", (whole, parts[-1]))
    done = OpenAILike(model=model, api_base=base + "/v1", api_key="none", is_chat_model=False, context_window=512, max_tokens=12, temperature=0).complete("Once upon a time")
    check("llama-index: completion", len(done.text) > 5, done)


sys.exit(tap.end())
