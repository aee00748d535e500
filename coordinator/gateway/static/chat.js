// A small chat over the coordinator's own /v1/chat/completions. Nothing is kept but the key, in this tab.

const KEY = "plait-key";
const at = (id) => document.getElementById(id);
const turns = [];
let running = null;

const headers = () => ({
  authorization: `Bearer ${sessionStorage.getItem(KEY)}`,
  "content-type": "application/json",
});

function say(text) {
  at("state").textContent = text;
}

function addTurn(role, text) {
  const turn = document.createElement("article");
  turn.className = `turn ${role}`;
  turn.setAttribute("aria-label", role === "user" ? "You" : "The model");
  const words = document.createElement("span");
  words.textContent = text;
  turn.append(words);
  at("log").append(turn);
  turn.scrollIntoView({ block: "end" });
  return { turn, words };
}

async function problem(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the coordinator answered ${response.status}`;
  }
}

async function signIn() {
  const isKnown = sessionStorage.getItem(KEY) !== null;
  at("sign-in").hidden = isKnown;
  at("ask").hidden = !isKnown;
  at("forget").hidden = !isKnown;
  if (!isKnown) {
    at("key").focus();
    return;
  }
  let response;
  try {
    response = await fetch("/v1/models", { headers: headers() });
  } catch {
    say("The coordinator cannot be reached.");
    return;
  }
  if (!response.ok) {
    sessionStorage.removeItem(KEY);
    say(await problem(response));
    await signIn();
    return;
  }
  const models = (await response.json()).data.map((model) => model.id);
  at("model").replaceChildren(...models.map((id) => new Option(id, id)));
  at("model").disabled = models.length < 2;
  say(models.length ? "" : "No model is served yet.");
  at("prompt").focus();
}

// Calls `hear` with each event's data, and `wait` with what comments say of the queue.
async function readEvents(body, hear, wait) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    for (let end; (end = held.indexOf("\n\n")) >= 0; held = held.slice(end + 2)) {
      for (const line of held.slice(0, end).split("\n")) {
        if (line.startsWith("data: ")) hear(line.slice(6));
        else if (line.startsWith(": queued")) wait(line);
      }
    }
  }
}

function queued(line) {
  const position = /position=(\d+)/.exec(line)?.[1];
  const wait = /wait_s=(\d+)/.exec(line)?.[1];
  say(`Waiting in the queue, number ${position}${wait ? `, about ${wait} s` : ""}.`);
}

async function ask(prompt) {
  turns.push({ role: "user", content: prompt });
  addTurn("user", prompt);
  const { turn, words } = addTurn("assistant", "");
  const began = performance.now();
  let first = null;
  let usage = null;
  let end = null;
  running = new AbortController();
  at("send").hidden = true;
  at("stop").hidden = false;
  say("Waiting for the first token.");
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: headers(),
      signal: running.signal,
      body: JSON.stringify({
        model: at("model").value,
        messages: turns,
        max_tokens: at("max-tokens").valueAsNumber || 512,
        temperature: Number.isNaN(at("temperature").valueAsNumber) ? 0.7 : at("temperature").valueAsNumber,
        stream: true,
        stream_options: { include_usage: true },
      }),
    });
    if (!response.ok) throw new Error(await problem(response));
    await readEvents(response.body, (data) => {
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      usage = event.usage ?? usage;
      const choice = event.choices[0];
      end = choice?.finish_reason ?? end;
      const text = choice?.delta?.content;
      if (!text) return;
      first ??= performance.now();
      words.textContent += text;
      say("");
      turn.scrollIntoView({ block: "end" });
    }, queued);
  } catch (error) {
    if (error.name !== "AbortError") {
      turn.classList.add("failed");
      words.textContent += `${words.textContent ? "\n" : ""}${error.message}`;
      turns.pop();
      at("prompt").value = prompt;
    }
  }
  if (!turn.classList.contains("failed")) {
    turns.push({ role: "assistant", content: words.textContent });
    figures(turn, { began, first, usage, end });
  }
  running = null;
  at("send").hidden = false;
  at("stop").hidden = true;
  say("");
}

function figures(turn, { began, first, usage, end }) {
  if (first === null) return;
  const line = document.createElement("span");
  line.className = "figures";
  const parts = [`first token after ${((first - began) / 1000).toFixed(2)} s`];
  const seconds = (performance.now() - first) / 1000;
  if (usage && usage.completion_tokens > 1 && seconds > 0) {
    parts.push(`${usage.completion_tokens} tokens`, `${((usage.completion_tokens - 1) / seconds).toFixed(1)} tokens/s`);
  }
  if (end === "length") parts.push("cut at the longest answer");
  line.textContent = parts.join(" · ");
  turn.append(line);
}

at("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, at("key").value.trim());
  at("key").value = "";
  signIn();
});
at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const prompt = at("prompt").value;
  if (running || !prompt.trim()) return;
  at("prompt").value = "";
  ask(prompt);
});
at("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at("ask").requestSubmit();
  }
});
at("stop").addEventListener("click", () => running?.abort());
at("new").addEventListener("click", () => {
  running?.abort();
  turns.length = 0;
  at("log").replaceChildren();
  at("prompt").focus();
});
at("forget").addEventListener("click", () => {
  running?.abort();
  sessionStorage.removeItem(KEY);
  signIn();
});

signIn();
