// A text that a language model writes: each token as it comes, shaded by its entropy.
import {generate} from "./api.js";
import {generateRequest} from "./ask.js";
import {byId, bytes, count, digits, el, milliseconds, nats, percent, plural, shown, styled} from "./view.js";

const fullShade = 4;  // nats

let controller = null;
export const stop = () => controller?.abort();

// The texts of tokens end late where a character does: each token is shown as what came with its message.
function tokenOf(message, text) {
  const entropy = message.predictiveEntropy || 0, probability = Math.exp(message.logProbability || 0);
  const spelt = shown(new TextDecoder().decode(bytes(message.tokenBytes || "")));
  const title = `${spelt}: probability ${digits(probability)}, entropy ${nats(entropy)}, ${
    plural(message.edges?.edges || 0, "edge")}`;
  return styled(el("span", {class: "token", title}, text), "--shade", Math.min(1, entropy / fullShade).toFixed(3));
}

function panel(prompt) {
  const text = el(
      "p",
      {class: "text", id: "written_text", "aria-busy": "true", tabindex: "0", role: "group", "aria-label": "The text"},
      el("span", {class: "prompt"}, prompt));
  const cost = el("p", {class: "note"});
  byId("written").replaceChildren(
      el("h2", {id: "written_title"}, "The text it writes"), text,
      el("p", {class: "legend"}, "Entropy", el("span", {}, "0"), el("span", {class: "ramp", "aria-hidden": "true"}),
         el("span", {}, `${fullShade} nats`)),
      cost);
  byId("written").hidden = false;
  return {text, cost};
}

// `say` and `fail` tell the reader; they end as they begin.
export async function write(model, say, fail) {
  stop();
  controller = new AbortController();
  const {signal} = controller, chat = byId("chat").checked;
  const {text, cost} = panel(chat ? "" : byId("text").value);
  const start = performance.now();
  let tokens = 0, edges = 0, pairs = 0, entropies = 0;
  const show = (ending) => {
    const seconds = (performance.now() - start) / 1000;
    cost.textContent =
        `${count(tokens)} tokens, ${count(edges)} edges, density ${percent(pairs ? edges / pairs : 0)}, ` +
        `mean entropy ${nats(entropies / Math.max(1, tokens))}, ${digits(tokens / seconds)} tokens/s${ending}`;
  };
  byId("write").disabled = true;
  byId("stop").disabled = false;
  say("Writing.");
  try {
    for await (const message of generate(generateRequest(model), signal)) {
      tokens += 1;
      edges += message.edges?.edges || 0;
      pairs += Number(message.edges?.pairs || 0);
      entropies += message.predictiveEntropy || 0;
      const follows = text.scrollTop + text.clientHeight >= text.scrollHeight - 2;  // it was scrolled to its end
      text.append(tokenOf(message, message.text || ""));
      if (follows) text.scrollTop = text.scrollHeight;
      show(message.done ? `, ${milliseconds(message.timing?.totalUs)}` : "");
    }
    say(`${count(tokens)} tokens were written.`);
  } catch (error) {
    if (error.name !== "AbortError") fail(error);
    else say(`Stopped after ${count(tokens)} tokens.`);
  }
  if (signal !== controller.signal) return;
  text.setAttribute("aria-busy", "false");
  byId("write").disabled = false;
  byId("stop").disabled = true;
}
