// The form: what a model takes, and the requests that are made of it.
import {ofModel, ofTask} from "./examples.js";
import {byId, count, percent} from "./view.js";

const ensembles = [1, 2, 4, 8, 16, 32, 64];
const mostShare = 1, leastExponent = -3;

export function kindOf(model) {
  if (Number(model.imageWidth) > 0) return "image";
  if (Number(model.featureSize) > 0) return "features";
  return (model.tokenizer || "none") === "none" ? "ids" : "text";
}

// The grid of an image's patches, which follow the other tokens; null: not known.
export function gridOf(model) {
  const side = Math.sqrt(Number(model.featureSize) / 3);  // a patch has three colours
  const columns = Number(model.imageWidth) / side, rows = Number(model.imageHeight) / side;
  return Number.isInteger(columns) && Number.isInteger(rows) ? {columns, rows} : null;
}

const joins = (model) =>
    model.tokenizer === "hugging-face" && ["sequence-classification", "regression"].includes(model.task);
export const isDense = (model) => (model.attention || "").split(",").every((kind) => kind === "dense");
export const exampleFirst = (models) =>
    Object.keys(ofModel).map((name) => models.find((model) => model.name === name)).find(Boolean) || models[0];

// A share of all pairs, of two digits, on a logarithmic scale; 1: no cap.
export const share = () => {
  const value = Number(byId("cap").value);
  return value >= 100 ? mostShare : Number((10 ** (leastExponent * (1 - value / 100))).toPrecision(2));
};
export const samples = () => ensembles[Number(byId("samples").value)];

let file = null;  // the bytes of an image, in base64
export function takeImage(chosen) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => {
      file = reader.result.slice(reader.result.indexOf(",") + 1);
      resolve(URL.createObjectURL(chosen));
    };
    reader.onerror = () => reject(new Error("The file cannot be read."));
    reader.readAsDataURL(chosen);
  });
}

// Shows the fields of a model, with an example where it has changed.
export function showFields(model) {
  const kind = kindOf(model), task = model.task, embeds = task === "embedding";
  const second = task === "pair-classification" || (kind === "text" && (joins(model) || embeds));
  byId("text_field").hidden = kind === "image";
  byId("image_field").hidden = kind !== "image";
  byId("second_field").hidden = !second;
  byId("text_label").textContent = kind === "ids" ? "Token ids" :
      kind === "features" ? `Rows of ${model.featureSize} numbers, or a Sequence of the protocol as JSON` :
      task === "fill-mask" ? "Text with a mask" : "Text";
  byId("second_label").textContent = embeds ? "Text to compare it with" :
      joins(model) ? "Second text, for a pair" : "Second text";
  byId("text").value = ofModel[model.name] || (kind === "text" ? ofTask[task] || "The dog is good." : "");
  byId("second").value = task === "pair-classification" ? "The cat is old." : embeds ? "A good dog." : "";
  file = null;
  byId("write_field").hidden = task !== "causal-lm";
  byId("chat_field").hidden = !model.takesMessages;
  byId("chat").checked = false;
  byId("sparse_field").hidden = !isDense(model);
  byId("sparse").checked = false;
  byId("cap").value = 100;
  byId("samples").value = 0;
  const most = Number(model.limits?.samples) || 64;
  byId("samples").max = ensembles.filter((number) => number <= most).length - 1;
}

export function showValues(model) {
  const fixed = isDense(model) && !byId("sparse").checked;
  byId("cap").disabled = fixed;
  byId("cap_note").hidden = !fixed;
  byId("cap_note").textContent = "Dense attention keeps every pair. With sampled windows it can have a budget.";
  const text = share() < mostShare ? `at most ${percent(share())} of all pairs` : "no cap";
  byId("cap_value").textContent = fixed ? "every pair" : text;
  byId("cap").setAttribute("aria-valuetext", text);
  byId("samples_value").textContent = count(samples());
  byId("samples").setAttribute("aria-valuetext", String(samples()));
}

const numbers = (text) => text.split(/[\s,;]+/).filter(Boolean).map(Number);

function sequenceOf(model, text) {
  const kind = kindOf(model);
  if (kind === "image") return file && {image: file};
  if (!text.trim()) return null;
  if (kind === "text") return {text};
  if (text.trim().startsWith("{")) return JSON.parse(text);
  if (kind === "ids") return {tokenIds: {values: numbers(text)}};
  const values = numbers(text), columns = Number(model.featureSize);
  return {features: {rows: Math.ceil(values.length / columns), columns, values}};
}

// Null: there is nothing to ask yet.
function inputsOf(model) {
  const first = sequenceOf(model, byId("text").value), second = sequenceOf(model, byId("second").value);
  if (!first) return null;
  if (byId("second_field").hidden || !second) return [{sequence: first}];
  return model.task === "embedding" ? [{sequence: first}, {sequence: second}] : [{sequence: first, second}];
}

function settingsOf(model) {
  const settings = {model: model.name, version: model.version};
  if (isDense(model) && byId("sparse").checked) {
    settings.override = {kind: "ssa", windows: 4, sigma: [0.2]};
  } else if (isDense(model)) {
    return settings;
  }
  if (share() < mostShare) settings.budget = {maxDensity: share()};
  return settings;
}

export function predictRequest(model) {
  const inputs = inputsOf(model), labels = (model.labels || []).length;
  if (!inputs) return null;
  const outputs = {inputTokens: true, keyDegrees: true};
  if (model.task === "causal-lm") outputs.topK = Math.min(6, model.vocabSize);
  if (model.task === "fill-mask") outputs.topK = Math.min(5, model.vocabSize);
  if (model.task.endsWith("-classification") && model.task !== "token-classification" && labels > 0) {
    outputs.topK = Math.min(8, labels);
  }
  return {...settingsOf(model), inputs, ensemble: {samples: samples(), seed: byId("seed").value || "0"}, outputs};
}

export function generateRequest(model) {
  const text = byId("text").value, kind = kindOf(model);
  const prompt = byId("chat").checked ?
      {messages: [{role: "user", content: text}]} :
      {prompt: {...sequenceOf(model, text), truncate: kind === "text" ? "HEAD" : "REFUSE"}};
  return {
    ...settingsOf(model),
    ...prompt,
    ensemble: {samples: samples(), seed: byId("seed").value || "0"},
    maxNewTokens: Number(byId("tokens").value),
    temperature: Number(byId("temperature").value)
  };
}
