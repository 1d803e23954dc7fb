// Where frames come from: events of a server that works, or single answers of one that shows a recording.

const STATE = "window/state";
const KEY = "quire-api-key";

// RFC 7386, in place.
function merge(target, patch) {
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete target[key];
    else if (typeof value !== "object" || Array.isArray(value)) target[key] = value;
    else target[key] = merge(isObject(target[key]) ? target[key] : {}, value);
  }
  return target;
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

export class NeedsKey extends Error {}

export const keepKey = (key) => sessionStorage.setItem(KEY, key);

async function ask(query = "") {
  const key = sessionStorage.getItem(KEY);
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const answer = await fetch(STATE + query, { headers, cache: "no-store" });
  if (answer.status === 401) throw new NeedsKey();
  if (!answer.ok) {
    const body = await answer.json().catch(() => ({}));
    throw new Error(body.error?.message ?? `the server answers ${answer.status}`);
  }
  return answer;
}

export const frameAt = async (query) => (await ask(query)).json();

// Calls onFrame with the whole state for each event, as long as the server lives. A recording has one frame; then
// this ends.
export async function follow(onFrame) {
  const answer = await ask();
  if (answer.headers.get("Content-Type").startsWith("application/json")) return onFrame(await answer.json());
  const state = {};
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the server has closed the stream");
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    const patches = events.filter((event) => event.startsWith("data: "));
    for (const patch of patches) merge(state, JSON.parse(patch.slice(6)));
    if (patches.length > 0) onFrame(state);
  }
}
