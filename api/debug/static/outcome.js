// Outcome of a decision, by its full explanation: wait, prompt, first token, cache.

import { el } from "./dom.js";
import { count, duration, sentence, words } from "./format.js";

const WAITED_FOR = {
  full: "workers had all that they may have",
  overloaded: "too much waited in the workers' engines",
  behind: "others came first",
  prefill: "its worker computed other prompts",
};

// The outcome: where the time to the first token went, and whether the cache was as expected.
export function outcome(found) {
  if (!found) return null;
  const { phases, reuse } = found;
  const texts = [...held(found), ...prompt(found)];
  if (reuse && reuse.verdict !== "as_predicted") texts.push(el("p", { class: "told" }, el("b", {}, "Reuse: "), sentence(reuse.text)));
  if (phases?.behind_requests) texts.push(el("p", { class: "told", id: "behind" }, el("b", {}, "Behind: "), `${count(phases.behind_requests)} request${phases.behind_requests === 1 ? "" : "s"} with ${count(phases.behind_tokens)} tokens to compute.`));
  if (found.again === "differs") texts.push(el("p", { class: "told bad" }, "Decided again from the log it falls otherwise: `contrail replay verify` says where."));
  if (found.doubts.length) texts.push(el("p", { class: "fine" }, `The log may not show all: ${found.doubts.join("; ")}.`));
  return texts;
}

// Its wait in the router: for whom, and who waited beside it.
function held({ queued, hold, worker_name: called }) {
  const texts = [];
  if (queued?.waited_ms) {
    const did = hold?.by.map((each) => `${each.request} (${count(each.tokens)} tokens, after ${duration(each.after_ms)})`) ?? [];
    const part = typeof hold?.held_ms === "number" && hold.held_ms !== queued.waited_ms ? `, of which it was held for its worker ${duration(hold.held_ms)}` : "";
    const meanwhile = did.length ? `${part}; meanwhile ${called} was done with ${did.join(", ")}` : part;
    texts.push(el("p", { class: "told", id: "held" }, el("b", {}, queued.why === "prefill" ? "Held: " : "Waited: "), `${duration(queued.waited_ms)} in the router: ${WAITED_FOR[queued.why] ?? words(queued.why)}${meanwhile}.`));
  }
  if (!hold?.beside.length) return texts;
  const beside = hold.beside.map((each) => `${each.request} (${count(each.tokens)} tokens, to ${each.name} ${duration(each.after_ms)} later)`);
  return [...texts, el("p", { class: "told" }, el("b", {}, "Held beside it: "), `${beside.join(", ")}.`)];
}

// Where the prompt was computed, if that could have been elsewhere: the verdict, who was preferred, and the job.
function prompt({ prefill, hint, job }) {
  const texts = [];
  const said = (title, text) => texts.push(el("p", { class: "told" }, el("b", {}, title), sentence(text)));
  if (prefill) said("Prompt: ", prefill.text);
  if (hint) said("Preferred: ", hint.text);
  if (prefill?.came) said("Came: ", prefill.came);
  if (!job) return texts;
  const tries = job.tries.map((each) => `${each.name} ${words(each.outcome)}${each.reason ? ` (${each.reason})` : ""}`);
  const moved = job.outcome === "pulled" ? `; ${count(job.blocks)} blocks, ${count(job.bytes)} bytes by ${job.transport}` : "";
  const end = `${words(job.outcome)}${job.reason ? ` (${words(job.reason)})` : ""}${moved}`;
  const where = [job.asked_seq, job.ended_seq].filter((seq) => seq !== null).map((seq) => `jobs:${seq}`).join(" to ");
  texts.push(el("p", { class: "fine" }, `Job ${job.job}${where ? `, ${where}` : ""}: ${[...tries, end].join(", ")}${job.lacks ? `; ${job.lacks}` : ""}.`));
  return texts;
}
