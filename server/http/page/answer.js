// The answer of Predict, as each task has it, and its cost.
import {gridOf, kindOf} from "./ask.js";
import {
  byId, count, digits, el, milliseconds, named, nats, percent, plural, shown, styled, svg, texts
} from "./view.js";

const mostBars = 8, mostValues = 32, leastShown = 0.002;

const spreadOf = (prediction, i) => prediction.stddev?.[i] || 0;
const spreadText = (spread, samples) => samples > 1 ? ` ± ${percent(spread)}` : "";

// Rows of { name, value, spread, text }, in units of `most`.
function bars(rows, most = 1) {
  return el("ul", {class: "bars"}, ...rows.map(({name, value, spread, text}) => {
    const at = (number) => `${100 * Math.max(0, Math.min(1, number / most))}%`;
    const bar = el("span", {class: "bar", "aria-hidden": "true"}, styled(el("span"), "--at", at(value)));
    if (spread / most > leastShown) {
      const whisker = styled(el("i"), "--from", at(value - spread));
      bar.append(styled(whisker, "--to", at(value + spread)));
    }
    return el("li", {}, el("span", {class: "name"}, name), bar, el("span", {class: "value"}, text));
  }));
}

const headline = (label, value, note) => el("p", {class: "headline"}, el("strong", {}, label),
  value ? el("span", {}, value) : null, note ? el("small", {}, note) : null);

function entropies({predictiveEntropy = 0, mutualInformation = 0, samples}) {
  const shared = `, of which ${nats(mutualInformation)} are what the samples disagree on (mutual information)`;
  return el("p", {class: "note"}, `Entropy ${nats(predictiveEntropy)}${samples > 1 ? shared : ""}`);
}

// Bars of the most probable labels of an answer: of a text, or of a token.
function labels(answer, samples, nameOf) {
  const top = answer.top || answer.probabilities.map((probability, labelId) => ({labelId, probability}));
  return bars(top.slice(0, mostBars).map(({labelId = 0, label = String(labelId), probability = 0}) => {
    const spread = spreadOf(answer, labelId), text = percent(probability) + spreadText(spread, samples);
    return {name: nameOf(label), value: probability, spread, text};
  }));
}

function classes(prediction, nameOf = (label) => label) {
  const id = prediction.labelId || 0, probability = prediction.probabilities[id] || 0, samples = prediction.samples;
  const rest = [labels(prediction, samples, nameOf), entropies(prediction)];
  if (prediction.multiLabel) {
    const yes = (prediction.top || []).filter((label) => label.probability > 0.5).map((label) => label.label);
    return [headline(yes.length ? yes.join(", ") : "No label", null, "each label above 50\u202f%"), ...rest];
  }
  const sure = percent(probability) + spreadText(spreadOf(prediction, id), samples);
  return [headline(nameOf(prediction.label), sure), ...rest];
}

function regression(prediction) {
  const values = prediction.values || [], most = Math.max(...values.map(Math.abs), 1e-9);
  const text = (value, i) => digits(value) + (prediction.samples > 1 ? ` ± ${digits(spreadOf(prediction, i))}` : "");
  if (values.length === 1) return [headline(text(values[0], 0))];
  return [bars(values.slice(0, mostValues).map((value, i) =>
    ({name: `value ${i}`, value: Math.abs(value), spread: spreadOf(prediction, i), text: text(value, i)})), most)];
}

function embedding(predictions) {
  const vectors = predictions.map((prediction) => prediction.embedding || []), [first, second] = vectors;
  const length = (vector) => Math.hypot(...vector), samples = predictions[0].samples;
  const parts = [headline(count(first.length), "numbers", `of length ${digits(length(first))}`)];
  if (second) {
    const dot = first.reduce((sum, number, i) => sum + number * second[i], 0);
    parts[0] = headline(digits(dot / (length(first) * length(second) || 1)), "cosine similarity");
  }
  for (const vector of vectors) {
    const most = Math.max(...vector.map(Math.abs), 1e-9);
    const name = `${plural(vector.length, "number")} up to ${digits(most)}`;
    const path = vector.map((number, i) => `M${i + 0.5} 20v${(-19 * number / most).toFixed(2)}`).join("");
    const box = {viewBox: `0 0 ${vector.length} 40`, preserveAspectRatio: "none", role: "img", "aria-label": name};
    parts.push(svg("svg", {class: "numbers", ...box}, svg("path", {d: path})));
  }
  const spread = length(predictions[0].stddev || []);
  if (samples > 1) parts.push(el("p", {class: "note"}, `Spread of the samples: ${digits(spread)}`));
  return parts;
}

