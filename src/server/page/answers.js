// ---- The server ---------------------------------------------------------------------------------------------------

class ServerError extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

function keyOfTab() {
  try {
    return sessionStorage.getItem(PREFIX + "key");
  } catch {
    return null;
  }
}

async function errorOf(response) {
  const text = await response.text().catch(() => "");
  try {
    const { error } = JSON.parse(text);
    return new ServerError(response.status, error.message ?? String(error), error.code);
  } catch {
    const line = `The server answered ${response.status} ${response.statusText}. `;
    return new ServerError(response.status, line + text.slice(0, 500));
  }
}

// Asks for a key as often as the server wants another one.
async function ask(path, options = {}) {
  for (;;) {
    const headers = { ...options.headers };
    const key = keyOfTab();
    if (key) headers.Authorization = "Bearer " + key;
    let response;
    try {
      response = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
    } catch (failure) {
      throw failure.name === "AbortError" ? failure : new ServerError(0, "The server cannot be reached.");
    }
    if (response.ok) return response;
    const error = await errorOf(response);
    if (error.status !== 401 || !(await askForKey(key ? error.message : ""))) throw error;
  }
}

// The data of each event of a stream, parsed.
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const data = line.startsWith("data:") ? line.slice(5).trim() : "";
      if (data === "[DONE]") return;
      if (data !== "") yield JSON.parse(data);
    }
  }
}

// ---- A request and its answer -------------------------------------------------------------------------------------

const SAMPLING = [
  "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
];
const NUMBERS = [...SAMPLING, "max_tokens", "seed"];
const DEFAULTS = { system: "", reasoning_effort: "", speculative: true, tools: "", schema: "", extra: "" };
for (const name of NUMBERS) DEFAULTS[name] = "";

// What a setting holds as JSON, or nothing.
function jsonSetting(text, what, kind) {
  if (text.trim() === "") return undefined;
  let value;
  try {
    value = JSON.parse(text);
  } catch (failure) {
    throw new ServerError(0, `The ${what} in the settings are no JSON: ${failure.message}`);
  }
  if (value === null || typeof value !== "object" || Array.isArray(value) !== (kind === "list"))
    throw new ServerError(0, `The ${what} in the settings are no JSON ${kind}.`);
  return value;
}

function wireCall(c) {
  return { id: c.id, type: "function", function: { name: c.name, arguments: c.arguments } };
}

function wireMessage(m) {
  const out = { role: m.role, content: contentOf(m) };
  if (m.role === "tool") out.tool_call_id = m.call;
  if (m.reasoning) out.reasoning_content = m.reasoning;
  if (m.calls?.length) out.tool_calls = m.calls.map(wireCall);
  return out;
}

// An answer that failed before its first word is none.
function saysSomething(m) {
  return m.role !== "assistant" || m.content !== "" || m.calls?.length > 0;
}

function requestOf(chat) {
  const s = chat.settings;
  const messages = chat.messages.filter(saysSomething).map(wireMessage);
  const body = { messages, stream: true, return_cache_info: true };
  body.stream_options = { include_usage: true, continuous_usage_stats: true };
  if (s.system.trim() !== "") body.messages.unshift({ role: "system", content: s.system });
  if (!$("model").hidden) body.model = $("model").value;
  for (const name of NUMBERS) if (s[name] !== "") body[name] = Number(s[name]);
  if (s.reasoning_effort !== "") body.reasoning_effort = s.reasoning_effort;
  if (!s.speculative) body.speculative = false;
  const tools = jsonSetting(s.tools, "tools", "list");
  if (tools) body.tools = tools;
  const schema = jsonSetting(s.schema, "words of the schema", "object");
  if (schema) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  return { ...body, ...jsonSetting(s.extra, "more fields", "object"), stream: true };
}

function addCall(message, delta) {
  message.calls ??= [];
  const call = (message.calls[delta.index ?? message.calls.length] ??= { id: "", name: "", arguments: "" });
  if (delta.id) call.id = delta.id;
  call.name += delta.function?.name ?? "";
  call.arguments += delta.function?.arguments ?? "";
}

function addUsage(message, usage, timing) {
  const now = performance.now();
  const seconds = (now - timing.first) / 1000;
  message.stats = {
    prompt: usage.prompt_tokens ?? 0,
    cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
    tokens: usage.completion_tokens ?? 0,
    accepted: usage.completion_tokens_details?.accepted_prediction_tokens ?? 0,
    rejected: usage.completion_tokens_details?.rejected_prediction_tokens ?? 0,
    first: (timing.first - timing.begun) / 1000,
    rate: usage.completion_tokens > 1 && seconds > 0.01 ? (usage.completion_tokens - 1) / seconds : 0,
  };
}

function addEvent(message, event, timing) {
  if (event.error) throw new ServerError(0, event.error.message ?? String(event.error), event.error.code);
  const choice = event.choices?.[0];
  const delta = choice?.delta ?? {};
  if (delta.content || delta.reasoning_content || delta.tool_calls) timing.first ||= performance.now();
  message.content += delta.content ?? "";
  if (delta.reasoning_content) message.reasoning = (message.reasoning ?? "") + delta.reasoning_content;
  for (const call of delta.tool_calls ?? []) addCall(message, call);
  if (choice?.finish_reason) message.finish = choice.finish_reason;
  if (event.usage && timing.first && choice) addUsage(message, event.usage, timing);
}

// An answer that says something already is gone on with.
async function receive(chat, message, signal) {
  const timing = { begun: performance.now(), first: 0 };
  const request = requestOf({ ...chat, messages: chat.messages.slice(0, message.content === "" ? -1 : undefined) });
  if (message.content !== "") Object.assign(request, { continue_final_message: true, add_generation_prompt: false });
  delete message.finish;
  const body = JSON.stringify(request);
  const headers = { "Content-Type": "application/json" };
  const response = await ask("v1/chat/completions", { method: "POST", headers, body, signal });
  try {
    for await (const event of eventsOf(response)) {
      addEvent(message, event, timing);
      refresh(message);
    }
  } catch (failure) {
    if (failure instanceof ServerError || failure.name === "AbortError") throw failure;
    throw new ServerError(0, "The connection to the server broke off.");
  }
  if (!message.finish) throw new ServerError(0, "The connection to the server ended before the answer did.");
}

let running = null; // {chat, message, controller}

// Where the server says that a conversation does not fit, clients of all kinds know it by this code.
const TOO_LONG = "context_length_exceeded";

async function generate(chat, fork) {
  const message = { role: "assistant", content: "" };
  if (fork) message.fork = fork;
  chat.messages.push(message);
  await answer(chat, message);
}

async function answer(chat, message) {
  const controller = new AbortController();
  delete message.error;
  delete message.tooLong;
  running = { chat, message, controller };
  saveChat(chat);
  showMessages();
  announce("Answering");
  try {
    await receive(chat, message, controller.signal);
    announce("The answer is complete");
  } catch (failure) {
    if (failure.name === "AbortError") message.finish = "stopped";
    else message.error = failure.message;
    if (failure.code === TOO_LONG) message.tooLong = true;
    announce(message.error ?? "Stopped");
    if (failure.status === 0) connect();
  }
  if ($("state").dataset.state === "gone") connect();
  running = null;
  message.calls = message.calls?.filter((c) => c);
  saveChat(chat);
  showMessages();
}