// Every token; those that have another label than most are marked with it.
function tokenLabels(prediction, words) {
  const tokens = prediction.tokens || [], counts = new Map();
  for (const {label, pad} of tokens) if (!pad) counts.set(label, (counts.get(label) || 0) + 1);
  const frequent = [...counts].sort((a, b) => b[1] - a[1]), plain = frequent[0]?.[0];
  const spans = tokens.flatMap((token, i) => {
    if (token.pad) return [];
    const id = token.labelId || 0, spread = spreadText(spreadOf(token, id), prediction.samples);
    const title = `${token.label} ${percent(token.probabilities[id] || 0)}${spread}`, marked = token.label !== plain;
    return [el("span", {class: marked ? "token marked" : "token", title}, shown(words[i]?.text ?? String(i)),
      marked ? el("small", {}, ` ${token.label}`) : null), " "];
  });
  const sums = frequent.slice(0, 3).map(([label, number]) => `${number} ${label}`).join(", ");
  return [headline(plural(tokens.length, "token"), sums), el("p", {class: "text labelled"}, ...spans)];
}

function masks(prediction) {
  return (prediction.tokens || []).flatMap((token) => {
    const sure = percent(token.probabilities[token.labelId || 0] || 0);
    return [headline(named(token.label), sure), labels(token, prediction.samples, named),
      entropies({...token, samples: prediction.samples})];
  });
}

// The next token of a language model; its names keep their spaces visible.
const next = (prediction) => [...classes(prediction, named), el("p", {class: "note"}, `The text itself: perplexity ${
  digits(prediction.perplexity || 1)} over ${plural(prediction.scoredTokens || 0, "token")}`)];

function bodyOf(model, predictions, words) {
  const [first] = predictions;
  switch (model.task) {
    case "regression":
      return regression(first);
    case "embedding":
      return embedding(predictions);
    case "token-classification":
      return tokenLabels(first, words);
    case "fill-mask":
      return masks(first);
    case "causal-lm":
      return next(first);
    default:
      return classes(first);
  }
}

// Density and cap on the scale of the slider: three powers of ten.
function meter(edges) {
  const at = (share) => `${100 * Math.max(0, Math.min(1, 1 + Math.log10(Math.max(share, 1e-9)) / 3))}%`;
  const cap = Number(edges.budget || 0) / Number(edges.pairs || 1);
  const bar = el("div", {class: "bar"}, styled(el("span"), "--at", at(edges.density || 0)));
  if (cap > 0) bar.append(styled(el("b"), "--at", at(cap)));
  const scale = ["0.1", "1", "10", "100"].map((share) => el("span", {}, `${share}\u202f%`));
  return el("div", {class: "meter", "aria-hidden": "true"}, bar, el("div", {class: "scale"}, ...scale));
}

const fact = (name, value, note) => el("div", {}, el("dt", {}, name), el("dd", {}, value, el("small", {}, note)));

function cost(response, predictions) {
  const edges = predictions[0].edges || {}, timing = response.timing || {}, samples = predictions[0].samples || 1;
  const budget = Number(edges.budget || 0), pairs = `of ${count(edges.pairs || 0)} pairs`;
  const cap = `at most ${count(budget)}${edges.capped ? ", some were dropped" : ""}`;
  return [meter(edges), el("dl", {class: "facts"},
    fact("Edges", count(edges.edges || 0), budget ? cap : pairs),
    fact("Density", percent(edges.density || 0), budget ? pairs : "no cap"),
    fact("Time", milliseconds(timing.totalUs), `${milliseconds(timing.computeUs)} of it computing`),
    fact("Samples", count(samples), samples > 1 ? "edges are their mean" : `seed ${response.seed || 0}`))];
}

// Names of the patches of an image and of what goes before them, or of rows of features.
function rowName(model, i, all) {
  const grid = kindOf(model) === "image" && gridOf(model), patch = grid ? i - (all - grid.columns * grid.rows) : -1;
  if (!grid) return `#${i}`;
  return patch < 0 ? "[CLS]" : `row ${Math.floor(patch / grid.columns) + 1}, column ${patch % grid.columns + 1}`;
}

// The tokens of an input as { text, pad }, in the order of its graph's positions.
export function wordsOf(model, prediction) {
  const tokens = prediction.inputTokens || [], spelt = texts(tokens.map((token) => token.tokenBytes));
  const ofText = spelt.some((text) => text !== ""), ofRows = Number(model.featureSize) > 0;
  const nameOf = (token, i) => ofRows ? rowName(model, i, tokens.length) : String(token.tokenId || 0);
  return tokens.map((token, i) => ({pad: token.pad || false, text: ofText ? spelt[i] : nameOf(token, i)}));
}

export function showAnswer(model, response, words) {
  const predictions = response.predictions;
  const title = {"causal-lm": "The next token", embedding: "Embedding", regression: "Value"}[model.task] || "Answer";
  byId("answer").replaceChildren(
      el("h2", {id: "answer_title"}, title), ...bodyOf(model, predictions, words), ...cost(response, predictions),
      el("p", {class: "note device"}, `${response.device}, version ${response.version}`));
  byId("answer").hidden = false;
  byId("brief").textContent = sentence(response);
  byId("brief").hidden = false;
}

// The answer in a sentence, for those who hear the page.
export function sentence(response) {
  const [first] = response.predictions, edges = first.edges || {};
  const label = first.label ? `${named(first.label)}, ${percent(first.probabilities[first.labelId || 0] || 0)}. ` :
    first.values?.length === 1 ? `${digits(first.values[0])}. ` : "";
  return `${label}${plural(edges.edges || 0, "edge")}, density ${percent(edges.density || 0)}.`;
}
